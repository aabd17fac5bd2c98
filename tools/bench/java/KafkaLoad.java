import java.util.List;
import java.util.Properties;
import java.util.Scanner;
import java.util.concurrent.atomic.AtomicLong;
import org.HdrHistogram.ConcurrentHistogram;
import org.apache.kafka.clients.admin.Admin;
import org.apache.kafka.clients.admin.NewTopic;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.common.serialization.ByteArraySerializer;

/**
 * Kafka's own producer under measurement: acks=all, batches of 64 KiB, its defaults otherwise.
 * Reads lines "TOPIC SIZE MILLISECONDS" and answers each with one line of JSON. It stays up, so that
 * later lines meet it warm.
 */
public final class KafkaLoad {
    public static void main(String[] arguments) throws Exception {
        Properties settings = new Properties();
        settings.put("bootstrap.servers", arguments[0]);
        try (Admin admin = Admin.create(settings)) {
            for (int i = 1; i < arguments.length; i++) {
                NewTopic topic = new NewTopic(arguments[i], 4, (short) 2);
                admin.createTopics(List.of(topic)).all().get();
            }
        }
        settings.put("acks", "all");
        settings.put("batch.size", "65536");
        settings.put("key.serializer", ByteArraySerializer.class.getName());
        settings.put("value.serializer", ByteArraySerializer.class.getName());
        System.out.println("ready");
        try (KafkaProducer<byte[], byte[]> producer = new KafkaProducer<>(settings);
                Scanner lines = new Scanner(System.in)) {
            while (lines.hasNextLine()) {
                String[] words = lines.nextLine().split(" ");
                int size = Integer.parseInt(words[1]);
                System.out.println(send(producer, words[0], size, Long.parseLong(words[2])));
            }
        }
    }

    private static String send(
            KafkaProducer<byte[], byte[]> producer, String topic, int size, long milliseconds) {
        byte[] body = new byte[size];
        for (int i = 0; i < size; i++) {
            body[i] = (byte) ('a' + i % 26);
        }
        AtomicLong acknowledged = new AtomicLong();
        AtomicLong failed = new AtomicLong();
        ConcurrentHistogram latency = new ConcurrentHistogram(3_600_000_000L, 3);
        long begin = System.nanoTime();
        long end = begin + milliseconds * 1_000_000;
        while (System.nanoTime() < end) {
            long left = System.nanoTime();
            producer.send(new ProducerRecord<>(topic, body), (metadata, error) -> {
                if (error != null) {
                    failed.incrementAndGet();
                    return;
                }
                acknowledged.incrementAndGet();
                latency.recordValue((System.nanoTime() - left) / 1000);
            });
        }
        producer.flush();
        double seconds = (System.nanoTime() - begin) / 1e9;
        return String.format(
                "{\"messages\": %d, \"failed\": %d, \"seconds\": %f, \"p99\": %f}",
                acknowledged.get(), failed.get(), seconds,
                latency.getValueAtPercentile(99) / 1000.0);
    }
}
