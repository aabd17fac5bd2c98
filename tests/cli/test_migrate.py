"""`twinlog migrate` on real processes; with Apache at one end: tests/interop/test_migration.py."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from support.command_line import Result, twinlog
from support.processes import Process, free_broker_port, process_group, wait_until
from support.twinlog_servers import TWINLOG, start_twinlog_broker, start_twinlog_namesrv

pytestmark = pytest.mark.timeout(240)
FENCE = "startAcceptSendRequestTimeStamp"
CONFIG = {"mappedFileSizeCommitLog": 1 << 20, "messageDelayLevel": "1s 2s"}


def test_a_full_disk_leaves_no_half_of_a_replica(tmp_path: Path) -> None:
    """A file with half of its settings would be taken for done by the next call, and a broker
    without the rest of them is a master of its own."""
    small = tmp_path / "small"
    small.mkdir()
    if subprocess.run(["mount", "-t", "tmpfs", "-o", "size=4m", "none", str(small)]).returncode:
        pytest.skip("needs the right to mount a tmpfs")
    try:
        with process_group() as processes:
            namesrv = processes.add(start_twinlog_namesrv(tmp_path / "namesrv"))
            old = start_twinlog_broker(tmp_path / "old", namesrv=namesrv.address, **CONFIG)
            processes.add(old)

            def run(place: Path) -> Result:
                words = ("--to", "1", "--dir", place, "--port", 30911, "--seed", old.store)
                return twinlog("-n", namesrv.address, "migrate", "run", *words)

            call = ("-n", namesrv.address, "topic")
            wait_until(lambda: twinlog(*call, "create", "orders").code == 0, "the topic is there")
            lines = b"".join(b"%01000d\n" % number for number in range(2500))
            twinlog(*call, "produce", "orders", "-q", stdin=lines).ok()
            run(tmp_path / "large").ok()
            wanted = (tmp_path / "large" / "broker-a" / "broker.conf").read_text()
            for free in (0, 8192, 1 << 20, 1_500_000, 2 << 20):
                ballast = small / "ballast"
                ballast.write_bytes(bytes(((4 << 20) - free) // 4096 * 4096))
                done = run(small)
                assert (done.code, "Traceback" in done.err) == (1, False), (free, done)
                assert "o space left" in done.err, done
                assert not (small / "broker-a" / "broker.conf").exists()
                ballast.unlink()
            run(small).ok()
            made = (small / "broker-a" / "broker.conf").read_text()
            assert made.replace(str(small), "") == wanted.replace(str(tmp_path / "large"), "")
            names = [path.name for path in (small / "broker-a" / "store" / "commitlog").iterdir()]
            assert sorted(names) == ["00000000000000000000", "00000000000001048576"]
            for name in names:
                file = small / "broker-a" / "store" / "commitlog" / name
                assert file.read_bytes() == (old.store / "commitlog" / name).read_bytes()
    finally:
        subprocess.run(["umount", str(small)], check=True)


def test_a_group_is_moved_step_by_step(tmp_path: Path) -> None:
    with process_group() as processes:
        namesrv = processes.add(start_twinlog_namesrv(tmp_path / "namesrv"))
        old = start_twinlog_broker(tmp_path / "old", namesrv=namesrv.address, **CONFIG)
        processes.add(old)

        def call(*words: object, stdin: bytes = b"") -> Result:
            return twinlog("-n", namesrv.address, *words, stdin=stdin)

        def migrate(verb: str, *options: object) -> Result:
            return call("migrate", verb, "--to", "1", *options)

        wait_until(lambda: call("topic", "create", "orders").code == 0, "the topic is there")
        call("group", "create", "billing").ok()
        call("topic", "produce", "orders", "-q", stdin=b"one\ntwo\nthree\n").ok()

        # Without a replica nothing can be moved, and nothing is changed.
        refused = migrate("cutover", "--rehearse")
        assert (refused.code, "has no replica" in refused.err) == (10, True)
        options = ("--dir", tmp_path / "new", "--port", free_broker_port())
        migrate("run", *options).ok()
        conf = tmp_path / "new" / "broker-a" / "broker.conf"
        assert "messageDelayLevel=1s 2s" in conf.read_text()
        conf.write_text(conf.read_text() + "metricsPromExporterPort=0\n")
        new = Process("new", [str(TWINLOG), "broker", "-c", str(conf)], log=tmp_path / "new.log")
        processes.add(new)
        migrate("run", *options, "--wait", "60s").ok()
        wait_until(lambda: migrate("verify", "--deep").code == 0, "the tables are there too")
        checks = migrate("verify", "--deep", "-o", "json").ok().json["checks"][0]
        assert (checks["messages"], checks["topics"], checks["findings"]) == (3, 1, 0)

        # A rehearsal ends as it began: sends are taken.
        rehearsed = migrate("cutover", "--rehearse", "-o", "json").ok()
        assert "taken again" in rehearsed.json["sentence"]
        call("topic", "produce", "orders", "-q", stdin=b"four\n").ok()
        # So does a cutover whose command fails.
        failed = migrate("cutover", "--stop", "exit 3", "--yes")
        assert (failed.code, "ended with 3" in failed.err) == (1, True)
        assert f"{FENCE}=0" in (tmp_path / "old" / "broker.conf").read_text()
        call("topic", "produce", "orders", "-q", stdin=b"five\n").ok()

        asked = migrate("cutover", "--stop", f"kill {old.pid}")
        assert (asked.code, old.is_alive) == (2, True)
        done = migrate("cutover", "--stop", f"kill {old.pid}", "--yes", "-o", "json").ok().json
        assert "moved to broker-a" in done["sentence"]
        call("topic", "produce", "orders", "-q", stdin=b"six\n").ok()
        bodies = call("topic", "consume", "orders", "-o", "start", "-e", "-f", "{body}").out.split()
        assert sorted(bodies) == sorted(["one", "two", "three", "four", "five", "six"])
        # With no master left, the message says how an interrupted cutover is finished.
        new.kill()
        wait_until(lambda: "ha promote" in migrate("plan").err, "no master is known")
        # Who starts the old one again gets a broker that takes no sends.
        assert f"{FENCE}=4102444800000" in (tmp_path / "old" / "broker.conf").read_text()


@pytest.mark.parametrize("dialect", ["twin", "classic"])
def test_a_queue_whose_messages_have_expired_keeps_its_numbers(
    tmp_path: Path, dialect: str
) -> None:
    """Such queues are in every cluster: each stood in the way of a cutover."""
    retention = {
        "twinlogRetentionBytes": 2 << 20, "cleanResourceInterval": 200,
        "deleteCommitLogFilesInterval": 0, "twinlogHADialect": dialect,
    }  # fmt: skip
    with process_group() as processes:
        namesrv = processes.add(start_twinlog_namesrv(tmp_path / "namesrv"))
        config = {**CONFIG, **retention}
        old = start_twinlog_broker(tmp_path / "old", namesrv=namesrv.address, **config)
        processes.add(old)

        def call(*words: object, stdin: bytes = b"") -> Result:
            return twinlog("-n", namesrv.address, *words, stdin=stdin)

        def migrate(verb: str, *options: object) -> Result:
            return call("migrate", verb, "--to", "1", *options)

        def ends(topic: str) -> list[int]:
            queues = call("topic", "stats", topic, "-o", "json").ok().json["queues"]
            return [row["max_offset"] for row in sorted(queues, key=lambda row: row["queue"])]

        create = ("topic", "create", "--read-queues", 2, "--write-queues", 2)
        wait_until(lambda: call(*create, "orders").code == 0, "the topic is there")
        call(*create, "idle").ok()
        call("topic", "produce", "idle", "-q", stdin=b"a\nb\nc\nd\ne\nf\ng\nh\n").ok()
        lines = b"".join(b"%01000d\n" % number for number in range(4500))
        call("topic", "produce", "orders", "-q", stdin=lines).ok()
        wait_until(lambda: not (old.store / "commitlog" / f"{0:020d}").exists(), "expired")
        before = ends("idle")
        assert sum(before) == 8

        options = ("--dir", tmp_path / "new", "--port", free_broker_port())
        migrate("run", *options).ok()
        conf = tmp_path / "new" / "broker-a" / "broker.conf"
        conf.write_text(f"{conf.read_text()}metricsPromExporterPort=0\n")
        new = Process("new", [str(TWINLOG), "broker", "-c", str(conf)], log=tmp_path / "new.log")
        processes.add(new)
        migrate("run", *options, "--wait", "60s").ok()
        wait_until(lambda: migrate("verify", "--deep").code == 0, "the tables are there too")
        migrate("cutover", "--stop", f"kill {old.pid}", "--yes").ok()
        assert ends("idle") == before
        call("topic", "produce", "idle", "-q", stdin=b"next\n").ok()
        assert sum(ends("idle")) == 9
        read = call("topic", "consume", "idle", "-o", "start", "-e", "-f", "{body}")
        assert read.out.split() == ["next"]
