"""Keys of a `broker.conf` that tune a JVM: thread pools, Netty's client, billing. Nothing here has
such parts; people's files hold the keys, so they are accepted and shown.
"""

from __future__ import annotations

import os
from typing import Annotated

from twinlog.runtime.config_key import Natural, Positive, no_effect
from twinlog.runtime.server_config import NO_NETTY, NO_THREADS, SYSTEM_BUFFERS, RemotingConfig

_CPUS = os.cpu_count() or 1
_NO_BILLING = "the key belongs to the billing of a hosted service"


class JvmConfig(RemotingConfig, kw_only=True):
    """What a broker can be told without effect."""

    # Connections to other servers: keys of NettyClientConfig.
    connect_timeout_millis: Annotated[
        Positive, no_effect("How long a connection may take, in ms.", "the limit is always 3000 ms")
    ] = 3000
    channel_not_active_interval: Annotated[
        Positive, no_effect("Age at which Netty looks at a channel again, in ms.", NO_NETTY)
    ] = 60000
    client_channel_max_idle_time_seconds: Annotated[Natural, no_effect(
        "Seconds of silence after which a connection to another server is closed.",
        "the other server closes idle connections"
    )] = 120  # fmt: skip
    client_socket_snd_buf_size: Annotated[
        Natural, no_effect("Send buffer of a socket, in bytes.", SYSTEM_BUFFERS)
    ] = 0
    client_socket_rcv_buf_size: Annotated[
        Natural, no_effect("Receive buffer of a socket, in bytes.", SYSTEM_BUFFERS)
    ] = 0
    client_close_socket_if_timeout: Annotated[
        bool, no_effect("Close a connection on which a request timed out.", NO_NETTY)
    ] = True

    # Threads and other parts of a JVM. The capacities are shown by brokerStatus.
    send_message_thread_pool_nums: Annotated[
        int, no_effect("Threads that handle sends.", NO_THREADS, default="CPUs, at most 4")
    ] = min(_CPUS, 4)
    put_message_future_thread_pool_nums: Annotated[
        int, no_effect("Threads that answer sends.", NO_THREADS, default="CPUs, at most 4")
    ] = min(_CPUS, 4)
    pull_message_thread_pool_nums: Annotated[
        int, no_effect("Threads that handle pulls.", NO_THREADS, default="16 + 2 × CPUs")
    ] = 16 + 2 * _CPUS
    process_reply_message_thread_pool_nums: Annotated[
        int, no_effect("Threads that handle replies.", NO_THREADS, default="16 + 2 × CPUs")
    ] = 16 + 2 * _CPUS
    query_message_thread_pool_nums: Annotated[
        int, no_effect("Threads that handle queries.", NO_THREADS, default="8 + CPUs")
    ] = 8 + _CPUS
    admin_broker_thread_pool_nums: Annotated[
        int, no_effect("Threads that handle requests of administrators.", NO_THREADS)
    ] = 16
    client_manage_thread_pool_nums: Annotated[
        int, no_effect("Threads that handle clients who come and go.", NO_THREADS)
    ] = 32
    consumer_manage_thread_pool_nums: Annotated[
        int, no_effect("Threads that handle offsets of consumers.", NO_THREADS)
    ] = 32
    heartbeat_thread_pool_nums: Annotated[
        int, no_effect("Threads that handle heartbeats.", NO_THREADS, default="CPUs, at most 32")
    ] = min(32, _CPUS)
    end_transaction_thread_pool_nums: Annotated[int, no_effect(
        "Threads that end transactions.", NO_THREADS, default="8 + 2 × CPUs or more"
    )] = max(8 + 2 * _CPUS, 4 * min(_CPUS, 4))  # fmt: skip
    send_thread_pool_queue_capacity: Annotated[
        int, no_effect("Sends that may wait for a thread.", NO_THREADS)
    ] = 10000
    put_thread_pool_queue_capacity: Annotated[
        int, no_effect("Answers to sends that may wait for a thread.", NO_THREADS)
    ] = 10000
    pull_thread_pool_queue_capacity: Annotated[
        int, no_effect("Pulls that may wait for a thread.", NO_THREADS)
    ] = 100000
    reply_thread_pool_queue_capacity: Annotated[
        int, no_effect("Replies that may wait for a thread.", NO_THREADS)
    ] = 10000
    query_thread_pool_queue_capacity: Annotated[
        int, no_effect("Queries that may wait for a thread.", NO_THREADS)
    ] = 20000
    client_manager_thread_pool_queue_capacity: Annotated[
        int, no_effect("Requests of clients who come and go that may wait.", NO_THREADS)
    ] = 1000000
    consumer_manager_thread_pool_queue_capacity: Annotated[
        int, no_effect("Requests for offsets that may wait for a thread.", NO_THREADS)
    ] = 1000000
    heartbeat_thread_pool_queue_capacity: Annotated[
        int, no_effect("Heartbeats that may wait for a thread.", NO_THREADS)
    ] = 50000
    end_transaction_pool_queue_capacity: Annotated[
        int, no_effect("Ends of transactions that may wait for a thread.", NO_THREADS)
    ] = 100000
    high_speed_mode: Annotated[
        bool, no_effect("A switch of old versions.", "Apache's broker does not read it either")
    ] = False
    isolate_log_enable: Annotated[bool, no_effect(
        "Log files of each broker in a container.", "twinlogLogFile names the log file"
    )] = False  # fmt: skip
    commercial_enable: Annotated[bool, no_effect("Count what is billed.", _NO_BILLING)] = True
    commercial_timer_count: Annotated[
        int, no_effect("How a delayed message counts.", _NO_BILLING)
    ] = 1
    commercial_trans_count: Annotated[
        int, no_effect("How a transactional message counts.", _NO_BILLING)
    ] = 1
    commercial_big_count: Annotated[int, no_effect("How a large message counts.", _NO_BILLING)] = 1
    commercial_base_count: Annotated[
        int, no_effect("How any other message counts.", _NO_BILLING)
    ] = 1
    client_worker_threads: Annotated[
        int, no_effect("Threads that encode requests to other servers.", NO_THREADS)
    ] = 4
    client_callback_executor_threads: Annotated[int, no_effect(
        "Threads that handle the answers of other servers.", NO_THREADS, default="CPUs"
    )] = _CPUS  # fmt: skip
    client_oneway_semaphore_value: Annotated[
        int, no_effect("One-way requests to other servers under way.", NO_NETTY)
    ] = 65535
    client_async_semaphore_value: Annotated[
        int, no_effect("Asynchronous requests to other servers under way.", NO_NETTY)
    ] = 65535
    client_pooled_byte_buf_allocator_enable: Annotated[bool, no_effect(
        "Take the buffers of requests to other servers from Netty's pool.", NO_NETTY
    )] = False  # fmt: skip
