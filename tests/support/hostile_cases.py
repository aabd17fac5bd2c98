"""Requests of hostile peers, generated from the servers' own tables. Pure.

Every request code with every field of its header, every member of its body and every property of a
message gets every value of `VALUES`; every body comes malformed, deep, huge and off the standard.
What is written here says which values are hostile and how bytes are made of them; it uses neither
the codecs nor the names of the product, so that a fault there cannot hide itself.
"""

from __future__ import annotations

import itertools
import json
import random
import struct
import time
import zlib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

JSON, BINARY = 0, 1
BORN = str(time.time_ns() // 1_000_000)  # A transaction of long ago is given up, not asked about.
ONEWAY = 2


class _Missing:
    def __repr__(self) -> str:
        return "missing"


MISSING = _Missing()
LONE = "\ud800"
# What a field of a header, a member of a body or a property of a message can be.
TEXTS: dict[str, str] = {
    "empty": "",
    "superscript": "²",
    "arabic digit": "٣",
    "half a surrogate pair": LONE,
    "NUL": "\0",
    "64 KiB": "x" * 65536,
    "5,000 digits": "9" * 5000,
    "-1": "-1",
    "2^31": str(2**31),
    "-2^31": str(-(2**31)),
    "2^31-1": str(2**31 - 1),
    "2^63": str(2**63),
    "2^63-1": str(2**63 - 1),
    "-2^63": str(-(2**63)),
    "NaN": "NaN",
    "underscore": "1_0",
    "exponent": "1e3",
    "separators": "a\x01b\x02c\x01",
    "lines": "a\nb\r\nlevel=ERROR",
    "path": "../../../x",
    "format": "%s%n{}{0}\\ud800",
    "0": "0",
}
KINDS: dict[str, Any] = {
    "JSON NaN": float("nan"),
    "JSON infinity": float("-inf"),
    "JSON number": 7,
    "JSON large number": 10**40,
    "JSON fraction": 1.5,
    "JSON true": True,
    "JSON null": None,
    "JSON list": ["a", {"b": 1}],
    "JSON object": {"a": [1]},
    "JSON deep list": [[[[[[[[[[[[[[[[[[[[]]]]]]]]]]]]]]]]]]]],
}
VALUES: dict[str, Any] = {"missing": MISSING, **TEXTS, **KINDS}
BINARY_VALUES: dict[str, Any] = {"missing": MISSING, **TEXTS}  # Kinds are JSON's.

# MessageConst of RocketMQ 4.9 and 5.x, written down here and not taken from the product.
PROPERTY_NAMES = (
    "KEYS", "TAGS", "WAIT", "DELAY", "RETRY_TOPIC", "REAL_TOPIC", "REAL_QID", "TRAN_MSG", "PGROUP",
    "MIN_OFFSET", "MAX_OFFSET", "BUYER_ID", "ORIGIN_MESSAGE_ID", "TRANSFER_FLAG", "CORRECTION_FLAG",
    "MQ2_FLAG", "RECONSUME_TIME", "MSG_REGION", "TRACE_ON", "UNIQ_KEY", "EXTEND_UNIQ_INFO",
    "MAX_RECONSUME_TIMES", "CONSUME_START_TIME", "TRAN_PREPARED_QUEUE_OFFSET",
    "TRANSACTION_CHECK_TIMES", "CHECK_IMMUNITY_TIME_IN_SECONDS", "__transactionId__",
    "INSTANCE_ID", "CORRELATION_ID", "REPLY_TO_CLIENT", "TTL", "ARRIVE_TIME", "PUSH_REPLY_TIME",
    "CLUSTER", "MSG_TYPE", "INNER_MULTI_DISPATCH", "INNER_MULTI_QUEUE_OFFSET", "INNER_NUM",
    "INNER_BASE", "POP_CK", "POP_CK_OFFSET", "1ST_POP_TIME", "__SHARDINGKEY", "TIMER_DELIVER_MS",
    "TIMER_DELAY_SEC", "TIMER_OUT_MS", "TIMER_ENQUEUE_MS", "TIMER_DEQUEUE_MS", "TIMER_ROLL_TIMES",
    "DLQ_ORIGIN_TOPIC", "DLQ_ORIGIN_MESSAGE_ID", "TWINLOG_ONCE", "a",
)  # fmt: skip
# Where a message is sent to: topics whose records the broker itself reads are among them.
TOPICS = (
    "hostile", "%RETRY%hostile", "%DLQ%hostile", "SCHEDULE_TOPIC_XXXX", "RMQ_SYS_TRANS_HALF_TOPIC",
    "RMQ_SYS_TRANS_OP_HALF_TOPIC", "TRANS_CHECK_MAX_TIME_TOPIC", "OFFSET_MOVED_EVENT",
    "rmq_sys_twinlog_metadata", "DefaultCluster_REPLY_TOPIC", "TBW102", "SELF_TEST_TOPIC",
)  # fmt: skip


@dataclass(slots=True)
class Case:
    """One request. `must_fail`: it holds what is no text, and may not be answered with success."""

    name: str
    code: Any
    ext: Any = field(default_factory=dict)
    body: bytes = b""
    form: int = JSON
    head: dict[str, Any] = field(default_factory=dict)
    must_fail: bool = False
    may_wait: bool = False

    def frame(self, opaque: int) -> bytes:
        header = self._json(opaque) if self.form == JSON else self._binary(opaque)
        mark = self.form << 24 | len(header)
        return struct.pack(">iI", 4 + len(header) + len(self.body), mark) + header + self.body

    def _json(self, opaque: int) -> bytes:
        header = {
            "code": self.code, "flag": 0, "language": "JAVA", "opaque": opaque, "version": 407,
            "extFields": self.ext, **self.head,
        }  # fmt: skip
        return json.dumps({k: v for k, v in header.items() if v is not MISSING}).encode()

    def _binary(self, opaque: int) -> bytes:
        entries = []
        for key, value in self.ext.items():
            name, text = _bytes(key), _bytes(value)
            entries.append(struct.pack(">h", len(name)) + name + struct.pack(">i", len(text)))
            entries.append(text)
        block = b"".join(entries)
        flag = self.head.get("flag", 0)
        fixed = struct.pack(">hbhiii", self.code, 0, 407, opaque, flag, 0)
        return fixed + struct.pack(">i", len(block)) + block

    def __str__(self) -> str:
        return f"{self.code} {self.name} ({'JSON' if self.form == JSON else 'binary'} header)"


def _bytes(value: Any) -> bytes:
    text = value if isinstance(value, str) else json.dumps(value)
    return text.encode("utf-8", "surrogatepass")


@dataclass(frozen=True, slots=True)
class Field:
    """A field of a request header: its name on the wire, whether it is needed, its plain value."""

    name: str
    is_required: bool
    value: str


@dataclass(frozen=True, slots=True)
class Code:
    """A request code of a server, with values that are all well."""

    number: int
    fields: tuple[Field, ...]
    body: Any = b""  # bytes, or what becomes JSON
    body_max: int = 65536
    reads_body: bool = False

    def ext(self) -> dict[str, Any]:
        return {field.name: field.value for field in self.fields}

    def body_bytes(self) -> bytes:
        return self.body if isinstance(self.body, bytes) else json.dumps(self.body).encode()


def cases_of(code: Code) -> Iterator[Case]:
    """Everything that is tried with one request code."""
    yield from header_cases(code)
    yield from envelope_cases(code)
    yield from body_cases(code)


# Headers

# Pulls are held; a transaction neither committed nor rolled back is not answered, as in 4.9.
UNANSWERED = (11, 361, 37)


def header_cases(code: Code) -> Iterator[Case]:
    body = code.body_bytes()
    for form in (JSON, BINARY):
        yield Case("as it should be", code.number, code.ext(), body, form)
        for one in code.fields:
            for name, value in (VALUES if form == JSON else BINARY_VALUES).items():
                ext = code.ext()
                if value is MISSING:
                    del ext[one.name]
                else:
                    ext[one.name] = value
                yield Case(
                    f"{one.name}: {name}", code.number, ext, body, form,
                    must_fail=value == LONE, may_wait=code.number in UNANSWERED,
                )  # fmt: skip


def envelope_cases(code: Code) -> Iterator[Case]:
    """What is around the fields: the other members of the header, and fields nobody knows."""
    body, ext = code.body_bytes(), code.ext()
    for name, value in VALUES.items():
        must_fail = value == LONE
        head = {"extFields": value}
        yield Case(f"extFields: {name}", code.number, {}, body, head=head, may_wait=True)
        if name in ("half a surrogate pair", "JSON NaN", "JSON deep list", "JSON null", "64 KiB"):
            more = {**ext, "hostile": value}
            for form in (JSON, BINARY):
                yield Case(f"a field: {name}", code.number, more, body, form, must_fail=must_fail)
    yield Case("one-way", code.number, ext, body, head={"flag": ONEWAY}, may_wait=True)
    yield Case("one-way", code.number, ext, body, BINARY, {"flag": ONEWAY}, may_wait=True)
    yield Case("a response", code.number, ext, body, head={"flag": 1}, may_wait=True)
    many = {f"f{number}": "x" for number in range(300)}
    yield Case("300 fields", code.number, {**ext, **many}, body, may_wait=True)
    keys = {LONE: "x", "\0": "x", "k" * 30000: "x", "": "x"}
    for form in (JSON, BINARY):
        yield Case("names of fields", code.number, {**ext, **keys}, body, form, may_wait=True)


HEAD = ("code", "flag", "language", "opaque", "version", "remark", "serializeTypeCurrentRPC")


def head_cases(codes: Iterable[Code]) -> Iterator[Case]:
    """The members of a JSON header itself."""
    for code, member, (name, value) in itertools.product(codes, HEAD, VALUES.items()):
        number = value if member == "code" else code.number
        yield Case(
            f"{member}: {name}", number, code.ext(), code.body_bytes(), head={member: value},
            may_wait=True,
        )  # fmt: skip


def unknown_codes(known: Iterable[int]) -> Iterator[Case]:
    """Codes that are served nowhere, and those that only others serve."""
    ext = {"topic": "hostile", "group": "hostile", "brokerName": "hostile"}
    numbers = {*range(400), *range(895, 1020), *range(9998, 10010), -1, 32767, -32768}
    for number in sorted(numbers - set(known)):
        yield Case("not served", number, ext, b"{}", number % 2)


# Bodies


def body_cases(code: Code) -> Iterator[Case]:
    for name, data, must_fail in bodies_of(code):
        yield Case(
            f"body: {name}", code.number, code.ext(), data, must_fail=must_fail,
            may_wait=code.number in UNANSWERED,
        )  # fmt: skip


def bodies_of(code: Code) -> Iterator[tuple[str, bytes, bool]]:
    plain = code.body_bytes()
    yield from ((name, data, False) for name, data in broken_bodies(plain, code.body_max))
    if code.reads_body and not isinstance(code.body, bytes):
        yield from ((name, data, False) for name, data in lenient_bodies(code.body))
        for place in places(code.body):
            for name, value in VALUES.items():
                data = json.dumps(with_value(code.body, place, value)).encode()
                must_fail = code.reads_body and value == LONE
                yield f"{'.'.join(map(str, place))}: {name}", data, must_fail


def broken_bodies(plain: bytes, body_max: int) -> Iterator[tuple[str, bytes]]:
    """Malformed, deep, huge."""
    yield "none", b""
    for share in (1, 2, 3):
        yield f"cut at {share}/4", plain[: len(plain) * share // 4]
    yield "garbage", bytes(range(256))
    yield "not UTF-8", plain[:-1] + b"\xff\xfe\xed\xa0\x80}"
    yield "half a surrogate pair", plain[:-1] + b',"x":"\\ud800"}'
    yield "NUL", plain + b"\0"
    yield "twice", plain + plain
    yield from (("null", b"null"), ("number", b"7"), ("text", b'"x"'), ("list", b"[]"))
    depth = min(body_max, 200_000)
    yield "deep lists", b"[" * depth
    yield "deep objects", (b'{"a":' * (depth // 5))
    yield "deep and closed", b"[" * (depth // 2) + b"]" * (depth // 2)
    yield "deep member", plain[:-1] + b',"x":' + b"[" * (depth // 2) + b"]" * (depth // 2) + b"}"
    yield "long number", b'{"x":' + b"9" * min(body_max - 6, 100_000) + b"}"
    yield "huge", b'{"x":"' + b"y" * min(body_max - 8, 1 << 20) + b'"}'
    yield "too large", b" " * (min(body_max, 1 << 20) + 1)
    yield "many members", b"{" + b",".join(b'"%d":%d' % (n, n) for n in range(5000)) + b"}"
    yield "lenient and large", b"{'x':" + b"[1,]," * (min(body_max, 65536) // 6) + b"}"


def lenient_bodies(value: Any) -> Iterator[tuple[str, bytes]]:
    """What fastjson takes and the standard does not."""
    text = json.dumps(value)
    yield "single quotes", text.replace('"', "'").encode()
    yield "comments", ("/* x */" + text.replace(":", ":/* y */") + "// z\n").encode()
    yield "commas at the end", text.replace("}", ",}").replace("]", ",]").encode()
    yield "names without quotes", _bare(value).encode()
    yield "reference to the root", text.replace("}", ',"r":{"$ref":"$"}}').encode()
    yield "references", ('{"a":{"$ref":"$.b"},"b":{"$ref":"$.a"},' + text[1:]).encode()
    yield "type names", ('{"@type":"java.lang.Class","val":"x",' + text[1:]).encode()
    yield "sets", text.replace("[", "Set[").encode()
    yield "hex and dates", ("{x:x'0f',d:new Date(1)," + text[1:]).encode()


def _bare(value: Any) -> str:
    if isinstance(value, dict):
        return "{" + ",".join(f"{key}:{_bare(each)}" for key, each in value.items()) + "}"
    if isinstance(value, list):
        return "[" + ",".join(map(_bare, value)) + "]"
    return json.dumps(value)


Place = tuple[str | int, ...]


def places(value: Any, before: Place = ()) -> Iterator[Place]:
    """Every member of a JSON value, with those inside of it."""
    items: Iterable[tuple[str | int, Any]] = ()
    if isinstance(value, dict):
        items = value.items()
    elif isinstance(value, list):
        items = enumerate(value)
    for key, each in items:
        yield (*before, key)
        yield from places(each, (*before, key))


def with_value(value: Any, place: Place, new: Any) -> Any:
    key, rest = place[0], place[1:]
    copy = value.copy()
    if rest:
        copy[key] = with_value(copy[key], rest, new)
    elif new is MISSING:
        del copy[key]
    else:
        copy[key] = new
    return copy


# Messages

HALF = {"TRAN_MSG": "true", "PGROUP": "hostile"}
SETTINGS: dict[str, dict[str, str]] = {
    "plain": {},
    "half": HALF,
    "delayed": {"DELAY": "1"},
    "unique": {"UNIQ_KEY": "7F00000100002A9F00000000000000AA", "KEYS": "k1 k2"},
}
_LONG, _SHORT = (10, 324), (310, 325)


def properties_text(values: dict[str, str]) -> str:
    return "".join(f"{name}\x01{value}\x02" for name, value in values.items())


def send_ext(code: int, topic: str, properties: str, **more: str) -> dict[str, Any]:
    names = ("producerGroup", "topic", "defaultTopic", "defaultTopicQueueNums", "queueId",
             "sysFlag", "bornTimestamp", "flag", "properties", "reconsumeTimes", "unitMode",
             "batch")  # fmt: skip
    values = ("hostile", topic, "TBW102", "4", "0", more.get("sysFlag", "0"), BORN, "0",
              properties, more.get("reconsumeTimes", "0"), "false",
              more.get("batch", "false"))  # fmt: skip
    if code not in _LONG:
        names = ("a", "b", "c", "d", "e", "f", "g", "h", "i", "j", "k", "m")
    return dict(zip(names, values, strict=True))


def property_cases(names: Iterable[str] = PROPERTY_NAMES) -> Iterator[Case]:
    """Every property in messages of every kind, by every request that stores one."""
    ways = list(itertools.product((310, 10, 325, 324), (JSON, BINARY)))
    for number, (name, (kind, value), (setting, base)) in enumerate(
        itertools.product(names, TEXTS.items(), SETTINGS.items())
    ):
        code, form = ways[number % len(ways)]
        text = properties_text({**base, name: value})
        more = {"sysFlag": "4"} if setting == "half" else {}
        yield Case(
            f"{setting}, property {name}: {kind}", code, send_ext(code, "hostile", text, **more),
            b"x", form, must_fail=value == LONE,
        )  # fmt: skip
    for topic, (kind, value) in itertools.product(TOPICS, TEXTS.items()):
        text = properties_text({"REAL_TOPIC": "hostile", "REAL_QID": value, "DELAY": value})
        body = value.encode("utf-8", "replace") or b"{}"
        yield Case(f"to {topic}: {kind}", 310, send_ext(310, topic, text), body)
        ext = send_ext(310, topic, text, reconsumeTimes="17")
        yield Case(f"again to {topic}: {kind}", 310, ext, body)
    yield from whole_text_cases()


def whole_text_cases() -> Iterator[Case]:
    texts = {
        "only separators": "\x01\x02" * 100,
        "no value": "a\x02b\x02",
        "32,767 bytes": properties_text({"a": "x" * 32760}),
        "60,000 bytes": properties_text({"a": "x" * 60000}),
        "10,000 pieces": "a\x01b\x02" * 10000,
        "names twice": "DELAY\x011\x02DELAY\x01²\x02TAGS\x01a\x02TAGS\x01b\x02",
        "5,000 keys": properties_text({"KEYS": " ".join(map(str, range(5000)))}),
        "only blanks": properties_text({"KEYS": "    ", "TAGS": "   "}),
    }
    for (name, text), form in itertools.product(texts.items(), (JSON, BINARY)):
        yield Case(f"properties: {name}", 310, send_ext(310, "hostile", text), b"x", form)


def batch_member(body: bytes, properties: bytes = b"", **wrong: int) -> bytes:
    """One message of a batch body; `wrong` replaces lengths and numbers by others."""
    size = wrong.get("size", 4 * 5 + len(body) + 2 + len(properties))
    return (
        struct.pack(">iiii", size, wrong.get("magic", 0), wrong.get("crc", 0), wrong.get("flag", 0))
        + struct.pack(">i", wrong.get("body_size", len(body))) + body
        + struct.pack(">h", wrong.get("properties_size", len(properties))) + properties
    )  # fmt: skip


def batch_cases() -> Iterator[Case]:
    good = batch_member(b"a", b"TAGS\x01t")
    bodies: dict[str, bytes] = {"good": good * 3, "none": b"", "one byte": b"\0"}
    for number in (-1, 0, 1, 7, 21, 2**31 - 1, -(2**31)):
        for part in ("size", "body_size", "magic", "crc", "flag"):
            bodies[f"{part} {number}"] = good + batch_member(b"b", b"a\x01b", **{part: number})
    for number in (-1, 0, 1, 32767, -32768):
        bodies[f"properties_size {number}"] = good + batch_member(
            b"b", b"a\x01b", properties_size=number
        )
    for name, text in TEXTS.items():
        for key in ("KEYS", "DELAY", "TRAN_MSG", "UNIQ_KEY", "WAIT"):
            data = f"{key}\x01{text}".encode("utf-8", "surrogatepass")[:32767]
            bodies[f"{key} {name}"] = good + batch_member(b"b", data)
    bodies["10,000 members"] = batch_member(b"") * 10000
    for cut in range(0, len(good), 3):
        bodies[f"cut at {cut}"] = good + good[:cut]
    for (name, body), form in itertools.product(bodies.items(), (JSON, BINARY)):
        ext = send_ext(320, "hostile", "", batch="true")
        yield Case(f"batch: {name}", 320, ext, body, form)
    yield Case(
        "batch to a retry topic", 320, send_ext(320, "%RETRY%hostile", "", batch="true"), good
    )


# What is the broker's own

OWN_GROUP = "CID_RMQ_SYS_TRANS"
OWN_TOPICS = ("RMQ_SYS_TRANS_HALF_TOPIC", "RMQ_SYS_TRANS_OP_HALF_TOPIC", "SCHEDULE_TOPIC_XXXX")
_GROUPS = ("consumerGroup", "group", "groupName", "srcGroup", "destGroup", "compareGroup")
_OFFSETS = {"commitOffset", "queueOffset", "offset", "tranStateTableOffset"}


def own_cases(codes: Iterable[Code], cluster: str, broker: str) -> Iterator[Case]:
    """Every request, about the broker's own progress: as its group, and from a group of theirs."""
    numbers, groups = ("1", str(2**62)), (_GROUPS, ("destGroup",))
    for code, topic, number, named in itertools.product(codes, OWN_TOPICS, numbers, groups):
        ext = code.ext()
        values = {**dict.fromkeys(_OFFSETS, number), "topic": topic, "sysFlag": "5",
                  "suspendTimeoutMillis": "0", "offline": "true", "removeOffset": "true",
                  **dict.fromkeys(named, OWN_GROUP)}  # fmt: skip
        body = code.body_bytes()
        if code.number == 10002:  # Late commits of a slave, which says whose it is.
            values.update(clusterName=cluster, brokerName=broker)
            body = json.dumps(
                {"offsetTable": {f"{topic}@{OWN_GROUP}": {"0": int(number)}}}
            ).encode()
        ext.update({name: value for name, value in values.items() if name in ext})
        if ext != code.ext():
            yield Case(f"own {topic} at {number}", code.number, ext, body, may_wait=True)


# Registrations and configuration


def registration(version: Any, topics: list[Any], servers: Any, *, count: Any = None) -> bytes:
    """The inner form of a compressed registration."""
    texts = [_sized(_bytes(version)), struct.pack(">i", len(topics) if count is None else count)]
    texts += [_sized(_bytes(topic)) for topic in topics]
    return b"".join((*texts, _sized(_bytes(servers))))


def _sized(data: bytes) -> bytes:
    return struct.pack(">i", len(data)) + data


def registration_cases(code: Code) -> Iterator[Case]:
    """Compressed ones: what is inside is not JSON alone."""
    ext = {**code.ext(), "compressed": "true", "bodyCrc32": "0"}
    inner: dict[str, bytes] = {}
    version, topic = {"counter": 1, "timestamp": 1}, "hostile 4 4 6 SINGLE_TAG"
    for name, value in {**TEXTS, **KINDS}.items():
        inner[f"version {name}"] = registration(value, [topic], [])
        inner[f"counter {name}"] = registration({**version, "counter": value}, [topic], [])
        inner[f"topic {name}"] = registration(version, [value], [])
        inner[f"servers {name}"] = registration(version, [topic], value)
        for place in range(5):
            words: list[Any] = topic.split()
            words[place] = value if isinstance(value, str) else json.dumps(value)
            inner[f"word {place} {name}"] = registration(version, [" ".join(words)], [])
    for count in (-1, 0, 2, 2**31 - 1, -(2**31)):
        inner[f"count {count}"] = registration(version, [topic], [], count=count)
    good = registration(version, [topic], [])
    inner.update({f"cut at {n}": good[:n] for n in range(0, len(good), 5)})
    for name, data in inner.items():
        yield Case(f"compressed: {name}", code.number, ext, zlib.compress(data))
    bomb = zlib.compress(b"\0" * (40 << 20), 9)
    for name, data in (
        ("bomb", bomb),
        ("not compressed", good),
        ("cut", bomb[:100]),
        ("none", b""),
    ):
        yield Case(f"compressed: {name}", code.number, ext, data)


# Answers with these keys would take away what others are promised, as it is their purpose.
NOT_UPDATED = {
    "brokerPermission", "rejectTransactionMessage", "brokerRole", "autoCreateTopicEnable",
    "startAcceptSendRequestTimeStamp", "haSlaveFallbehindMax", "transactionCheckMax",
    "fileReservedTime",
}  # fmt: skip


def config_cases(code: int, keys: Iterable[str]) -> Iterator[Case]:
    for key, (name, value) in itertools.product(keys, TEXTS.items()):
        if key not in NOT_UPDATED:
            body = f"{key}={value}\n".encode("utf-8", "surrogatepass")
            yield Case(f"{key}={name}", code, {}, body)
    texts = {"escape": b"a=\\ud800\n", "no value": b"a", "no key": b"=b",
             "binary": bytes(range(256)), "10,000 keys": b"k=v\n" * 10000}  # fmt: skip
    for name, body in texts.items():
        yield Case(f"configuration: {name}", code, {}, body)


# Order


FIXED = "the same every time"


def ordered(cases: list[Case], seed: object) -> list[Case]:
    """Every case twice: one in turn of an order that never changes and of that of the seed."""
    orders = []
    for each in (FIXED, seed):
        order = cases.copy()
        random.Random(str(each)).shuffle(order)
        orders.append(order)
    return [case for pair in zip(*orders, strict=True) for case in pair]


def crossed(cases: list[Case], numbers: random.Random) -> Case:
    """A case that has fields of one and values of others: two hostile values at once, or more."""
    one = numbers.choice(cases)
    if not isinstance(one.ext, dict):
        return one
    ext = dict(one.ext)
    for name in numbers.sample(sorted(ext), min(len(ext), numbers.randint(1, 3))):
        ext[name] = numbers.choice(list(TEXTS.values()))
    body = numbers.choice(cases).body if numbers.random() < 0.3 else one.body
    form = numbers.choice((JSON, BINARY))
    if one.head:
        form = one.form
    must_fail = LONE in ext.values()
    return Case(f"crossed with {one.name}", one.code, ext, body, form, one.head,
                must_fail=must_fail, may_wait=True)  # fmt: skip
