"""Deployment modes by the names that RocketMQ's users know: the folders of `conf/`."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Mode:
    """What a mode consists of."""

    brokers: int
    groups: int
    is_sync: bool = False
    has_failover: bool = False


MODES = {
    "single-master": Mode(1, 1),
    "2m-noslave": Mode(1, 2),
    "2m-2s-async": Mode(2, 2),
    "2m-2s-sync": Mode(2, 2, is_sync=True),
    "2m-2s-failover": Mode(2, 2, has_failover=True),
    "3-replicas": Mode(3, 1, has_failover=True),
}
