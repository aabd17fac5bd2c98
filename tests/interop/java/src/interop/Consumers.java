package interop;

import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.Collection;
import java.util.List;
import java.util.Map;
import java.util.concurrent.ConcurrentHashMap;
import org.apache.rocketmq.client.consumer.DefaultLitePullConsumer;
import org.apache.rocketmq.client.consumer.DefaultMQPullConsumer;
import org.apache.rocketmq.client.consumer.DefaultMQPushConsumer;
import org.apache.rocketmq.client.consumer.PullResult;
import org.apache.rocketmq.client.consumer.listener.ConsumeConcurrentlyStatus;
import org.apache.rocketmq.client.consumer.listener.ConsumeOrderlyStatus;
import org.apache.rocketmq.client.consumer.listener.MessageListenerConcurrently;
import org.apache.rocketmq.client.consumer.listener.MessageListenerOrderly;
import org.apache.rocketmq.client.consumer.rebalance.AllocateMessageQueueAveragely;
import org.apache.rocketmq.client.producer.DefaultMQProducer;
import org.apache.rocketmq.client.utils.MessageUtil;
import org.apache.rocketmq.common.consumer.ConsumeFromWhere;
import org.apache.rocketmq.common.message.Message;
import org.apache.rocketmq.common.message.MessageExt;
import org.apache.rocketmq.common.message.MessageQueue;

/** Consumers of every kind; each message that arrives is reported by itself. */
final class Consumers {
    private static final Map<String, DefaultLitePullConsumer> LITE = new ConcurrentHashMap<>();

    private Consumers() {
    }

    /**
     * Push. `fail` = N: every message is refused while it was delivered fewer than N times.
     * `failTag`: only messages with that tag are refused.
     */
    static void push(Job job) throws Exception {
        DefaultMQPushConsumer consumer = newPush(job);
        if (job.text("order", "false").equals("true")) {
            consumer.registerMessageListener((MessageListenerOrderly) (messages, context) ->
                takeAll(job, messages) ? ConsumeOrderlyStatus.SUCCESS : ConsumeOrderlyStatus.SUSPEND_CURRENT_QUEUE_A_MOMENT);
        } else {
            consumer.registerMessageListener((MessageListenerConcurrently) (messages, context) ->
                takeAll(job, messages) ? ConsumeConcurrentlyStatus.CONSUME_SUCCESS : ConsumeConcurrentlyStatus.RECONSUME_LATER);
        }
        consumer.start();
        job.onStop(consumer::shutdown);
        job.report("started", "client", consumer.buildMQClientId());
    }

    static DefaultMQPushConsumer newPush(Job job) throws Exception {
        boolean trace = job.text("trace", "false").equals("true");
        DefaultMQPushConsumer consumer = new DefaultMQPushConsumer(job.text("group"), Clients.hook(job),
            new AllocateMessageQueueAveragely(), trace, null);
        Clients.configure(consumer, job);
        consumer.setConsumeFromWhere(ConsumeFromWhere.valueOf("CONSUME_FROM_" + job.text("from", "FIRST") + "_OFFSET"));
        Clients.setModel(consumer, job.text("model", "CLUSTERING"));
        consumer.setConsumeMessageBatchMaxSize(job.number("batch", 1));
        consumer.setMaxReconsumeTimes(job.number("maxReconsume", -1));
        consumer.setConsumeThreadMin(job.number("threads", 4));
        consumer.setConsumeThreadMax(job.number("threads", 4));
        consumer.setSuspendCurrentQueueTimeMillis(200);
        Clients.subscribe(consumer, job);
        return consumer;
    }

    private static boolean takeAll(Job job, List<MessageExt> messages) {
        boolean taken = true;
        for (MessageExt message : messages) {
            Clients.reportMessage(job, "message", message);
            boolean concerned = !job.has("failTag") || job.text("failTag").equals(message.getTags());
            taken &= !concerned || message.getReconsumeTimes() >= job.number("fail", 0);
        }
        return taken;
    }

