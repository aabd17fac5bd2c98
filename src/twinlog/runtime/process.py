"""This process as others see it: its number and the address it speaks from."""

from __future__ import annotations

import os
import socket


def process_id() -> int:
    return os.getpid()


def home_directory() -> str:
    return os.path.expanduser("~")


def is_ip_address(host: str) -> bool:
    """Whether nothing has to be resolved."""
    try:
        socket.inet_pton(socket.AF_INET6 if ":" in host else socket.AF_INET, host)
    except OSError:
        return False
    return True


def local_address(peer_host: str, peer_port: int) -> str:
    """The address from which this machine would reach the peer. Nothing is sent.

    The peer must be given as an address, not as a name: a look-up would block.
    """
    family = socket.AF_INET6 if ":" in peer_host else socket.AF_INET
    try:
        with socket.socket(family, socket.SOCK_DGRAM) as probe:
            probe.connect((peer_host, peer_port or 9))
            return str(probe.getsockname()[0]).partition("%")[0]
    except OSError:
        return "127.0.0.1"
