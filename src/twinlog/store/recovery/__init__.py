"""Finding the end of the log, and making queues and index follow it."""
