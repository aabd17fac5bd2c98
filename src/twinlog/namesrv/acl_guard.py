"""Access control of a name server: every request needs an account, changes an admin account.

Apache's name server has none. The rules and their files are those of the broker
(`remoting/acl.py`): accounts, signatures, white lists. Routes and lists are shown to every account,
as ACL 1.0 shows a broker's tables to every account; who may register brokers, take them out or
change configuration could redirect all traffic, and must be an admin. Apache's brokers cannot sign
their registrations: their addresses belong into `globalWhiteRemoteAddresses`.
"""

from __future__ import annotations

from twinlog.remoting.acl import REFUSAL, AccessDenied
from twinlog.remoting.acl_file import AclFiles
from twinlog.remoting.codes import RequestCode
from twinlog.remoting.command import Request
from twinlog.remoting.errors import CommandError
from twinlog.remoting.server import ServerConnection

ADMIN_CODES = frozenset(
    {
        RequestCode.PUT_KV_CONFIG,
        RequestCode.DELETE_KV_CONFIG,
        RequestCode.REGISTER_BROKER,
        RequestCode.UNREGISTER_BROKER,
        RequestCode.QUERY_DATA_VERSION,  # It keeps a broker alive.
        RequestCode.BROKER_HEARTBEAT,
        RequestCode.WIPE_WRITE_PERM_OF_BROKER,
        RequestCode.ADD_WRITE_PERM_OF_BROKER,
        RequestCode.DELETE_TOPIC_IN_NAMESRV,
        RequestCode.UPDATE_NAMESRV_CONFIG,
    }
)


class AccessGuard:
    """Lets a request through, or raises CommandError."""

    def __init__(self, files: AclFiles) -> None:
        self.files = files

    def check(self, connection: ServerConnection, request: Request) -> None:
        try:
            self.files.rules.check(
                code=request.code,
                version=request.version,
                ext=request.ext(),
                body=request.body,
                remote_address=connection.remote_address[0],
                resources=(),
                needs_admin=request.code in ADMIN_CODES,
            )
        except AccessDenied as denial:
            raise CommandError(f"{REFUSAL}{denial}") from None
