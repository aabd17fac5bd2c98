"""Keys that more than one server has: log lines, accounts and TLS of every server; sockets and
quotas of brokers and name servers, which answer to NettyServerConfig.

A struct can have one base, so the structs of a broker's keys stand in a line: ServerConfig,
RemotingConfig, JvmConfig, MessageStoreConfig, BrokerConfig.
"""

from __future__ import annotations

import re
from enum import StrEnum
from typing import Annotated

import msgspec

from twinlog.runtime.addresses import NOT_A_HOST, is_host, is_wildcard
from twinlog.runtime.config_format import properties_text
from twinlog.runtime.config_key import (
    Finding,
    Natural,
    NaturalLong,
    Port,
    Positive,
    PositiveLong,
    no_effect,
    used,
)
from twinlog.runtime.log_config import LogFormat, LogLevel
from twinlog.runtime.tls import TlsConfig

NO_THREADS = "a twinlog server works in one event loop and has no thread pools or their queues"
NO_NETTY = "this is a setting of Apache's network library, which twinlog does not use"
SYSTEM_BUFFERS = "the operating system sizes the buffers of sockets"


_LABEL = re.compile(r"([a-zA-Z_][a-zA-Z0-9_]*):([^:,]*)")


class MetricsExporterType(StrEnum):
    DISABLE = "DISABLE"
    OTLP_GRPC = "OTLP_GRPC"
    PROM = "PROM"
    LOG = "LOG"


def labels_of(text: str) -> dict[str, str] | None:
    """The labels of metricsLabel; None when it cannot be read."""
    found: dict[str, str] = {}
    for item in filter(None, text.split(",")):
        match = _LABEL.fullmatch(item.strip())
        if match is None:
            return None
        found[match[1]] = match[2]
    return found


class ServerConfig(msgspec.Struct, kw_only=True):
    """What every server can be told."""

    rocketmq_home: Annotated[str | None, used(
        "Directory whose conf/plain_acl.yml holds the accounts.",
        default="the environment variable ROCKETMQ_HOME"
    )] = None  # fmt: skip
    bind_address: Annotated[str, used(
        "Address to listen on. The default is loopback, so that nothing is open by accident."
    )] = "127.0.0.1"  # fmt: skip
    acl_enable: Annotated[bool, used(
        "Answer only the accounts in conf/plain_acl.yml below rocketmqHome. The server does not"
        " start when the file is missing or damaged.",
        is_important=True
    )] = False  # fmt: skip
    use_tls: Annotated[
        bool, used("Connect to other servers over TLS, with the files of tls.client.*.")
    ] = False
    tls: TlsConfig = msgspec.field(default_factory=TlsConfig)
    origins: dict[str, str] = msgspec.field(default_factory=dict)
    """Where a value is from, by key: `Origin`. A key that is not here has its default."""

    # Where log lines go and how they look; see `runtime/log_config.py`.
    twinlog_log_level: Annotated[LogLevel, used(
        "The least severe log lines that are written. TWINLOG_LOG_LEVEL overrides it."
    )] = LogLevel.INFO  # fmt: skip
    twinlog_log_format: Annotated[
        LogFormat, used("The form of log lines: plain text, or one JSON object on each line.")
    ] = LogFormat.PLAIN
    twinlog_log_file: Annotated[str, used("File for log lines instead of standard error.")] = ""
    twinlog_log_file_size: Annotated[PositiveLong, used(
        "Size in bytes at which the log file is renamed and a new one is started."
    )] = 64 * 1024 * 1024  # fmt: skip
    twinlog_log_file_count: Annotated[Natural, used("How many older log files are kept.")] = 10

    # The HTTP port: keys of 5.x, and how much a scrape may hold.
    metrics_exporter_type: Annotated[MetricsExporterType, used(
        "PROM serves /metrics on the HTTP port; DISABLE does not. Health is served in both"
        " cases. Apache's other exporters are refused."
    )] = MetricsExporterType.PROM  # fmt: skip
    metrics_prom_exporter_port: Annotated[Port, used(
        "The HTTP port: /metrics, /health/live and /health/ready. 0 takes any free port. If "
        "the port is in use, the server logs a warning and runs without it."
    )] = 5557  # fmt: skip
    metrics_prom_exporter_host: Annotated[
        str, used("Address of the HTTP port, which has no access control.", default="127.0.0.1")
    ] = ""
    metrics_label: Annotated[
        str, used("Labels of all series of this server: name:value,name:value.")
    ] = ""
    twinlog_metrics_series_max: Annotated[Positive, used(
        "How many series a metric may have; further ones are left out, and "
        "twinlog_series_left_out says how many."
    )] = 2_000  # fmt: skip

    def to_properties(self) -> str:
        """Apache's `key=value` form, for `-p` and for requests that read a configuration."""
        return properties_text(self)

    def check(self) -> list[Finding]:
        """What no single value can show."""
        found = []
        hosts = {
            "bindAddress": self.bind_address,
            "metricsPromExporterHost": self.metrics_prom_exporter_host,
        }
        for key, host in hosts.items():
            if not is_wildcard(host) and not is_host(host):
                found.append(Finding(key, NOT_A_HOST))
        if self.metrics_exporter_type in (MetricsExporterType.OTLP_GRPC, MetricsExporterType.LOG):
            reason = "twinlog exports metrics over HTTP only; set PROM or DISABLE"
            found.append(Finding("metricsExporterType", reason))
        if labels_of(self.metrics_label) is None:
            found.append(Finding("metricsLabel", "labels look like name:value,name:value"))
        return found


