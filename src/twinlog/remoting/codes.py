"""Numbers of the wire: request codes, response codes, languages, header forms.

Corresponds to RocketMQ's RequestCode, ResponseCode, RemotingSysResponseCode, LanguageCode and
SerializeType; names and numbers are RocketMQ's. Codes above 10000 are twinlog's own and are sent
only to a peer that has said it is twinlog.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import IntEnum, unique

OWN_VERSION = (
    407  # Ordinal of 4.9.7 in RocketMQ's version list: the release our bytes are checked against.
)
OWN_LANGUAGE = "PYTHON"
FLAG_RESPONSE = 1
FLAG_ONEWAY = 2


class SerializeType(IntEnum):
    """Form of a command's header: the type byte of the frame."""

    JSON = 0
    ROCKETMQ = 1


class LanguageCode(IntEnum):
    """Language of a command's sender."""

    JAVA = 0
    CPP = 1
    DOTNET = 2
    PYTHON = 3
    DELPHI = 4
    ERLANG = 5
    RUBY = 6
    OTHER = 7
    HTTP = 8
    GO = 9
    PHP = 10
    OMS = 11
    RUST = 12
    NODE_JS = 13


@unique
class RequestCode(IntEnum):
    """What a request asks for."""

    SEND_MESSAGE = 10
    PULL_MESSAGE = 11
    QUERY_MESSAGE = 12
    QUERY_BROKER_OFFSET = 13
    QUERY_CONSUMER_OFFSET = 14
    UPDATE_CONSUMER_OFFSET = 15
    UPDATE_AND_CREATE_TOPIC = 17
    UPDATE_AND_CREATE_TOPIC_LIST = 18
    GET_ALL_TOPIC_CONFIG = 21
    GET_TOPIC_CONFIG_LIST = 22
    GET_TOPIC_NAME_LIST = 23
    UPDATE_BROKER_CONFIG = 25
    GET_BROKER_CONFIG = 26
    TRIGGER_DELETE_FILES = 27
    GET_BROKER_RUNTIME_INFO = 28
    SEARCH_OFFSET_BY_TIMESTAMP = 29
    GET_MAX_OFFSET = 30
    GET_MIN_OFFSET = 31
    GET_EARLIEST_MSG_STORETIME = 32
    VIEW_MESSAGE_BY_ID = 33
    HEART_BEAT = 34
    UNREGISTER_CLIENT = 35
    CONSUMER_SEND_MSG_BACK = 36
    END_TRANSACTION = 37
    GET_CONSUMER_LIST_BY_GROUP = 38
    CHECK_TRANSACTION_STATE = 39
    NOTIFY_CONSUMER_IDS_CHANGED = 40
    LOCK_BATCH_MQ = 41
    UNLOCK_BATCH_MQ = 42
    GET_ALL_CONSUMER_OFFSET = 43
    GET_ALL_DELAY_OFFSET = 45
    CHECK_CLIENT_CONFIG = 46
    GET_CLIENT_CONFIG = 47
    UPDATE_AND_CREATE_ACL_CONFIG = 50
    DELETE_ACL_CONFIG = 51
    GET_BROKER_CLUSTER_ACL_INFO = 52
    UPDATE_GLOBAL_WHITE_ADDRS_CONFIG = 53
    GET_BROKER_CLUSTER_ACL_CONFIG = 54

    PUT_KV_CONFIG = 100
    GET_KV_CONFIG = 101
    DELETE_KV_CONFIG = 102
    REGISTER_BROKER = 103
    UNREGISTER_BROKER = 104
    GET_ROUTEINFO_BY_TOPIC = 105
    GET_BROKER_CLUSTER_INFO = 106

    UPDATE_AND_CREATE_SUBSCRIPTIONGROUP = 200
    GET_ALL_SUBSCRIPTIONGROUP_CONFIG = 201
    GET_TOPIC_STATS_INFO = 202
    GET_CONSUMER_CONNECTION_LIST = 203
    GET_PRODUCER_CONNECTION_LIST = 204
    WIPE_WRITE_PERM_OF_BROKER = 205
    GET_ALL_TOPIC_LIST_FROM_NAMESERVER = 206
    DELETE_SUBSCRIPTIONGROUP = 207
    GET_CONSUME_STATS = 208
    SUSPEND_CONSUMER = 209
    RESUME_CONSUMER = 210
    RESET_CONSUMER_OFFSET_IN_CONSUMER = 211
    RESET_CONSUMER_OFFSET_IN_BROKER = 212
    ADJUST_CONSUMER_THREAD_POOL = 213
    WHO_CONSUME_THE_MESSAGE = 214
    DELETE_TOPIC_IN_BROKER = 215
    DELETE_TOPIC_IN_NAMESRV = 216
    REGISTER_TOPIC_IN_NAMESRV = 217
    GET_KVLIST_BY_NAMESPACE = 219
    RESET_CONSUMER_CLIENT_OFFSET = 220
    GET_CONSUMER_STATUS_FROM_CLIENT = 221
    INVOKE_BROKER_TO_RESET_OFFSET = 222
    INVOKE_BROKER_TO_GET_CONSUMER_STATUS = 223
    GET_TOPICS_BY_CLUSTER = 224

    QUERY_TOPIC_CONSUME_BY_WHO = 300
    REGISTER_FILTER_SERVER = 301
    REGISTER_MESSAGE_FILTER_CLASS = 302
    QUERY_CONSUME_TIME_SPAN = 303
    GET_SYSTEM_TOPIC_LIST_FROM_NS = 304
    GET_SYSTEM_TOPIC_LIST_FROM_BROKER = 305
    CLEAN_EXPIRED_CONSUMEQUEUE = 306
    GET_CONSUMER_RUNNING_INFO = 307
    QUERY_CORRECTION_OFFSET = 308
    CONSUME_MESSAGE_DIRECTLY = 309
    SEND_MESSAGE_V2 = 310
    GET_UNIT_TOPIC_LIST = 311
    GET_HAS_UNIT_SUB_TOPIC_LIST = 312
    GET_HAS_UNIT_SUB_UNUNIT_TOPIC_LIST = 313
    CLONE_GROUP_OFFSET = 314
    VIEW_BROKER_STATS_DATA = 315
    CLEAN_UNUSED_TOPIC = 316
    GET_BROKER_CONSUME_STATS = 317
    UPDATE_NAMESRV_CONFIG = 318
    GET_NAMESRV_CONFIG = 319
    SEND_BATCH_MESSAGE = 320
    QUERY_CONSUME_QUEUE = 321
    QUERY_DATA_VERSION = 322
    RESUME_CHECK_HALF_MESSAGE = 323
    SEND_REPLY_MESSAGE = 324
    SEND_REPLY_MESSAGE_V2 = 325
    PUSH_REPLY_MESSAGE_TO_CLIENT = 326
    ADD_WRITE_PERM_OF_BROKER = 327
    GET_ALL_PRODUCER_INFO = 328
    DELETE_EXPIRED_COMMITLOG = 329

    # From here on 5.x's.
    QUERY_TOPICS_BY_CONSUMER = 343
    QUERY_SUBSCRIPTION_BY_CONSUMER = 345
    GET_TOPIC_CONFIG = 351
    GET_SUBSCRIPTIONGROUP_CONFIG = 352
    UPDATE_AND_GET_GROUP_FORBIDDEN = 353
    LITE_PULL_MESSAGE = 361
    QUERY_ASSIGNMENT = 400
    SET_MESSAGE_REQUEST_MODE = 401
    GET_ALL_MESSAGE_REQUEST_MODE = 402
    GET_BROKER_MEMBER_GROUP = 901
    ADD_BROKER = 902
    REMOVE_BROKER = 903
    BROKER_HEARTBEAT = 904
    NOTIFY_MIN_BROKER_ID_CHANGE = 905
    EXCHANGE_BROKER_HA_INFO = 906
    GET_BROKER_HA_STATUS = 907
    RESET_MASTER_FLUSH_OFFSET = 908
    CONTROLLER_ALTER_SYNC_STATE_SET = 1001
    CONTROLLER_ELECT_MASTER = 1002
    CONTROLLER_REGISTER_BROKER = 1003
    CONTROLLER_GET_REPLICA_INFO = 1004
    CONTROLLER_GET_METADATA_INFO = 1005
    CONTROLLER_GET_SYNC_STATE_DATA = 1006
    GET_BROKER_EPOCH_CACHE = 1007
    NOTIFY_BROKER_ROLE_CHANGED = 1008
    UPDATE_CONTROLLER_CONFIG = 1009
    GET_CONTROLLER_CONFIG = 1010
    CLEAN_BROKER_DATA = 1011
    CONTROLLER_GET_NEXT_BROKER_ID = 1012
    CONTROLLER_APPLY_BROKER_ID = 1013
    POP_MESSAGE = 3442
    ACK_MESSAGE = 3443
    PEEK_MESSAGE = 3444
    CHANGE_MESSAGE_INVISIBLETIME = 3445
    NOTIFICATION = 3446
    POLLING_INFO = 3447
    BATCH_ACK_MESSAGE = 3543

    # twinlog's own.
    TWINLOG_INFO = 10001  # Are you twinlog, and what do you speak? Apache answers 3.
    TWINLOG_OFFSETS = 10002  # A slave to its master: offsets that clients committed to it.
    TWINLOG_REPLICA = 10003  # How far is this replica, and what does it know of its group?
    TWINLOG_PROMOTE = 10004  # To a slave: become the master.
    TWINLOG_RELAY = 10005  # To the master of a group: a client's request that came to another one.
    TWINLOG_LOG_DIGESTS = 10006  # A replica to another: digests of ranges of the log.
    TWINLOG_LOG_RANGE = 10007  # A replica to another: bytes of the log, to heal its own.
    TWINLOG_SCRUB = 10008  # How far is the walk over the store, or begin it now.
    TWINLOG_GROUPS = 10020  # To a controller: what is known of groups and their replicas?
    TWINLOG_SET_LEARNER = 10021  # To a controller: drain a replica, or take it back.
    TWINLOG_ADOPT = 10022  # To a controller: the replicas that are here are all there will be.
    TWINLOG_EVENTS = 10023  # What changed and why, from the journal of events.
    TWINLOG_BUSIEST = 10050  # To a broker: its busiest topics and groups.


