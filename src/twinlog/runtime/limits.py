"""Named limits. Each number says where it comes from."""

from __future__ import annotations

TOPIC_LENGTH_MAX = 127  # RocketMQ's signed length byte.
PROPERTIES_SIZE_MAX = 32767  # RocketMQ's signed 16-bit length.
MESSAGE_SIZE_MAX = 4 * 1024 * 1024  # `maxMessageSize` of a 4.9 broker.
TOPIC_QUEUES_MAX = 16_384  # Far above use; each queue is a directory.
# Messages of one batch, stored in one turn of the loop. One of Java's client has its unique id and
# 77 bytes or more: 4 MiB have room for 54,000.
BATCH_COUNT_MAX = 65_536
# The same where the properties have what no client sends: zeros, bytes that are not UTF-8.
BATCH_UNUSUAL_MAX = 4_096
BATCH_KEYS_MAX = 131_072  # Of all its messages together; each is an entry of the index.
FRAME_SIZE_MAX = 16 * 1024 * 1024  # `com.rocketmq.remoting.frameMaxLength` of 4.9.
HA_BODY_SIZE_MAX = 4 * 1024 * 1024  # RocketMQ's slave read buffer: a larger body never fits.
CONSUME_QUEUE_FILES_OPEN_MAX = 512  # Half of the usual limit of descriptors of a process.
HA_RUN_SIZE_MAX = 512 * 1024  # Read from the log at a time for one slave; bounds memory per slave.
HA_CONNECTION_COUNT_MAX = 256  # Slaves and strangers on the HA port together.
HA_UNPROVED_PER_HOST_MAX = 16  # Of one address, before a report or a proof: 240 stay for others.
HA_SUSPENDED_PER_HOST_MAX = 4  # Connections held silent for one address; more are closed at once.
HA_REPORT_BACKLOG_MAX = 64 * 1024  # Unsent reports: a master that reads none of 8,192 is stuck.
HA_DEPARTED_COUNT_MAX = 16  # Former connections that the status remembers, with the reason.
