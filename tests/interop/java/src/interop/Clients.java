package interop;

import java.lang.reflect.Method;
import java.nio.charset.StandardCharsets;
import java.util.zip.CRC32;
import org.apache.rocketmq.acl.common.AclClientRPCHook;
import org.apache.rocketmq.acl.common.SessionCredentials;
import org.apache.rocketmq.client.ClientConfig;
import org.apache.rocketmq.client.consumer.DefaultLitePullConsumer;
import org.apache.rocketmq.client.consumer.DefaultMQPushConsumer;
import org.apache.rocketmq.client.consumer.MessageSelector;
import org.apache.rocketmq.client.producer.DefaultMQProducer;
import org.apache.rocketmq.common.message.Message;
import org.apache.rocketmq.common.message.MessageExt;
import org.apache.rocketmq.remoting.RPCHook;

/** What all commands share: client settings, message bodies, reports about messages. */
final class Clients {
    private static final String FILLER = "abcdefghijklmnopqrstuvwxyz0123456789";

    private Clients() {
    }

    static RPCHook hook(Job job) {
        if (!job.has("ak")) {
            return null;
        }
        return new AclClientRPCHook(new SessionCredentials(job.text("ak"), job.text("sk")));
    }

    static void configure(ClientConfig client, Job job) {
        client.setNamesrvAddr(job.text("namesrv"));
        client.setInstanceName(job.text("instance", job.id));
        client.setVipChannelEnabled(job.text("vip", "false").equals("true"));
        client.setPollNameServerInterval(job.number("routeMs", 1000));
        client.setHeartbeatBrokerInterval(job.number("heartbeatMs", 1000));
        client.setPersistConsumerOffsetInterval(job.number("persistMs", 500));
        client.setUseTLS(job.text("tls", "false").equals("true"));
    }

    static DefaultMQProducer producer(Job job) throws Exception {
        boolean trace = job.text("trace", "false").equals("true");
        DefaultMQProducer producer =
            new DefaultMQProducer(job.text("group", "driver"), hook(job), trace, null);
        configure(producer, job);
        producer.setSendMsgTimeout(job.number("timeoutMs", 10000));
        producer.setRetryTimesWhenSendFailed(job.number("retries", 2));
        producer.setRetryTimesWhenSendAsyncFailed(job.number("retries", 2));
        producer.setCompressMsgBodyOverHowmuch(job.number("compressOver", 4096));
        producer.setMaxMessageSize(64 * 1024 * 1024);
        producer.start();
        job.onStop(producer::shutdown);
        return producer;
    }

    /** MessageModel moved to another package in RocketMQ 5; the name is the same. */
    static void setModel(Object consumer, String name) throws Exception {
        for (Method method : consumer.getClass().getMethods()) {
            if (method.getName().equals("setMessageModel")) {
                Object model = method.getParameterTypes()[0].getMethod("valueOf", String.class).invoke(null, name);
                method.invoke(consumer, model);
                return;
            }
        }
        throw new NoSuchMethodException("setMessageModel");
    }

    static void subscribe(DefaultMQPushConsumer consumer, Job job) throws Exception {
        for (String topic : job.text("topic").split(",")) {
            if (job.has("sql")) {
                consumer.subscribe(topic, MessageSelector.bySql(job.text("sql")));
            } else {
                consumer.subscribe(topic, job.text("expression", "*"));
            }
        }
    }

    static void subscribe(DefaultLitePullConsumer consumer, Job job) throws Exception {
        if (job.has("sql")) {
            consumer.subscribe(job.text("topic"), MessageSelector.bySql(job.text("sql")));
        } else {
            consumer.subscribe(job.text("topic"), job.text("expression", "*"));
        }
    }

    /** Body of message n: "PREFIX-n:" and filler up to the size that the job asks for. */
    static byte[] body(Job job, int n) {
        StringBuilder text = new StringBuilder(job.text("prefix", "m")).append('-').append(n).append(':');
        int size = size(job, n);
        while (text.length() < size) {
            text.append(FILLER, 0, Math.min(FILLER.length(), size - text.length()));
        }
        return text.toString().getBytes(StandardCharsets.UTF_8);
    }

    private static int size(Job job, int n) {
        String[] sizes = job.text("sizes", "0").split(",");
        return Integer.parseInt(sizes[n % sizes.length]);
    }

    static Message message(Job job, int n) {
        Message message = new Message(job.text("topic"), body(job, n));
        if (job.has("tags")) {
            String[] tags = job.text("tags").split(",");
            message.setTags(tags[n % tags.length]);
        }
        if (job.has("keys")) {
            message.setKeys(job.text("keys") + n);
        }
        if (job.has("delay")) {
            message.setDelayTimeLevel(job.number("delay", 1));
        }
        message.putUserProperty("n", Integer.toString(n));
        if (job.has("properties")) {
            String[] sets = job.text("properties").split("\\|");
            for (String pair : sets[n % sets.length].split(";")) {
                int equals = pair.indexOf('=');
                if (equals > 0) {
                    message.putUserProperty(pair.substring(0, equals), pair.substring(equals + 1));
                }
            }
        }
        return message;
    }

    static void reportMessage(Job job, String event, MessageExt message) {
        byte[] body = message.getBody();
        CRC32 crc = new CRC32();
        crc.update(body);
        String head = new String(body, 0, Math.min(body.length, 64), StandardCharsets.UTF_8);
        int colon = head.indexOf(':');
        job.report(event,
            "name", colon >= 0 ? head.substring(0, colon) : head,
            "size", body.length, "crc", crc.getValue(),
            "topic", message.getTopic(), "broker", message.getBrokerName(),
            "queue", message.getQueueId(), "offset", message.getQueueOffset(),
            "physical", message.getCommitLogOffset(), "msgId", message.getMsgId(),
            "tags", message.getTags(), "keys", message.getKeys(), "reconsume", message.getReconsumeTimes(),
            "born", message.getBornTimestamp(), "stored", message.getStoreTimestamp(),
            "seen", System.currentTimeMillis(), "thread", Thread.currentThread().getId(),
            "properties", message.getProperties());
    }
}