class RemotingConfig(ServerConfig, kw_only=True):
    """What a broker or a name server can be told about its connections."""

    # Quotas of one address. Above what one machine does that serves many clients (a proxy, a
    # benchmark), below what ends a server; see docs/OPERATIONS.md.
    twinlog_connections_per_address: Annotated[Natural, used(
        "How many connections one address may have; further ones are closed. 0 means no limit."
    )] = 8_000  # fmt: skip
    twinlog_requests_per_address: Annotated[Natural, used(
        "How many requests one address may make per second; above that, they are answered"
        " with SYSTEM_BUSY for a second. 0 means no limit."
    )] = 1_000_000  # fmt: skip
    twinlog_bytes_in_flight_per_address: Annotated[NaturalLong, used(
        "How many bytes of unanswered requests one address may have; above that, nothing more"
        " is read from it. 0 means no limit."
    )] = 256 * 1024 * 1024  # fmt: skip

    server_channel_max_idle_time_seconds: Annotated[
        Natural, used("Seconds of silence after which a connection is closed. 0 means never.")
    ] = 120
    server_socket_backlog: Annotated[
        Positive, used("How many connections may wait to be accepted.")
    ] = 1024
    server_socket_snd_buf_size: Annotated[
        Natural, no_effect("Send buffer of a client's socket, in bytes.", SYSTEM_BUFFERS)
    ] = 0
    server_socket_rcv_buf_size: Annotated[
        Natural, no_effect("Receive buffer of a client's socket, in bytes.", SYSTEM_BUFFERS)
    ] = 0
    write_buffer_high_water_mark: Annotated[
        Natural, no_effect("Unsent bytes at which Netty calls a channel unwritable.", NO_NETTY)
    ] = 0
    write_buffer_low_water_mark: Annotated[
        Natural, no_effect("Unsent bytes at which Netty calls a channel writable again.", NO_NETTY)
    ] = 0
    server_worker_threads: Annotated[
        int, no_effect("Threads that decode and encode requests.", NO_THREADS)
    ] = 8
    server_callback_executor_threads: Annotated[
        int, no_effect("Threads that run the callbacks of a server's own requests.", NO_THREADS)
    ] = 0
    server_selector_threads: Annotated[
        int, no_effect("Threads that wait for data on sockets.", NO_THREADS)
    ] = 3
    server_oneway_semaphore_value: Annotated[
        int, no_effect("One-way requests that a server may have under way.", NO_NETTY)
    ] = 256
    server_async_semaphore_value: Annotated[
        int, no_effect("Asynchronous requests that a server may have under way.", NO_NETTY)
    ] = 64
    server_pooled_byte_buf_allocator_enable: Annotated[
        bool, no_effect("Take buffers from Netty's pool.", NO_NETTY)
    ] = True
    use_epoll_native_selector: Annotated[
        bool, no_effect("Use Netty's native epoll transport.", NO_NETTY)
    ] = False
