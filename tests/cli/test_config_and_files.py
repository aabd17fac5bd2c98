"""`twinlog config|generate|doctor` on files; no cluster is needed but by doctor."""

from __future__ import annotations

import json
import logging
import os
import shutil
import stat
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from support.command_line import TWINLOG, Result, process, twinlog
from twinlog.cli import doctor
from twinlog.cli.bench import bars, histogram, percentile, summary
from twinlog.cli.exit_codes import CommandError
from twinlog.cli.generate.systemd import why_not_started
from twinlog.cli.times import parse_duration, parse_time
from twinlog.runtime import log_config
from twinlog.runtime.config import BrokerConfig
from twinlog.runtime.log_config import LogFormat, LogLevel


def write(path: Path, text: str) -> str:
    path.write_text(text)
    return str(path)


def lint(path: str, *options: str) -> Result:
    return twinlog("config", "lint", path, *options)


def test_lint_finds_typos_comments_and_traps(tmp_path: Path) -> None:
    good = write(tmp_path / "good.conf", "brokerName=a\nnamesrvAddr=127.0.0.1:9876\n"
                 f"storePathRootDir={tmp_path}\n")  # fmt: skip
    assert lint(good).ok().out == f"{good}: good\n"
    typo = write(tmp_path / "typo.conf", Path(good).read_text() + "brokerRol=SLAVE\n")
    found = lint(typo).ok()
    assert "unknown key, ignored; did you mean brokerRole?" in found.out
    assert lint(typo, "--strict").code == 1
    bad = write(tmp_path / "bad.conf", "brokerIP1=1.2.3.4 #public\n")
    broken = lint(bad)
    assert broken.code == 2
    assert "'#public' is not a comment here" in broken.out
    trap = write(tmp_path / "trap.conf", Path(good).read_text() + "bindAddress=0.0.0.0\n"
                 "brokerIP1=127.0.0.1\nsendMessageThreadPoolNums=4\n")  # fmt: skip
    rows = lint(trap, "-o", "json").ok().json
    assert any("brokerIP1 is loopback" in row["text"] for row in rows)
    assert any(row["level"] == "info" and "without effect" in row["text"] for row in rows)
    missing = lint(str(tmp_path / "none.conf"))
    assert (missing.code, missing.out) == (3, "")


def test_lint_refuses_an_address_that_is_none(tmp_path: Path) -> None:
    bad = write(tmp_path / "bad.conf", "brokerIP1=no machine\n")
    found = lint(bad)
    assert found.code == 2
    assert "brokerIP1=no machine: is neither an address nor a host name" in found.out
    every = write(tmp_path / "every.conf", "brokerIP1=0.0.0.0\n")
    assert "brokerIP1 is the address of every interface" in lint(every).ok().out


@pytest.mark.parametrize(
    "arguments",
    [
        ("config", "lint", "/dev/zero"),
        ("config", "lint", "--role", "broker", "/dev/zero"),
        ("config", "print", "/dev/full"),
        ("config", "diff", "/dev/zero", "/dev/zero"),
        ("broker", "-c", "/dev/zero"),
        ("namesrv", "-c", "/dev/full"),
        ("controller", "-c", "/dev/zero"),
        ("console", "--token-file", "/dev/zero"),
    ],
)
def test_a_file_without_an_end_is_refused(arguments: tuple[str, ...]) -> None:
    refused = twinlog(*arguments)
    assert refused.code == 2
    assert "more than 1 MiB" in refused.out + refused.err


def test_print_and_diff(tmp_path: Path) -> None:
    one = write(tmp_path / "one.conf", "brokerName=a\nfileReservedTime=48\n")
    two = write(tmp_path / "two.conf", "brokerName=a\n")
    changed = twinlog("config", "print", one, "--changed", "-o", "json").ok().json
    assert {"key": "fileReservedTime", "value": "48", "default": "72"} in changed
    every = twinlog("config", "print", "--role", "namesrv").ok()
    assert ["listenPort", "9876"] in every.rows
    different = twinlog("config", "diff", one, two, "-o", "json")
    assert different.code == 1
    assert different.json == [{"key": "fileReservedTime", "first": "48", "second": "72"}]


