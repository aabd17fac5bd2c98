"""`twinlog version`: which release this is, and with `--all` what it runs with."""

from __future__ import annotations

import importlib.metadata
import json
import platform

import click

from twinlog import __version__
from twinlog.runtime.compiled import PARTS, code_tier, is_pure_asked, is_work_tree, missing_parts

# What decides speed or features; versions of the rest are pip's business.
_LIBRARIES = ("uvloop", "msgspec", "isal", "pyspark", "pyarrow", "lz4", "zstandard")


@click.command(epilog="Example: twinlog version --all")
@click.option(
    "--all", "is_all", is_flag=True, help="Also print Python, libraries and the compiled parts."
)
@click.option("-o", "--output", type=click.Choice(("table", "json")), default="table",
              help="Form of the output.")  # fmt: skip
def version(is_all: bool, output: str) -> None:
    """Print the version; with --all also Python, libraries and the compiled parts."""
    found = {"twinlog": __version__} | (surroundings() if is_all else {})
    if output == "json":
        click.echo(json.dumps(found, indent=2))
    elif not is_all:
        click.echo(__version__)
    else:
        width = max(map(len, found))
        for name, value in found.items():
            click.echo(f"{name.ljust(width)}  {value}")


def surroundings() -> dict[str, str]:
    """What decides speed and features, with versions."""
    found = {
        "python": f"{platform.python_implementation()} {platform.python_version()}",
        "platform": platform.platform(),
        "code": code_text(),
    }
    for name in _LIBRARIES:
        try:
            found[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            found[name] = "not installed"
    return found


def code_text() -> str:
    """Compiled or pure, and where that is not what one would wish, what to do."""
    tier, missing = code_tier(), missing_parts()
    if is_pure_asked():
        return f"{tier} (TWINLOG_PURE is set)"
    if tier == "compiled":
        return f"compiled ({len(PARTS)} parts)"
    names = ", ".join(name.removeprefix("twinlog.") for name in missing)
    remedy = (
        "Run `make setup`, which needs a C compiler"
        if is_work_tree(missing)
        else "Install a platform wheel, or a C compiler and reinstall"
    )
    return f"{tier}; not compiled: {names}. {remedy}"
