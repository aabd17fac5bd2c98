package interop;

import java.util.concurrent.TimeUnit;
import org.apache.rocketmq.client.consumer.DefaultMQPullConsumer;
import org.apache.rocketmq.client.consumer.PullResult;
import org.apache.rocketmq.client.producer.DefaultMQProducer;
import org.apache.rocketmq.client.producer.SendResult;
import org.apache.rocketmq.common.message.MessageQueue;

/** Clients that try one thing over and over and report every change between works and fails. */
final class Probes {
    private static final int PAUSE_MS = 20;

    private Probes() {
    }

    private interface Attempt {
        /** A word for what came of it. */
        String run(int n) throws Exception;
    }

    /** Reads the first messages of a topic's queue 0 again and again. */
    @SuppressWarnings("deprecation")
    static void pull(Job job) throws Exception {
        DefaultMQPullConsumer consumer = new DefaultMQPullConsumer(job.text("group"), Clients.hook(job));
        Clients.configure(consumer, job);
        consumer.setConsumerPullTimeoutMillis(3000);
        consumer.start();
        job.onStop(consumer::shutdown);
        MessageQueue queue = null;
        for (MessageQueue found : consumer.fetchSubscribeMessageQueues(job.text("topic"))) {
            queue = found.getQueueId() == 0 ? found : queue;
        }
        MessageQueue chosen = queue;
        repeat(job, n -> {
            PullResult result = consumer.pull(chosen, "*", 0, 1, 3000);
            return result.getPullStatus().name();
        });
    }

    /** Sends one message after the other, none twice. */
    static void send(Job job) throws Exception {
        DefaultMQProducer producer = Clients.producer(job);
        repeat(job, n -> {
            SendResult result = producer.send(Clients.message(job, n));
            Sends.report(job, n, 1, result);
            return result.getSendStatus().name();
        });
    }

    private static void repeat(Job job, Attempt attempt) throws Exception {
        boolean[] running = {true};
        job.onStop(() -> running[0] = false);
        String before = "";
        for (int n = 0; running[0]; n++) {
            String now;
            try {
                now = attempt.run(n);
            } catch (Exception e) {
                now = "FAILED";
            }
            if (!now.equals(before)) {
                job.report("state", "is", now, "seen", System.currentTimeMillis());
                before = now;
            }
            TimeUnit.MILLISECONDS.sleep(PAUSE_MS);
        }
    }
}
