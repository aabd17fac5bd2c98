package interop;

import java.util.concurrent.Semaphore;
import java.util.concurrent.atomic.AtomicLong;
import org.apache.rocketmq.client.consumer.DefaultMQPushConsumer;
import org.apache.rocketmq.client.consumer.listener.ConsumeConcurrentlyStatus;
import org.apache.rocketmq.client.consumer.listener.MessageListenerConcurrently;
import org.apache.rocketmq.client.producer.DefaultMQProducer;
import org.apache.rocketmq.client.producer.SendCallback;
import org.apache.rocketmq.client.producer.SendResult;
import org.apache.rocketmq.client.producer.SendStatus;
import org.apache.rocketmq.common.message.Message;

/** How fast the Java client is: only totals are reported, nothing for a single message. */
final class Rates {
    private Rates() {
    }

    /** `mode` awaited: one after the other; pipelined: `window` at a time. For `seconds`. */
    static void send(Job job) throws Exception {
        DefaultMQProducer producer = Clients.producer(job);
        byte[] body = new byte[job.number("size", 128)];
        String topic = job.text("topic");
        boolean awaited = job.text("mode").equals("awaited");
        producer.send(new Message(topic, body));
        long cpu = cpuMillis();
        long start = System.nanoTime();
        long end = start + job.longNumber("milliseconds", 1000) * 1_000_000L;
        AtomicLong sent = new AtomicLong();
        int window = job.number("window", 256);
        Semaphore free = new Semaphore(window);
        SendCallback callback = new SendCallback() {
            @Override
            public void onSuccess(SendResult result) {
                if (result.getSendStatus() == SendStatus.SEND_OK) {
                    sent.incrementAndGet();
                }
                free.release();
            }

            @Override
            public void onException(Throwable e) {
                free.release();
            }
        };
        while (System.nanoTime() < end) {
            if (awaited) {
                producer.send(new Message(topic, body));
                sent.incrementAndGet();
            } else {
                free.acquire();
                producer.send(new Message(topic, body), callback);
            }
        }
        free.acquire(window);
        report(job, sent.get(), System.nanoTime() - start, cpuMillis() - cpu);
    }

    /** Consumes `count` messages; the time runs from the first to the last of them. */
    static void consume(Job job) throws Exception {
        DefaultMQPushConsumer consumer = Consumers.newPush(job);
        long count = job.longNumber("count", 1);
        AtomicLong taken = new AtomicLong();
        AtomicLong first = new AtomicLong();
        AtomicLong cpu = new AtomicLong();
        consumer.registerMessageListener((MessageListenerConcurrently) (messages, context) -> {
            if (first.compareAndSet(0, System.nanoTime())) {
                cpu.set(cpuMillis());
            }
            if (taken.addAndGet(messages.size()) == count) {
                report(job, count, System.nanoTime() - first.get(), cpuMillis() - cpu.get());
            }
            return ConsumeConcurrentlyStatus.CONSUME_SUCCESS;
        });
        consumer.start();
        job.onStop(consumer::shutdown);
    }

    private static long cpuMillis() {
        return ProcessHandle.current().info().totalCpuDuration().orElseThrow().toMillis();
    }

    private static void report(Job job, long messages, long nanoseconds, long cpu) {
        job.report("rate", "messages", messages, "seconds", nanoseconds / 1e9, "cpu", cpu / 1e3);
        job.report("done");
    }
}
