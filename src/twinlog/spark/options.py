"""The options of format "twinlog": names, aliases, types, rules. Pure.

Names are Kafka's where the meaning is the same; those of rocketmq-spark are accepted as aliases.
Spark folds keys to lower case, so case does not matter. An option that is not known is an error: a
typo in an option name is the commonest silent failure of a pipeline.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from twinlog.message.names import GROUP_LENGTH_MAX, has_legal_characters
from twinlog.runtime.numbers import INT64_MAX, is_number, number_or_none
from twinlog.spark.errors import OptionError, nearest
from twinlog.spark.places import local_path

READ_OPTIONS = (
    "nameServer", "path", "brokerName", "subscribe", "subscribePattern", "assign",
    "includeSystemTopics", "startingOffsets", "endingOffsets", "startingTimestamp",
    "startingOffsetsByTimestamp", "endingTimestamp", "endingOffsetsByTimestamp",
    "startingOffsetsByTimestampStrategy", "startingGroup", "commitGroup",
    "maxOffsetsPerTrigger", "maxBytesPerTrigger", "minOffsetsPerTrigger", "maxTriggerDelay",
    "minPartitions", "maxPartitions", "maxRecordsPerPartition", "maxBytesPerPartition",
    "batchRows", "batchBytes", "failOnDataLoss", "isolation", "tags", "sql", "decodeBody",
    "bodySchema", "bodySchemaPath", "bodyDescriptors", "writerSchema", "schemaRegistry",
    "decodeMode", "deadLetterPath", "decompress", "verifyCrc",
    "archive", "accessKey", "secretKey", "useTLS", "tlsCaFile", "filterPushdown",
    "pollTimeoutMs", "fetchRetries", "fetchRetryMs", "outageTimeout", "keepOrder",
)  # fmt: skip
WRITE_OPTIONS = (
    "nameServer", "topic", "group", "exactlyOnce", "producerId", "sendTimeoutMs", "sendRetries",
    "maxInFlight", "accessKey", "secretKey", "useTLS", "tlsCaFile", "checkpointLocation",
    "ratePerSecond", "deadLetterPath", "queryName",  # Spark's own pipelines give the last one
)  # fmt: skip
READ_ALIASES = {"storepath": "path", "topic": "subscribe", "subexpression": "tags"}
WORDS = {"earliest": -2, "latest": -1}
EARLIEST, LATEST = -2, -1
NO_TABLES = (
    "Spark does not pass the options of CREATE TABLE to a source that is written in Python: use "
    "CREATE TEMPORARY VIEW name USING twinlog OPTIONS (...), or give them in the statement that "
    "reads the table: FROM name WITH (...)"
)
# They say how bodies are decoded.
BODY_OPTIONS = (
    "bodySchema", "bodySchemaPath", "bodyDescriptors", "writerSchema", "schemaRegistry",
    "decodeMode", "deadLetterPath",
)  # fmt: skip
NO_BODIES = "it has an effect only with decodeBody=json, avro or protobuf: set that or leave it out"
_SIZE = re.compile(r"^([0-9]{1,15})\s*([kmgt]?)i?b?$", re.IGNORECASE)
_TIME = re.compile(r"^([0-9]{1,15})\s*(ms|s|sec|m|min|h|d)?$", re.IGNORECASE)
_SIZE_UNITS = {"": 1, "k": 1 << 10, "m": 1 << 20, "g": 1 << 30, "t": 1 << 40}
_TIME_UNITS = {
    "ms": 1,
    "s": 1000,
    "sec": 1000,
    "m": 60_000,
    "min": 60_000,
    "h": 3_600_000,
    "d": 86_400_000,
}

# topic -> broker -> queue -> offset (or time); a broker "*" stands for every broker
QueueTable = dict[str, dict[str, dict[int, int]]]


def bad(name: str, value: object, why: str) -> OptionError:
    """Make the error for one option's value."""
    return OptionError("BAD_OPTION", f"option {name}={str(value)[:200]!r}: {why}")


