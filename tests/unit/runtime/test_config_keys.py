"""The declaration of each key tells the truth: used keys are read, the others are not."""

from __future__ import annotations

import random
import runpy
from pathlib import Path
from typing import Any

import msgspec
import pytest

from support.config_reads import keys_read, recording
from support.local_brokers import until
from support.processes import free_broker_port
from twinlog.broker.server import build_broker
from twinlog.controller.server import build_controller
from twinlog.namesrv.server import build_namesrv
from twinlog.runtime.broker_config import BrokerRole
from twinlog.runtime.config import (
    BrokerConfig,
    ConfigError,
    ControllerConfig,
    NamesrvConfig,
    TlsConfig,
    load_broker_config,
    load_controller_config,
    load_namesrv_config,
)
from twinlog.runtime.config_format import text_of
from twinlog.runtime.config_key import Declaration, Effect, declarations, spellings

ROOT = Path(__file__).parents[3]
STRUCTS: dict[str, type[msgspec.Struct]] = {
    "broker": BrokerConfig,
    "namesrv": NamesrvConfig,
    "controller": ControllerConfig,
    "tls": TlsConfig,
}
LOADERS: dict[str, Any] = {
    "broker": load_broker_config,
    "namesrv": load_namesrv_config,
    "controller": load_controller_config,
}
EVERY = [
    (role, declared)
    for role, struct in STRUCTS.items()
    for declared in declarations(struct).values()
]


def _names(role: str, effect: Effect) -> set[str]:
    return {d.name for r, d in EVERY if r == role and d.says.effect is effect}


@pytest.mark.parametrize("role", STRUCTS)
def test_every_key_is_declared_and_no_other_name_twice(role: str) -> None:
    struct = STRUCTS[role]
    assert set(struct.__struct_fields__) - {"tls", "origins"} == set(declarations(struct))
    names = [name for declared in declarations(struct).values() for name in declared.spellings]
    assert sorted(names) == sorted(set(names))
    assert spellings(struct).keys() == set(names)


@pytest.mark.parametrize("role", STRUCTS)
def test_the_code_reads_every_used_key(role: str) -> None:
    assert _names(role, Effect.USED) - keys_read(role, STRUCTS[role]) == set()


@pytest.mark.parametrize("role", STRUCTS)
def test_the_code_reads_no_other_key(role: str) -> None:
    idle = _names(role, Effect.NO_EFFECT) | _names(role, Effect.REFUSED)
    assert idle & keys_read(role, STRUCTS[role]) == set()


# Used, but not by a start: by the command that sets up logging and the HTTP port (its tests are in
# tests/integration/test_http_port.py), by a request, when a file
# expires or a record is damaged.
LATER = {
    "twinlog_log_level", "twinlog_log_format", "twinlog_log_file", "twinlog_log_file_size",
    "twinlog_log_file_count", "config_black_list", "config_store_path", "controller_d_leger_group",
    "controller_d_leger_peers", "controller_d_leger_self_id", "delete_commit_log_files_interval",
    "delete_consume_queue_files_interval", "metrics_exporter_type", "metrics_prom_exporter_port",
    "metrics_prom_exporter_host", "metrics_label", "twinlog_metrics_series_max",
    "twinlog_metrics_per_queue", "twinlog_damage_wait_millis",
}  # fmt: skip


async def _reads_what_it_starts_with(role: str, seen: set[str]) -> None:
    """What live keys do is seen in tests/unit/broker/test_runtime_keys.py."""
    fixed = {d.name for r, d in EVERY if r == role and not d.says.is_live}
    await until(lambda: (_names(role, Effect.USED) & fixed) - seen - LATER == set())
    assert seen & (_names(role, Effect.NO_EFFECT) | _names(role, Effect.REFUSED)) == set()


def _home(directory: Path) -> str:
    (directory / "conf").mkdir()
    (directory / "conf" / "plain_acl.yml").write_text(
        "accounts:\n- accessKey: someone\n  secretKey: 12345678\n  admin: true\n"
    )
    return str(directory)


async def test_brokers_that_start_read_the_used_keys_and_no_others(tmp_path: Path) -> None:
    seen: set[str] = set()
    config = recording(BrokerConfig, seen)
    port = free_broker_port()
    common = {"mapped_file_size_commit_log": 65536, "trace_topic_enable": True}
    account = {"twinlog_access_key": "someone", "twinlog_secret_key": "12345678"}
    master = build_broker(
        config(
            store_path_root_dir=str(tmp_path / "master"), listen_port=port, acl_enable=True,
            rocketmq_home=_home(tmp_path), **common, **account,
        ),
        rng=random.Random(1),
    )  # fmt: skip
    slave = build_broker(
        config(
            store_path_root_dir=str(tmp_path / "slave"), listen_port=free_broker_port(),
            broker_role=BrokerRole.SLAVE, broker_id=1, ha_master_address=f"127.0.0.1:{port + 1}",
            **common, **account,
        ),
        rng=random.Random(2),
    )  # fmt: skip
    controller = build_controller(
        ControllerConfig(controller_store_path=str(tmp_path / "records"), listen_port=0)
    )
    await controller.start()
    member = build_broker(
        config(
            store_path_root_dir=str(tmp_path / "member"), listen_port=free_broker_port(),
            enable_controller_mode=True, controller_addr=controller.address,
            broker_role=BrokerRole.SYNC_MASTER, **common,
        ),
        rng=random.Random(3),
    )  # fmt: skip
    brokers = (master, slave, member)
    for broker in brokers:
        await broker.start()
    try:
        await _reads_what_it_starts_with("broker", seen)
    finally:
        for broker in reversed(brokers):
            await broker.stop()
        await controller.stop()


