"""The services of a compose file without a container engine: one network namespace for each.

    with ComposeApart(directory, document) as host:
        host.twinlog("topic", "list", "-n", "127.0.0.1:9876")
        host.kill("broker-a-0")

As in containers, each service has its own loopback and its own address, the others are found by
their names, and what it publishes is reached through the machine's loopback. A service with an
`entrypoint`, an `environment` or a `hostname` gets them. As by compose, a text among `configs` is
refused for a service with a read-only root file system, into which it could not be copied. The
image, user and limits are not imitated. Everything lives in namespaces of one process and ends with
it; neither root nor a trace on the machine is needed.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any, Self

import yaml

from support.command_line import DEADLINE_S, TWINLOG, Result

_STATE = "/var/lib/twinlog"
_SETTINGS = "/etc/twinlog"
_RUN = "/run/twinlog"
_NETWORK = "10.231.0"
_APART = ("unshare", "--user", "--map-root-user", "--net", "--mount", "--pid", "--fork",
          "--mount-proc", "--kill-child=SIGKILL")  # fmt: skip


class ComposeApart:
    """What the test sees: the machine on which the containers run."""

    def __init__(self, directory: Path, document: dict[str, Any]) -> None:
        directory.mkdir()
        (directory / "compose.yaml").write_text(yaml.safe_dump(document))
        self._process = subprocess.Popen(
            [*_APART, sys.executable, "-m", "support.compose_apart", str(directory)],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
            cwd=Path(__file__).resolve().parents[1],
        )  # fmt: skip

    def __enter__(self) -> Self:
        assert self._ask({"do": "start"})["code"] == 0
        return self

    def __exit__(self, *_: object) -> None:
        self._process.kill()
        self._process.communicate()

    def _ask(self, request: dict[str, Any]) -> dict[str, Any]:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps(request) + "\n")
        self._process.stdin.flush()
        answer: dict[str, Any] = json.loads(self._process.stdout.readline())
        return answer

    def twinlog(self, *arguments: object, stdin: str = "") -> Result:
        """A command on the machine, outside of all containers."""
        words = [str(TWINLOG), *map(str, arguments)]
        return Result(**self._ask({"do": "run", "words": words, "stdin": stdin}))

    def healthcheck(self, service: str) -> Result:
        """What the engine would ask inside the container."""
        return Result(**self._ask({"do": "healthcheck", "service": service}))

    def kill(self, service: str) -> None:
        assert self._ask({"do": "kill", "service": service})["code"] == 0


# What runs inside the namespaces.


def _run(*words: str, stdin: str = "") -> dict[str, Any]:
    done = subprocess.run(words, capture_output=True, text=True, input=stdin, timeout=DEADLINE_S)
    return {"code": done.returncode, "out": done.stdout, "err": done.stderr}


def _named(hostname: str | None) -> list[str]:
    """The words that give the program after them a host name of its own."""
    if hostname is None:
        return []
    return ["unshare", "--uts", "sh", "-c", f'hostname {hostname} && exec "$@"', "sh"]


def _ip(line: str) -> None:
    subprocess.run(["ip", *line.split()], check=True)


class _Machine:
    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._document = yaml.safe_load((directory / "compose.yaml").read_text())
        names = list(self._document["services"])
        self._addresses = {name: f"{_NETWORK}.{n}" for n, name in enumerate(names, start=2)}
        self._processes: dict[str, subprocess.Popen[bytes]] = {}

    async def start(self) -> None:
        self._connect()
        for name, service in self._document["services"].items():
            self._start_service(name, service)
            for port in service["ports"]:
                outer, inner = map(int, port.split(":"))
                await _publish(outer, self._addresses[name], inner)

    def _connect(self) -> None:
        hosts = self._directory / "hosts"
        lines = [f"{address} {name}" for name, address in self._addresses.items()]
        hosts.write_text("\n".join(["127.0.0.1 localhost", *lines, ""]))
        subprocess.run(["mount", "--bind", str(hosts), "/etc/hosts"], check=True)
        subprocess.run(["mount", "-t", "tmpfs", "none", "/run"], check=True)
        for line in ("link set lo up", "link add bridge type bridge",
                     f"addr add {_NETWORK}.1/24 dev bridge", "link set bridge up"):  # fmt: skip
            _ip(line)
        for number, (name, address) in enumerate(self._addresses.items()):
            for line in (
                f"netns add {name}", f"link add port{number} type veth peer name eth0 netns {name}",
                f"link set port{number} master bridge up", f"-n {name} link set lo up",
                f"-n {name} addr add {address}/24 dev eth0", f"-n {name} link set eth0 up",
            ):  # fmt: skip
                _ip(line)

    def _inside(self, name: str) -> list[str]:
        return ["nsenter", f"--net=/run/netns/{name}"]

    def _start_service(self, name: str, service: dict[str, Any]) -> None:
        home = self._directory / name
        (home / "run").mkdir(parents=True)
        configs = service.get("configs", [])
        assert not (configs and service.get("read_only")), f"{name}: no place for {configs}"
        for config in configs:
            text = self._document["configs"][config["source"]]["content"]
            file = home / Path(config["target"]).name
            file.write_text(text.replace(_STATE, str(home)))
        words = service.get("entrypoint", [str(TWINLOG)]) + service.get("command", [])
        words = [
            word.replace(_SETTINGS, str(home)).replace(_RUN, str(home / "run")) for word in words
        ]
        variables = {
            key: value.replace(_STATE, str(home))
            for key, value in service.get("environment", {}).items()
        }
        variables |= {"HOME": str(home), "PATH": f"{TWINLOG.parent}:{os.environ['PATH']}"}
        with (home / "log").open("wb") as log:
            self._processes[name] = subprocess.Popen(
                [*self._inside(name), *_named(service.get("hostname")), *words],
                stdout=log, stderr=log, env=os.environ | variables,
            )  # fmt: skip

    def answer(self, request: dict[str, Any]) -> dict[str, Any]:
        name = request.get("service", "")
        if request["do"] == "run":
            return _run(*request["words"], stdin=request["stdin"])
        if request["do"] == "healthcheck":
            test = self._document["services"][name]["healthcheck"]["test"][1:]
            python = [sys.executable if word == "python" else word for word in test]
            return _run(*self._inside(name), *python)
        self._processes[name].send_signal(signal.SIGKILL)
        self._processes[name].wait()
        return {"code": 0}


async def _publish(outer: int, address: str, inner: int) -> None:
    """A port of the machine that leads into a container, as an engine makes one."""

    async def relay(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            there = await asyncio.open_connection(address, inner)
        except OSError:
            writer.close()
            return
        await asyncio.gather(_copy(reader, there[1]), _copy(there[0], writer))

    await asyncio.start_server(relay, "127.0.0.1", outer)


async def _copy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    try:
        while data := await reader.read(1 << 16):
            writer.write(data)
            await writer.drain()
    except OSError:
        pass
    finally:
        writer.close()


async def _serve(directory: Path) -> None:
    machine = _Machine(directory)
    while line := await asyncio.to_thread(sys.stdin.readline):
        request = json.loads(line)
        if request["do"] == "start":
            await machine.start()
            answer: dict[str, Any] = {"code": 0}
        else:
            answer = await asyncio.to_thread(machine.answer, request)
        print(json.dumps(answer), flush=True)


if __name__ == "__main__":
    asyncio.run(_serve(Path(sys.argv[1])))