_REQUEST_NAMES = {code.value: code.name for code in RequestCode}


class ResponseCode(IntEnum):
    """What a response says. 10, 11 and 12 mean stored on the master, the rest unknown."""

    SUCCESS = 0
    SYSTEM_ERROR = 1
    SYSTEM_BUSY = 2
    REQUEST_CODE_NOT_SUPPORTED = 3
    TRANSACTION_FAILED = 4
    FLUSH_DISK_TIMEOUT = 10
    SLAVE_NOT_AVAILABLE = 11
    FLUSH_SLAVE_TIMEOUT = 12
    MESSAGE_ILLEGAL = 13
    SERVICE_NOT_AVAILABLE = 14
    VERSION_NOT_SUPPORTED = 15
    NO_PERMISSION = 16
    TOPIC_NOT_EXIST = 17
    TOPIC_EXIST_ALREADY = 18
    PULL_NOT_FOUND = 19
    PULL_RETRY_IMMEDIATELY = 20
    PULL_OFFSET_MOVED = 21
    QUERY_NOT_FOUND = 22
    SUBSCRIPTION_PARSE_FAILED = 23
    SUBSCRIPTION_NOT_EXIST = 24
    SUBSCRIPTION_NOT_LATEST = 25
    SUBSCRIPTION_GROUP_NOT_EXIST = 26
    FILTER_DATA_NOT_EXIST = 27
    FILTER_DATA_NOT_LATEST = 28
    INVALID_PARAMETER = 29
    TRANSACTION_SHOULD_COMMIT = 200
    TRANSACTION_SHOULD_ROLLBACK = 201
    TRANSACTION_STATE_UNKNOW = 202
    TRANSACTION_STATE_GROUP_WRONG = 203
    NO_BUYER_ID = 204
    NOT_IN_CURRENT_UNIT = 205
    CONSUMER_NOT_ONLINE = 206
    CONSUME_MSG_TIMEOUT = 207
    NO_MESSAGE = 208
    UPDATE_AND_CREATE_ACL_CONFIG_FAILED = 209
    DELETE_ACL_CONFIG_FAILED = 210
    UPDATE_GLOBAL_WHITE_ADDRS_CONFIG_FAILED = 211
    BROKER_DISPATCH_NOT_COMPLETE = 212
    BROADCAST_CONSUMPTION = 213
    FLOW_CONTROL = 215
    NOT_LEADER_FOR_QUEUE = 501
    ILLEGAL_OPERATION = 604
    GO_AWAY = 1500
    CONTROLLER_FENCED_MASTER_EPOCH = 2000
    CONTROLLER_FENCED_SYNC_STATE_SET_EPOCH = 2001
    CONTROLLER_INVALID_MASTER = 2002
    CONTROLLER_INVALID_REPLICAS = 2003
    CONTROLLER_MASTER_NOT_AVAILABLE = 2004
    CONTROLLER_INVALID_REQUEST = 2005
    CONTROLLER_BROKER_NOT_ALIVE = 2006
    CONTROLLER_NOT_LEADER = 2007
    CONTROLLER_BROKER_METADATA_NOT_EXIST = 2008
    CONTROLLER_INVALID_CLEAN_BROKER_METADATA = 2009
    CONTROLLER_BROKER_NEED_TO_BE_REGISTERED = 2010
    CONTROLLER_MASTER_STILL_EXIST = 2011
    CONTROLLER_ELECT_MASTER_FAILED = 2012
    CONTROLLER_ALTER_SYNC_STATE_SET_FAILED = 2013
    CONTROLLER_BROKER_ID_INVALID = 2014

    # twinlog's own: refusals of idempotent sends. Nothing was stored.
    TWINLOG_SEQUENCE_GAP = 10010
    TWINLOG_PRODUCER_EXPIRED = 10011
    TWINLOG_PRODUCER_FENCED = 10012
    TWINLOG_REPEAT_DIFFERS = 10013


