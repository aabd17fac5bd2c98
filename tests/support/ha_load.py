"""Load on a broker from a thread of its own, and what became of every message."""

from __future__ import annotations

import socket
import struct
import threading
import time
from typing import Any

from twinlog.remoting import fastjson
from twinlog.remoting.codec import decode_command, encode_command
from twinlog.remoting.codes import RequestCode
from twinlog.remoting.command import RemotingCommand, Request

SEND_OK = 0


class Connection:
    """A blocking remoting connection."""

    def __init__(self, address: str, timeout_s: float = 30.0) -> None:
        host, _, port = address.rpartition(":")
        self._socket = socket.create_connection((host, int(port)), timeout=timeout_s)
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._file = self._socket.makefile("rb")
        self._opaque = 0

    def close(self) -> None:
        self._file.close()
        self._socket.close()

    def send(self, command: RemotingCommand) -> int:
        self._opaque += 1
        command.opaque = self._opaque
        self._socket.sendall(encode_command(command))
        return self._opaque

    def receive(self) -> Request:
        head = self._read(4)
        return decode_command(head + self._read(struct.unpack(">i", head)[0]))

    def call(self, code: int, header: dict[str, Any] | None = None, body: bytes = b"") -> Request:
        opaque = self.send(RemotingCommand.request(code, header, body))
        while True:
            answer = self.receive()
            if answer.opaque == opaque:
                return answer

    def _read(self, size: int) -> bytes:
        data = self._file.read(size)
        if len(data) != size:
            raise ConnectionError("closed by the broker")
        return data


def send_command(body: bytes, *, topic: str = "load", queue_id: int = 0, **more: str) -> Any:
    properties = "".join(f"{key}\x01{value}\x02" for key, value in more.items())
    header = {
        "a": "producer", "b": topic, "c": "TBW102", "d": "4", "e": str(queue_id), "f": "0",
        "g": str(int(time.time() * 1000)), "h": "0", "i": properties, "j": "0", "k": "false",
    }  # fmt: skip
    return RemotingCommand.request(RequestCode.SEND_MESSAGE_V2, header, body)


def ask(address: str, code: int, header: dict[str, Any] | None = None) -> Request:
    connection = Connection(address)
    try:
        return connection.call(code, header)
    finally:
        connection.close()


def ha_status(address: str) -> dict[str, Any]:
    """Request 907."""
    answer = ask(address, RequestCode.GET_BROKER_HA_STATUS)
    assert answer.code == 0, answer.remark
    status: dict[str, Any] = fastjson.loads(answer.body)
    return status


class Load(threading.Thread):
    """Sends numbered messages, `window` at a time; goes on over broken connections."""

    def __init__(self, address: str, *, size: int = 200, window: int = 16) -> None:
        super().__init__(daemon=True)
        self.address = address
        self.sent = 0
        self.acked: dict[int, int] = {}
        """number -> response code, of every answer"""
        self.remarks: dict[int, str] = {}
        """response code -> the last remark"""
        self._size = size
        self._window = window
        self._must_stop = threading.Event()
        self._may_send = threading.Event()
        self._may_send.set()

    def pause(self) -> None:
        """Send no more for now: 11 comes at once, a log of gigabytes takes long to compare."""
        self._may_send.clear()

    def resume(self) -> None:
        self._may_send.set()

    def run(self) -> None:
        while not self._must_stop.is_set():
            try:
                self._run_once()
            except (OSError, ConnectionError):
                time.sleep(0.02)

    def finish(self) -> None:
        self._must_stop.set()
        self._may_send.set()
        self.join(60)
        assert not self.is_alive()

    def count(self, code: int = SEND_OK) -> int:
        return sum(value == code for value in list(self.acked.values()))

    def body(self, number: int) -> bytes:
        return b"%010d" % number + b"." * (self._size - 10)

    def _run_once(self) -> None:
        connection = Connection(self.address, timeout_s=30)
        pending: dict[int, int] = {}
        try:
            while not self._must_stop.is_set():
                if not pending and not self._may_send.wait(0.1):
                    continue
                while len(pending) < self._window and self._may_send.is_set():
                    number = self.sent
                    self.sent += 1
                    command = send_command(self.body(number), queue_id=number % 4)
                    pending[connection.send(command)] = number
                self._take(connection.receive(), pending)
            while pending:
                self._take(connection.receive(), pending)
        finally:
            connection.close()

    def _take(self, answer: Request, pending: dict[int, int]) -> None:
        number = pending.pop(answer.opaque)
        self.acked[number] = answer.code
        if answer.remark:
            self.remarks[answer.code] = answer.remark


def send_once(address: str, body: bytes, **more: Any) -> Request:
    """One message and its answer."""
    connection = Connection(address)
    try:
        connection.send(send_command(body, **more))
        return connection.receive()
    finally:
        connection.close()
