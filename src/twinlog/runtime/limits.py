"""Named limits. Each number says where it comes from."""

from __future__ import annotations

TOPIC_LENGTH_MAX = 127  # RocketMQ's signed length byte.
PROPERTIES_SIZE_MAX = 32767  # RocketMQ's signed 16-bit length.
MESSAGE_SIZE_MAX = 4 * 1024 * 1024  # `maxMessageSize` of a 4.9 broker.
FRAME_SIZE_MAX = 16 * 1024 * 1024  # `com.rocketmq.remoting.frameMaxLength` of 4.9.
HA_BODY_SIZE_MAX = 4 * 1024 * 1024  # RocketMQ's slave read buffer: a larger body never fits.
CONSUME_QUEUE_FILES_OPEN_MAX = 512  # Half of the usual limit of descriptors of a process.