def test_explain_says_what_is_declared_and_what_is_used() -> None:
    shown = twinlog("config", "explain", "mapedFileSizeCommitLog").ok()
    assert ["key", "mappedFileSizeCommitLog"] in shown.rows
    assert ["default", "1073741824"] in shown.rows
    port = twinlog("config", "explain", "haListenPort", "-o", "json").ok().json
    assert port["default"] == "10912 (listenPort + 1)"
    assert port["values"] == "a number from 0 to 65535"
    role = twinlog("config", "explain", "brokerRole", "-o", "json").ok().json
    assert role["values"] == "ASYNC_MASTER, SYNC_MASTER or SLAVE"
    assert (role["effect"], role["runtime"]) == ("used", "changes at once")
    refused = twinlog("config", "explain", "enableDLegerCommitLog", "-o", "json").ok().json
    assert refused["effect"].startswith("refused: ")
    assert refused["runtime"] == "cannot be changed"
    renamed = twinlog("config", "explain", "haMaxGapNotInSync").ok()
    assert ["key", "haSlaveFallbehindMax"] in renamed.rows
    for role_name in ("namesrv", "controller"):
        found = twinlog("config", "explain", "useTLS", "--role", role_name, "-o", "json").ok().json
        assert found["of"] == role_name
    assert "tls.server.certPath" in twinlog("config", "explain", "tls.server.certPath").ok().out
    typo = twinlog("config", "explain", "brokerRol")
    assert (typo.code, typo.err) == (3, "twinlog: no key 'brokerRol'; did you mean 'brokerRole'?\n")


def test_lint_shows_all_faults_at_once_and_allowed_values(tmp_path: Path) -> None:
    bad = write(tmp_path / "bad.conf", "brokerRole=MASTER\nflushDiskType=sync\nlistenPort=70000\n"
                "enableControllerMode=true\nbrokerNam=a\n")  # fmt: skip
    found = lint(bad, "-o", "json")
    assert found.code == 2
    assert [(row["level"], row["text"].partition(": ")[2].partition("=")[0])
            for row in found.json[:4]] == [
        ("error", "brokerRole"), ("error", "flushDiskType"), ("error", "listenPort"),
        ("error", "enableControllerMode"),
    ]  # fmt: skip
    assert "ASYNC_MASTER, SYNC_MASTER or SLAVE" in found.out
    assert "SYNC_FLUSH or ASYNC_FLUSH" in found.out
    assert "from 0 to 65535" in found.out
    assert "did you mean brokerName?" in found.out


def test_lint_knows_whose_file_it_is(tmp_path: Path) -> None:
    for name, text in {
        "n.conf": "listenPort=9876\nkvConfigPath=/tmp/kv.json\n",
        "namesrv-2.conf": "listenPort=9876\nbindAddress=127.0.0.1\n",
        "c.conf": "listenPort=9878\ncontrollerStorePath=/tmp/c\ncontrollerDLegerSelfId=n0\n",
        "controller.conf": "listenPort=9878\n",
        "b.conf": f"listenPort=1\nnamesrvAddr=a:1\nbrokerName=b\nstorePathRootDir={tmp_path}\n",
    }.items():
        expected = 2 if name == "b.conf" else 0  # Only a broker has a VIP port.
        assert lint(write(tmp_path / name, text)).code == expected, name
    keys = "enableControllerInNamesrv=true\ncontrollerStorePath=/c\n"
    inside = write(tmp_path / "x.conf", f"{keys}twinlogControllerPort=9876\n")
    assert "twinlogControllerPort=9876" in lint(inside).out
    several = write(tmp_path / "y.conf", "controllerDLegerPeers=n0-a:1;n1-b:1\ntwinlogLeaseMs=1\n")
    found = lint(several)
    assert found.code == 2
    assert "controllerDLegerPeers" in found.out
    assert "from 500 to 60000" in found.out


