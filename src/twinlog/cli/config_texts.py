"""What keys mean, in a sentence each: those that people set. The rest have type and default."""

from __future__ import annotations

from typing import Any, get_type_hints

import msgspec

from twinlog.runtime.broker_config import NOT_APPLICABLE, BrokerConfig
from twinlog.runtime.config_format import key_of
from twinlog.runtime.namesrv_config import NAMESRV_NOT_APPLICABLE, NamesrvConfig

TEXTS = {
    "brokerClusterName": "The cluster this broker belongs to; clients see it in routes.",
    "brokerName": "The group of a master and its slaves: they share this name.",
    "brokerId": "0 is the master, anything above a slave. Unique in the group.",
    "brokerRole": "ASYNC_MASTER, SYNC_MASTER (a send is answered when a slave has it) or SLAVE.",
    "flushDiskType": "ASYNC_FLUSH (to disk every flushIntervalCommitLog ms) or SYNC_FLUSH "
    "(a send is answered when it is on disk).",
    "namesrvAddr": "Name servers to register with, a:9876;b:9876.",
    "listenPort": "Service port. The VIP port is two below, the HA port one above.",
    "haListenPort": "Port to which slaves connect; listenPort + 1 unless given.",
    "bindAddress": "Address to listen on. Loopback unless given: nothing is open by accident.",
    "brokerIP1": "Address that clients are told. Must be reachable for them.",
    "brokerIP2": "Address that slaves are told for replication.",
    "slaveReadEnable": "Consumers that are far behind are sent to a slave.",
    "haMasterAddress": "A slave's master, host:haPort; else the name server says it.",
    "slaveTimeout": "How long a SYNC_MASTER waits for a slave, in ms; then FLUSH_SLAVE_TIMEOUT.",
    "syncFlushTimeout": "How long SYNC_FLUSH waits for the disk, in ms; then FLUSH_DISK_TIMEOUT.",
    "haSendHeartbeatInterval": "Silence after which a heartbeat goes over the HA connection, ms.",
    "haHousekeepingInterval": "Silence after which an HA connection is closed, ms.",
    "haSlaveFallbehindMax": "A slave further behind than this many bytes is not in sync.",
    "haTransferBatchSize": "Most bytes of log in one HA frame.",
    "autoCreateTopicEnable": "The first send creates a topic. Off is better in production.",
    "autoCreateSubscriptionGroup": "The first consumer creates a group.",
    "defaultTopicQueueNums": "Queues of a topic that was created by a send.",
    "traceTopicEnable": "Have the topic for message traces.",
    "enablePropertyFilter": "Allow SQL92 subscriptions.",
    "messageDelayLevel": "The delays that levels 1 to N stand for.",
    "transactionTimeOut": "Age in ms at which an open transaction is asked about.",
    "transactionCheckMax": "How often an open transaction is asked about before it is given up.",
    "transactionCheckInterval": "Time between two rounds of asking, ms.",
    "storePathRootDir": "Where log, queues, index and settings are kept.",
    "storePathCommitLog": "Where the log is kept, if elsewhere.",
    "mappedFileSizeCommitLog": "Size of one log file. Fixed for the life of a store.",
    "mappedFileSizeConsumeQueue": "Size of one queue file, a multiple of 20.",
    "maxMessageSize": "Largest body that is accepted, bytes.",
    "deleteWhen": "Hour of the day in which expired files are deleted.",
    "fileReservedTime": "Hours that messages are kept.",
    "diskMaxUsedSpaceRatio": "Above this percentage expired files are deleted at any hour.",
    "flushIntervalCommitLog": "Time between two flushes with ASYNC_FLUSH, ms.",
    "messageIndexEnable": "Keep the index by which messages are found by key.",
    "brokerPermission": "6 read and write, 4 read only, 2 write only.",
    "aclEnable": "Only accounts of conf/plain_acl.yml may do anything.",
    "twinlogHADialect": "auto, classic (what Apache speaks) or twin (with proof of the log).",
    "twinlogReseed": "What a slave does with a tail its master does not have: tail (cut it back, "
    "keep the bytes aside), all (start anew if nothing is common) or manual.",
    "twinlogMetadataInLog": "Topics, groups and offsets travel in the log, also before a twin "
    "slave has attached.",
    "twinlogHASecret": "Both ends of the twin dialect prove that they know it.",
    "twinlogHATLS": "Replication in the twin dialect over TLS only. Both ends show a certificate: "
    "a master that of tls.server.*, a slave that of tls.client.*.",
    "twinlogAccessKey": "Account with which this broker asks servers that have aclEnable=true: a "
    "slave its master, every broker its name servers. It should be an admin account there.",
    "twinlogAclAsApache": "Let every account do what 4.9 lets it do, such as to read every body by "
    "its offset, to lock and reset every group, to delete log files.",
    "twinlogConnectionsPerAddress": "Connections that one address may have; 0: no limit.",
    "twinlogRequestsPerAddress": "Requests a second of one address; above it they are answered "
    "with SYSTEM_BUSY for a second. 0: no limit.",
    "twinlogBytesInFlightPerAddress": "Bytes of requests of one address that wait for answers; "
    "above it nothing is read from it. 0: no limit.",
    "twinlogCreationsPerAddress": "Topics and groups a second that clients of one address may have "
    "created, twenty times as many at once; 0: no limit.",
    "twinlogSecretKey": "The secret of twinlogAccessKey; never shown.",
    "twinlogLogLevel": "DEBUG, INFO, WARNING or ERROR.",
    "twinlogLogFormat": "plain or json: one object a line.",
    "twinlogLogFile": "Log to this file instead of standard error.",
    "twinlogLogFileSize": "The log file is put aside when it has reached this size, bytes.",
    "twinlogLogFileCount": "How many files that were put aside are kept.",
    "kvConfigPath": "File in which the name server keeps its table of values.",
    "configStorePath": "File to which a name server writes settings changed at run time.",
    "orderMessageEnable": "Serve the order configuration of topics.",
    "clusterTest": "Answer for unknown topics out of another environment's name server.",
    "scanNotActiveBrokerInterval": "How often a name server looks for brokers that are gone, ms.",
}