def fold(
    options: Mapping[str, str], known: tuple[str, ...], aliases: Mapping[str, str]
) -> dict[str, str]:
    """Return the options under their proper names.

    Raises:
        OptionError: an option is not known, or given under two names.
    """
    by_folded = {name.lower(): name for name in known}
    found: dict[str, str] = {}
    if any(key.startswith("option.") for key in options):
        raise OptionError("BAD_OPTION", NO_TABLES)
    for key, value in options.items():
        folded = key.lower()
        name = by_folded.get(folded) or aliases.get(folded)
        if name is None:
            hint = nearest(key, [*known, *aliases])
            raise OptionError("BAD_OPTION", f"there is no option {key!r}{hint}")
        if name in found and found[name] != value:
            raise bad(name, value, f"it is given twice, also as {key!r}: leave one of them out")
        found[name] = value
    return found


def parse_bool(name: str, value: str) -> bool:
    """Parse true or false."""
    if value.lower() in ("true", "false"):
        return value.lower() == "true"
    raise bad(name, value, "it must be true or false")


def parse_count(name: str, value: str, *, least: int = 1) -> int:
    """Parse a whole number of at least `least`."""
    number = number_or_none(value.strip(), least)
    if number is None:
        raise bad(name, value, f"it must be a whole number of at least {least}")
    return number


def parse_size(name: str, value: str) -> int:
    """Parse bytes such as 128m."""
    match = _SIZE.match(value.strip())
    if not match or int(match[1]) == 0:
        raise bad(name, value, "it must be a size such as 8388608, 8m or 1g")
    return int(match[1]) * _SIZE_UNITS[match[2].lower()]


def parse_duration_ms(name: str, value: str) -> int:
    """Parse a duration such as 15m, in ms; a bare number is ms."""
    match = _TIME.match(value.strip())
    if not match:
        raise bad(name, value, "it must be a duration such as 500ms, 30s or 15m")
    return int(match[1]) * _TIME_UNITS[(match[2] or "ms").lower()]


def _json_object(name: str, text: str) -> dict[str, Any]:
    try:
        value = json.loads(text)
    except ValueError as error:
        raise bad(name, text, f"it is not JSON ({error})") from error
    if not isinstance(value, dict):
        raise bad(name, text, "it must be a JSON object")
    return value


def parse_queue_table(
    name: str, text: str, *, least: int = -2, what: str = "an offset"
) -> QueueTable:
    """Parse {"topic": {"broker": {"0": 5}}} (a whole offset of ours is accepted too).

    Two levels, {"topic": {"0": 5}}, mean every broker.
    """
    value = _json_object(name, text)
    if value.get("v") == 1 and isinstance(value.get("offsets"), dict):
        value = value["offsets"]
    table: QueueTable = {}
    for topic, brokers in value.items():
        if not isinstance(brokers, dict):
            raise bad(name, text, f'{topic!r} must be like {{"broker-a": {{"0": 100}}}}')
        if brokers and all(not isinstance(inner, dict) for inner in brokers.values()):
            brokers = {"*": brokers}
        for broker, queues in brokers.items():
            if not isinstance(queues, dict):
                raise bad(
                    name,
                    text,
                    f'broker {broker!r} of {topic!r} must be like {{"0": 100, "1": 200}}',
                )
            row = table.setdefault(topic, {}).setdefault(broker, {})
            for queue, number in queues.items():
                is_good = type(number) is int and least <= number <= INT64_MAX
                if not is_number(queue) or not is_good:
                    place = f"{topic}/{broker}/{queue}"
                    raise bad(name, text, f"{place}: {number!r} is not {what}")
                row[int(queue)] = number
    return table


def _assignment(text: str) -> dict[str, dict[str, list[int]]]:
    value = _json_object("assign", text)
    for topic, brokers in value.items():
        lists = brokers.values() if isinstance(brokers, dict) else [None]
        if not all(isinstance(q, list) and all(type(i) is int for i in q) for q in lists):
            raise bad("assign", text, f'{topic!r} must be like {{"broker-a": [0, 1]}}')
        if not any(lists):
            raise bad("assign", text, f"it names no queue of {topic!r}")
    if not value:
        raise bad("assign", text, "it names no topic")
    return value


