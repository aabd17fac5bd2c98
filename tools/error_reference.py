"""Writes docs/ERRORS.md from the declarations of the errors; a test compares the two.

The codes, classes and findings come from the code. What they mean to an operator is said here,
once, and a code that is not described ends the program.

python tools/error_reference.py
"""

from __future__ import annotations

import re
from pathlib import Path

from twinlog.ha.twin.wire import ErrorCode
from twinlog.remoting.codes import ResponseCode

ROOT = Path(__file__).resolve().parent.parent
PAGE = ROOT / "docs" / "ERRORS.md"
HEAD = """\
# Errors and what to do

This page lists the codes that commands, brokers and replicas answer with. Every error message also names the file, key, address or offset that it is about.
This page is written by `python tools/error_reference.py`.

## Exit codes

These are the exit codes of every command. `tests/cli` checks them.

| code | meaning | what to do |
|---|---|---|
| 0 | The command did what was asked. | Nothing. |
| 1 | The command failed; for `twinlog spark audit` and `verify`, differences were found. | Read the line on standard error. |
| 2 | The command line or a configuration file is wrong. | The message names the option, or the file, key and value. |
| 3 | The topic, group, message, store or archive does not exist. | Check the spelling; the message suggests the nearest name. |
| 4 | No server answers. | Check the address and whether the server runs: `twinlog ps`, `twinlog doctor`. |
| 10 | The cluster is not healthy, or only some of the brokers answered. | `twinlog ha status` says why. |
| 130 | The command was interrupted with Ctrl-C. In the first milliseconds, while Python itself and the script that pip wrote are starting, Python prints a traceback; the command ends anyway. | Nothing. |
"""
RESPONSES = """\
## Response codes

A server answers a request with one of these codes and a remark. RocketMQ's clients show both. Codes
2, 3, 13, 14, 16 and 17 mean that nothing was stored. Codes 10, 11 and 12 mean that the master has
stored the message and that the rest is not known.

| code | name | meaning | what to do |
|---|---|---|---|
"""
# name: (meaning, what to do)
RESPONSE_TEXTS = {
    "SUCCESS": ("The request was carried out.", "Nothing."),
    "SYSTEM_ERROR": (
        "The server could not carry out the request. With `AclException` in the remark, access control refused it.",
        "Read the remark. For access control, check the account and its permissions.",
    ),
    "SYSTEM_BUSY": (
        "The broker is overloaded, or the client's address has used up its quota.",
        "Wait and send again. If it lasts, look at disk and CPU, or raise the `twinlog*PerAddress` limits.",
    ),
    "REQUEST_CODE_NOT_SUPPORTED": (
        "The server does not know this request.",
        "Check that the address belongs to the right kind of server. [REQUESTS](REQUESTS.md) lists what each one serves.",
    ),
    "FLUSH_DISK_TIMEOUT": (
        "The message is in the master's log, but it was not synced to disk within `syncFlushTimeout`.",
        "Check the disk. The message may be consumed; sending it again can create a duplicate.",
    ),
    "SLAVE_NOT_AVAILABLE": (
        "The message is in the master's log, but too few slaves are in sync.",
        "The remark names the reason. Run `twinlog ha status`.",
    ),
    "FLUSH_SLAVE_TIMEOUT": (
        "The message is in the master's log, but not enough slaves acknowledged it in time.",
        "Check the slave and the network. Sending it again can create a duplicate.",
    ),
    "MESSAGE_ILLEGAL": (
        "The message is too large, or its topic or properties are not valid.",
        "Correct the message; `maxMessageSize` is the limit of its size.",
    ),
    "SERVICE_NOT_AVAILABLE": (
        "The broker takes no messages now: it is a slave, its disk is full, it is stopping, or it waits for the end of its log.",
        "Read the remark. Clients try another broker by themselves.",
    ),
    "NO_PERMISSION": (
        "The broker, topic or group does not permit the request.",
        "Check `brokerPermission`, the permission of the topic and whether the group may consume.",
    ),
    "TOPIC_NOT_EXIST": (
        "The topic does not exist, and the broker does not create it.",
        "Create it: `twinlog topic create NAME`.",
    ),
    "PULL_NOT_FOUND": ("The queue has no new message.", "Nothing: consumers pull again."),
    "PULL_RETRY_IMMEDIATELY": (
        "No message matched in the part of the queue that was read.",
        "Nothing: consumers pull again from the offset in the answer.",
    ),
    "PULL_OFFSET_MOVED": (
        "The offset is outside the queue.",
        "Consumers go on at the offset in the answer. Files may have expired; see `fileReservedTime`.",
    ),
    "QUERY_NOT_FOUND": (
        "No message has this key, id or offset.",
        "Check the topic and the time range.",
    ),
    "SUBSCRIPTION_PARSE_FAILED": (
        "The broker cannot read the subscription's expression.",
        "Correct the tags or the SQL92 expression.",
    ),
    "SUBSCRIPTION_NOT_EXIST": (
        "The broker has not seen a subscription of this group yet.",
        "Nothing: the next heartbeat brings it. If it lasts, check that all members subscribe to the same topics.",
    ),
    "SUBSCRIPTION_NOT_LATEST": (
        "The broker has an older version of the group's subscription.",
        "Nothing: the next heartbeat brings it.",
    ),
    "SUBSCRIPTION_GROUP_NOT_EXIST": (
        "The consumer group does not exist.",
        "Create the group, or set `autoCreateSubscriptionGroup=true`.",
    ),
    "FILTER_DATA_NOT_EXIST": (
        "The broker does not have the group's SQL92 filter yet.",
        "Nothing: the next heartbeat brings it.",
    ),
    "FILTER_DATA_NOT_LATEST": (
        "The broker has an older version of the group's SQL92 filter.",
        "Nothing: the next heartbeat brings it.",
    ),
    "CONSUMER_NOT_ONLINE": (
        "No member of the group is connected to this broker.",
        "Start a consumer, or use a command that works without one.",
    ),
    "CONSUME_MSG_TIMEOUT": (
        "The consumer did not answer the broker in time.",
        "Look at the consumer; it may be busy or gone.",
    ),
    "UPDATE_AND_CREATE_ACL_CONFIG_FAILED": (
        "The account could not be written.",
        "Read the remark; the rules file must be writable.",
    ),
    "DELETE_ACL_CONFIG_FAILED": ("The account could not be deleted.", "Read the remark."),
    "UPDATE_GLOBAL_WHITE_ADDRS_CONFIG_FAILED": (
        "The list of addresses without access control could not be written.",
        "Read the remark.",
    ),
    "CONTROLLER_FENCED_MASTER_EPOCH": (
        "The broker's epoch is older than the group's.",
        "Nothing: the broker asks again and follows the new master.",
    ),
    "CONTROLLER_FENCED_SYNC_STATE_SET_EPOCH": (
        "The proposal is based on an older sync-state set.",
        "Nothing: the master reads the set and proposes again.",
    ),
    "CONTROLLER_INVALID_MASTER": (
        "The sender is not the group's master.",
        "Nothing: the broker follows the new master.",
    ),
    "CONTROLLER_INVALID_REPLICAS": (
        "The proposal names a replica that may not be in the set.",
        "Nothing, unless it lasts: then read `twinlog ha events`.",
    ),
    "CONTROLLER_MASTER_NOT_AVAILABLE": (
        "The group has no master.",
        "`twinlog ha status` says for which replica the group waits. Start it.",
    ),
    "CONTROLLER_INVALID_REQUEST": ("The request is not valid.", "Read the remark."),
    "CONTROLLER_BROKER_NOT_ALIVE": (
        "The replica does not send heartbeats.",
        "Start the broker, or check its `controllerAddr`.",
    ),
    "CONTROLLER_NOT_LEADER": (
        "Another controller leads.",
        "Nothing: brokers and commands ask the others. With etcd, check that it can be reached.",
    ),
    "CONTROLLER_BROKER_METADATA_NOT_EXIST": (
        "The controller does not know the group or the replica.",
        "Check `brokerName` and `brokerClusterName`.",
    ),
    "CONTROLLER_INVALID_CLEAN_BROKER_METADATA": (
        "The replica cannot be forgotten, because it is in use.",
        "Drain and stop it first: `twinlog ha drain`.",
    ),
    "CONTROLLER_BROKER_NEED_TO_BE_REGISTERED": (
        "The replica has to register first.",
        "Nothing: brokers register by themselves.",
    ),
    "CONTROLLER_ELECT_MASTER_FAILED": (
        "No replica may become the master.",
        "The remark names the reason for each replica; see [GROUPS](GROUPS.md).",
    ),
    "CONTROLLER_BROKER_ID_INVALID": (
        "The replica's id belongs to another store.",
        "Read the remark; a copied store must not run while its original runs.",
    ),
    "TWINLOG_SEQUENCE_GAP": (
        "The number of an idempotent send does not follow the last one.",
        "Close the producer and open a new one.",
    ),
    "TWINLOG_PRODUCER_EXPIRED": (
        "The broker no longer knows this idempotent producer.",
        "Close the producer and open a new one.",
    ),
    "TWINLOG_PRODUCER_FENCED": (
        "A newer producer with the same name has started.",
        "Stop one of the two.",
    ),
    "TWINLOG_REPEAT_DIFFERS": (
        "A repeated number came with another message.",
        "Repeat messages in their original order, unchanged.",
    ),
}
REFUSALS = """\
## Refused replication connections

A twinlog master and slave give one of these reasons when one of them ends the connection. The reason
is in both logs, in `twinlog ha status` and in the event journal.

| code | name | meaning | what to do |
|---|---|---|---|
"""
REFUSAL_TEXTS = {
    "PROTOCOL": (
        "The other end sent something that the protocol does not allow.",
        "Report it, with both logs.",
    ),
    "VERSION": ("The two ends share no version of the dialect.", "Upgrade the older one."),
    "WRONG_CLUSTER": ("`brokerClusterName` differs.", "Use the same name in both files."),
    "WRONG_GROUP": (
        "`brokerName` differs.",
        "Use the same name in both files, or correct the address.",
    ),
    "WRONG_SECRET": ("`twinlogHASecret` differs or is missing.", "Set the same secret on both."),
    "REPLICA_ID_IN_USE": (
        "Another slave with this `brokerId` is connected.",
        "Give each slave an id of its own.",
    ),
    "NOT_A_MASTER": (
        "The broker that was dialled is a slave.",
        "Correct `haMasterAddress`, or wait for the election.",
    ),
    "OTHER_STORE": (
        "The slave's store is a copy of another log.",
        "Give the slave an empty store.",
    ),
    "NOTHING_COMMON": (
        "The two logs share no record: the slave was away for longer than the master keeps files.",
        "Set `twinlogReseed=all`, or give the slave an empty store.",
    ),
    "OFFSET_OUT_OF_RANGE": (
        "The slave's log is longer than the master's.",
        "With `twinlogReseed=manual`, decide which log to keep; otherwise the tail is moved aside.",
    ),
    "DIVERGED": (
        "The logs differ from some offset on.",
        "With `twinlogReseed=manual`, decide which log to keep; otherwise the slave's tail is moved aside.",
    ),
    "DISK": ("A disk failed or is full.", "Free space, or replace the disk."),
    "SEGMENT_SIZE": ("`mappedFileSizeCommitLog` differs.", "Use the same size in both files."),
    "STOPPING": ("The other end is stopping or restarting.", "Nothing: the slave connects again."),
    "MASTER_EMPTY": (
        "The master's log is empty and the slave's is not.",
        "See [OPERATIONS](OPERATIONS.md#a-master-that-came-back-empty).",
    ),
    "TLS_WANTED": (
        "The master requires TLS and the slave does not use it.",
        "Set `twinlogHATLS=true` on both.",
    ),
    "NO_CREDENTIALS": (
        "A slave on another machine has neither a secret nor a certificate.",
        "Set `twinlogHASecret` or `twinlogHATLS`; see [OPERATIONS](OPERATIONS.md#who-may-replicate).",
    ),
    "STALE_EPOCH": (
        "One of the two ends has an older epoch.",
        "Nothing: the older one asks the controller.",
    ),
    "CONFIRMED_DIFFERS": (
        "Both logs hold confirmed records that the other one does not have.",
        "An operator must choose; see [PAIR](PAIR.md#a-master-that-lost-the-end-of-its-log).",
    ),
    "NOT_IN_GROUP": (
        "The controller does not know this replica.",
        "Check `controllerAddr` on both.",
    ),
}
CLIENT = """\
## Exceptions of the Python client

[CLIENT](CLIENT.md#errors) lists every exception with its meaning, what became of the message, and whether the call may be
repeated.
"""


def page() -> str:
    parts = [HEAD, RESPONSES + _rows(_used_responses(), RESPONSE_TEXTS)]
    parts += [REFUSALS + _rows(list(ErrorCode), REFUSAL_TEXTS)]
    parts += [CLIENT]
    return "\n".join(parts)


def _rows(codes: list[ResponseCode] | list[ErrorCode], texts: dict[str, tuple[str, str]]) -> str:
    return "".join(
        f"| {code.value} | `{code.name}` | {texts[code.name][0]} | {texts[code.name][1]} |\n"
        for code in codes
    )


def _used_responses() -> list[ResponseCode]:
    """Those that the source answers with; the others are only known."""
    text = "".join(
        path.read_text(encoding="utf-8") for path in (ROOT / "src" / "twinlog").rglob("*.py*")
        if path.suffix in {".py", ".pyx"}
    )  # fmt: skip
    used = set(re.findall(r"ResponseCode\.([A-Z_]+)", text))
    waiting = {"FLUSH_DISK_TIMEOUT", "SLAVE_NOT_AVAILABLE", "FLUSH_SLAVE_TIMEOUT"}
    return [code for code in ResponseCode if code.name in used | waiting]


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
