package interop;

import java.io.ByteArrayOutputStream;
import java.io.PrintStream;
import java.lang.reflect.Method;
import java.nio.charset.StandardCharsets;

/** Apache's mqadmin inside this JVM: a verb costs a tenth of what a JVM of its own would. */
final class Mqadmin {
    private static final String STARTUP = "org.apache.rocketmq.tools.command.MQAdminStartup";

    private Mqadmin() {
    }

    /** Runs one verb; `arguments` is a line each. What it prints is reported, one verb at a time. */
    static synchronized void run(Job job) throws Exception {
        ByteArrayOutputStream printed = new ByteArrayOutputStream();
        PrintStream out = System.out;
        PrintStream err = System.err;
        PrintStream capture = new PrintStream(printed, true, StandardCharsets.UTF_8);
        System.setOut(capture);
        System.setErr(capture);
        try {
            // By name: the class path of the 5.x client has no tools.
            for (Method method : Class.forName(STARTUP).getMethods()) {
                if (method.getName().equals("main0")) {
                    method.invoke(null, job.text("arguments").split("\n"), null);
                }
            }
        } finally {
            System.setOut(out);
            System.setErr(err);
        }
        job.report("printed", "text", printed.toString(StandardCharsets.UTF_8));
        job.report("done");
    }
}
