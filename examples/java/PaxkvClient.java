import java.io.IOException;
import java.net.URI;
import java.net.http.HttpClient;
import java.net.http.HttpRequest;
import java.net.http.HttpResponse;
import java.net.http.HttpResponse.BodyHandlers;
import java.time.Duration;
import java.util.concurrent.ThreadLocalRandom;
import java.util.function.Consumer;
import java.util.stream.Stream;

/**
 * A client with nothing but the JDK (17 or later).
 *
 * <p>One HttpClient holds a pool of connections and is safe in threads. A request waits 120 s at
 * most; where the server is busy (503) it is tried again, after the time the server names or twice
 * the last wait, with some chance added so that clients do not return all at once.
 *
 * <pre>java examples/java/PaxkvClient.java http://127.0.0.1:8000 "What is a page table?"</pre>
 */
public final class PaxkvClient {
    private static final Duration READ_TIMEOUT = Duration.ofSeconds(120);
    private static final int MOST_TRIES = 6;
    private static final long FIRST_WAIT_MS = 500;
    private static final long LONGEST_WAIT_MS = 30_000;

    private final HttpClient http =
            HttpClient.newBuilder()
                    .version(HttpClient.Version.HTTP_1_1)
                    .connectTimeout(Duration.ofSeconds(10))
                    .build();
    private final URI base;
    private final String key;

    public PaxkvClient(String base, String key) {
        this.base = URI.create(base);
        this.key = key;
    }

    /** The response's body, as JSON. */
    public String chat(String json) throws IOException, InterruptedException {
        return send("/v1/chat/completions", json, BodyHandlers.ofString()).body();
    }

    /** Each event of a stream, as JSON, as it comes. */
    public void stream(String json, Consumer<String> event)
            throws IOException, InterruptedException {
        try (Stream<String> lines =
                send("/v1/chat/completions", json, BodyHandlers.ofLines()).body()) {
            lines.filter(line -> line.startsWith("data: "))
                    .map(line -> line.substring("data: ".length()))
                    .takeWhile(data -> !data.equals("[DONE]"))
                    .forEach(event);
        }
    }

    private <T> HttpResponse<T> send(String path, String json, HttpResponse.BodyHandler<T> handler)
            throws IOException, InterruptedException {
        HttpRequest.Builder builder =
                HttpRequest.newBuilder(base.resolve(path))
                        .timeout(READ_TIMEOUT)
                        .header("Content-Type", "application/json")
                        .POST(HttpRequest.BodyPublishers.ofString(json));
        if (key != null) {
            builder.header("Authorization", "Bearer " + key);
        }
        HttpRequest request = builder.build();
        long wait = FIRST_WAIT_MS;
        for (int tries = 1; ; tries++) {
            HttpResponse<T> response = http.send(request, handler);
            if (response.statusCode() == 200) {
                return response;
            }
            if (response.statusCode() != 503 || tries == MOST_TRIES) {
                throw new IOException("status " + response.statusCode() + ": " + told(response));
            }
            told(response); // read to its end, so that the connection returns to the pool
            long asked = response.headers().firstValueAsLong("Retry-After").orElse(0) * 1000;
            long pause = Math.min(LONGEST_WAIT_MS, Math.max(wait, asked));
            Thread.sleep(pause + ThreadLocalRandom.current().nextLong(pause / 4 + 1));
            wait *= 2;
        }
    }

    private static String told(HttpResponse<?> response) {
        if (response.body() instanceof Stream<?> lines) {
            try (lines) {
                return String.join("\n", lines.map(String::valueOf).toList());
            }
        }
        return String.valueOf(response.body());
    }

    private static String quoted(String text) {
        StringBuilder json = new StringBuilder("\"");
        for (char c : text.toCharArray()) {
            if (c == '"' || c == '\\') {
                json.append('\\').append(c);
            } else if (c < ' ') {
                json.append(String.format("\\u%04x", (int) c));
            } else {
                json.append(c);
            }
        }
        return json.append('"').toString();
    }

    public static void main(String[] arguments) throws Exception {
        PaxkvClient client = new PaxkvClient(arguments[0], System.getenv("PAXKV_API_KEY"));
        String messages = "[{\"role\": \"user\", \"content\": " + quoted(arguments[1]) + "}]";
        String fields = "{\"messages\": " + messages + ", \"temperature\": 0, \"max_tokens\": 32";
        System.out.println(client.chat(fields + "}"));
        client.stream(fields + ", \"stream\": true}", System.out::println);
    }
}
