package interop;

import org.apache.rocketmq.client.QueryResult;
import org.apache.rocketmq.client.consumer.DefaultMQPullConsumer;
import org.apache.rocketmq.client.producer.DefaultMQProducer;
import org.apache.rocketmq.common.message.MessageExt;
import org.apache.rocketmq.common.message.MessageQueue;

/** Questions to the broker: offsets, messages by key, message by id. */
final class Queries {
    private Queries() {
    }

    @SuppressWarnings("deprecation")
    static void offsets(Job job) throws Exception {
        DefaultMQPullConsumer consumer = new DefaultMQPullConsumer(job.text("group"), Clients.hook(job));
        Clients.configure(consumer, job);
        consumer.start();
        job.onStop(consumer::shutdown);
        for (MessageQueue queue : consumer.fetchSubscribeMessageQueues(job.text("topic"))) {
            job.report("queue", "broker", queue.getBrokerName(), "queue", queue.getQueueId(),
                "min", consumer.minOffset(queue), "max", consumer.maxOffset(queue),
                "earliest", consumer.earliestMsgStoreTime(queue),
                "byTime", consumer.searchOffset(queue, job.longNumber("time", 0)),
                "consumed", consumer.fetchConsumeOffset(queue, true));
        }
        job.report("done");
    }

    static void query(Job job) throws Exception {
        DefaultMQProducer producer = Clients.producer(job);
        QueryResult result = producer.queryMessage(job.text("topic"), job.text("key"),
            job.number("count", 32), 0, System.currentTimeMillis() + 60_000);
        for (MessageExt message : result.getMessageList()) {
            Clients.reportMessage(job, "message", message);
        }
        job.report("done");
    }

    static void view(Job job) throws Exception {
        DefaultMQProducer producer = Clients.producer(job);
        Clients.reportMessage(job, "message", producer.viewMessage(job.text("topic"), job.text("msgId")));
        job.report("done");
    }
}