def test_lint_warns_when_slaves_on_other_machines_would_be_refused(tmp_path: Path) -> None:
    text = "brokerRole=SYNC_MASTER\nbindAddress=192.0.2.1\n"
    warning = "set the same twinlogHASecret on all replicas"
    assert warning in lint(write(tmp_path / "open.conf", text)).out
    # The file of an ASYNC_MASTER does not say whether there are slaves; that of a slave does.
    slave = "brokerRole=SLAVE\nbrokerId=1\nbindAddress=192.0.2.1\n"
    assert warning in lint(write(tmp_path / "slave.conf", slave)).out
    for admits in ("twinlogHASecret=long-enough", "twinlogHAClassicPeers=192.0.2.2"):
        assert warning not in lint(write(tmp_path / "shut.conf", f"{text}{admits}\n")).out
    assert warning not in lint(write(tmp_path / "here.conf", "brokerRole=SYNC_MASTER\n")).out


def test_a_unit_whose_user_cannot_start_the_program_is_noticed(tmp_path: Path) -> None:
    """From an environment in a home directory. systemd would say status=203/EXEC and no more."""
    home = tmp_path / "home"
    program = home / "bin" / "twinlog"
    program.parent.mkdir(parents=True)
    home.chmod(0o700)
    assert why_not_started(program, "twinlog") == f"only {home.owner()} may enter {home}"
    assert "may enter" not in why_not_started(program, home.owner())
    assert "/tmp of its own" in why_not_started(Path("/tmp/no/such/bin/twinlog"), "root")
    assert why_not_started(Path("/usr/bin/env"), "twinlog") == ""


@pytest.mark.parametrize("role", ["broker", "namesrv", "controller"])
def test_the_unit_is_one_that_systemd_takes(tmp_path: Path, role: str) -> None:
    text = process("generate", "systemd", "--role", role, "-c", tmp_path / "x.conf").ok().out
    assert "Type=notify" in text
    assert f"twinlog {role} -c {tmp_path / 'x.conf'}" in text
    # Units with users of their own would take the common directory from each other.
    assert "\nUser=twinlog\nDynamicUser=true\n" in text
    assert "\nStateDirectory=twinlog\n" in text
    assert "\nEnvironment=HOME=%S/twinlog\n" in text
    if shutil.which("systemd-analyze"):
        unit = write(tmp_path / f"twinlog-{role}.service", text)
        done = subprocess.run(["systemd-analyze", "verify", unit], capture_output=True, text=True)
        assert (done.returncode, done.stderr) == (0, "")
        rated = subprocess.run(
            ["systemd-analyze", "security", "--offline=true", "--threshold=30", unit],
            capture_output=True, text=True,
        )  # fmt: skip
        assert rated.returncode == 0, rated.stdout[-200:]


def compose(*options: str) -> dict[str, Any]:
    found = yaml.safe_load(twinlog("generate", "compose", *options).ok().out)
    assert isinstance(found, dict)
    return found


def keys_of(document: dict[str, Any], name: str) -> dict[str, str]:
    lines = document["services"][name]["environment"]["TWINLOG_CONFIGURATION"].splitlines()
    return dict(line.split("=", 1) for line in lines)


def test_compose_is_yaml_with_a_pair() -> None:
    data = compose("--sync", "--host", "192.0.2.1")
    assert set(data["services"]) == {"namesrv-1", "broker-a-0", "broker-a-1"}
    assert keys_of(data, "broker-a-0")["brokerRole"] == "SYNC_MASTER"
    assert keys_of(data, "broker-a-1")["brokerRole"] == "SLAVE"
    for name in ("broker-a-0", "broker-a-1"):
        assert keys_of(data, name)["brokerIP1"] == "192.0.2.1"
        assert keys_of(data, name)["brokerIP2"] == name
        port = keys_of(data, name)["listenPort"]
        assert data["services"][name]["ports"] == [f"{port}:{port}"]


