"""YAML for people: keys in their order, text of several lines as a block."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import yaml


class _Dumper(yaml.SafeDumper):
    """Blocks for text with line breaks, and lists below their key."""

    def increase_indent(self, flow: bool = False, indentless: bool = False) -> None:
        super().increase_indent(flow, False)


def _text(dumper: yaml.SafeDumper, value: str) -> yaml.ScalarNode:
    style = "|" if "\n" in value else None
    return dumper.represent_scalar("tag:yaml.org,2002:str", value, style=style)


_Dumper.add_representer(str, _text)


def dump(documents: Iterable[dict[str, Any]]) -> str:
    """The documents, one after the other."""
    return str(
        yaml.dump_all(documents, Dumper=_Dumper, sort_keys=False, width=100, allow_unicode=True)
    )


def properties(values: dict[str, object]) -> str:
    """A RocketMQ properties file."""
    return "".join(f"{key}={value}\n" for key, value in values.items())
