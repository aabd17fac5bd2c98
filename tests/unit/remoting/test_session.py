"""Requests that wait, signatures, addresses."""

from __future__ import annotations

import pytest

from twinlog.remoting import signing
from twinlog.remoting.addresses import (
    join_address,
    pack_host,
    peer_address,
    split_address,
    split_addresses,
)
from twinlog.remoting.command import RemotingCommand
from twinlog.remoting.session import OpaqueCounter, PendingRequests


def ignore_answer(answer: object, error: object) -> None: ...


def is_signed_by(command: RemotingCommand, secret_key: str) -> bool:
    return signing.is_signed(command.ext(), command.body, secret_key, version=command.version)


def test_opaque_wraps_before_it_becomes_negative() -> None:
    counter = OpaqueCounter(2**31 - 1)
    assert [counter.take(), counter.take()] == [2**31 - 1, 0]


def test_pending_requests_expire_in_any_order_and_once() -> None:
    pending = PendingRequests()
    assert pending.add(1, ignore_answer, 300, 11)
    assert pending.add(2, ignore_answer, 100, 12)
    assert not pending.add(3, ignore_answer, 200, 13)
    assert pending.next_deadline_ms == 100
    assert pending.expire(99) == []
    assert [code for _, code in pending.expire(200)] == [12, 13]
    assert pending.next_deadline_ms == 300
    assert pending.take(1) is ignore_answer
    assert pending.take(1) is None
    assert 1 not in pending
    assert pending.drain() == []


def test_signature_vectors_of_the_specification() -> None:
    ext = {"b": "T", "a": "pg", "AccessKey": "rocketmq2", "Signature": "old"}
    content = signing.signed_content(ext, b"hi", version=407)
    assert content == b"rocketmq2pgThi"
    assert signing.calculate_signature(content, "12345678") == "3rOVLv7KW+CtbX+RPHBCleBg75o="
    content = signing.signed_content(
        {"consumerGroup": "cg", "AccessKey": "rocketmq2"}, b"", version=1
    )
    assert signing.calculate_signature(content, "12345678") == "7egiEHtbap4NdfWwHGcAsNmmbJQ="


def test_unique_key_query_is_signed_from_4_9_4_on() -> None:
    ext = {"_UNIQUE_KEY_QUERY": "true", "k": "v"}
    assert signing.signed_content(ext, b"", version=399) == b"v"
    assert signing.signed_content(ext, b"", version=401) == b"truev"


def test_unique_key_query_is_taken_signed_or_not_and_sent_so_that_every_broker_takes_it() -> None:
    """Clients from 4.9.4 on sign it, brokers of 4.9 leave it out, 5.x goes by the version."""
    signer = signing.AclSigner("rocketmq2", "12345678")
    command = RemotingCommand.request(12, {"_UNIQUE_KEY_QUERY": "true", "topic": "T"})
    signer.sign(command)
    assert command.version == 399
    content = signing.signed_content(command.ext(), b"", version=399)
    assert signing.calculate_signature(content, "12345678") == command.ext()["Signature"]
    for version in (399, 407, 479):
        command.version = version
        assert is_signed_by(command, "12345678")
        ext = {**command.ext(), "Signature": ""}
        content = signing.signed_content(ext, b"", version=407)
        ext["Signature"] = signing.calculate_signature(content, "12345678")
        assert signing.is_signed(ext, b"", "12345678", version=version) == (version > 399)
        assert not signing.is_signed(ext, b"x", "12345678", version=version)


def test_signed_command_verifies_and_a_changed_one_does_not() -> None:
    signer = signing.AclSigner("rocketmq2", "12345678", security_token="token")
    command = RemotingCommand.request(310, {"a": "pg", "b": "T"}, b"hi")
    signer("127.0.0.1:1", command)
    assert command.ext()["SecurityToken"] == "token"
    assert is_signed_by(command, "12345678")
    assert not is_signed_by(command, "87654321")
    command.body = b"ho"
    assert not is_signed_by(command, "12345678")
    assert not is_signed_by(RemotingCommand.request(34), "12345678")
    assert "12345678" not in repr(signer)


def test_addresses() -> None:
    assert split_address("127.0.0.1:9876") == ("127.0.0.1", 9876)
    assert split_address("[::1]:9876") == ("::1", 9876)
    assert join_address("::1", 1) == "[::1]:1"
    assert split_addresses(" a:1 ;b:2;; c:3 ") == ["a:1", "b:2", "c:3"]
    for wrong in ("", "host", "host:", "host:x", "host:70000", "host:-1", "host:\u0663"):
        with pytest.raises(ValueError, match="is not host:port"):
            split_address(wrong)


def test_packed_hosts() -> None:
    assert pack_host("127.0.0.1", 10911).hex() == "7f00000100002a9f"
    assert pack_host("::ffff:10.0.0.9", 80).hex() == "0a00000900000050"
    assert len(pack_host("fe80::1%eth0", 80)) == 20
    assert pack_host("unknown", 1) == bytes(7) + b"\1"
    assert peer_address(("::ffff:10.0.0.9", 80, 0, 0)) == ("10.0.0.9", 80)
    assert peer_address(None) == ("unknown", 0)
