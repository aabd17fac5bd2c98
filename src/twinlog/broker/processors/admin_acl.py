"""Administration of the access rules: 50 to 54. Corresponds to AdminBrokerProcessor's ACL codes.

54 shows the accounts without their secrets. Without `aclEnable` there is nothing to administer:
Apache then does not answer at all, we say so.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from twinlog.broker.errors import BrokerError
from twinlog.remoting import fastjson
from twinlog.remoting.acl import AclConfigError
from twinlog.remoting.acl_file import AclFiles
from twinlog.remoting.codes import ResponseCode
from twinlog.remoting.command import Request
from twinlog.remoting.headers.admin import (
    CreateAccessConfigRequestHeader,
    DeleteAccessConfigRequestHeader,
    GetBrokerAclConfigResponseHeader,
    UpdateGlobalWhiteAddrsConfigRequestHeader,
)
from twinlog.remoting.server import ServerConnection

if TYPE_CHECKING:
    from twinlog.broker.server import Broker


class AdminAclProcessor:
    """Handlers of the codes above."""

    def __init__(self, broker: Broker, *, files: AclFiles | None) -> None:
        self._config = broker.config
        self._files = files
        self._clock = broker.clock
        self._broker_address = broker.address

    def update_account(self, connection: ServerConnection, request: Request) -> None:
        """UPDATE_AND_CREATE_ACL_CONFIG (50)."""
        failed = ResponseCode.UPDATE_AND_CREATE_ACL_CONFIG_FAILED
        files = self._enabled(failed)
        header = request.header(CreateAccessConfigRequestHeader)
        account: dict[str, Any] = {
            "accessKey": header.access_key,
            "secretKey": header.secret_key,
            "whiteRemoteAddress": header.white_remote_address,
            "admin": header.admin,
            "defaultTopicPerm": header.default_topic_perm,
            "defaultGroupPerm": header.default_group_perm,
            "topicPerms": _list(header.topic_perms),
            "groupPerms": _list(header.group_perms),
        }
        given = {key: value for key, value in account.items() if value is not None}
        try:
            files.update_account(given, self._clock.now_ms())
        except (AclConfigError, OSError) as error:
            raise BrokerError(failed, str(error)) from None
        connection.reply(request)

    def delete_account(self, connection: ServerConnection, request: Request) -> None:
        """DELETE_ACL_CONFIG (51)."""
        failed = ResponseCode.DELETE_ACL_CONFIG_FAILED
        files = self._enabled(failed)
        key = request.header(DeleteAccessConfigRequestHeader).access_key
        try:
            found = files.delete_account(key, self._clock.now_ms())
        except (AclConfigError, OSError) as error:
            raise BrokerError(failed, str(error)) from None
        if not found:
            raise BrokerError(
                failed, f"The accesskey[{key}] corresponding to accessConfig is not there"
            )
        connection.reply(request)

    def version(self, connection: ServerConnection, request: Request) -> None:
        """GET_BROKER_CLUSTER_ACL_INFO (52)."""
        files = self._enabled(ResponseCode.SYSTEM_ERROR)
        version = files.data_version()
        header = GetBrokerAclConfigResponseHeader(
            version=fastjson.dumps(version).decode(),
            all_acl_file_version=fastjson.dumps({files.main_path: version}).decode(),
            broker_name=self._config.broker_name,
            broker_addr=self._broker_address,
            cluster_name=self._config.broker_cluster_name,
        )
        connection.reply(request, header=header)

    def accounts(self, connection: ServerConnection, request: Request) -> None:
        """GET_BROKER_CLUSTER_ACL_CONFIG (54)."""
        files = self._enabled(ResponseCode.SYSTEM_ERROR)
        white, accounts = files.listing()
        shown = [{k: v for k, v in entry.items() if k != "secretKey"} for entry in accounts]
        body = {"globalWhiteAddrs": white, "plainAccessConfigs": shown}
        connection.reply(request, body=fastjson.dumps(body))

    def update_white(self, connection: ServerConnection, request: Request) -> None:
        """UPDATE_GLOBAL_WHITE_ADDRS_CONFIG (53)."""
        failed = ResponseCode.UPDATE_GLOBAL_WHITE_ADDRS_CONFIG_FAILED
        files = self._enabled(failed)
        text = request.header(UpdateGlobalWhiteAddrsConfigRequestHeader).global_white_addrs
        try:
            files.update_global_white(_list(text) or [], self._clock.now_ms())
        except (AclConfigError, OSError) as error:
            raise BrokerError(failed, str(error)) from None
        connection.reply(request)

    def _enabled(self, code: int) -> AclFiles:
        if self._files is None:
            raise BrokerError(code, "this broker runs with aclEnable=false, it has no access rules")
        return self._files


def _list(text: str | None) -> list[str] | None:
    if text is None:
        return None
    return [part.strip() for part in text.split(",") if part.strip()]
