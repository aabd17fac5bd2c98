"""ACL signatures: corresponds to RocketMQ's AclClientRPCHook and AclSigner. Pure.

The signed content is the values of all ext fields, ordered by key, without separators, then the
body. `Signature` is not part of it; neither is `_UNIQUE_KEY_QUERY` for peers up to 4.9.3. From
4.9.4 on clients sign that one, and the brokers of 4.9 still leave it out; those of 5.x go by the
version. So we take both, and sign such a request as a client of 4.9.3: every broker takes that.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
from collections.abc import Mapping

from twinlog.remoting.command import RemotingCommand

ACCESS_KEY = "AccessKey"
SIGNATURE = "Signature"
SECURITY_TOKEN = "SecurityToken"
SIGNING_FIELDS = frozenset({ACCESS_KEY, SIGNATURE, SECURITY_TOKEN})
UNIQUE_KEY_QUERY = "_UNIQUE_KEY_QUERY"
VERSION_4_9_3 = 399


def signed_content(ext: Mapping[str, str], body: bytes, *, version: int) -> bytes:
    """The bytes a signature covers."""
    unsigned = {SIGNATURE, UNIQUE_KEY_QUERY} if version <= VERSION_4_9_3 else {SIGNATURE}
    # Java orders by UTF-16 code units.
    keys = sorted((key for key in ext if key not in unsigned), key=lambda k: k.encode("utf-16-be"))
    return "".join(ext[key] for key in keys).encode("utf-8") + body


def is_signed(ext: Mapping[str, str], body: bytes, secret_key: str, *, version: int) -> bool:
    """Whether the signature among `ext` is what this secret makes; compared in constant time."""
    given = ext.get(SIGNATURE, "").encode("utf-8")
    versions = {version, VERSION_4_9_3} if UNIQUE_KEY_QUERY in ext else {version}
    matches = [
        hmac.compare_digest(calculate_signature(content, secret_key).encode("ascii"), given)
        for content in (signed_content(ext, body, version=each) for each in sorted(versions))
    ]
    return any(matches)


def calculate_signature(content: bytes, secret_key: str) -> str:
    """Base64 of HMAC-SHA1."""
    digest = hmac.new(secret_key.encode("utf-8"), content, hashlib.sha1).digest()
    return base64.b64encode(digest).decode("ascii")


class AclSigner:
    """Signs every request of a client: pass it to RemotingClient as a hook."""

    __slots__ = ("access_key", "secret_key", "security_token")

    def __init__(self, access_key: str, secret_key: str, security_token: str | None = None) -> None:
        self.access_key = access_key
        self.secret_key = secret_key
        self.security_token = security_token

    def __call__(self, address: str, command: RemotingCommand) -> None:
        self.sign(command)

    def sign(self, command: RemotingCommand) -> None:
        """Add access key, token and signature to the ext fields."""
        ext = dict(command.ext())
        ext[ACCESS_KEY] = self.access_key
        if self.security_token is not None:
            ext[SECURITY_TOKEN] = self.security_token
        if UNIQUE_KEY_QUERY in ext:
            command.version = min(command.version, VERSION_4_9_3)
        content = signed_content(ext, command.body, version=command.version)
        ext[SIGNATURE] = calculate_signature(content, self.secret_key)
        command.ext_fields = ext