def known_keys(role: str) -> list[str]:
    return [key_of(name) for name in _struct(role).__struct_fields__ if name != "tls"]


def _struct(role: str) -> type[BrokerConfig] | type[NamesrvConfig]:
    return BrokerConfig if role == "broker" else NamesrvConfig


def describe(role: str, key: str) -> dict[str, Any] | None:
    """Type, default and meaning of a key; None when the role does not have it."""
    struct = _struct(role)
    names = {key_of(name): name for name in struct.__struct_fields__ if name != "tls"}
    spelling = next((k for k in (key, key.replace("aped", "apped")) if k in names), None)
    if spelling is None:
        return None
    name = names[spelling]
    info = {field.name: field for field in msgspec.structs.fields(struct)}[name]
    default = None if info.default is msgspec.NODEFAULT else info.default
    absent = NOT_APPLICABLE if role == "broker" else NAMESRV_NOT_APPLICABLE
    return {
        "key": spelling,
        "of": role,
        "type": _type_text(get_type_hints(struct)[name]),
        "default": default if default is None else str(default),
        "has_effect": name not in absent,
        "meaning": TEXTS.get(spelling, ""),
    }


def _type_text(kind: Any) -> str:
    members = getattr(kind, "__members__", None)
    if members is not None:
        return " | ".join(str(member.value) for member in members.values())
    words = {int: "number", str: "text", bool: "true | false", float: "number"}
    arguments = [part for part in getattr(kind, "__args__", ()) if part is not type(None)]
    if arguments:
        return _type_text(arguments[0])
    return words.get(kind, getattr(kind, "__name__", str(kind)))
