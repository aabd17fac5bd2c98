"""`twinlog console` as a process: its options, its tokens, its accounts. No cluster is needed."""

from __future__ import annotations

import os
import re
import signal
import stat
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx
import pytest

from support.doc_blocks import blocks_run_by
from support.processes import wait_until

RULES = """
accounts:
- {accessKey: operator, secretKey: operator-secret, admin: true}
- {accessKey: observer, secretKey: observer-secret}
"""


@contextmanager
def running(directory: Path, *options: str) -> Iterator[tuple[str, str]]:
    """A console of a name server that is not there; its address and what it printed."""
    log = directory / "console.log"
    command = [
        sys.executable, "-m", "twinlog.cli.main", "console", "-n", "127.0.0.1:1", "--port", "0",
        "--audit", str(directory / "audit.log"), *options,
    ]  # fmt: skip
    with log.open("wb") as file:
        process = subprocess.Popen(command, stderr=file)
    try:
        wait_until(lambda: "console ready http" in log.read_text(), "ready", deadline_s=60)
        text = log.read_text()
        address = re.search(r"ready (https?://[^/]+)/", text)
        assert address is not None
        yield address.group(1), text
    finally:
        process.send_signal(signal.SIGTERM)
        assert process.wait(60) == 0


def test_it_says_what_the_page_shows(tmp_path: Path) -> None:
    (block,) = blocks_run_by("tests/console/test_command.py", "docs/CONSOLE.md")
    command, *shown = block.text.splitlines()
    assert command == "twinlog console -n 127.0.0.1:9876"  # `running` types it with free ports.
    with running(tmp_path) as (url, text):
        said = re.sub(r"token=\S+", "token=...", text.replace(url, "http://127.0.0.1:8082"))
        assert [line for line in said.splitlines() if "token=" in line] == shown


def test_tokens_are_printed_and_new_each_time(tmp_path: Path) -> None:
    seen = set()
    for _ in range(2):
        with running(tmp_path) as (url, text):
            tokens = re.findall(r"token=(\S+)", text)
            assert len(set(tokens)) == 2
            seen.update(tokens)
            answer = httpx.get(url, params={"token": tokens[0]})
            assert answer.status_code == 303
            page = httpx.get(url, cookies=dict(answer.cookies))
            assert page.status_code == 200
            assert "No broker is registered" in page.text
            api = httpx.get(f"{url}/api/topics", headers={"Authorization": f"Bearer {tokens[1]}"})
            assert api.status_code == 503
            assert "127.0.0.1:1" in api.json()["error"]
    assert len(seen) == 4


def test_accounts_of_the_rule_file_log_in_with_their_roles(tmp_path: Path) -> None:
    rules = tmp_path / "plain_acl.yml"
    rules.write_text(RULES)
    rules.chmod(0o600)
    with running(tmp_path, "--acl-file", str(rules)) as (url, _):
        roles = {}
        for name in ("operator", "observer"):
            form = {"access_key": name, "secret_key": f"{name}-secret"}
            answer = httpx.post(f"{url}/login", data=form)
            assert answer.status_code == 303, answer.text
            page = httpx.get(f"{url}/audit", cookies=dict(answer.cookies)).text
            assert name in page
            assert f"{name}-secret" not in page
            roles[name] = "· admin</p>" in page
        assert roles == {"operator": True, "observer": False}
        wrong = {"access_key": "operator", "secret_key": "observer-secret"}
        assert httpx.post(f"{url}/login", data=wrong).status_code == 401
        # What is changed in the file counts for the next login.
        rules.write_text(RULES.replace("observer-secret", "another-secret"))
        form = {"access_key": "observer", "secret_key": "another-secret"}
        assert httpx.post(f"{url}/login", data=form).status_code == 303
    assert "secret" not in (tmp_path / "audit.log").read_text()


def test_a_token_file_is_made_for_its_owner_alone_and_kept(tmp_path: Path) -> None:
    file = tmp_path / "tokens.json"
    texts = []
    for _ in range(2):
        with running(tmp_path, "--token-file", str(file)) as (_, text):
            assert "token=" not in text
            assert stat.S_IMODE(file.stat().st_mode) == 0o600
            texts.append(file.read_text())
    assert texts[0] == texts[1]


def test_without_a_login_forms_still_need_their_secret(tmp_path: Path) -> None:
    with running(tmp_path, "--no-auth") as (url, text):
        assert "no login" in text
        first = httpx.get(f"{url}/topics")
        assert first.status_code in (200, 503)
        cookies = dict(first.cookies)
        answer = httpx.post(f"{url}/do/topic.create", data={"topic": "x"}, cookies=cookies)
        assert answer.status_code == 403
        evil = httpx.get(url, headers={"Host": "evil.example"})
        assert evil.status_code == 421


@pytest.mark.parametrize(
    ("options", "text"),
    [
        (["--no-auth", "--host", "0.0.0.0"], "loopback only"),
        (["--tls-cert", "x.pem"], "go together"),
        (["--acl-file", "/nonexistent/plain_acl.yml"], "plain_acl.yml"),
    ],
)
def test_what_would_leave_the_door_open_does_not_start(options: list[str], text: str) -> None:
    command = [sys.executable, "-m", "twinlog.cli.main", "console", "-n", "127.0.0.1:1", *options]
    done = subprocess.run(
        command, capture_output=True, text=True, timeout=60, check=False, env=dict(os.environ)
    )
    assert done.returncode == 2
    assert text in done.stderr
    assert len(done.stderr.splitlines()) == 1


def test_a_taken_port_is_one_line(tmp_path: Path) -> None:
    with running(tmp_path) as (url, _):
        port = url.rpartition(":")[2]
        command = [sys.executable, "-m", "twinlog.cli.main", "console", "--port", port]
        done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
        assert done.returncode == 1
        assert f"127.0.0.1:{port}" in done.stderr
