"""RocketMQ's Java client for the demo: jars by Maven into a cache, our program by javac.

The jars stay in $XDG_CACHE_HOME/twinlog (or ~/.cache/twinlog); the compiled program goes with the
run. Runs side by side may fetch at the same time: each fills a directory of its own, and the first
to finish gives its directory the name that later runs look for.
"""

from __future__ import annotations

import asyncio
import hashlib
import os
import shutil
import tempfile
from pathlib import Path

SOURCES = Path(__file__).parent / "java"
COPY_DEPENDENCIES = "org.apache.maven.plugins:maven-dependency-plugin:3.6.1:copy-dependencies"
FETCH_SECONDS_MAX = 240
COMPILE_SECONDS_MAX = 120


class JavaClientError(Exception):
    """The Java client cannot be had or does not run. The text says what to do."""


async def java_command(directory: Path) -> list[str]:
    """Fetch and compile what is not there yet; the command that starts DemoClient."""
    java, javac = _tool("java"), _tool("javac")
    jars = await _jars()
    classes = directory / "java-classes"
    classes.mkdir(parents=True)
    class_path = f"{jars}{os.sep}*"
    source = str(SOURCES / "DemoClient.java")
    flags = ["-nowarn", "-encoding", "UTF-8", "-cp", class_path, "-d", str(classes)]
    await _run([javac, *flags, source], COMPILE_SECONDS_MAX, "compiling the demo's Java program")
    return [
        java, "-Xmx512m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1",
        f"-Duser.home={directory}", f"-Drocketmq.client.logRoot={directory / 'java-logs'}",
        "-Drocketmq.client.logUseSlf4j=false",
        "-cp", f"{classes}{os.pathsep}{class_path}", "DemoClient",
    ]  # fmt: skip


def cache_directory() -> Path:
    base = os.environ.get("XDG_CACHE_HOME")
    return (Path(base) if base else Path.home() / ".cache") / "twinlog"


async def _jars() -> Path:
    pom = SOURCES / "pom.xml"
    target = cache_directory() / f"java-{hashlib.sha256(pom.read_bytes()).hexdigest()[:12]}"
    if target.is_dir():
        return target
    maven = _tool("mvn")
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        filling = Path(tempfile.mkdtemp(prefix="java-", suffix=".tmp", dir=target.parent))
    except OSError as error:
        raise JavaClientError(f"cannot write to {target.parent}: {error.strerror}; "
                              "set XDG_CACHE_HOME") from error  # fmt: skip
    try:
        argv = [
            maven,
            "-q",
            "-B",
            "-f",
            str(pom),
            COPY_DEPENDENCIES,
            f"-DoutputDirectory={filling}",
        ]
        await _run(argv, FETCH_SECONDS_MAX, "fetching the Java client with mvn")
        if not any(filling.glob("rocketmq-client-*.jar")):
            raise JavaClientError("mvn ended without fetching rocketmq-client; run it by hand: "
                                  + " ".join(argv))  # fmt: skip
        try:
            filling.rename(target)
        except OSError:
            if not target.is_dir():  # else another run was faster, and its jars are as good
                raise
    finally:
        shutil.rmtree(filling, ignore_errors=True)
    return target


def _tool(name: str) -> str:
    path = shutil.which(name)
    if path is None:
        package = "maven" if name == "mvn" else "a JDK, version 11 or newer"
        raise JavaClientError(f"--apache-client needs {name}, which is not on the PATH; "
                              f"install {package}")  # fmt: skip
    return path


async def _run(argv: list[str], seconds: float, what: str) -> None:
    process = await asyncio.create_subprocess_exec(
        *argv,
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
    )
    try:
        async with asyncio.timeout(seconds):
            output, _ = await process.communicate()
    except TimeoutError:
        raise JavaClientError(f"{what} took longer than {seconds:.0f} s") from None
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
    if process.returncode:
        lines = output.decode("utf-8", "replace").strip().splitlines() or ["no output"]
        raise JavaClientError(f"{what} failed: {lines[0][:400]}")