_LANGUAGES_BY_NAME = {member.name: member for member in LanguageCode}
_LANGUAGES_BY_NUMBER = {member.value: member for member in LanguageCode}


def language_of(raw: str | int | None) -> LanguageCode | None:
    """Language by its name in any case or by its number; None when nobody knows it."""
    if isinstance(raw, str):
        return _LANGUAGES_BY_NAME.get(raw.upper())
    return None if raw is None else _LANGUAGES_BY_NUMBER.get(raw)


def version_description(version: int) -> str:
    """Text form of a version ordinal from 4.0.0 on: 407 is `V4_9_7`."""
    if version < 213:
        return f"V{version}"
    major, rest = (4, version - 213) if version < 413 else (5, version - 413)
    suffix = "" if rest % 2 == 0 else "_SNAPSHOT"
    if suffix:
        rest += 1
    return f"V{major}_{rest // 20}_{rest % 20 // 2}{suffix}"


_RESPONSE_NAMES = {code.value: code.name for code in ResponseCode}


def refusal_labels(request_code: int, response_code: int) -> tuple[str, str, str]:
    """Names of a request and of the answer that refused it, for metrics and events."""
    request = _REQUEST_NAMES.get(request_code, "OTHER")
    return request, str(response_code), _RESPONSE_NAMES.get(response_code, "OTHER")


