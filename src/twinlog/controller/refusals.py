"""Why a controller says no: a kind, which has one of RocketMQ's response codes, and words. Pure."""

from __future__ import annotations

from enum import Enum
from typing import NamedTuple

from twinlog.remoting.codes import ResponseCode


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
    REPLACED = "replaced"
    NOT_ELECTED = "not elected"
    NOT_REMOVED = "not removed"
    INVALID = "invalid"


class Refusal(NamedTuple):
    kind: RefusalKind
    text: str


NO_REFUSAL = Refusal(RefusalKind.NONE, "")
BUSY = Refusal(RefusalKind.BUSY, "another change of this group is being written, ask again")
REPLACED = Refusal(RefusalKind.REPLACED, "a newer connection of this replica has taken over")
NOT_HEARD_YET = Refusal(
    RefusalKind.BUSY,
    "the master has not been heard yet, or its connection has just closed: ask again in a moment",
)
NOT_WRITTEN = Refusal(RefusalKind.BUSY, "the change was not written, ask again")
LEASE_LEFT = Refusal(
    RefusalKind.NOT_ELECTED, "the old master's lease has not ended, ask again in a moment"
)

RESPONSE_CODES = {
    RefusalKind.NONE: ResponseCode.SUCCESS,
    RefusalKind.BUSY: ResponseCode.SYSTEM_BUSY,
    RefusalKind.FROZEN: ResponseCode.CONTROLLER_INVALID_REQUEST,
    RefusalKind.UNKNOWN_GROUP: ResponseCode.CONTROLLER_BROKER_NEED_TO_BE_REGISTERED,
    RefusalKind.NOT_REGISTERED: ResponseCode.CONTROLLER_BROKER_NEED_TO_BE_REGISTERED,
    RefusalKind.ID_TAKEN: ResponseCode.CONTROLLER_BROKER_ID_INVALID,
    RefusalKind.NOT_MASTER: ResponseCode.CONTROLLER_INVALID_MASTER,
    RefusalKind.MASTER_EPOCH: ResponseCode.CONTROLLER_FENCED_MASTER_EPOCH,
    RefusalKind.SET_EPOCH: ResponseCode.CONTROLLER_FENCED_SYNC_STATE_SET_EPOCH,
    RefusalKind.REPLICAS: ResponseCode.CONTROLLER_INVALID_REPLICAS,
    RefusalKind.NOT_ALIVE: ResponseCode.CONTROLLER_BROKER_NOT_ALIVE,
    RefusalKind.REPLACED: ResponseCode.CONTROLLER_BROKER_NOT_ALIVE,
    RefusalKind.NOT_ELECTED: ResponseCode.CONTROLLER_ELECT_MASTER_FAILED,
    RefusalKind.NOT_REMOVED: ResponseCode.CONTROLLER_INVALID_CLEAN_BROKER_METADATA,
    RefusalKind.INVALID: ResponseCode.CONTROLLER_INVALID_REQUEST,
}
