"""ACL signatures: answers to RocketMQ's AclClientRPCHook and AclSigner. Pure.

The signed content is the values of all ext fields, ordered by key, without separators, then the
body. `Signature` is not part of it; neither is `_UNIQUE_KEY_QUERY` for peers up to 4.9.3.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
from collections.abc import Mapping
from dataclasses import dataclass, field

from twinlog.remoting.command import RemotingCommand

ACCESS_KEY = "AccessKey"
SIGNATURE = "Signature"
SECURITY_TOKEN = "SecurityToken"
UNIQUE_KEY_QUERY = "_UNIQUE_KEY_QUERY"
VERSION_4_9_3 = 399


def signed_content(ext: Mapping[str, str], body: bytes, *, version: int) -> bytes:
    """The bytes a signature covers."""
    unsigned = {SIGNATURE, UNIQUE_KEY_QUERY} if version <= VERSION_4_9_3 else {SIGNATURE}
    # Java orders by UTF-16 code units.
    keys = sorted((key for key in ext if key not in unsigned), key=lambda k: k.encode("utf-16-be"))
    return "".join(ext[key] for key in keys).encode("utf-8") + body


def calculate_signature(content: bytes, secret_key: str) -> str:
    """Base64 of HMAC-SHA1."""
    digest = hmac.new(secret_key.encode("utf-8"), content, hashlib.sha1).digest()
    return base64.b64encode(digest).decode("ascii")


def verify_signature(command: RemotingCommand, secret_key: str) -> bool:
    """Whether a command carries the signature that this secret makes for it; in constant time."""
    ext = command.ext()
    content = signed_content(ext, command.body, version=command.version)
    expected = calculate_signature(content, secret_key)
    return hmac.compare_digest(expected.encode("ascii"), ext.get(SIGNATURE, "").encode("utf-8"))


@dataclass(frozen=True, slots=True)
class AclSigner:
    """Signs every request of a client: pass it to RemotingClient as a hook."""

    access_key: str
    secret_key: str = field(repr=False)
    security_token: str | None = field(default=None, repr=False)

    def __call__(self, address: str, command: RemotingCommand) -> None:
        self.sign(command)

    def sign(self, command: RemotingCommand) -> None:
        """Add access key, token and signature to the ext fields."""
        ext = dict(command.ext())
        ext[ACCESS_KEY] = self.access_key
        if self.security_token is not None:
            ext[SECURITY_TOKEN] = self.security_token
        content = signed_content(ext, command.body, version=command.version)
        ext[SIGNATURE] = calculate_signature(content, self.secret_key)
        command.ext_fields = ext