@dataclass(frozen=True)
class SourceOptions:
    """The options of a read, checked."""

    raw: Mapping[str, str]
    path: str | None = None
    name_server: str | None = None
    archive: str | None = None
    topics: tuple[str, ...] = ()
    pattern: str | None = None
    assign: Mapping[str, dict[str, list[int]]] = field(default_factory=dict)
    include_system_topics: bool = False
    tags: tuple[str, ...] = ()
    sql: str | None = None
    fail_on_data_loss: bool = True
    verify_crc: bool = False
    decompress: bool = True
    isolation: str = "confirmed"
    batch_rows: int = 8192
    batch_bytes: int = 8 << 20
    min_partitions: int = 4
    max_partitions: int | None = None
    max_records_per_partition: int | None = None
    max_bytes_per_partition: int = 128 << 20
    max_rows_per_trigger: int | None = None
    max_bytes_per_trigger: int | None = None
    min_rows_per_trigger: int | None = None
    max_trigger_delay_ms: int = 900_000
    outage_ms: int = 600_000
    filter_pushdown: bool = False
    keep_order: bool = False

    @classmethod
    def parse(cls, options: Mapping[str, str]) -> SourceOptions:
        """Check all options of a read.

        Raises:
            OptionError: with the option, its value and what it may be.
        """
        given = fold(options, READ_OPTIONS, READ_ALIASES)
        _check_exclusive(given)
        _check_company(given)
        for name in ("path", "archive", "bodySchemaPath"):
            if name in given:
                given[name] = _local(name, given[name])
        most = _count(given, "maxPartitions")
        least = parse_count("minPartitions", given.get("minPartitions", str(min(4, most or 4))))
        if most is not None and most < least:
            raise bad("maxPartitions", most, f"it is below minPartitions={least}")
        parsed = cls(
            raw=given,
            path=given.get("path"),
            name_server=given.get("nameServer"),
            archive=given.get("archive"),
            topics=_topics(given),
            pattern=given.get("subscribePattern"),
            assign=_assignment(given["assign"]) if "assign" in given else {},
            tags=_tags(given.get("tags", "*")),
            sql=given.get("sql"),
            isolation=_word(given, "isolation", ("confirmed", "dispatched")),
            min_partitions=least,
            max_partitions=most,
            max_records_per_partition=_count(given, "maxRecordsPerPartition"),
            max_rows_per_trigger=_count(given, "maxOffsetsPerTrigger"),
            min_rows_per_trigger=_count(given, "minOffsetsPerTrigger"),
            max_bytes_per_trigger=_size(given, "maxBytesPerTrigger"),
            **_plain(given),
        )
        parsed.check_positions()
        _check_pattern(parsed.pattern)
        return parsed

    @property
    def is_filtered(self) -> bool:
        """Say whether rows are left out that are there."""
        return bool(self.tags) or self.sql is not None

    def check_positions(self) -> None:
        """Parse every option about a start or an end once, so that a typo fails at once."""
        for side in ("starting", "ending"):
            self.position(side)
        if "startingGroup" in self.raw and self.position("starting")[0] != "word":
            raise OptionError(
                "BAD_OPTION",
                "give either startingGroup or offsets or times to start at, not both; "
                "startingOffsets may be earliest or latest, for queues that the group has not read",
            )
        assert self.late_timestamp_is_latest in (True, False)

    def position(self, side: str) -> tuple[str, Any]:
        """Return where to start or end, by precedence as in Kafka.

        One of ("time", ms), ("times", table), ("table", table), ("word", EARLIEST or LATEST).
        """
        stamp = self.raw.get(f"{side}Timestamp")
        if stamp is not None:
            return ("time", parse_count(f"{side}Timestamp", stamp, least=0))
        name = f"{side}OffsetsByTimestamp"
        if name in self.raw:
            return ("times", parse_queue_table(name, self.raw[name], least=0, what="a time"))
        name = f"{side}Offsets"
        text = self.raw.get(name)
        if text is None:
            return ("word", None)
        if text.lower() in WORDS:
            return ("word", WORDS[text.lower()])
        if not text.lstrip().startswith("{"):
            raise bad(name, text, "it must be earliest, latest or JSON")
        return ("table", parse_queue_table(name, text))

    @property
    def late_timestamp_is_latest(self) -> bool:
        """What a start time after the last record means."""
        name = "startingOffsetsByTimestampStrategy"
        return _word(self.raw, name, ("error", "latest")) == "latest"


