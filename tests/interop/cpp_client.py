"""RocketMQ's C++ client (inside PyPI's `rocketmq`), run by the interpreter of its own venv.

    cpp_client.py NAMESRV send TOPIC MODE COUNT PREFIX [delay=LEVEL] [sizes=N,N...]
                                                       [pause=MS] [timeout=MS]
    cpp_client.py NAMESRV consume TOPIC[,TOPIC...] GROUP EXPRESSION CLUSTERING|BROADCASTING|ORDERLY
    cpp_client.py NAMESRV pull TOPIC GROUP EXPRESSION [offset=N]

With a delay level each message has the next higher one; with `sizes` the body of each has the next
of them. A message with the tag `refuse` is refused the first time, one with the tag `hate` always.
With an offset every queue is asked once, there. ACCESS_KEY and SECRET_KEY of the environment are
the account. Speaks JSON lines on standard output; a consumer runs until standard input is closed.
"""

from __future__ import annotations

import ctypes
import json
import os
import sys
import threading
import time
import zlib
from collections.abc import Callable

from rocketmq.client import (
    Message,
    MessageModel,
    Producer,
    PullConsumer,
    PushConsumer,
    RecvMessage,
    dll,
    ffi_check,
)
from rocketmq.ffi import (
    QUEUE_SELECTOR_CALLBACK,
    SEND_EXCEPTION_CALLBACK,
    SEND_SUCCESS_CALLBACK,
    _CMessageQueue,
    _CPullStatus,
)

SUCCESS, LATER = 0, 1  # ConsumeStatus of the C++ client.
FILLER = "abcdefghijklmnopqrstuvwxyz0123456789"
KEYS_ORDERED = 4
lock = threading.Lock()


def report(event: str, **fields: object) -> None:
    with lock:
        print(json.dumps({"event": event, **fields}), flush=True)


def text(value: object) -> str:
    return value.decode() if isinstance(value, bytes) else str(value)


