"""The keys of a `broker.conf` that are about files: answers to MessageStoreConfig."""

from __future__ import annotations

import os
from enum import StrEnum
from typing import Annotated

from msgspec import Meta

from twinlog.runtime.config_format import parse_hours
from twinlog.runtime.config_key import (
    Natural,
    NaturalLong,
    Percent,
    Positive,
    PositiveLong,
    live,
    no_effect,
    refused,
    used,
)
from twinlog.runtime.jvm_config import JvmConfig
from twinlog.runtime.numbers import INT32_MAX

CONSUME_QUEUE_UNIT_SIZE = 20
_NO_EXT = (
    "twinlog neither writes nor reads such files; filters and delayed messages work without "
    "them, even on a store in which Apache wrote them"
)
_NO_POOL = "twinlog has no pool of off-heap buffers; it writes to the log directly"
_NO_MAPPING = "the log is written, not mapped into memory"
_NO_LOCK = "one event loop appends, so no lock is taken"
_SYNCED_TOGETHER = "queues, index and log are synced in one round, every 5 s"
_NO_FORCE = "a file that is still being read is closed when its reader has finished"
NO_LMQ = "twinlog does not have this; remove the key to start"


class FlushDiskType(StrEnum):
    SYNC_FLUSH = "SYNC_FLUSH"
    ASYNC_FLUSH = "ASYNC_FLUSH"


