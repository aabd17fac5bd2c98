"""Routes: which brokers are alive, where they are and which queues they have."""
