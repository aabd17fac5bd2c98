"""Commit log, consume queues, index: RocketMQ's files, byte for byte.

`MessageStore` is the door; the rest of the package is behind it.
"""
