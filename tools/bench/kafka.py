"""Apache Kafka 4.1 as two brokers and its own producer, from Maven Central.

Both brokers are controllers too (KRaft). Heap and collector flags are those of Kafka's own start
script; two replicas, both in sync, are demanded of every topic.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
from pathlib import Path
from typing import Any

from support.processes import Process, ProcessGroup, free_port
from support.toolchain import jars, made_once, tool

PROJECT = "kafka-4.1"
_SOURCE = Path(__file__).parent / "java" / "KafkaLoad.java"
_CLUSTER_ID = "dHdpbmxvZy1iZW5jaC0wMQ"
_JVM = (
    "-Xmx1G", "-Xms1G", "-server", "-XX:+UseG1GC", "-XX:MaxGCPauseMillis=20",
    "-XX:InitiatingHeapOccupancyPercent=35", "-XX:+ExplicitGCInvokesConcurrent",
    "-XX:MaxInlineLevel=15", "-Djava.awt.headless=true",
    "-Dorg.slf4j.simpleLogger.defaultLogLevel=info",
)  # fmt: skip
_READY = "Kafka Server started"


def load_class_path() -> str:
    """Our driver of Kafka's producer, compiled against its jars."""
    class_path = jars(PROJECT)

    def build(target: Path) -> None:
        argv = [tool("javac"), "-nowarn", "--release", "17", "-cp", class_path]
        subprocess.run([*argv, "-d", str(target), str(_SOURCE)], check=True)

    made = made_once("kafka-load", _SOURCE.read_bytes() + class_path.encode(), build)
    return f"{made}{os.pathsep}{class_path}"


class KafkaPair:
    """Two brokers and a producer that stays up."""

    def __init__(self, directory: Path, topics: list[str]) -> None:
        self._group = ProcessGroup()
        self.directory = directory
        ports = {node: (free_port(), free_port()) for node in (1, 2)}
        voters = ",".join(f"{node}@127.0.0.1:{ports[node][1]}" for node in ports)
        self.brokers = [
            self._group.add(_start_broker(directory / f"kafka-{node}", node, *ports[node], voters))
            for node in ports
        ]
        for broker in self.brokers:
            broker.wait_for_text(_READY, deadline_s=120)
        address = ",".join(f"127.0.0.1:{service}" for service, _ in ports.values())
        self._producer = subprocess.Popen(
            [tool("java"), "-Xmx2g", "-Dorg.slf4j.simpleLogger.defaultLogLevel=error",
             "-cp", load_class_path(), "KafkaLoad", address, *topics],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
        )  # fmt: skip
        self._expect("ready")

    @property
    def pids(self) -> list[int]:
        return [broker.pid for broker in self.brokers]

    def send(self, topic: str, size: int, seconds: float) -> dict[str, Any]:
        assert self._producer.stdin is not None
        self._producer.stdin.write(f"{topic} {size} {int(seconds * 1000)}\n")
        self._producer.stdin.flush()
        report: dict[str, Any] = json.loads(self._expect(r"\{"))
        if report["failed"]:
            raise RuntimeError(f"Kafka refused {report['failed']} messages")
        return report

    def _expect(self, pattern: str) -> str:
        assert self._producer.stdout is not None
        for line in self._producer.stdout:
            if re.match(pattern, line):
                return line
        raise RuntimeError(f"Kafka's producer ended with {self._producer.wait()}")

    def stop(self) -> None:
        self._producer.kill()
        self._producer.wait()
        for stream in (self._producer.stdin, self._producer.stdout):
            if stream is not None:
                stream.close()
        self._group.kill_all()
        subprocess.run(["rm", "-rf", str(self.directory)], check=True)


def _start_broker(directory: Path, node: int, port: int, controller: int, voters: str) -> Process:
    directory.mkdir(parents=True)
    file = directory / "server.properties"
    values = {
        "process.roles": "broker,controller",
        "node.id": node,
        "controller.quorum.voters": voters,
        "listeners": f"PLAINTEXT://127.0.0.1:{port},CONTROLLER://127.0.0.1:{controller}",
        "advertised.listeners": f"PLAINTEXT://127.0.0.1:{port}",
        "controller.listener.names": "CONTROLLER",
        "log.dirs": directory / "logs",
        "default.replication.factor": 2,
        "min.insync.replicas": 2,
        "offsets.topic.replication.factor": 2,
        "transaction.state.log.replication.factor": 2,
    }
    file.write_text("".join(f"{key}={value}\n" for key, value in values.items()))
    java = [tool("java"), *_JVM, "-cp", jars(PROJECT)]
    done = subprocess.run(
        [*java, "kafka.tools.StorageTool", "format", "-t", _CLUSTER_ID, "-c", str(file)],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    if done.returncode != 0:
        raise RuntimeError(f"Kafka's storage tool: {done.stdout}{done.stderr}")
    argv = [*java, "kafka.Kafka", str(file)]
    return Process(f"kafka {node}", argv, log=directory / "server.log", cwd=directory)