def message(topic: str, prefix: str, number: int, options: dict[str, str]) -> Message:
    built = Message(topic)
    built.set_keys(f"{prefix}{number}")
    built.set_tags("ab"[number % 2])
    built.set_property("n", str(number))
    body = f"{prefix}-{number}:"
    sizes = options.get("sizes", "0").split(",")
    missing = max(0, int(sizes[number % len(sizes)]) - len(body))
    built.set_body(body + (FILLER * (missing // len(FILLER) + 1))[:missing])
    if "delay" in options:
        built.set_delay_time_level(int(options["delay"]) + number)
    return built


def as_options(words: tuple[str, ...]) -> dict[str, str]:
    return dict(word.split("=", 1) for word in words)


def report_sent(number: int, result: object) -> None:
    status = getattr(result.status, "name", str(result.status))  # type: ignore[attr-defined]
    report("sent", n=number, status=status, msgId=result.msg_id, offset=result.offset)  # type: ignore[attr-defined]


def sign(client: object) -> None:
    if "ACCESS_KEY" in os.environ:
        account = os.environ["ACCESS_KEY"], os.environ["SECRET_KEY"]
        client.set_session_credentials(*account, "ALIYUN")  # type: ignore[attr-defined]


def send(namesrv: str, topic: str, mode: str, count: str, prefix: str, *words: str) -> None:
    options = as_options(words)
    timeout_ms = int(options.get("timeout", "10000"))
    producer = Producer(f"cpp_{prefix}", timeout=timeout_ms, max_message_size=4 << 20)
    producer.set_namesrv_addr(namesrv)
    sign(producer)
    producer.start()
    pause_s = int(options.get("pause", "0")) / 1000
    numbers = range(int(count))
    if mode == "batch":
        built = [message(topic, prefix, number, options) for number in numbers]
        report_sent(0, producer.send_batch(built))
        numbers = range(0)
    for number in numbers:
        built = message(topic, prefix, number, options)
        time.sleep(pause_s)
        if mode == "sync":
            try:
                report_sent(number, producer.send_sync(built))
            except Exception as error:
                report("failed", n=number, text=str(error))
        elif mode == "ordered":
            report_sent(number, producer.send_orderly(built, number % KEYS_ORDERED))
        elif mode == "oneway":
            producer.send_oneway(built)
        elif mode == "oneway-ordered":
            producer.send_oneway_orderly(built, number % KEYS_ORDERED)
        else:
            send_async(producer, built, number, is_ordered=mode == "async-ordered")
    report("done")
    sys.stdin.read()
    producer.shutdown()


def send_async(producer: Producer, built: Message, number: int, *, is_ordered: bool) -> None:
    """One message; back when it is answered."""
    answered = threading.Event()

    def done(result: object) -> None:
        report_sent(number, result)
        answered.set()

    def failed(error: object) -> None:
        report("failed", n=number, text=str(error))
        answered.set()

    if is_ordered:
        # What the library exports and its Python package leaves out.
        callbacks = (
            QUEUE_SELECTOR_CALLBACK(lambda size, _message, _key: number % KEYS_ORDERED % size),
            SEND_SUCCESS_CALLBACK(lambda result: done(Result(result.contents))),
            SEND_EXCEPTION_CALLBACK(lambda error: failed(text(error.msg))),
        )
        call = dll.SendMessageOrderlyAsync
        call.argtypes = [
            ctypes.c_void_p, ctypes.c_void_p, QUEUE_SELECTOR_CALLBACK, ctypes.c_void_p,
            SEND_SUCCESS_CALLBACK, SEND_EXCEPTION_CALLBACK,
        ]  # fmt: skip
        ffi_check(call(producer._handle, built, callbacks[0], None, *callbacks[1:]))
    else:
        producer.send_async(built, done, failed)
    answered.wait(10)


class Result:
    """What a callback of the library is given, by the names of its Python package."""

    def __init__(self, given: object) -> None:
        self.status = "OK" if given.sendStatus == 0 else str(given.sendStatus)  # type: ignore[attr-defined]
        self.msg_id = text(given.msgId)  # type: ignore[attr-defined]
        self.offset = given.offset  # type: ignore[attr-defined]


def consume(namesrv: str, topic: str, group: str, expression: str, model: str) -> None:
    kind = MessageModel.BROADCASTING if model == "BROADCASTING" else MessageModel.CLUSTERING
    consumer = PushConsumer(group, orderly=model == "ORDERLY", message_model=kind)
    consumer.set_instance_name(f"cpp{os.getpid()}")

    refused = set()

    def take(_: object, pointer: object) -> int:
        received = RecvMessage(pointer)
        report_message(received)
        tag = text(received.tags)
        # In order it comes again as it was: the C++ client does not count how often.
        place = (received.queue_id, received.queue_offset)
        is_known = place in refused if model == "ORDERLY" else received.reconsume_times > 0
        if tag == "hate" or (tag == "refuse" and not is_known):
            refused.add(place)
            return LATER
        return SUCCESS

    consumer.set_namesrv_addr(namesrv)
    sign(consumer)
    # Not `subscribe`: what it makes of an exception in the handler is an acknowledgement.
    for name in topic.split(","):
        ffi_check(dll.Subscribe(consumer._handle, name.encode(), expression.encode()))
    consumer._register_callback(take)
    consumer.start()
    report("started")
    sys.stdin.read()
    consumer.shutdown()


def report_message(received: RecvMessage) -> None:
    body = received.body if isinstance(received.body, bytes) else received.body.encode()
    report(
        "message",
        name=body.split(b":")[0].decode(),
        size=len(body),
        crc=zlib.crc32(body),
        topic=text(received.topic),
        tags=text(received.tags),
        keys=text(received.keys),
        queue=received.queue_id,
        offset=received.queue_offset,
        physical=received.commit_log_offset,
        msgId=text(received.id),
        reconsume=received.reconsume_times,
        born=received.born_timestamp,
        stored=received.store_timestamp,
        n=text(received.get_property("n")),
    )


def pull(namesrv: str, topic: str, group: str, expression: str, *words: str) -> None:
    options = as_options(words)
    consumer = PullConsumer(group)
    consumer.set_namesrv_addr(namesrv)
    sign(consumer)
    consumer.start()
    if "offset" in options:
        pull_once(consumer, topic, expression, int(options["offset"]))
    else:
        for received in consumer.pull(topic, expression):
            report_message(received)
    report("done")
    sys.stdin.read()
    consumer.shutdown()


def pull_once(consumer: PullConsumer, topic: str, expression: str, offset: int) -> None:
    queues, count = ctypes.POINTER(_CMessageQueue)(), ctypes.c_int()
    handle = consumer._handle
    ffi_check(
        dll.FetchSubscriptionMessageQueues(
            handle, topic.encode(), ctypes.pointer(queues), ctypes.pointer(count)
        )
    )
    for index in range(count.value):
        queue = queues[index]
        result = dll.Pull(handle, ctypes.pointer(queue), expression.encode(), offset, 32)
        report(
            "pulled", queue=queue.queueId, status=_CPullStatus(result.pullStatus).name,
            next=result.nextBeginOffset, min=result.minOffset, max=result.maxOffset,
        )  # fmt: skip
        dll.ReleasePullResult(result)
    ffi_check(dll.ReleaseSubscriptionMessageQueue(queues))


if __name__ == "__main__":
    namesrv, command, *arguments = sys.argv[1:]
    commands: dict[str, Callable[..., None]] = {"send": send, "consume": consume, "pull": pull}
    commands[command](namesrv, *arguments)
