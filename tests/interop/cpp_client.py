"""RocketMQ's C++ client (inside PyPI's `rocketmq`), run by the interpreter of its own venv.

    cpp_client.py NAMESRV send TOPIC MODE COUNT PREFIX [FIRST_DELAY_LEVEL]
    cpp_client.py NAMESRV consume TOPIC GROUP EXPRESSION CLUSTERING|BROADCASTING|ORDERLY
    cpp_client.py NAMESRV pull TOPIC GROUP EXPRESSION

With a delay level each message has the next higher one. A message with the tag `refuse` is refused
the first time. ACCESS_KEY and SECRET_KEY of the environment are the account. Speaks JSON lines on
standard output; a consumer runs until standard input is closed.
"""

from __future__ import annotations

import json
import os
import sys
import threading

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

SUCCESS, LATER = 0, 1  # ConsumeStatus of the C++ client.
lock = threading.Lock()


def report(event: str, **fields: object) -> None:
    with lock:
        print(json.dumps({"event": event, **fields}), flush=True)


def text(value: object) -> str:
    return value.decode() if isinstance(value, bytes) else str(value)


def message(topic: str, prefix: str, number: int) -> Message:
    built = Message(topic)
    built.set_keys(f"{prefix}{number}")
    built.set_tags("ab"[number % 2])
    built.set_property("n", str(number))
    built.set_body(f"{prefix}-{number}:")
    return built


def report_sent(number: int, result: object) -> None:
    status = getattr(result.status, "name", str(result.status))  # type: ignore[attr-defined]
    report("sent", n=number, status=status, msgId=result.msg_id, offset=result.offset)  # type: ignore[attr-defined]


def sign(client: object) -> None:
    if "ACCESS_KEY" in os.environ:
        account = os.environ["ACCESS_KEY"], os.environ["SECRET_KEY"]
        client.set_session_credentials(*account, "ALIYUN")  # type: ignore[attr-defined]


def send(
    namesrv: str, topic: str, mode: str, count: str, prefix: str, first_level: str = "0"
) -> None:
    producer = Producer(f"cpp_{prefix}", timeout=10_000)
    producer.set_namesrv_addr(namesrv)
    sign(producer)
    producer.start()
    left = threading.Semaphore(0)
    for number in range(int(count)):
        built = message(topic, prefix, number)
        if int(first_level):
            built.set_delay_time_level(int(first_level) + number)
        if mode == "sync":
            try:
                report_sent(number, producer.send_sync(built))
            except Exception as error:
                report("failed", n=number, text=str(error))
        elif mode == "ordered":
            report_sent(number, producer.send_orderly(built, number % 4))
        elif mode == "oneway":
            producer.send_oneway(built)
        elif mode == "async":

            def done(result: object, number: int = number) -> None:
                report_sent(number, result)
                left.release()

            def failed(error: object, number: int = number) -> None:
                report("failed", n=number, text=str(error))
                left.release()

            producer.send_async(built, done, failed)
            left.acquire(timeout=10)
    report("done")
    sys.stdin.read()
    producer.shutdown()


def consume(namesrv: str, topic: str, group: str, expression: str, model: str) -> None:
    kind = MessageModel.BROADCASTING if model == "BROADCASTING" else MessageModel.CLUSTERING
    consumer = PushConsumer(group, orderly=model == "ORDERLY", message_model=kind)
    consumer.set_instance_name(f"cpp{os.getpid()}")

    def take(_: object, pointer: object) -> int:
        received = RecvMessage(pointer)
        report_message(received)
        if text(received.tags) == "refuse" and not received.reconsume_times:
            return LATER
        return SUCCESS

    consumer.set_namesrv_addr(namesrv)
    sign(consumer)
    # Not `subscribe`: what it makes of an exception in the handler is an acknowledgement.
    ffi_check(dll.Subscribe(consumer._handle, topic.encode(), expression.encode()))
    consumer._register_callback(take)
    consumer.start()
    report("started")
    sys.stdin.read()
    consumer.shutdown()


def report_message(received: object) -> None:
    report(
        "message",
        name=text(received.body).split(":")[0],  # type: ignore[attr-defined]
        tags=text(received.tags),  # type: ignore[attr-defined]
        keys=text(received.keys),  # type: ignore[attr-defined]
        queue=received.queue_id,  # type: ignore[attr-defined]
        offset=received.queue_offset,  # type: ignore[attr-defined]
        msgId=text(received.id),  # type: ignore[attr-defined]
        reconsume=received.reconsume_times,  # type: ignore[attr-defined]
    )


def pull(namesrv: str, topic: str, group: str, expression: str) -> None:
    consumer = PullConsumer(group)
    consumer.set_namesrv_addr(namesrv)
    consumer.start()
    for received in consumer.pull(topic, expression):
        report_message(received)
    report("done")
    sys.stdin.read()
    consumer.shutdown()


if __name__ == "__main__":
    namesrv, command, *arguments = sys.argv[1:]
    {"send": send, "consume": consume, "pull": pull}[command](namesrv, *arguments)
