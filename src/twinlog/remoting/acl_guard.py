"""Access control at the door of a server: whether the sender of a request has what it needs.

The rules are in `acl.py`, their files in `acl_file.py`, what a request needs in the server's table
(`request_table.py`). First the signature: until it is right nothing of the body is looked at, and
of the header no more than the account and what the signature covers.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from twinlog.remoting.acl import REFUSAL, AccessDenied
from twinlog.remoting.acl_file import AclFiles
from twinlog.remoting.command import Request
from twinlog.remoting.errors import CommandError
from twinlog.remoting.request_table import Row, Standing
from twinlog.remoting.server import ServerConnection

# Names under which requests say the same thing. Two of them that differ are an attempt to show
# access control one thing and the handler another.
_SAME_THING = (
    ("topic", "b"),
    ("producerGroup", "a"),
    ("consumerGroup", "group", "groupName"),
)


WHITE_LISTED = "(address on a white list)"


class AccessRefused(CommandError):
    """Access control says no; answered as Apache answers, which clients know by its name."""

    def __init__(self, reason: str) -> None:
        super().__init__(f"{REFUSAL}{reason}")
        self.reason = reason


class AccessGuard:
    """Lets a request through, or raises CommandError."""

    def __init__(self, files: AclFiles, *, is_apache: bool = False) -> None:
        self.files = files
        self._is_apache = is_apache

    def check(self, connection: ServerConnection, request: Request, row: Row[Any]) -> str:
        """The account that may; of an address that needs none, a word for that.

        Raises:
            AccessRefused: it may not.
            CommandError: the header or body that says what is wanted cannot be read.
        """
        rules = self.files.rules
        ext = request.ext()
        try:
            account = rules.authenticate(
                version=request.version,
                ext=ext,
                body=request.body,
                remote_address=connection.remote_address[0],
            )
            if account is None:
                return WHITE_LISTED
            _refuse_conflicts(ext)
            header = request.bind_header(row.header)
            needs = row.access.needs(header, request, is_apache=self._is_apache)
            if isinstance(needs, Standing):
                account.check_standing(request.code, needs_admin=needs is Standing.ADMIN)
            else:
                account.check_resources(needs)
            return account.access_key
        except AccessDenied as denial:
            raise AccessRefused(str(denial)) from None


def _refuse_conflicts(ext: Mapping[str, str]) -> None:
    for names in _SAME_THING:
        given = {name: ext[name] for name in names if ext.get(name)}
        if len(set(given.values())) > 1:
            raise AccessDenied(f"the fields {' and '.join(given)} contradict each other")
