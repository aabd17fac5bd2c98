"""A TCP proxy that flips bits on the way from the master to the slave."""

from __future__ import annotations

import contextlib
import random
import socket
import threading


class BitFlipper:
    """Listens on loopback, forwards to `target`; every so often one bit of a large piece flips."""

    def __init__(self, target: tuple[str, int], *, seed: int, every_bytes: int) -> None:
        self._target = target
        self._rng = random.Random(seed)
        self._every = every_bytes
        self._left = every_bytes
        self.flip_count = 0
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.address = f"127.0.0.1:{self._listener.getsockname()[1]}"
        self._sockets: list[socket.socket] = []
        threading.Thread(target=self._accept, daemon=True).start()

    def calm(self) -> None:
        """No more from here on."""
        self._every = self._left = 1 << 62

    def close(self) -> None:
        for one in [self._listener, *self._sockets]:
            with contextlib.suppress(OSError):
                one.shutdown(socket.SHUT_RDWR)
            one.close()

    def _accept(self) -> None:
        while True:
            try:
                near, _ = self._listener.accept()
            except OSError:
                return
            try:
                far = socket.create_connection(self._target)
            except OSError:
                near.close()
                continue
            self._sockets += [near, far]
            threading.Thread(target=self._copy, args=(near, far, False), daemon=True).start()
            threading.Thread(target=self._copy, args=(far, near, True), daemon=True).start()

    def _copy(self, source: socket.socket, target: socket.socket, flips: bool) -> None:
        with contextlib.suppress(OSError):
            while data := source.recv(65536):
                target.sendall(self._maybe_flip(data) if flips else data)
        for one in (source, target):
            with contextlib.suppress(OSError):
                one.shutdown(socket.SHUT_RDWR)

    def _maybe_flip(self, data: bytes) -> bytes:
        # Small pieces are the handshake: a slave that never gets through shows nothing.
        if len(data) < 1000:
            return data
        self._left -= len(data)
        if self._left > 0:
            return data
        # Not at equal distances: a frame that is sent again would be hit at the same place again.
        self._left = self._rng.randrange(2 * self._every)
        self.flip_count += 1
        damaged = bytearray(data)
        damaged[self._rng.randrange(len(data))] ^= 1 << self._rng.randrange(8)
        return bytes(damaged)
