"""What a request of a broker needs; `remoting/acl_guard.py` asks whether its sender has it.

Answers to PlainAccessValidator.parse. A request that is denied is answered with 1 and the reason;
the connection stays; a one-way request is dropped.

Stricter than 4.9 where 4.9 forgets: batch sends and replies need PUB like other sends, and the
requests that change the rules themselves need an admin account.
"""

from __future__ import annotations

from collections.abc import Callable

from twinlog.broker.names import RETRY_PREFIX, retry_topic
from twinlog.remoting import fastjson
from twinlog.remoting.acl import Permission, Resource
from twinlog.remoting.codes import RequestCode
from twinlog.remoting.command import Request

Resources = list[Resource]
# Requests that only an admin account may send. 17, 25, 200, 207, 215 are 4.9's list; 50 to 53
# change the rules themselves, which 4.9 lets every account do. Our own is a slave's: it moves the
# offsets of every group.
ADMIN_CODES = frozenset({17, 25, 50, 51, 52, 53, 200, 207, 215, RequestCode.TWINLOG_OFFSETS})


def needed_resources(request: Request) -> Resources:
    """Topics and groups that a request touches, and how. Codes without a row need none."""
    row = _ROWS.get(request.code)
    return [] if row is None else row(request)


def _topic(name: str | None, permission: Permission) -> Resources:
    """A retry topic stands for its group, and its group is consumed."""
    if not name:
        return []
    if name.startswith(RETRY_PREFIX):
        return [Resource(name, Permission.SUB)]
    return [Resource(name, permission)]


def _group(name: str | None) -> Resources:
    return [Resource(retry_topic(name), Permission.SUB)] if name else []


def _send(field: str) -> Callable[[Request], Resources]:
    return lambda request: _topic(request.ext().get(field), Permission.PUB)


def _send_batch(request: Request) -> Resources:
    """Long or short names: 320 and 325 have short ones, 324 long ones."""
    ext = request.ext()
    return _topic(ext.get("b") or ext.get("topic"), Permission.PUB)


def _pull(request: Request) -> Resources:
    ext = request.ext()
    return _topic(ext.get("topic"), Permission.SUB) + _group(ext.get("consumerGroup"))


def _query(request: Request) -> Resources:
    return _topic(request.ext().get("topic"), Permission.SUB)


def _consumer_group(request: Request) -> Resources:
    return _group(request.ext().get("consumerGroup"))


def _send_back(request: Request) -> Resources:
    return _group(request.ext().get("group"))


def _heartbeat(request: Request) -> Resources:
    """Every group that consumes and every topic it subscribes to."""
    try:
        body = fastjson.loads(request.body)
    except ValueError:
        return []  # It is refused for what it is, not for what it may.
    needed: Resources = []
    for data in (body.get("consumerDataSet") if isinstance(body, dict) else None) or ():
        needed += _group(data.get("groupName"))
        for subscription in data.get("subscriptionDataSet") or ():
            needed += _topic(subscription.get("topic"), Permission.SUB)
    return needed


_ROWS: dict[int, Callable[[Request], Resources]] = {
    RequestCode.SEND_MESSAGE: _send("topic"),
    RequestCode.SEND_MESSAGE_V2: _send("b"),
    # 4.9 forgets these three.
    RequestCode.SEND_BATCH_MESSAGE: _send_batch,
    RequestCode.SEND_REPLY_MESSAGE: _send_batch,
    RequestCode.SEND_REPLY_MESSAGE_V2: _send_batch,
    RequestCode.CONSUMER_SEND_MSG_BACK: _send_back,
    RequestCode.PULL_MESSAGE: _pull,
    RequestCode.LITE_PULL_MESSAGE: _pull,
    RequestCode.QUERY_MESSAGE: _query,
    RequestCode.HEART_BEAT: _heartbeat,
    RequestCode.UNREGISTER_CLIENT: _consumer_group,
    RequestCode.GET_CONSUMER_LIST_BY_GROUP: _consumer_group,
    RequestCode.UPDATE_CONSUMER_OFFSET: _pull,
}
