"""Spark itself: sessions, Python functions as tasks, and points at which tests stop a process."""
