"""Who is RocketMQ's own and who is a user's: one answer, whoever asks."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

import twinlog
from twinlog.admin.groups import is_user_group
from twinlog.admin.names import is_user_topic, kind_of_topic
from twinlog.message import names
from twinlog.spark.options import SourceOptions
from twinlog.spark.read.transport import select_queues

SOURCE = Path(twinlog.__file__).parent
# The home itself; and a default of the configuration, which is below `message`.
OWN_COPY = ("message/names.py", "runtime/broker_config.py")
USER_TOPICS = ("orders", "RMQ_SYS_audit", "TWINLOG_SYS_METADATA", "TWINLOG_SYS_x", "CID_RMQ_SYS_x")
OWN_TOPICS = (
    "TBW102", "SCHEDULE_TOPIC_XXXX", "BenchmarkTest", "RMQ_SYS_TRANS_HALF_TOPIC",
    "RMQ_SYS_TRANS_OP_HALF_TOPIC", "TRANS_CHECK_MAX_TIME_TOPIC", "RMQ_SYS_TRACE_TOPIC",
    "SELF_TEST_TOPIC", "OFFSET_MOVED_EVENT", "rmq_sys_twinlog_metadata", "rmq_sys_x",
    "%RETRY%g", "%DLQ%g", "C_REPLY_TOPIC",
)  # fmt: skip
# Those that Apache's own administration hides.
OWN_GROUPS = (
    "TOOLS_CONSUMER", "FILTERSRV_CONSUMER", "SELF_TEST_C_GROUP", "SELF_TEST_P_GROUP",
    "CID_ONS-HTTP-PROXY", "CID_ONSAPI_PULL", "CID_ONSAPI_PERMISSION", "CID_ONSAPI_OWNER",
    "CID_RMQ_SYS_TRANS", "CID_RMQ_SYS_anything", "CID_HOUSEKEEPING", "__MONITOR_CONSUMER",
    "CLIENT_INNER_PRODUCER", "DEFAULT_CONSUMER", "DEFAULT_PRODUCER", "SCHEDULE_CONSUMER",
)  # fmt: skip


@pytest.mark.parametrize("topic", USER_TOPICS)
def test_a_topic_of_a_user_is_one_for_everybody(topic: str) -> None:
    assert is_user_topic(topic)
    assert kind_of_topic(topic, frozenset()) == "user"
    assert _chosen_by_pattern(topic)


@pytest.mark.parametrize("topic", OWN_TOPICS)
def test_a_topic_of_the_system_is_one_for_everybody(topic: str) -> None:
    assert not is_user_topic(topic)
    assert not _chosen_by_pattern(topic)


@pytest.mark.parametrize("group", OWN_GROUPS)
def test_a_group_of_the_system_is_not_a_users(group: str) -> None:
    assert not is_user_group(group)


@pytest.mark.parametrize("group", ["billing", "CID_SYS_RMQ_TRANS", "TOOLS_CONSUMER2"])
def test_a_group_of_a_user(group: str) -> None:
    assert is_user_group(group)


def _chosen_by_pattern(topic: str) -> bool:
    """Whether Spark reads it when it is asked for everything."""
    options = SourceOptions.parse({"path": "store", "subscribePattern": ".*"})
    return select_queues(options, [(topic, "broker-a", 0)]) == [(topic, "broker-a", 0)]


def test_names_are_written_down_once() -> None:
    known = (
        {value for name, value in vars(names).items() if name.isupper() and isinstance(value, str)}
        | names.SYSTEM_TOPICS
        | names.SYSTEM_GROUPS
    )
    found = [
        f"{path.relative_to(SOURCE)}:{node.lineno} {node.value}"
        for path in sorted(SOURCE.rglob("*.py"))
        if path.relative_to(SOURCE).as_posix() not in OWN_COPY and "testing" not in path.parts
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Constant) and node.value in known
    ]
    assert found == []
