"""Values for generated files, refused where the file would be one that nothing can use."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from twinlog.runtime.addresses import is_host, is_host_and_port, is_wildcard

if TYPE_CHECKING:
    _Type = click.ParamType[str]
else:  # Older versions of click have no parameter there.
    _Type = click.ParamType

_LABEL = re.compile(r"[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?")
_QUANTITY = re.compile(r"(?=.*[1-9])[0-9]+(\.[0-9]+)?([KMGTPE]i|[kMGTPE])?")
_IMAGE = re.compile(r"[A-Za-z0-9][A-Za-z0-9._:/@-]*")
_USER = re.compile(r"[A-Za-z_][A-Za-z0-9_-]{0,30}|[0-9]{1,10}")
# Every unit once, the larger ones first: 1h30m.
_UNITS = ("y", "w", "d", "h", "m", "s", "ms")
_TIME = re.compile(r"(?=.)" + "".join(f"([0-9]+{unit})?" for unit in _UNITS))
# No character that a properties file or a compose file reads as something else.
_SECRET = re.compile(r"[A-Za-z0-9._~+/=-]{8,}")


class Checked(_Type):
    """Text for which `is_right` holds."""

    def __init__(self, name: str, wanted: str) -> None:
        self.name = name
        self._wanted = wanted

    def is_right(self, value: str) -> bool:
        raise NotImplementedError

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str:
        if not self.is_right(str(value)):
            self.fail(f"{str(value)!r} is not {self._wanted}", param, ctx)
        return str(value)


class _Pattern(Checked):
    def __init__(self, name: str, wanted: str, pattern: re.Pattern[str]) -> None:
        super().__init__(name, wanted)
        self._pattern = pattern

    def is_right(self, value: str) -> bool:
        return self._pattern.fullmatch(value) is not None


class _DottedLabels(Checked):
    """The form of host names and of most names in Kubernetes."""

    def __init__(self, name: str, wanted: str, label: re.Pattern[str]) -> None:
        super().__init__(name, wanted)
        self._label = label

    def is_right(self, value: str) -> bool:
        return len(value) <= 253 and all(map(self._label.fullmatch, value.split(".")))


class _Host(Checked):
    """What clients connect to; the address of all interfaces is nobody's in particular."""

    def is_right(self, value: str) -> bool:
        return is_host(value) and not is_wildcard(value) and ":" not in value


class _Path(Checked):
    def is_right(self, value: str) -> bool:
        return bool(value) and value.isprintable()


class _Directory(_Path):
    """One that a server may write to: not all there is."""

    def is_right(self, value: str) -> bool:
        return super().is_right(value) and Path(value).absolute() != Path("/")


class _Duration(Checked):
    def is_right(self, value: str) -> bool:
        return _TIME.fullmatch(value) is not None and any(digit in value for digit in "123456789")


class _Target(Checked):
    def is_right(self, value: str) -> bool:
        return is_host_and_port(value) and is_host(value.rpartition(":")[0].strip("[]"))


HOST = _Host("HOST", "a host name or an IPv4 address that clients can connect to")
IMAGE = _Pattern("IMAGE", "the name of an image", _IMAGE)
NAMESPACE = _Pattern(
    "NAME", "a namespace: up to 63 lower-case letters, digits and inner hyphens", _LABEL
)
STORAGE = _Pattern("SIZE", "a size that Kubernetes knows, for example 20Gi or 1.5Ti", _QUANTITY)
STORAGE_CLASS = _DottedLabels("NAME", "the name of a storage class", _LABEL)
USER = _Pattern("USER", "the name or the number of a user", _USER)
PATH = _Path("PATH", "a path that fits into one line")
DIRECTORY = _Directory("DIRECTORY", "a directory below / with a name that fits into one line")
TARGET = _Target("HOST:PORT", "the address of an HTTP port, for example broker-1:5557")
TIME = _Pattern("TIME", "a time that Prometheus knows, for example 15s or 1m30s", _TIME)
DURATION = _Duration("TIME", "a time above 0 that Prometheus knows, for example 15s or 1m30s")
SECRET = _Pattern(
    "TEXT", "a secret: at least eight letters, digits or characters of ._~+/=-", _SECRET
)