class MessageStoreConfig(JvmConfig, kw_only=True):
    """What a broker can be told about its store."""

    # Files.
    store_path_root_dir: Annotated[str, used(
        "Directory of log, queues, index and tables.", is_important=True
    )] = os.path.join(os.path.expanduser("~"), "store")  # fmt: skip
    store_path_commit_log: Annotated[str | None, used(
        "Directory of the log, or several separated by commas.",
        default="commitlog below storePathRootDir", is_important=True
    )] = None  # fmt: skip
    read_only_commit_log_store_paths: Annotated[str | None, used(
        "Directories, separated by commas, from which older log files are read."
    )] = None  # fmt: skip
    mapped_file_size_commit_log: Annotated[Annotated[int, Meta(ge=512, le=2**31 - 1)], used(
        "Size of one file of the log, in bytes. It cannot change during the life of a store."
    )] = 1024 * 1024 * 1024  # fmt: skip
    mapped_file_size_consume_queue: Annotated[
        Positive, used("Size of one file of a queue, in bytes, rounded up to a multiple of 20.")
    ] = 300000 * CONSUME_QUEUE_UNIT_SIZE
    enable_consume_queue_ext: Annotated[bool, no_effect(
        "Keep filter data of each message next to the queues.", _NO_EXT, is_missed=True
    )] = False  # fmt: skip
    mapped_file_size_consume_queue_ext: Annotated[
        Positive, no_effect("Size of one file of filter data, in bytes.", _NO_EXT)
    ] = 48 * 1024 * 1024
    bit_map_length_consume_queue_ext: Annotated[
        Positive, no_effect("Bits of filter data of one message.", _NO_EXT)
    ] = 64
    message_index_enable: Annotated[
        bool, used("Keep the index by which messages are found by their keys.")
    ] = True
    message_index_safe: Annotated[bool, used(
        "After a crash, read the log again from the point up to which the index was on disk, "
        "too."
    )] = False  # fmt: skip
    max_hash_slot_num: Annotated[Positive, used("Hash slots of one index file.")] = 5000000
    max_index_num: Annotated[
        Annotated[int, Meta(ge=2)], used("Entries of one index file; the first one is not used.")
    ] = 20000000
    max_msgs_num_batch: Annotated[
        Positive, live("Largest number of messages in the answer to a query by key.")
    ] = 64
    max_message_size: Annotated[Annotated[int, Meta(ge=10, le=INT32_MAX)], live(
        "Largest body of a message that is accepted, in bytes.", is_important=True
    )] = 4 * 1024 * 1024  # fmt: skip
    check_crc_on_recover: Annotated[
        bool, used("Check the bodies of messages when the log is read after a crash.")
    ] = True

    twinlog_check_reads: Annotated[bool, live(
        "Check every message (place, sizes, CRC of the body) before it is handed out; one that"
        " is damaged is answered with an error that names it."
    )] = True  # fmt: skip
    twinlog_damage_wait_millis: Annotated[Natural, used(
        "How long a consumer waits at a damaged message while a replica may provide a good "
        "copy, in ms. After that it continues with the next message."
    )] = 60_000  # fmt: skip

    twinlog_scrub_enable: Annotated[bool, used(
        "Check the whole store in the background (the scrub), compare it with replicas and "
        "repair it."
    )] = True  # fmt: skip
    twinlog_scrub_interval_hours: Annotated[
        Positive, used("The scrub checks the whole store once in this time, in hours.")
    ] = 168
    twinlog_scrub_rate_max: Annotated[
        Positive, used("Largest number of bytes of the log that the scrub reads per second.")
    ] = 20_000_000
    twinlog_scrub_cpu_percent: Annotated[Annotated[int, Meta(ge=1, le=100)], used(
        "Largest share of one core that the scrub takes, in percent; under load it takes less."
    )] = 5  # fmt: skip

    # Flushing.
    flush_disk_type: Annotated[FlushDiskType, used(
        "SYNC_FLUSH answers a send when the message is on disk; ASYNC_FLUSH syncs every"
        " flushIntervalCommitLog.",
        is_important=True
    )] = FlushDiskType.ASYNC_FLUSH  # fmt: skip
    sync_flush_timeout: Annotated[Positive, live(
        "How long a send waits for the disk with SYNC_FLUSH, in ms; then FLUSH_DISK_TIMEOUT."
    )] = 5000  # fmt: skip
    flush_interval_commit_log: Annotated[Positive, used(
        "Time between two syncs of the log with ASYNC_FLUSH, in ms.", is_important=True
    )] = 500  # fmt: skip  # fmt: skip
    flush_commit_log_timed: Annotated[bool, no_effect(
        "With ASYNC_FLUSH, sync at fixed times rather than when something was written.",
        "the log is always synced at fixed times"
    )] = True  # fmt: skip
    flush_commit_log_least_pages: Annotated[
        Natural, used("Pages of 4 KiB that must be waiting before ASYNC_FLUSH syncs the log.")
    ] = 4
    flush_commit_log_thorough_interval: Annotated[Positive, used(
        "Time after which the log is synced even if fewer pages are waiting, in ms."
    )] = 10000  # fmt: skip
    commit_interval_commit_log: Annotated[Positive, no_effect(
        "Time between two writes of the off-heap pool, in ms.", _NO_POOL, is_important=True
    )] = 200  # fmt: skip  # fmt: skip
    commit_commit_log_least_pages: Annotated[
        Natural, no_effect("Pages that must be waiting before the pool is written.", _NO_POOL)
    ] = 4
    commit_commit_log_thorough_interval: Annotated[
        Positive, no_effect("Time after which the pool is written in any case, in ms.", _NO_POOL)
    ] = 200
    flush_interval_consume_queue: Annotated[
        Positive, no_effect("Time between two syncs of the queues, in ms.", _SYNCED_TOGETHER)
    ] = 1000
    flush_consume_queue_least_pages: Annotated[
        Natural, no_effect("Pages that must be waiting before a queue is synced.", _SYNCED_TOGETHER)
    ] = 2
    flush_consume_queue_thorough_interval: Annotated[
        Positive, used("Time between two writes of the index's hash slots to its file, in ms.")
    ] = 60000
    os_page_cache_busy_time_out_mills: Annotated[PositiveLong, no_effect(
        "How long an append may hold the lock before sends are refused, in ms.", _NO_LOCK
    )] = 1000  # fmt: skip

    # Retention.
    delete_when: Annotated[str, live(
        "Hours of the day, as in 04;16, in which expired files are deleted.", is_important=True
    )] = "04"  # fmt: skip  # fmt: skip
    file_reserved_time: Annotated[
        Natural, live("How many hours messages are kept.", is_important=True)
    ] = 72
    twinlog_retention_bytes: Annotated[NaturalLong, live(
        "Size of the log above which its oldest files are deleted, whatever their age, in "
        "bytes. With 0, only age and disk space decide."
    )] = 0  # fmt: skip
    disk_max_used_space_ratio: Annotated[Percent, live(
        "How full a disk may be, in percent, before expired files are deleted at any hour;"
        " taken as 10 to 95."
    )] = 75  # fmt: skip
    disk_space_clean_forcibly_ratio: Annotated[Percent, live(
        "How full a disk may be, in percent, before files are deleted that have not expired."
    )] = 85  # fmt: skip
    disk_space_warning_level_ratio: Annotated[
        Percent, live("How full a disk may be, in percent, before sends are refused.")
    ] = 90
    clean_file_forcibly_enable: Annotated[
        bool, live("Allow files to be deleted before they expire when the disk is nearly full.")
    ] = True
    clean_resource_interval: Annotated[
        Positive, used("Time between two searches for expired files, in ms.")
    ] = 10000
    delete_commit_log_files_interval: Annotated[
        Natural, used("Pause between the deletion of two log files, in ms.")
    ] = 100
    delete_consume_queue_files_interval: Annotated[
        Natural, used("Pause between the deletion of two queue files, in ms.")
    ] = 100
    destroy_maped_file_interval_forcibly: Annotated[Positive, no_effect(
        "Time after which a deleted file is unmapped by force, in ms.", _NO_FORCE
    )] = 120000  # fmt: skip
    redelete_hanged_file_interval: Annotated[Positive, no_effect(
        "Time between two attempts to delete a file that is in use, in ms.", _NO_FORCE
    )] = 120000  # fmt: skip
    disk_fall_recorded: Annotated[bool, no_effect(
        "Keep statistics of how far groups read behind.", "no such statistics are kept"
    )] = True  # fmt: skip

    # Reading.
    max_transfer_bytes_on_message_in_memory: Annotated[Positive, live(
        "Largest number of bytes in the answer to a pull from the newest part of the log."
    )] = 256 * 1024  # fmt: skip
    max_transfer_count_on_message_in_memory: Annotated[Positive, live(
        "Largest number of messages in the answer to a pull from the newest part of the log."
    )] = 32  # fmt: skip
    max_transfer_bytes_on_message_in_disk: Annotated[Positive, live(
        "Largest number of bytes in the answer to a pull from older parts of the log."
    )] = 64 * 1024  # fmt: skip
    max_transfer_count_on_message_in_disk: Annotated[Positive, live(
        "Largest number of messages in the answer to a pull from older parts of the log."
    )] = 8  # fmt: skip
    access_message_in_memory_max_ratio: Annotated[Percent, live(
        "Percentage of the machine's memory that the newest part of the log is assumed to fill."
        " A consumer further behind may be sent to a slave."
    )] = 40  # fmt: skip
    offset_check_in_slave: Annotated[
        bool, live("A slave, too, corrects offsets of consumers that are outside a queue.")
    ] = False

    # Delay.
    message_delay_level: Annotated[
        str, used("The delays that levels 1, 2 and so on stand for, with s, m, h or d.")
    ] = "1s 5s 10s 30s 1m 2m 3m 4m 5m 6m 7m 8m 9m 10m 20m 30m 1h 2h"
    flush_delay_offset_interval: Annotated[
        PositiveLong, live("Time between two saves of the progress of delayed messages, in ms.")
    ] = 10000
    enable_schedule_message_stats: Annotated[bool, no_effect(
        "Count delayed messages in the statistics.", "twinlog always counts them"
    )] = True  # fmt: skip
    enable_schedule_async_deliver: Annotated[bool, no_effect(
        "Deliver delayed messages in parallel.", "delivery never waits for a message"
    )] = False  # fmt: skip
    schedule_async_deliver_max_pending_limit: Annotated[Positive, no_effect(
        "Most deliveries under way in parallel.", "delivery is not limited in this way"
    )] = 2000  # fmt: skip
    schedule_async_deliver_max_resend_num2_blocked: Annotated[
        Natural, no_effect("Attempts before a level waits.", "a failed delivery is tried again")
    ] = 3

    # Light message queues and plug-ins.
    enable_lmq: Annotated[bool, refused("Use light message queues.", NO_LMQ)] = False
    enable_multi_dispatch: Annotated[
        bool, refused("Put one message into several queues.", NO_LMQ)
    ] = False
    max_lmq_consume_queue_num: Annotated[
        Positive, no_effect("Most light message queues.", "enableLmq is refused")
    ] = 20000

    # Locks, memory and threads of a JVM.
    use_reentrant_lock_when_put_message: Annotated[
        bool, no_effect("Take a reentrant lock for an append.", _NO_LOCK)
    ] = True
    debug_lock_enable: Annotated[
        bool, no_effect("Log who holds the lock for an append for long.", _NO_LOCK)
    ] = False
    put_msg_index_hight_water: Annotated[int, no_effect(
        "Waiting index entries above which appends slow down.", "appends do not wait"
    )] = 600000  # fmt: skip
    max_delay_time: Annotated[
        int, no_effect("Delay of appends that Apache's statistics warn of.", "appends do not wait")
    ] = 40
    transient_store_pool_enable: Annotated[
        bool, no_effect("Collect messages in off-heap buffers before the log.", _NO_POOL)
    ] = False
    transient_store_pool_size: Annotated[
        int, no_effect("Buffers of the off-heap pool.", _NO_POOL)
    ] = 5
    fast_fail_if_no_buffer_in_store_pool: Annotated[
        bool, no_effect("Refuse sends when the off-heap pool is empty.", _NO_POOL)
    ] = False
    transfer_msg_by_heap: Annotated[
        bool, no_effect("Copy answers of pulls through the heap.", _NO_MAPPING)
    ] = True
    warm_maped_file_enable: Annotated[
        bool, no_effect("Touch every page of a new log file.", _NO_MAPPING)
    ] = False
    flush_least_pages_when_warm_maped_file: Annotated[
        int, no_effect("Pages that are touched between two syncs.", _NO_MAPPING)
    ] = 4096

    @property
    def commit_log_paths(self) -> list[str]:
        """Where commit-log segments are written; several when the key holds a list."""
        text = self.store_path_commit_log or os.path.join(self.store_path_root_dir, "commitlog")
        return [path.strip() for path in text.split(",") if path.strip()]

    @property
    def read_only_commit_log_paths(self) -> list[str]:
        """Where older segments are read from."""
        text = self.read_only_commit_log_store_paths or ""
        return [path.strip() for path in text.split(",") if path.strip()]

    @property
    def consume_queue_file_size(self) -> int:
        """`mappedFileSizeConsumeQueue`, rounded up to whole entries."""
        return -(-self.mapped_file_size_consume_queue // CONSUME_QUEUE_UNIT_SIZE) * (
            CONSUME_QUEUE_UNIT_SIZE
        )

    @property
    def delete_when_hours(self) -> tuple[int, ...]:
        return parse_hours(self.delete_when)

    @property
    def disk_max_used_ratio(self) -> float:
        """`diskMaxUsedSpaceRatio` within the bounds that Apache applies, 10 to 95 percent."""
        return min(max(self.disk_max_used_space_ratio, 10), 95) / 100
