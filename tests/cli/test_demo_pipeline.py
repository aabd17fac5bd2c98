"""The Spark part of the demo on replicas of which one is damaged, as after a sabotage."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from support.stores import message, running_store, small_config
from twinlog.cli.demo import pipeline
from twinlog.cli.demo.pipeline import run_pipeline
from twinlog.cli.demo.sabotage import sabotage_slave
from twinlog.cli.demo.traffic import TOPIC
from twinlog.cli.demo.verdict import Findings

MESSAGES = 200


async def make_replicas(tmp_path: Path) -> tuple[Path, Path]:
    master, slave = tmp_path / "master", tmp_path / "slave"
    async with running_store(small_config(master)) as store:
        for number in range(MESSAGES):
            put = message(number, topic=TOPIC)
            put.body = b"%010d" % number
            store.put(put)
    shutil.copytree(master, slave)
    return master, slave


@pytest.mark.chaos
@pytest.mark.timeout(300)
async def test_damage_is_not_archived_and_the_audit_names_it(tmp_path: Path) -> None:
    master, slave = await make_replicas(tmp_path)
    sabotage_slave(slave, TOPIC, "corrupt")
    findings = Findings()
    said: list[str] = []
    await run_pipeline(
        master, slave, tmp_path / "archive", set(range(MESSAGES)), findings, said.append
    )
    assert findings.archive_missing == -1
    assert "damaged" in findings.archive_refusal, findings
    assert any(line.startswith("archive refused: ") for line in said)
    assert findings.audit_differences == 1
    assert "differences, first:" in findings.audit_result


async def test_a_job_that_takes_too_long_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pipeline, "JOB_SECONDS_MAX", 0)
    with pytest.raises(TimeoutError, match="`twinlog spark archive` took longer than 0 s"):
        await run_pipeline(
            tmp_path, tmp_path, tmp_path / "archive", set(), Findings(), lambda _: None
        )