_ANSWERS = {
    (RequestCode.GET_CONSUMER_CONNECTION_LIST, ResponseCode.CONSUMER_NOT_ONLINE),
    (RequestCode.INVOKE_BROKER_TO_RESET_OFFSET, ResponseCode.CONSUMER_NOT_ONLINE),
    (RequestCode.VIEW_MESSAGE_BY_ID, ResponseCode.SYSTEM_ERROR),
    (RequestCode.GET_BROKER_CLUSTER_ACL_INFO, ResponseCode.SYSTEM_ERROR),
    (RequestCode.GET_BROKER_CLUSTER_ACL_CONFIG, ResponseCode.SYSTEM_ERROR),
}
"""Questions whose answer is that there is nothing: nobody is online, rules are off, a replica
does not have a message. RocketMQ has no other way to say it, and whoever watches a cluster asks all
the time. They are counted as every refusal is, and are no event."""


def refused_by_reason(refusals: Mapping[tuple[int, int], int]) -> dict[str, int]:
    """How often requests were refused, by `REQUEST reason`, from counts by the two codes."""
    found: dict[str, int] = {}
    for (request, response), count in refusals.items():
        if (request, response) in _ANSWERS:
            continue
        name, _, reason = refusal_labels(request, response)
        found[f"{name} {reason}"] = found.get(f"{name} {reason}", 0) + count
    return found
