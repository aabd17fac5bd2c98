"""The shared secret of a pair: proved in both directions, never sent. Pure.

Each side answers the other's nonce with an HMAC that names its role, so that an answer cannot be
reflected back, and covers what was said in HELLO, so that it cannot be moved to another slave.
"""

from __future__ import annotations

import hashlib
import hmac


def prove(secret: str, *, role: str, nonce: str, peer_nonce: str, hello: bytes) -> str:
    """The proof of `role` ("master" or "slave") for this handshake."""
    parts = (role.encode(), nonce.encode(), peer_nonce.encode(), hashlib.sha256(hello).digest())
    content = b"".join(len(part).to_bytes(4, "big") + part for part in parts)
    return hmac.new(secret.encode(), content, hashlib.sha256).hexdigest()


def is_proof(expected: str, given: str) -> bool:
    return hmac.compare_digest(expected.encode(), given.encode())
