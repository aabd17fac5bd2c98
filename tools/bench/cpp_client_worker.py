"""The C++ client inside PyPI's `rocketmq` under measurement, run by its own interpreter.

Arguments and output are those of client_worker.py; it has no automatic batches.
"""

from __future__ import annotations

import json
import os
import sys
import threading
import time

from rocketmq.client import Message, Producer, PushConsumer


def report(messages: int, seconds: float, cpu: float) -> None:
    print(json.dumps({"messages": messages, "seconds": seconds, "cpu": cpu}), flush=True)


def send(namesrv: str, topic: str, mode: str, size: str, seconds: str, window: str) -> None:
    body = "x" * int(size)
    producer = Producer(f"bench{os.getpid()}", timeout=10_000)
    producer.set_namesrv_addr(namesrv)
    producer.start()

    def message() -> Message:
        built = Message(topic)
        built.set_body(body)
        return built

    producer.send_sync(message())
    free = threading.Semaphore(int(window))
    sent: list[None] = []  # Appending is safe from several threads, counting would not be.

    def done(result: object) -> None:
        sent.append(None)
        free.release()

    def failed(error: object) -> None:
        free.release()

    started, cpu = time.perf_counter(), time.process_time()
    end = started + float(seconds)
    while time.perf_counter() < end:
        if mode == "awaited":
            producer.send_sync(message())
            sent.append(None)
        else:
            free.acquire()
            producer.send_async(message(), done, failed)
    for _ in range(int(window)):
        free.acquire(timeout=10)
    report(len(sent), time.perf_counter() - started, time.process_time() - cpu)


def consume(namesrv: str, topic: str, group: str, count: str) -> None:
    wanted, taken = int(count), 0
    started = cpu = 0.0
    lock, done = threading.Lock(), threading.Event()

    def take(received: object) -> None:
        nonlocal taken, started, cpu
        with lock:
            if taken == 0:
                started, cpu = time.perf_counter(), time.process_time()
            taken += 1
            if taken == wanted:
                report(wanted, time.perf_counter() - started, time.process_time() - cpu)
                done.set()

    consumer = PushConsumer(group)
    consumer.set_instance_name(f"bench{os.getpid()}")
    consumer.set_namesrv_addr(namesrv)
    consumer.subscribe(topic, take, "*")
    consumer.start()
    done.wait()


if __name__ == "__main__":
    namesrv, command, *arguments = sys.argv[1:]
    {"send": send, "consume": consume}[command](namesrv, *arguments)
    os._exit(0)  # Its own shutdown waits, and sometimes crashes; the figures are out.
