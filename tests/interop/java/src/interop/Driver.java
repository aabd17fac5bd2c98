package interop;

import java.io.BufferedReader;
import java.io.FileOutputStream;
import java.io.FileDescriptor;
import java.io.InputStreamReader;
import java.io.PrintStream;
import java.nio.charset.StandardCharsets;
import java.util.Map;
import java.util.concurrent.ConcurrentHashMap;

/**
 * RocketMQ's Java client, steered by lines on standard input, reporting JSON lines on standard output.
 *
 * <p>"ID COMMAND key=value ..." starts a command in a thread of its own; "ID stop" closes what it
 * opened. Facts only: what is right is for the test to say.
 */
public final class Driver {
    private static final PrintStream OUT =
        new PrintStream(new FileOutputStream(FileDescriptor.out), false, StandardCharsets.UTF_8);
    private static final Map<String, Job> JOBS = new ConcurrentHashMap<>();

    private Driver() {
    }

    static void print(String line) {
        synchronized (OUT) {
            OUT.println(line);
            OUT.flush();
        }
    }

    public static void main(String[] args) throws Exception {
        // The client prints to standard output now and then; that stream is ours alone.
        System.setOut(System.err);
        BufferedReader input = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        print("{\"id\":\"driver\",\"event\":\"ready\"}");
        for (String line = input.readLine(); line != null; line = input.readLine()) {
            if (!line.isBlank()) {
                accept(line);
            }
        }
        Runtime.getRuntime().halt(0);
    }

    private static void accept(String line) {
        String[] words = line.trim().split(" +", 3);
        Job known = JOBS.get(words[0]);
        if (known != null && words[1].equals("stop")) {
            JOBS.remove(words[0]);
            new Thread(known::stop, "stop-" + words[0]).start();
        } else if (known != null) {
            Consumers.control(known, new Job(line));
        } else {
            Job job = new Job(line);
            JOBS.put(job.id, job);
            new Thread(() -> run(job), "job-" + job.id).start();
        }
    }

    private static void run(Job job) {
        try {
            switch (job.command) {
                case "send" -> Sends.send(job);
                case "transaction" -> Transactions.send(job);
                case "probe-pull" -> Probes.pull(job);
                case "probe-send" -> Probes.send(job);
                case "request" -> Sends.request(job);
                case "reply" -> Consumers.reply(job);
                case "push" -> Consumers.push(job);
                case "pull" -> Consumers.pull(job);
                case "litepull" -> Consumers.litePull(job);
                case "offsets" -> Queries.offsets(job);
                case "query" -> Queries.query(job);
                case "view" -> Queries.view(job);
                case "mqadmin" -> Mqadmin.run(job);
                case "sendRate" -> Rates.send(job);
                case "consumeRate" -> Rates.consume(job);
                default -> throw new IllegalArgumentException("no command " + job.command);
            }
        } catch (Throwable e) {
            job.error(e);
            job.report("done");
        }
    }
}
