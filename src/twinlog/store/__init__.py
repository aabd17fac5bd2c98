"""The store: commit log, consume queues, index, flush, dispatch, recovery, retention."""
