"""The Spark part of the demo: archive the topic, audit the replicas, count what was archived.

The jobs run as the commands that a user would type, in a process of their own.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from pyarrow import parquet

from twinlog.cli.demo.traffic import TOPIC
from twinlog.cli.demo.verdict import Findings
from twinlog.spark.archive.manifest import Manifest

JOB_SECONDS_MAX = 240
END_SECONDS_MAX = 10  # A JVM takes a second or two to end in order.


async def run_pipeline(
    master: Path,
    slave: Path,
    archive: Path,
    acknowledged: set[int],
    findings: Findings,
    say: Callable[[str], None],
) -> None:
    """Fill in the findings of both jobs; a job that fails is a problem, not an exception."""
    temporary = archive.with_name("spark")
    temporary.mkdir()
    say("Spark: archive the topic from the slave's files")
    code, summary, text = await _job(
        temporary,
        "archive",
        str(slave),
        "--out",
        str(archive),
        "--subscribe",
        TOPIC,
        "--once",
        "--quiet",
    )
    if code:
        # What the job refuses to archive is the finding here: damage must not enter the archive.
        findings.archive_refusal = text.removeprefix("twinlog: ")
        say(f"archive refused: {findings.archive_refusal}")
    else:
        findings.archived_rows, findings.archive_missing = await asyncio.to_thread(
            _compare, archive, acknowledged
        )
        say(f"{findings.archived_rows:,} rows archived, {findings.archive_missing:,} missing")
    say("Spark: audit master against slave")
    code, summary, text = await _job(temporary, "audit", str(master), str(slave), "--quiet")
    findings.audit_differences = 0 if code == 0 else 1
    findings.audit_result = "equal" if code == 0 else _difference(code, summary, text)
    say(f"audit: {findings.audit_result}")


async def _job(directory: Path, *arguments: str) -> tuple[int, dict[str, Any], str]:
    """Exit code, the JSON summary of the last line, and the last line of the errors."""
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "twinlog.cli.main", "spark", *arguments,
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
        env=_environment(directory),
        start_new_session=True,  # An interrupt is ours to pass on.
    )  # fmt: skip
    try:
        async with asyncio.timeout(JOB_SECONDS_MAX):
            output, errors = await process.communicate()
    except TimeoutError:
        text = f"`twinlog spark {arguments[0]}` took longer than {JOB_SECONDS_MAX} s"
        raise TimeoutError(text) from None
    finally:
        await _end_group(process)
    lines = output.decode("utf-8", "replace").strip().splitlines()
    error_lines = errors.decode("utf-8", "replace").strip().splitlines()
    try:
        summary = json.loads(lines[-1]) if lines else {}
    except json.JSONDecodeError:
        summary = {}
    return process.returncode or 0, summary, error_lines[-1] if error_lines else "no output"


def _environment(directory: Path) -> dict[str, str]:
    """Temporary files of Python, of Spark and of its JVM go where they leave with the run."""
    path = str(directory)
    java = f"{os.environ.get('SPARK_SUBMIT_OPTS', '')} -Djava.io.tmpdir={path} -XX:-UsePerfData"
    return {**os.environ, "TMPDIR": path, "SPARK_LOCAL_DIRS": path, "SPARK_SUBMIT_OPTS": java}


async def _end_group(process: asyncio.subprocess.Process) -> None:
    """End the job with its JVM, which is a process of its own and outlives a killed job."""
    for number in (signal.SIGTERM, signal.SIGKILL):
        deadline = asyncio.get_running_loop().time() + END_SECONDS_MAX
        while asyncio.get_running_loop().time() < deadline:
            try:
                os.killpg(process.pid, number)
            except ProcessLookupError:
                await process.wait()
                return
            await asyncio.sleep(0.1)


def _difference(code: int, summary: dict[str, Any], text: str) -> str:
    if code != 1:
        return f"could not run (exit code {code}): {text}"
    findings = summary.get("findings") or [{}]
    detail = findings[0].get("detail") or findings[0].get("kind") or text
    return f"{summary.get('differences', len(findings))} differences, first: {detail}"


def _compare(archive: Path, acknowledged: set[int]) -> tuple[int, int]:
    """Rows in the archive, and acknowledged messages that are not among them."""
    numbers: list[int] = []
    for file in Manifest(archive).require().files():
        table = parquet.read_table(file.path(archive), columns=["body"])
        numbers += [int(body.as_py()[:10]) for body in table.column("body")]
    return len(numbers), len(acknowledged - set(numbers))