def _plain(given: Mapping[str, str]) -> dict[str, Any]:
    flags = {
        "include_system_topics": ("includeSystemTopics", "false"),
        "fail_on_data_loss": ("failOnDataLoss", "true"),
        "verify_crc": ("verifyCrc", "false"),
        "decompress": ("decompress", "true"),
        "filter_pushdown": ("filterPushdown", "false"),
        "keep_order": ("keepOrder", "false"),
    }
    found: dict[str, Any] = {
        attribute: parse_bool(name, given.get(name, default))
        for attribute, (name, default) in flags.items()
    }
    found["batch_rows"] = parse_count("batchRows", given.get("batchRows", "8192"))
    found["batch_bytes"] = parse_size("batchBytes", given.get("batchBytes", "8m"))
    name = "maxBytesPerPartition"
    found["max_bytes_per_partition"] = parse_size(name, given.get(name, "128m"))
    name = "maxTriggerDelay"
    found["max_trigger_delay_ms"] = parse_duration_ms(name, given.get(name, "15m"))
    name = "outageTimeout"
    found["outage_ms"] = parse_duration_ms(name, given.get(name, "10m"))
    return found


def _local(name: str, value: str) -> str:
    if not value:
        raise bad(name, value, "it is empty: give a path")
    return str(local_path(value, f"option {name}"))


def _count(given: Mapping[str, str], name: str) -> int | None:
    return parse_count(name, given[name]) if name in given else None


def _size(given: Mapping[str, str], name: str) -> int | None:
    return parse_size(name, given[name]) if name in given else None


def _word(given: Mapping[str, str], name: str, words: tuple[str, ...]) -> str:
    value = given.get(name, words[0]).lower()
    if value not in words:
        raise bad(name, value, f"it must be one of {', '.join(words)}")
    return value


def _topics(given: Mapping[str, str]) -> tuple[str, ...]:
    if "subscribe" not in given:
        return ()
    topics = tuple(part.strip() for part in given["subscribe"].split(",") if part.strip())
    if not topics:
        raise bad("subscribe", given["subscribe"], "it names no topic")
    return topics


def _tags(expression: str) -> tuple[str, ...]:
    """Return the tags of `A || B`; nothing means every message."""
    parts = tuple(part.strip() for part in expression.split("||") if part.strip())
    return () if "*" in parts or not parts else parts


def _check_exclusive(given: Mapping[str, str]) -> None:
    if "path" in given and "nameServer" in given:
        raise OptionError(
            "BAD_OPTION", "give either path (a store's files) or nameServer (the network), not both"
        )
    if not given:
        raise OptionError("BAD_OPTION", f"no option reached the source. {NO_TABLES}")
    if not {"path", "nameServer", "archive"} & given.keys():
        raise OptionError(
            "BAD_OPTION",
            "give path (a store directory), nameServer (host:port) or archive (a directory)",
        )
    chosen = [name for name in ("subscribe", "subscribePattern", "assign") if name in given]
    if len(chosen) > 1:
        raise OptionError("BAD_OPTION", f"give only one of {' and '.join(chosen)}")
    if not chosen:
        raise OptionError(
            "BAD_OPTION", "give the topics: subscribe (names), subscribePattern (regex) or assign"
        )


def _check_company(given: Mapping[str, str]) -> None:
    """Refuse what has no effect alone: it is meant, and whatever it needs was forgotten."""
    if given.get("decodeBody", "none").lower() == "none":
        for name in BODY_OPTIONS:
            if name in given:
                raise bad(name, given[name], NO_BODIES)
    if "brokerName" in given and "nameServer" in given:
        why = "it names the broker of path; over the network brokers name themselves: leave it out"
        raise bad("brokerName", given["brokerName"], why)
    for name in ("startingGroup", "commitGroup"):
        if name in given:
            check_name(name, given[name], GROUP_LENGTH_MAX)


def check_name(option: str, name: str, length_max: int) -> None:
    """Check the name of a topic or group.

    Raises:
        OptionError: no broker would take it.
    """
    if not (0 < len(name) <= length_max and has_legal_characters(name)):
        why = f"it must be 1 to {length_max} letters, digits or the characters % | _ -"
        raise bad(option, name, why)


def _check_pattern(pattern: str | None) -> None:
    try:
        re.compile(pattern or "")
    except re.error as error:
        raise bad(
            "subscribePattern", pattern, f"it is not a regular expression ({error})"
        ) from error
