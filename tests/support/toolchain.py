"""Foreign software for interop tests and benchmarks, fetched once into a cache that git ignores.

Apache's jars come by Maven, the C++ client by pip, the JavaScript client by npm; each into a
directory of its own under `.cache/interop` (or $TWINLOG_CACHE), made when first asked for.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
INTEROP = ROOT / "tests" / "interop"
JAVA_SOURCES = INTEROP / "java" / "src"
COPY_DEPENDENCIES = "org.apache.maven.plugins:maven-dependency-plugin:3.6.1:copy-dependencies"
CPP_CLIENT = "rocketmq==0.4.4"


class ToolchainError(Exception):
    """Something that must be installed or downloaded is not there; the text says what."""


def cache_directory() -> Path:
    default = ROOT / ".cache" / "interop"
    return Path(os.environ.get("TWINLOG_CACHE", default))


@cache
def jars(project: str) -> str:
    """Class path with the dependencies of tests/interop/java/PROJECT/pom.xml."""
    pom = INTEROP / "java" / project / "pom.xml"

    def fetch(target: Path) -> None:
        run(["mvn", "-q", "-B", "-f", str(pom), COPY_DEPENDENCIES, f"-DoutputDirectory={target}"])

    return str(made_once(project, pom.read_bytes(), fetch) / "*")


@cache
def driver_class_path(project: str) -> str:
    """Class path with our Java driver, compiled against the jars of `project`."""
    sources = sorted(JAVA_SOURCES.rglob("*.java"))
    class_path = jars(project)
    content = b"".join(source.read_bytes() for source in sources) + class_path.encode()

    def build(target: Path) -> None:
        flags = ["-nowarn", "-Xlint:-options", "--release", "17", "-cp", class_path]
        run([tool("javac"), *flags, "-d", str(target), *map(str, sources)])

    return f"{made_once(f'driver-{project}', content, build)}{os.pathsep}{class_path}"


@cache
def cpp_client_python() -> Path:
    """Python interpreter of a venv that has the C++ client and nothing of ours."""

    def install(target: Path) -> None:
        run([sys.executable, "-m", "venv", str(target)])
        pip = [str(target / "bin" / "pip"), "install", "-q", "--disable-pip-version-check"]
        run([*pip, CPP_CLIENT])

    return made_once("cpp-client", CPP_CLIENT.encode(), install) / "bin" / "python"


@cache
def node_project() -> Path:
    """Directory in which `node` finds the packages of tests/interop/node/package.json."""
    package = INTEROP / "node" / "package.json"

    def install(target: Path) -> None:
        shutil.copy(package, target)
        run([tool("npm"), "install", "--no-audit", "--no-fund", "--silent"], cwd=target)

    return made_once("node", package.read_bytes(), install)


def made_once(name: str, recipe: bytes, make: Callable[[Path], None]) -> Path:
    """Directory NAME-HASH of the cache; `make` fills it if this recipe was never run to its end."""
    target = cache_directory() / f"{name}-{hashlib.sha256(recipe).hexdigest()[:12]}"
    done = target / ".done"
    if done.exists():
        return target
    with locked(cache_directory() / f"{name}.lock"):
        if not done.exists():
            shutil.rmtree(target, ignore_errors=True)
            target.mkdir(parents=True)
            make(target)
            done.touch()
    return target


@contextmanager
def locked(path: Path) -> Iterator[None]:
    """Two test processes must not download into the same directory."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w") as stream:
        fcntl.flock(stream, fcntl.LOCK_EX)
        yield


def tool(name: str) -> str:
    path = shutil.which(name)
    if path is None:
        raise ToolchainError(f"{name} is needed for make interop and is not on the PATH")
    return path


def run(argv: list[str], *, cwd: Path | None = None) -> None:
    argv = [tool(argv[0]), *argv[1:]]
    done = subprocess.run(argv, cwd=cwd, check=False, capture_output=True, text=True)
    if done.returncode != 0:
        text = (done.stdout + done.stderr).strip()[-2000:]
        raise ToolchainError(f"{' '.join(argv[:3])} ... ended with {done.returncode}: {text}")