def test_read_only_containers_get_their_configuration_at_their_start(tmp_path: Path) -> None:
    """Red: compose cannot copy a text among `configs` into a read-only container, and refuses it;
    podman-compose ignores `configs`."""
    data = compose("--sync")
    assert "configs" not in data
    for name, service in data["services"].items():
        assert service["read_only"] is True
        assert "configs" not in service
        run = tmp_path / name
        run.mkdir()
        assert "/run/twinlog:mode=1777" in service["tmpfs"]
        script = service["entrypoint"][2].replace("/run/twinlog", str(run))
        shown = script.replace(" -c ", " --printConfigItem -c ")
        words = [*service["entrypoint"][:2], shown]
        path = f"{TWINLOG.parent}{os.pathsep}{os.environ['PATH']}"
        environment = {**os.environ, **service["environment"], "PATH": path}
        for _ in ("start", "start again on the same file system"):
            done = subprocess.run(words, env=environment, capture_output=True, text=True)
            assert done.returncode == 0, done.stderr
        file = next(run.rglob("*.conf"))
        assert file.read_text().split() == [f"{k}={v}" for k, v in keys_of(data, name).items()]
        # A promotion that is lost with the container must be refused, so nothing can be written.
        assert stat.S_IMODE(file.parent.stat().st_mode) == 0o500
        assert stat.S_IMODE(file.stat().st_mode) & 0o077 == 0


def test_compose_with_groups_failover_and_several_name_servers(tmp_path: Path) -> None:
    options = ("--groups", "2", "--brokers", "3", "--failover", "--name-servers", "2")
    data = compose(*options)
    assert len(data["services"]) == 8
    assert len({port for s in data["services"].values() for port in s["ports"]}) == 8
    assert keys_of(data, "broker-b-2")["namesrvAddr"] == "namesrv-1:9876;namesrv-2:9877"
    assert keys_of(data, "broker-b-2")["controllerAddr"] == "namesrv-1:9878"
    assert keys_of(data, "broker-b-2")["brokerRole"] == "SYNC_MASTER"
    assert keys_of(data, "namesrv-1")["enableControllerInNamesrv"] == "true"
    assert "enableControllerInNamesrv" not in keys_of(data, "namesrv-2")
    assert set(data["volumes"]) == {f"{name}-state" for name in data["services"]}


@pytest.mark.parametrize(
    ("kind", "options"),
    [
        ("compose", ("--host", "")),
        ("compose", ("--host", "a b")),
        ("compose", ("--host", "0.0.0.0")),
        ("compose", ("--host", "192.0.2.300")),
        ("compose", ("--host", "name:10911")),
        ("compose", ("--image", "")),
        ("compose", ("--image", "two words")),
        ("compose", ("--ha-secret", "short")),
        ("compose", ("--failover", "--brokers", "1")),
        ("compose", ("--sync", "--brokers", "1")),
        ("kubernetes", ("--namespace", "Shop_1")),
        ("kubernetes", ("--namespace", "")),
        ("kubernetes", ("--storage", "20 gigabytes")),
        ("kubernetes", ("--storage", "20GB")),
        ("kubernetes", ("--storage", "0")),
        ("kubernetes", ("--storage", "0.0Gi")),
        ("kubernetes", ("--storage-class", "Very Fast")),
        ("kubernetes", ("--image", "two words")),
        ("systemd", ("--user", "two words")),
        ("systemd", ("--user", "")),
        ("systemd", ("--store", "")),
        ("systemd", ("--store", "/")),
        ("prometheus", ("--target", "broker-1")),
        ("prometheus", ("--target", "two words:5557")),
        ("prometheus", ("--target", "http://broker-1:5557")),
        ("prometheus", ("--target", "broker-1:70000")),
        ("prometheus", ("--interval", "soon")),
        ("prometheus", ("--interval", "0s")),
        ("prometheus", ("--interval", "1m90")),
        ("prometheus", ("--rules", "")),
        ("alert-rules", ("--for", "soon")),
        ("alert-rules", ("--for", "")),
        ("alert-rules", ("--window", "0s")),
        ("alert-rules", ("--window", "2 minutes")),
        ("systemd", ("-c", "")),
        ("systemd", ("-c", "/etc/twinlog\nUser=root")),
    ],
)
def test_a_value_that_makes_the_file_useless_is_refused(
    kind: str, options: tuple[str, ...]
) -> None:
    done = twinlog("generate", kind, *options)
    assert (done.code, done.out) == (2, "")
    assert options[0] in done.err