    /** Answers every request with "re:" and the name of the message. */
    static void reply(Job job) throws Exception {
        DefaultMQProducer producer = Clients.producer(job);
        DefaultMQPushConsumer consumer = newPush(job);
        consumer.registerMessageListener((MessageListenerConcurrently) (messages, context) -> {
            for (MessageExt message : messages) {
                Clients.reportMessage(job, "message", message);
                answer(job, producer, message);
            }
            return ConsumeConcurrentlyStatus.CONSUME_SUCCESS;
        });
        consumer.start();
        job.onStop(consumer::shutdown);
        job.report("started");
    }

    private static void answer(Job job, DefaultMQProducer producer, MessageExt message) {
        String name = new String(message.getBody(), StandardCharsets.UTF_8).split(":")[0];
        try {
            Message reply = MessageUtil.createReplyMessage(message, ("re:" + name).getBytes(StandardCharsets.UTF_8));
            producer.send(reply, 5000);
        } catch (Exception e) {
            job.error(e);
        }
    }

    /** Reads every queue from `offset` (default: its minimum) to its end with the pull consumer. */
    @SuppressWarnings("deprecation")
    static void pull(Job job) throws Exception {
        DefaultMQPullConsumer consumer = new DefaultMQPullConsumer(job.text("group"), Clients.hook(job));
        Clients.configure(consumer, job);
        consumer.start();
        job.onStop(consumer::shutdown);
        for (MessageQueue queue : consumer.fetchSubscribeMessageQueues(job.text("topic"))) {
            long offset = job.has("offset") ? job.longNumber("offset", 0) : consumer.minOffset(queue);
            pullQueue(job, consumer, queue, offset);
        }
        job.report("done");
    }

    @SuppressWarnings("deprecation")
    private static void pullQueue(Job job, DefaultMQPullConsumer consumer, MessageQueue queue, long from)
        throws Exception {
        long offset = from;
        while (true) {
            PullResult result = consumer.pull(queue, job.text("expression", "*"), offset, job.number("batch", 32));
            job.report("pulled", "queue", queue.getQueueId(), "broker", queue.getBrokerName(), "status", result.getPullStatus().name(),
                "next", result.getNextBeginOffset(), "min", result.getMinOffset(), "max", result.getMaxOffset());
            boolean stuck = result.getNextBeginOffset() == offset;
            offset = result.getNextBeginOffset();
            if (result.getMsgFoundList() != null) {
                result.getMsgFoundList().forEach(message -> Clients.reportMessage(job, "message", message));
            } else if (stuck || !result.getPullStatus().name().equals("NO_MATCHED_MSG")) {
                break;
            }
        }
        if (job.text("commit", "false").equals("true")) {
            consumer.updateConsumeOffset(queue, offset);
            consumer.getOffsetStore().persist(queue);
        }
    }

    /** Lite pull: subscribes, or with `assign` takes all queues itself; "ID seek offset=N" moves it. */
    static void litePull(Job job) throws Exception {
        DefaultLitePullConsumer consumer = new DefaultLitePullConsumer(job.text("group"), Clients.hook(job));
        Clients.configure(consumer, job);
        consumer.setConsumeFromWhere(ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET);
        consumer.setAutoCommitIntervalMillis(1000);
        boolean assign = job.has("assign");
        if (!assign) {
            Clients.subscribe(consumer, job);
        }
        consumer.start();
        if (assign) {
            consumer.assign(consumer.fetchMessageQueues(job.text("topic")));
        }
        LITE.put(job.id, consumer);
        boolean[] running = {true};
        job.onStop(() -> {
            running[0] = false;
            LITE.remove(job.id);
            consumer.shutdown();
        });
        job.report("started");
        while (running[0]) {
            for (MessageExt message : consumer.poll(200)) {
                Clients.reportMessage(job, "message", message);
            }
        }
    }

    /** A command for a job that runs: seek (all queues to `offset`, `begin` or `end`). */
    static void control(Job job, Job command) {
        try {
            DefaultLitePullConsumer consumer = LITE.get(job.id);
            Collection<MessageQueue> queues = new ArrayList<>(consumer.fetchMessageQueues(job.text("topic")));
            for (MessageQueue queue : queues) {
                switch (command.text("to", "offset")) {
                    case "begin" -> consumer.seekToBegin(queue);
                    case "end" -> consumer.seekToEnd(queue);
                    default -> consumer.seek(queue, command.longNumber("offset", 0));
                }
            }
            job.report("sought", "queues", queues.size());
        } catch (Exception e) {
            job.error(e);
        }
    }
}
