"""Writes docs/MQADMIN.md, every verb of Apache's mqadmin; a test compares the two.

python tools/mqadmin_reference.py
"""

from __future__ import annotations

from pathlib import Path

from twinlog.cli.mqadmin.options import OWN
from twinlog.cli.mqadmin.verbs import REFUSED, VERB_ALIASES, VERBS

PAGE = Path(__file__).resolve().parent.parent / "docs" / "MQADMIN.md"
# The names that MQAdminStartup of the two releases registers.
VERBS_4_9 = (
    "addWritePerm", "allocateMQ", "brokerConsumeStats", "brokerStatus", "checkMsgSendRT",
    "cleanExpiredCQ", "cleanUnusedTopic", "cloneGroupOffset", "clusterAclConfigVersion",
    "clusterList", "clusterRT", "consumeMessage", "consumerConnection", "consumerProgress",
    "consumerStatus", "deleteAclConfig", "deleteExpiredCommitLog", "deleteKvConfig",
    "deleteSubGroup", "deleteTopic", "exportConfigs", "exportMetadata", "exportMetrics",
    "getAclConfig", "getBrokerConfig", "getConsumerConfig", "getNamesrvConfig", "printMsg",
    "printMsgByQueue", "producer", "producerConnection", "queryCq", "queryMsgById",
    "queryMsgByKey", "queryMsgByOffset", "queryMsgByUniqueKey", "queryMsgTraceById",
    "resetOffsetByTime", "sendMessage", "sendMsgStatus", "skipAccumulatedMessage",
    "startMonitoring", "statsAll", "topicClusterList", "topicList", "topicRoute", "topicStatus",
    "updateAclConfig", "updateBrokerConfig", "updateGlobalWhiteAddr", "updateKvConfig",
    "updateNamesrvConfig", "updateOrderConf", "updateSubGroup", "updateTopic",
    "updateTopicPerm", "wipeWritePerm",
)  # fmt: skip
VERBS_5_3 = (
    "addBroker", "addWritePerm", "allocateMQ", "brokerConsumeStats", "brokerStatus",
    "checkMsgSendRT", "checkRocksdbCqWriteProgress", "cleanBrokerMetadata", "cleanExpiredCQ",
    "cleanUnusedTopic", "cloneGroupOffset", "clusterList", "clusterRT", "consumeMessage",
    "consumerConnection", "consumerProgress", "consumerStatus", "copyAcl", "copyUser",
    "createAcl", "createUser", "deleteAcl", "deleteExpiredCommitLog", "deleteKvConfig",
    "deleteSubGroup", "deleteTopic", "deleteUser", "dumpCompactionLog", "electMaster",
    "exportConfigs", "exportMetadata", "exportMetadataInRocksDB", "exportMetrics",
    "exportPopRecord", "getAcl", "getBrokerConfig", "getBrokerEpoch", "getColdDataFlowCtrInfo",
    "getConsumerConfig", "getControllerConfig", "getControllerMetaData", "getNamesrvConfig",
    "getSyncStateSet", "getUser", "haStatus", "listAcl", "listUser", "printMsg",
    "printMsgByQueue", "producer", "producerConnection", "queryCq", "queryMsgById",
    "queryMsgByKey", "queryMsgByOffset", "queryMsgByUniqueKey", "queryMsgTraceById",
    "remappingStaticTopic", "removeBroker", "removeColdDataFlowCtrGroupConfig",
    "resetMasterFlushOffset", "resetOffsetByTime", "rocksDBConfigToJson", "sendMessage",
    "sendMsgStatus", "setCommitLogReadAheadMode", "setConsumeMode", "skipAccumulatedMessage",
    "startMonitoring", "statsAll", "topicClusterList", "topicList", "topicRoute", "topicStatus",
    "updateAcl", "updateBrokerConfig", "updateColdDataFlowCtrGroupConfig",
    "updateControllerConfig", "updateKvConfig", "updateNamesrvConfig", "updateOrderConf",
    "updateStaticTopic", "updateSubGroup", "updateSubGroupList", "updateTopic",
    "updateTopicList", "updateTopicPerm", "updateUser", "wipeWritePerm",
)  # fmt: skip
HEAD = """\
# mqadmin

`mqadmin VERB` takes the options of Apache's tool and prints its columns, without a JVM. It works
with our servers and with Apache's. Errors are one line on standard error and an exit code (0 ok,
1 failed, 2 usage, 3 not found, 4 unreachable, 10 not all brokers answered), where Apache prints a
stack trace and exits with 0.

`-o json` works with every verb: one object with `rows` (the cells of tables under their titles),
`values` and `lines`; a verb that repeats itself prints one object per round. Besides a verb's own
options there are OWN; see [OPERATIONS](OPERATIONS.md#which-cluster-as-whom).

Secrets are written and never shown: `getAclConfig`, `getUser` and `listUser` print `******` in
their place. The verbs of 5.3 about users and ACLs change `plain_acl.yml`: a user is an account
whose access key is its name, `Super` is `admin: true`, an ACL entry is a permission of a topic or
group, and `Topic:*` and `Group:*` are the defaults.

| verb | 4.9 | 5.3 | here |
|---|---|---|---|
"""
FOOT = "\nThis page is written by `python tools/mqadmin_reference.py`.\n"


def page() -> str:
    own = ", ".join(f"`--{option.name}`" for option in OWN)
    names = sorted({*VERBS_4_9, *VERBS_5_3, *VERBS, *REFUSED}, key=str.lower)
    return HEAD.replace("OWN", own) + "".join(map(_row, names)) + FOOT


def _row(name: str) -> str:
    marks = ("yes" if name in known else "-" for known in (VERBS_4_9, VERBS_5_3))
    return f"| `{name}` | {' | '.join(marks)} | {_here(name)} |\n"


def _here(name: str) -> str:
    if name in VERBS:
        others = [f"`{alias}`" for alias, verb in VERB_ALIASES.items() if verb == name]
        return VERBS[name].text + (f" (also {', '.join(others)})" if others else "")
    return f"no: {REFUSED[name]}"


if __name__ == "__main__":
    PAGE.write_text(page())