@pytest.mark.parametrize(
    ("kind", "option", "value"),
    [
        ("prometheus", "--interval", "1m30s"),
        ("alert-rules", "--for", "0s"),
        ("alert-rules", "--window", "1h30m"),
        ("kubernetes", "--storage", "0.5Ti"),
    ],
)
def test_values_may_be_all_that_the_reader_of_the_file_knows(
    kind: str, option: str, value: str
) -> None:
    assert value in twinlog("generate", kind, option, value).ok().out


def test_the_unit_takes_paths_with_any_character(tmp_path: Path) -> None:
    options = ("-c", "/etc/my files/100%$HOME.conf", "--store", '/data/a "b"')
    text = twinlog("generate", "systemd", *options).ok().out
    assert ' -c "/etc/my files/100%%$$HOME.conf"' in text
    assert 'ReadWritePaths="/data/a \\"b\\""' in text
    if shutil.which("systemd-analyze"):
        unit = write(tmp_path / "twinlog-broker.service", text)
        done = subprocess.run(["systemd-analyze", "verify", unit], capture_output=True, text=True)
        assert (done.returncode, done.stderr) == (0, "")


def test_the_shared_secret_stays_when_the_files_are_generated_again() -> None:
    for kind in ("compose", "kubernetes"):
        texts = [twinlog("generate", kind, "--ha-secret", "kept-secret").ok().out for _ in "12"]
        assert texts[0] == texts[1]
        assert "twinlogHASecret=kept-secret" in texts[0]


def test_kubernetes_manifests_fit_together() -> None:
    found = list(yaml.safe_load_all(twinlog("generate", "kubernetes", "--groups", "2").ok().out))
    kinds = [document["kind"] for document in found]
    assert kinds.count("StatefulSet") == 3
    assert kinds.count("PodDisruptionBudget") == 2
    services = {d["metadata"]["name"] for d in found if d["kind"] == "Service"}
    for document in found:
        if document["kind"] == "StatefulSet":
            assert document["spec"]["serviceName"] in services
            labels = document["spec"]["template"]["metadata"]["labels"]
            assert document["spec"]["selector"]["matchLabels"] == labels


def test_doctor_says_what_to_change(tmp_path: Path) -> None:
    findings = doctor.Findings()
    config = write(
        tmp_path / "b.conf", f"brokerName=a\nstorePathRootDir={tmp_path}/s\nbrokerId=x\n"
    )
    doctor.check_file(findings, config)
    assert findings.problems[0]["change"] == f"edit {config}"
    findings = doctor.Findings()
    runtime = {"bootTimestamp": "1000", "runtime": "[ 0 days, 0 hours, 0 minutes, 5 seconds ]"}
    doctor.judge_clock(findings, "a:0", runtime, 6_500)
    assert findings.problems == []
    doctor.judge_clock(findings, "a:0", runtime, 1_700_000_000_000)
    assert "chrony" in findings.problems[0]["change"]
    findings = doctor.Findings()
    doctor.check_directory(findings, tmp_path / "deep" / "store", 1 << 60)
    assert "free at least" in findings.problems[0]["change"]
    doctor.check_machine(findings)
    unreachable = twinlog("doctor", "-n", "127.0.0.1:1")
    assert unreachable.code in (4, 10)


