import java.io.BufferedReader;
import java.io.BufferedWriter;
import java.io.IOException;
import java.io.InputStreamReader;
import java.io.OutputStreamWriter;
import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.List;
import java.util.concurrent.BlockingQueue;
import java.util.concurrent.Executors;
import java.util.concurrent.LinkedBlockingQueue;
import java.util.concurrent.ScheduledExecutorService;
import java.util.concurrent.Semaphore;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.atomic.AtomicBoolean;
import java.util.concurrent.atomic.AtomicLong;
import org.apache.rocketmq.client.consumer.DefaultMQPushConsumer;
import org.apache.rocketmq.client.consumer.listener.ConsumeConcurrentlyStatus;
import org.apache.rocketmq.client.consumer.listener.MessageListenerConcurrently;
import org.apache.rocketmq.client.producer.DefaultMQProducer;
import org.apache.rocketmq.client.producer.SendCallback;
import org.apache.rocketmq.client.producer.SendResult;
import org.apache.rocketmq.common.consumer.ConsumeFromWhere;
import org.apache.rocketmq.common.message.Message;
import org.apache.rocketmq.common.message.MessageExt;

/**
 * RocketMQ's Java client as producer and consumers of the demo; the books are kept by the process
 * that started it, see java_traffic.py for the lines that the two exchange.
 */
public final class DemoClient {
    private static final int SENDS_OPEN = 96;
    private static final int CONSUMERS = 2;
    private static final long RETRY_PAUSE_MS = 50;
    private static final long SLOW_PAUSE_MS = 20;
    private static final int DIGITS = 10;
    /** Fetched ahead by a consumer: little, because what it holds needs no slave. */
    private static final int FETCHED_AHEAD = 128;

    private final BlockingQueue<String> lines = new LinkedBlockingQueue<>();
    private final Semaphore permits = new Semaphore(SENDS_OPEN);
    private final ScheduledExecutorService timer = Executors.newSingleThreadScheduledExecutor(DemoClient::daemon);
    private final AtomicLong acknowledged = new AtomicLong();
    private final AtomicLong consumed = new AtomicLong();
    private final List<DefaultMQPushConsumer> consumers = new ArrayList<>();
    private final DefaultMQProducer producer = new DefaultMQProducer("demo-writers");
    private final String nameServer;
    private final String topic;
    private final String group;
    private final int size;
    private final int rate;
    private volatile boolean writing = true;
    private volatile boolean slow = true;
    private volatile boolean rushing = false;

    private DemoClient(String[] arguments) {
        nameServer = arguments[0];
        topic = arguments[1];
        group = arguments[2];
        size = Integer.parseInt(arguments[3]);
        rate = Integer.parseInt(arguments[4]);
    }

    public static void main(String[] arguments) throws Exception {
        DemoClient client = new DemoClient(arguments);
        Thread printer = daemon(client::print);
        printer.start();
        client.start();
        Thread writer = daemon(client::write);
        client.obey(writer);
        client.lines.add("");
        printer.join();
        System.exit(0);
    }

    private static Thread daemon(Runnable work) {
        Thread thread = new Thread(work);
        thread.setDaemon(true);
        return thread;
    }

    private void start() throws Exception {
        producer.setNamesrvAddr(nameServer);
        producer.setVipChannelEnabled(false);
        // A retry under the same number would blur what one acknowledgement stands for.
        producer.setRetryTimesWhenSendAsyncFailed(0);
        // The look into the slave's files reads the numbers in the bodies.
        producer.setCompressMsgBodyOverHowmuch(Integer.MAX_VALUE);
        producer.start();
        for (int i = 0; i < CONSUMERS; i++) {
            DefaultMQPushConsumer consumer = new DefaultMQPushConsumer(group);
            consumer.setNamesrvAddr(nameServer);
            consumer.setInstanceName("demo-reader-" + i);
            consumer.setVipChannelEnabled(false);
            consumer.setConsumeFromWhere(ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET);
            // More threads would deliver one queue out of order by the listener's own doing.
            consumer.setConsumeThreadMin(1);
            consumer.setConsumeThreadMax(1);
            consumer.setPullThresholdForQueue(FETCHED_AHEAD);
            consumer.subscribe(topic, "*");
            consumer.registerMessageListener((MessageListenerConcurrently) (messages, context) -> take(messages));
            consumer.start();
            consumers.add(consumer);
        }
        lines.add("ready");
    }

