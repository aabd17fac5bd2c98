"""Whether what somebody changes is still what they looked at.

What a page or the API shows of a thing has a version, a digest of its state. A change that carries
the version is refused when the thing is another by then, so that nobody undoes what somebody else
did a moment before without a word. The digest has a key of this process: it tells nothing about
the values, and does not outlive the console's sessions.
"""

from __future__ import annotations

import hashlib
import secrets
from typing import Annotated, Any

import msgspec
from msgspec import Meta

from twinlog.console.operations import Refused

_KEY = secrets.token_bytes(32)
NEW = "new"
Version = Annotated[
    str,
    Meta(
        description="The version that the caller has seen, or `new` for what must not be there"
        " yet; the change is refused when it is another. Absent: not checked."
    ),
]


def version_of(state: Any) -> str:
    """Of any value that JSON can hold; `new` for nothing."""
    if not state:
        return NEW
    data = msgspec.json.encode(state, order="sorted")
    return hashlib.blake2b(data, key=_KEY, digest_size=12).hexdigest()


def check_version(seen: str | None, state: Any, what: str, now: str = "") -> None:
    """Raise Refused when `state` is not what was seen; `now` says what it is instead."""
    if seen is None or seen == version_of(state):
        return
    if seen == NEW:
        raise Refused(f"{what} exists already: open it to change it.")
    if not state:
        raise Refused(f"{what} was deleted after this page was loaded, so nothing was done.")
    if now:
        raise Refused(
            f"{what} was changed after this page was loaded, so nothing was done. It is now: {now}."
            " Reload the page, look, and save again."
        )
    raise Refused(
        f"{what} was changed after this page was loaded, so nothing was done."
        " Reload the page, look, and save again."
    )