def test_log_lines_as_json_in_a_file_that_is_rotated(tmp_path: Path) -> None:
    file = tmp_path / "broker.log"
    settings = BrokerConfig(
        twinlog_log_format=LogFormat.JSON, twinlog_log_file=str(file), twinlog_log_file_size=2000,
        twinlog_log_file_count=2, twinlog_log_level=LogLevel.WARNING,
    )  # fmt: skip
    root = logging.getLogger()
    kept, level = root.handlers[:], logging.getLogger("twinlog").level
    try:
        log_config.configure(settings, {})
        logger = logging.getLogger("twinlog.test")
        logger.info("below the level")
        for number in range(100):
            logger.warning("event number=%d", number)
        root.handlers[0].close()
    finally:
        root.handlers[:] = kept
        logging.getLogger("twinlog").setLevel(level)
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        "broker.log", "broker.log.1", "broker.log.2",
    ]  # fmt: skip
    last = json.loads(file.read_text().splitlines()[-1])
    assert (last["level"], last["message"]) == ("WARNING", "event number=99")


def test_times_as_people_write_them() -> None:
    assert parse_time("10m", now=1_000_000) == 400_000
    assert parse_time("now", now=5) == 5
    assert parse_time("1794787689183") == 1794787689183
    assert parse_time("1794787689") == 1794787689000  # As `date +%s` prints it.
    assert parse_time("2026-11-15T12:00:00+00:00") == 1794744000000
    assert parse_time("2026-11-15#12:00:00:500") == parse_time("2026-11-15T12:00:00.500")
    day = 86_400_000
    now = parse_time("2026-11-15T15:30:00")
    for text, moment in {
        "10m ago": now - 600_000, "10 minutes ago": now - 600_000, "1h30m": now - 5_400_000,
        "an hour ago": now - 3_600_000, "2 days and 3 hours ago": now - 2 * day - 3 * 3_600_000,
        "-5s": now - 5000, "today": parse_time("2026-11-15"), "14:00": now - 5_400_000,
        "yesterday 14:00": now - 5_400_000 - day, "yesterday at 14:00:05": now - 5_395_000 - day,
        "Yesterday": parse_time("2026-11-14"), "2026-11-15 12:00": now - 12_600_000,
        "NOW": now,
    }.items():  # fmt: skip
        assert parse_time(text, now=now) == moment, text
    for text in ("soon", "", "25:00", "10 parsecs", "yesterday noonish", "2026-13-01", "ago"):
        with pytest.raises(CommandError, match="is not a time") as wrong:
            parse_time(text, now=now)
        assert "10m ago" in wrong.value.hint
    for text in ("-5s", "-1", "nan", "inf", "soon", "1h nonsense"):
        with pytest.raises(CommandError, match="is not a duration"):
            parse_duration(text)
    assert parse_duration("1h30m") == 5400
    assert parse_duration("500ms") == 0.5
    assert parse_duration("2") == 2.0


def test_percentiles_are_of_the_nearest_rank() -> None:
    ordered = [float(number) for number in range(1, 101)]
    assert [percentile(ordered, p) for p in (50, 99, 99.9)] == [50.0, 99.0, 100.0]
    assert percentile([7.0], 50) == 7.0
    result = summary("pub", 10, 1024, 2.0, [3.0, 1.0, 2.0])
    assert result["messages_per_second"] == 5
    assert result["latency_ms"]["p50"] == 2.0
    assert sum(row["count"] for row in result["histogram"]) == 3


def test_a_histogram_has_every_time_below_its_limit() -> None:
    times = [0.0, 0.1, 0.100001, 5.0, 5.1, 1234.5]
    rows = histogram(times)
    assert sum(row["count"] for row in rows) == len(times)
    for row in rows:
        below = sum(value <= row["to_ms"] for value in times)
        assert below == sum(r["count"] for r in rows if r["to_ms"] <= row["to_ms"])
    lines = bars(rows)
    assert len(lines) == len(rows)
    assert "100.00 %" in lines[-1]
