package interop;

import java.util.ArrayList;
import java.util.List;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.Semaphore;
import java.util.concurrent.TimeUnit;
import org.apache.rocketmq.client.producer.DefaultMQProducer;
import org.apache.rocketmq.client.producer.SendCallback;
import org.apache.rocketmq.client.producer.SendResult;
import org.apache.rocketmq.common.message.Message;
import org.apache.rocketmq.common.message.MessageQueue;

/** Sends in every mode of the Java client; each acknowledgement is reported by itself. */
final class Sends {
    private static final int IN_FLIGHT = 64;

    private Sends() {
    }

    static void send(Job job) throws Exception {
        DefaultMQProducer producer = Clients.producer(job);
        int first = job.number("first", 0);
        int end = first + job.number("count", 1);
        switch (job.text("mode", "sync")) {
            case "sync" -> each(job, first, end, n -> producer.send(Clients.message(job, n)));
            case "ordered" -> each(job, first, end, n -> producer.send(Clients.message(job, n), Sends::byKey, key(job, n)));
            case "queue" -> each(job, first, end, n -> producer.send(Clients.message(job, n), queueOf(job, producer)));
            case "oneway" -> oneway(job, producer, first, end);
            case "batch" -> batch(job, producer, first, end);
            case "async" -> async(job, producer, first, end);
            default -> throw new IllegalArgumentException("mode " + job.text("mode"));
        }
        job.report("done");
    }

    interface Sender {
        SendResult send(int n) throws Exception;
    }

    private static void each(Job job, int first, int end, Sender sender) throws Exception {
        int pauseMs = job.number("pauseMs", 0);
        for (int n = first; n < end && !job.isStopped(); n++) {
            try {
                report(job, n, 1, sender.send(n));
            } catch (Exception e) {
                job.report("failed", "n", n, "text", Job.chain(e));
            }
            if (pauseMs > 0) {
                TimeUnit.MILLISECONDS.sleep(pauseMs);
            }
        }
    }

    /** Messages with the same key go to one queue; the key is n modulo `keysOrdered`. */
    private static int key(Job job, int n) {
        return n % job.number("keysOrdered", 4);
    }

    private static MessageQueue byKey(List<MessageQueue> queues, Message message, Object key) {
        return queues.get((Integer) key % queues.size());
    }

    private static MessageQueue queueOf(Job job, DefaultMQProducer producer) throws Exception {
        for (MessageQueue queue : producer.fetchPublishMessageQueues(job.text("topic"))) {
            if (queue.getQueueId() == job.number("queue", 0)) {
                return queue;
            }
        }
        throw new IllegalArgumentException("no queue " + job.number("queue", 0));
    }

    private static void oneway(Job job, DefaultMQProducer producer, int first, int end) throws Exception {
        for (int n = first; n < end; n++) {
            producer.sendOneway(Clients.message(job, n));
            job.report("sent", "n", n, "status", "ONEWAY");
        }
        // A one-way send is buffered by the client's connection; closing at once would cut it off.
        TimeUnit.MILLISECONDS.sleep(500);
    }

    private static void batch(Job job, DefaultMQProducer producer, int first, int end) {
        int size = job.number("batch", 8);
        for (int from = first; from < end; from += size) {
            List<Message> messages = new ArrayList<>();
            for (int n = from; n < Math.min(end, from + size); n++) {
                messages.add(Clients.message(job, n));
            }
            try {
                report(job, from, messages.size(), producer.send(messages));
            } catch (Exception e) {
                job.report("failed", "n", from, "text", Job.chain(e));
            }
        }
    }

    private static void async(Job job, DefaultMQProducer producer, int first, int end) throws Exception {
        int width = job.number("window", IN_FLIGHT);
        Semaphore window = new Semaphore(width);
        CountDownLatch left = new CountDownLatch(end - first);
        for (int n = first; n < end; n++) {
            int number = n;
            window.acquire();
            SendCallback callback = new SendCallback() {
                @Override
                public void onSuccess(SendResult result) {
                    report(job, number, 1, result);
                    release();
                }

                @Override
                public void onException(Throwable e) {
                    job.report("failed", "n", number, "outstanding", width - window.availablePermits(), "text", Job.chain(e));
                    release();
                }

                private void release() {
                    window.release();
                    left.countDown();
                }
            };
            try {
                producer.send(Clients.message(job, n), callback);
            } catch (Exception e) {
                callback.onException(e);
            }
        }
        left.await();
    }

    static void report(Job job, int n, int members, SendResult result) {
        job.report("sent", "n", n, "members", members, "status", result.getSendStatus().name(),
            "msgId", result.getMsgId(), "offsetMsgId", result.getOffsetMsgId(),
            "broker", result.getMessageQueue().getBrokerName(),
            "queue", result.getMessageQueue().getQueueId(), "offset", result.getQueueOffset(),
            "transactionId", result.getTransactionId(), "region", result.getRegionId());
    }

    static void request(Job job) throws Exception {
        DefaultMQProducer producer = Clients.producer(job);
        int end = job.number("count", 1);
        for (int n = 0; n < end; n++) {
            try {
                Message answer = producer.request(Clients.message(job, n), job.number("waitMs", 10000));
                job.report("answer", "n", n, "body", new String(answer.getBody()));
            } catch (Exception e) {
                job.report("failed", "n", n, "text", Job.chain(e));
            }
        }
        job.report("done");
    }
}
