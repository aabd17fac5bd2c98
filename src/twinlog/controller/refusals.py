"""Why a controller says no: a kind, which has one of RocketMQ's response codes, and words. Pure."""

from __future__ import annotations

from enum import Enum
from typing import NamedTuple


class RefusalKind(Enum):
    NONE = "none"
    BUSY = "busy"
    FROZEN = "frozen"
    UNKNOWN_GROUP = "unknown group"
    NOT_REGISTERED = "not registered"
    ID_TAKEN = "id taken"
    NOT_MASTER = "not the master"
    MASTER_EPOCH = "master epoch"
    SET_EPOCH = "set epoch"
    REPLICAS = "replicas"
    NOT_ALIVE = "not alive"
    NOT_ELECTED = "not elected"
    NOT_REMOVED = "not removed"
    INVALID = "invalid"


class Refusal(NamedTuple):
    kind: RefusalKind
    text: str


NO_REFUSAL = Refusal(RefusalKind.NONE, "")
