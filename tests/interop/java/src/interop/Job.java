package interop;

import java.net.URLDecoder;
import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.HashMap;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;

/** One command: its arguments, its way to report, and what must be closed when it is stopped. */
final class Job {
    interface Closer {
        void close() throws Exception;
    }

    final String id;
    final String command;
    private final Map<String, String> arguments = new HashMap<>();
    private final List<Closer> closers = new ArrayList<>();
    private volatile boolean stopped;

    /** A line is: id command key=value key=value, values URL-encoded. */
    Job(String line) {
        String[] words = line.trim().split(" +");
        id = words[0];
        command = words[1];
        for (int i = 2; i < words.length; i++) {
            int equals = words[i].indexOf('=');
            String value = words[i].substring(equals + 1);
            arguments.put(words[i].substring(0, equals), URLDecoder.decode(value, StandardCharsets.UTF_8));
        }
    }

    String text(String key) {
        String value = arguments.get(key);
        if (value == null) {
            throw new IllegalArgumentException(command + " needs " + key);
        }
        return value;
    }

    String text(String key, String fallback) {
        return arguments.getOrDefault(key, fallback);
    }

    int number(String key, int fallback) {
        return arguments.containsKey(key) ? Integer.parseInt(arguments.get(key)) : fallback;
    }

    long longNumber(String key, long fallback) {
        return arguments.containsKey(key) ? Long.parseLong(arguments.get(key)) : fallback;
    }

    boolean has(String key) {
        return arguments.containsKey(key);
    }

    /** Report an event: pairs of name and value. */
    void report(String event, Object... pairs) {
        Map<String, Object> fields = new LinkedHashMap<>();
        fields.put("id", id);
        fields.put("event", event);
        for (int i = 0; i < pairs.length; i += 2) {
            fields.put((String) pairs[i], pairs[i + 1]);
        }
        Driver.print(Json.object(fields));
    }

    void error(Throwable cause) {
        report("error", "text", chain(cause));
    }

    /** The message of an exception and of all that caused it. */
    static String chain(Throwable cause) {
        StringBuilder text = new StringBuilder();
        for (Throwable t = cause; t != null; t = t.getCause()) {
            text.append(t.getClass().getSimpleName()).append(": ").append(t.getMessage()).append("; ");
        }
        return text.toString();
    }

    synchronized void onStop(Closer closer) {
        closers.add(closer);
    }

    /** Whether somebody asked for the end of what this job does. */
    boolean isStopped() {
        return stopped;
    }

    synchronized void stop() {
        stopped = true;
        for (Closer closer : closers) {
            try {
                closer.close();
            } catch (Exception e) {
                error(e);
            }
        }
        closers.clear();
        report("stopped");
    }
}
