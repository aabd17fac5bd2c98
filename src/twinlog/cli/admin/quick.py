"""Questions to one name server over a plain socket, without an event loop.

A list of topics is two small requests; asyncio and the client take longer to import than to answer
them. Whatever is out of the ordinary (several name servers, TLS, an account, an error) is left to
the client, which also knows how to explain it: the answer here is then None.
"""

from __future__ import annotations

import socket
import struct
from typing import TYPE_CHECKING, Any

from twinlog.remoting import fastjson
from twinlog.remoting.codec import decode_command, encode_command
from twinlog.remoting.codes import RequestCode
from twinlog.remoting.command import RemotingCommand
from twinlog.remoting.errors import RemotingError
from twinlog.runtime.numbers import is_number

if TYPE_CHECKING:
    from twinlog.cli.admin.session import Session

_LENGTH = struct.Struct(">i")
ANSWER_SIZE_MAX = 64 << 20


def topic_names(session: Session) -> tuple[list[str], list[str], list[str]] | None:
    """Topics, clusters and brokers that the name server knows."""
    codes = (RequestCode.GET_ALL_TOPIC_LIST_FROM_NAMESERVER, RequestCode.GET_BROKER_CLUSTER_INFO)
    answers = ask(session, codes)
    if answers is None:
        return None
    topics, cluster = answers
    clusters = list(cluster.get("clusterAddrTable") or ())
    return (
        sorted(topics.get("topicList") or ()),
        clusters,
        list(cluster.get("brokerAddrTable") or ()),
    )


def ask(session: Session, codes: tuple[int, ...]) -> list[dict[str, Any]] | None:
    """The JSON bodies of the answers, in the order of `codes`; None: ask in the usual way."""
    host, _, port = session.namesrv.rpartition(":")
    is_plain = not session.tls and not session.access_key and ";" not in session.namesrv
    if not is_plain or not is_number(port, 5) or "/" in host:
        return None
    requests = [RemotingCommand(code, opaque=number) for number, code in enumerate(codes, 1)]
    try:
        with socket.create_connection(
            (host.strip("[]"), int(port)), timeout=session.timeout_ms / 1000
        ) as connection:
            connection.sendall(b"".join(map(encode_command, requests)))
            found = dict(_read(connection) for _ in codes)
        return [found[request.opaque] for request in requests]
    except (OSError, ValueError, KeyError, OverflowError, RemotingError):
        return None


def _read(connection: socket.socket) -> tuple[int, dict[str, Any]]:
    (size,) = _LENGTH.unpack(_exactly(connection, 4))
    if not 0 < size <= ANSWER_SIZE_MAX:
        raise ValueError(f"an answer of {size} bytes")
    answer = decode_command(_LENGTH.pack(size) + _exactly(connection, size))
    if answer.code != 0:
        raise ValueError(f"answer code {answer.code}")
    body = fastjson.loads(answer.body) if answer.body else {}
    if not isinstance(body, dict):
        raise ValueError("an answer that is not an object")
    return answer.opaque, body


def _exactly(connection: socket.socket, size: int) -> bytes:
    data = bytearray()
    while len(data) < size:
        more = connection.recv(size - len(data))
        if not more:
            raise OSError("the connection ended")
        data += more
    return bytes(data)
