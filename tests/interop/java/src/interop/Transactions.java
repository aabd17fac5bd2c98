package interop;

import org.apache.rocketmq.client.producer.LocalTransactionState;
import org.apache.rocketmq.client.producer.TransactionListener;
import org.apache.rocketmq.client.producer.TransactionMQProducer;
import org.apache.rocketmq.common.message.Message;
import org.apache.rocketmq.common.message.MessageExt;

/**
 * Transactional sends. The argument `plans` (cycled over the messages) says what happens to each:
 * commit, rollback, check-commit and check-rollback (unknown first, decided when asked), never.
 */
final class Transactions {
    private static final String PLAN = "plan";

    private Transactions() {
    }

    static void send(Job job) throws Exception {
        TransactionMQProducer producer =
            new TransactionMQProducer(job.text("group"), Clients.hook(job));
        Clients.configure(producer, job);
        producer.setSendMsgTimeout(job.number("timeoutMs", 10000));
        producer.setTransactionListener(new Listener(job));
        producer.start();
        job.onStop(producer::shutdown);
        String[] plans = job.text("plans").split(",");
        for (int n = 0; n < job.number("count", 1); n++) {
            Message message = Clients.message(job, n);
            message.putUserProperty(PLAN, plans[n % plans.length]);
            try {
                Sends.report(job, n, 1, producer.sendMessageInTransaction(message, null));
            } catch (Exception e) {
                job.report("failed", "n", n, "text", Job.chain(e));
            }
        }
        job.report("done");
    }

    private record Listener(Job job) implements TransactionListener {
        @Override
        public LocalTransactionState executeLocalTransaction(Message message, Object argument) {
            return switch (message.getUserProperty(PLAN)) {
                case "commit" -> LocalTransactionState.COMMIT_MESSAGE;
                case "rollback" -> LocalTransactionState.ROLLBACK_MESSAGE;
                default -> LocalTransactionState.UNKNOW;
            };
        }

        @Override
        public LocalTransactionState checkLocalTransaction(MessageExt message) {
            Clients.reportMessage(job, "checked", message);
            return switch (message.getUserProperty(PLAN)) {
                case "commit", "check-commit" -> LocalTransactionState.COMMIT_MESSAGE;
                case "rollback", "check-rollback" -> LocalTransactionState.ROLLBACK_MESSAGE;
                default -> LocalTransactionState.UNKNOW;
            };
        }
    }
}
