"""The commit log: its files, appends and flushes."""