async def test_a_name_server_that_starts_reads_the_used_keys(tmp_path: Path) -> None:
    seen: set[str] = set()
    namesrv = build_namesrv(
        recording(NamesrvConfig, seen)(
            kv_config_path=str(tmp_path / "kv.json"), listen_port=0, acl_enable=True,
            rocketmq_home=_home(tmp_path), enable_controller_in_namesrv=True,
            twinlog_controller_port=0, controller_store_path=str(tmp_path / "records"),
        )
    )  # fmt: skip
    await namesrv.start()
    try:
        await _reads_what_it_starts_with("namesrv", seen)
    finally:
        await namesrv.stop()


async def test_a_controller_that_starts_reads_the_used_keys(tmp_path: Path) -> None:
    seen: set[str] = set()
    controller = build_controller(
        recording(ControllerConfig, seen)(
            controller_store_path=str(tmp_path / "records"), listen_port=0, acl_enable=True,
            rocketmq_home=_home(tmp_path),
        )
    )  # fmt: skip
    await controller.start()
    try:
        await _reads_what_it_starts_with("controller", seen)
    finally:
        await controller.stop()


@pytest.mark.parametrize(("role", "declared"), EVERY, ids=lambda part: getattr(part, "key", part))
def test_a_key_is_told_in_sentences(role: str, declared: Declaration) -> None:
    says = declared.says
    assert says.text[0].isupper() or says.text[0].isdigit()
    assert says.text.endswith(".")
    assert len(says.text) <= 240
    assert (says.effect is Effect.USED) == (says.reason == "")
    assert not says.reason.endswith(".")
    if says.is_live:
        assert says.effect is Effect.USED
    if says.is_missed:
        assert says.effect is Effect.NO_EFFECT


def _other(declared: Declaration) -> str:
    """A value that the key can have and that is not its default."""
    if isinstance(declared.default, bool):
        return text_of(not declared.default)
    if isinstance(declared.default, int):
        return str(declared.default + 1)
    members = getattr(type(declared.default), "__members__", {})
    values = [str(member.value) for member in members.values()] or ["a"]
    return next(value for value in values if value != declared.default)


REFUSED = [(role, d) for role, d in EVERY if d.says.effect is Effect.REFUSED]
MISSED = [(role, d) for role, d in EVERY if d.says.is_missed]


@pytest.mark.parametrize(("role", "declared"), REFUSED, ids=lambda part: getattr(part, "key", part))
def test_a_refused_key_ends_the_start_with_its_reason(
    tmp_path: Path, role: str, declared: Declaration
) -> None:
    file = tmp_path / "server.conf"
    value = _other(declared)
    file.write_text(f"\n{declared.key}={value}\n")
    with pytest.raises(ConfigError) as caught:
        LOADERS[role](str(file), environment={})
    assert str(caught.value) == f"{file}:2: {declared.key}={value}: {declared.says.reason}"
    file.write_text(f"{declared.key}={text_of(declared.default)}\n")
    assert LOADERS[role](str(file), environment={}).warnings == []


@pytest.mark.parametrize(("role", "declared"), MISSED, ids=lambda part: getattr(part, "key", part))
def test_a_key_that_is_missed_is_warned_about(
    tmp_path: Path, role: str, declared: Declaration
) -> None:
    file = tmp_path / "server.conf"
    file.write_text(f"{declared.key}={_other(declared)}\n")
    loaded = LOADERS[role](str(file), environment={})
    assert loaded.warnings == [f"{declared.key}: no effect here: {declared.says.reason}"]
    assert [idle.key for idle in loaded.without_effect] == [declared.key]


def test_what_would_be_dangerous_in_silence_is_refused() -> None:
    """Each of these was accepted and read by nobody at some time."""
    assert {
        "duplicationEnable", "enableDLegerCommitLog", "enableLmq", "enableMultiDispatch",
        "messageStorePlugIn",
    } == {d.key for role, d in REFUSED if role == "broker"}  # fmt: skip


def test_all_faults_of_a_file_are_told_and_none_that_follows_from_another(tmp_path: Path) -> None:
    file = tmp_path / "broker.conf"
    file.write_text(
        "brokerRole=SLVE\nbrokerId=1\nlistenPort=many\nhaListenPort=10911\nfileReservedTime=-1\n"
        "deleteWhen=25\nenableLmq=true\ntls.server.mode=maybe\ntls.enable=perhaps\nbrokerNmae=a\n"
        "twinlogAccessKey=me\n"
    )
    with pytest.raises(ConfigError) as caught:
        load_broker_config(str(file), environment={})
    assert [str(fault).removeprefix(f"{file}:") for fault in caught.value.faults] == [
        "1: brokerRole=SLVE: expected ASYNC_MASTER, SYNC_MASTER or SLAVE",
        "3: listenPort=many: expected a number from 0 to 65535",
        "5: fileReservedTime=-1: expected a number from 0 to 2147483647",
        "8: tls.server.mode=maybe: expected disabled, permissive or enforcing",
        "9: tls.enable=perhaps: expected true or false",
        "7: enableLmq=true: twinlog does not have this; remove the key to start",
        " twinlogSecretKey: an account needs both its keys",
        "6: deleteWhen=25: '25' is not an hour from 00 to 23",
    ]
    assert str(caught.value).endswith("(and 7 more, see twinlog config lint)")
    (warning,) = caught.value.warnings
    assert "did you mean brokerName?" in warning


def test_the_reference_page_is_what_is_declared() -> None:
    page = runpy.run_path(str(ROOT / "tools" / "config_reference.py"))["page"]()
    stored = (ROOT / "docs" / "CONFIGURATION.md").read_text(encoding="utf-8")
    assert page == stored, "run: python tools/config_reference.py"
    for _, declared in EVERY:
        assert f"`{declared.key}`" in page
