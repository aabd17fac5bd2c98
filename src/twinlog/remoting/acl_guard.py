"""Access control at the door of a server: whether the sender of a request has what it needs.

The rules are in `acl.py`, their files in `acl_file.py`. What a request needs is the server's to
say: a broker looks at topics and groups, a name server only asks who may change things.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from twinlog.remoting.acl import REFUSAL, AccessDenied, Resource
from twinlog.remoting.acl_file import AclFiles
from twinlog.remoting.command import Request
from twinlog.remoting.errors import CommandError
from twinlog.remoting.server import ServerConnection


class AccessGuard:
    """Lets a request through, or raises CommandError."""

    def __init__(
        self,
        files: AclFiles,
        *,
        admin_codes: frozenset[int],
        needed_resources: Callable[[Request], Sequence[Resource]] = lambda _: (),
    ) -> None:
        self.files = files
        self._admin_codes = admin_codes
        self._needed_resources = needed_resources

    def check(self, connection: ServerConnection, request: Request) -> None:
        try:
            self.files.rules.check(
                code=request.code,
                version=request.version,
                ext=request.ext(),
                body=request.body,
                remote_address=connection.remote_address[0],
                resources=self._needed_resources(request),
                needs_admin=request.code in self._admin_codes,
            )
        except AccessDenied as denial:
            raise CommandError(f"{REFUSAL}{denial}") from None
