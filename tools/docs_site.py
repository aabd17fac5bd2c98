"""Hook of mkdocs: pages of the repository's root become pages of the site, the commands describe
themselves, the search works from the disk, and the site is checked for requests to other hosts.

The README is the front page, so that nothing is written twice.
"""

from __future__ import annotations

import re
from pathlib import Path

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.exceptions import PluginError
from mkdocs.structure.files import File, Files

from command_reference import page as command_page

ROOT = Path(__file__).resolve().parent.parent
FROM_ROOT = {
    "README.md": "index.md",
    "CONTRIBUTING.md": "CONTRIBUTING.md",
    "SECURITY.md": "SECURITY.md",
    "CHANGELOG.md": "CHANGELOG.md",
}
# mkdocs.yml names both. Without the first, the plugin for offline use loads one from another host.
SEARCH = "assets/iframe-worker.js"
STYLE = "assets/site.css"
# A folder of the repository, seen on its web page, stands for its first page here.
FOLDERS = {"decisions/": "decisions/0001-twin-dialect.md"}
LINK = re.compile(r"(\]\()(?:\./)?(docs/)?([^)#\s]*)")
# A cell of a table, whose bars are escaped, as web pages of repositories want it also in code.
CELL = re.compile(r"<t[dh]\b.*?</t[dh]>", re.DOTALL)
# What a browser loads without being asked: not a link that somebody clicks.
LOADED = re.compile(
    r"<(?:script|img|iframe|source|video|audio|embed)\b[^>]*?\ssrc=[\"']?((?:https?:)?//[^\"'\s>]+)"
    r"|<link\b(?![^>]*rel=[\"']?canonical)[^>]*?\shref=[\"']?((?:https?:)?//[^\"'\s>]+)"
    r"|url\([\"']?((?:https?:)?//[^\"')]+)"
)


def site_link(target: str) -> str:
    """A link of a page in the root, as it is written in the site."""
    return FROM_ROOT.get(target) or FOLDERS.get(target) or target


def as_page(text: str) -> str:
    return LINK.sub(lambda match: match[1] + site_link(match[3]), text)


def on_files(files: Files, config: MkDocsConfig) -> Files:
    for source, page in FROM_ROOT.items():
        text = as_page((ROOT / source).read_text(encoding="utf-8"))
        files.append(File.generated(config, page, content=text))
    files.append(File.generated(config, "COMMANDS.md", content=command_page()))
    for asset in (SEARCH, STYLE):
        text = (ROOT / "tools" / Path(asset).name).read_text(encoding="utf-8")
        files.append(File.generated(config, asset, content=text))
    return files


def on_page_content(html: str, **_: object) -> str:
    """Here the bars of a cell's code would keep their backslashes."""
    return CELL.sub(lambda match: match[0].replace(r"\|", "|"), html)


def loaded_from_elsewhere(text: str) -> list[str]:
    return [next(filter(None, groups)) for groups in LOADED.findall(text)]


def on_post_build(config: MkDocsConfig) -> None:
    site = Path(config.site_dir)
    foreign = [
        f"{path.relative_to(site)}: {address}"
        for path in sorted(site.rglob("*"))
        if path.suffix in {".html", ".css"}
        for address in loaded_from_elsewhere(path.read_text(encoding="utf-8"))
    ]
    if foreign:
        raise PluginError("the site would load from other hosts:\n" + "\n".join(foreign))