    /** Commands on standard input; its end means that whoever started us is gone. */
    private void obey(Thread writer) throws Exception {
        BufferedReader reader = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        String command = reader.readLine();
        while (command != null && !command.equals("stop")) {
            if (command.equals("write")) {
                writer.start();
            } else if (command.equals("rush") || command.equals("calm")) {
                rushing = command.equals("rush");
            } else if (command.equals("hurry")) {
                slow = false;
            } else if (command.equals("stop-writing")) {
                stopWriting(writer);
                lines.add("stopped-writing");
            }
            command = reader.readLine();
        }
        stopWriting(writer);
        slow = false;
        consumers.forEach(DefaultMQPushConsumer::shutdown);
        producer.shutdown();
    }

    private void stopWriting(Thread writer) throws InterruptedException {
        writing = false;
        writer.join();
        // All permits: no send is open any more. A client that forgot one must not hold us forever.
        if (permits.tryAcquire(SENDS_OPEN, 15, TimeUnit.SECONDS)) {
            permits.release(SENDS_OPEN);
        }
    }

    private void write() {
        long started = System.nanoTime();
        long rushed = 0;
        for (long number = 0; writing; number++) {
            try {
                if (rate > 0 && !waitForTurn(started + (number - rushed) * 1_000_000_000L / rate)) {
                    rushed++;
                }
                permits.acquire();
            } catch (InterruptedException e) {
                return;
            }
            if (writing) {
                send(number);
            } else {
                permits.release();
            }
        }
    }

    /** False: it leaves before its time, because there is a rush. In steps, so that a rush is noticed. */
    private boolean waitForTurn(long due) throws InterruptedException {
        long ahead = due - System.nanoTime();
        while (ahead > 0 && writing && !rushing) {
            TimeUnit.NANOSECONDS.sleep(Math.min(ahead, 10_000_000L));
            ahead = due - System.nanoTime();
        }
        return ahead <= 0;
    }

    private void send(long number) {
        byte[] body = new byte[size];
        Arrays.fill(body, (byte) '.');
        byte[] digits = String.format("%0" + DIGITS + "d", number).getBytes(StandardCharsets.US_ASCII);
        System.arraycopy(digits, 0, body, 0, DIGITS);
        Message message = new Message(topic, body);
        message.setKeys(Long.toString(number));
        lines.add("sent " + number);
        Outcome outcome = new Outcome(number);
        try {
            producer.send(message, outcome);
        } catch (Exception e) {
            outcome.onException(e);
        }
    }

    /** The one answer to a send; the client may call back twice when a connection breaks. */
    private final class Outcome implements SendCallback {
        private final AtomicBoolean open = new AtomicBoolean(true);
        private final long started = System.nanoTime();
        private final long number;

        private Outcome(long number) {
            this.number = number;
        }

        @Override
        public void onSuccess(SendResult result) {
            if (!open.compareAndSet(true, false)) {
                return;
            }
            String status = result.getSendStatus().name();
            if (status.equals("SEND_OK")) {
                acknowledged.incrementAndGet();
                lines.add("ack " + number + " " + (System.nanoTime() - started) / 1000);
            } else {
                lines.add("unknown " + status);
            }
            permits.release();
        }

        @Override
        public void onException(Throwable error) {
            if (open.compareAndSet(true, false)) {
                lines.add("unknown " + error.getClass().getSimpleName());
                timer.schedule(() -> permits.release(), RETRY_PAUSE_MS, TimeUnit.MILLISECONDS);
            }
        }
    }

    private ConsumeConcurrentlyStatus take(List<MessageExt> messages) {
        for (MessageExt message : messages) {
            String number = new String(message.getBody(), 0, DIGITS, StandardCharsets.US_ASCII);
            lines.add("got " + number + " " + message.getBrokerName() + " " + message.getQueueId() + " "
                + message.getQueueOffset());
        }
        long taken = consumed.addAndGet(messages.size());
        // Until the master dies the readers stay behind: the rest is what only the slave can give.
        if (slow && taken > acknowledged.get() / 2) {
            try {
                TimeUnit.MILLISECONDS.sleep(SLOW_PAUSE_MS);
            } catch (InterruptedException e) {
                Thread.currentThread().interrupt();
            }
        }
        return ConsumeConcurrentlyStatus.CONSUME_SUCCESS;
    }

    /** The only writer of standard output; flushes when nothing waits. An empty line ends it. */
    private void print() {
        BufferedWriter out = new BufferedWriter(new OutputStreamWriter(System.out, StandardCharsets.UTF_8));
        try {
            for (String line = lines.take(); !line.isEmpty(); line = lines.take()) {
                out.write(line);
                out.write('\n');
                if (lines.isEmpty()) {
                    out.flush();
                }
            }
            out.flush();
        } catch (IOException | InterruptedException e) {
            // Nobody reads any more: without its books the run means nothing.
            Runtime.getRuntime().halt(1);
        }
    }
}
