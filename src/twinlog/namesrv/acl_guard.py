"""Which requests of a name server need an admin account; every other one needs any account.

Apache's name server has no access control. The rules, their files and the guard are those of the
broker (`remoting/acl_guard.py`): accounts, signatures, white lists. Routes and lists are shown to
every account, as ACL 1.0 shows a broker's tables to every account; who may register brokers, take
them out or change configuration could redirect all traffic, and must be an admin. Apache's brokers
cannot sign their registrations: their addresses belong into `globalWhiteRemoteAddresses`.
"""

from __future__ import annotations

from twinlog.remoting.codes import RequestCode

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
