"""The addresses of the project in the metadata of the packages: given when a release is built.

`make release VERSION=0.2.0 URL=https://example.org/twinlog` passes `TWINLOG_PROJECT_URL`. A build
without it names no address: none is written down here, so that a fork never points to another's.
"""

from __future__ import annotations

import os
from typing import Any
from urllib.parse import urlsplit

from hatchling.metadata.plugin.interface import MetadataHookInterface

VARIABLE = "TWINLOG_PROJECT_URL"


def project_urls(url: str) -> dict[str, str]:
    """What `[project.urls]` would have; empty without an address."""
    if not url:
        return {}
    parts = urlsplit(url)
    if parts.scheme != "https" or not parts.hostname:
        raise ValueError(f"{VARIABLE}={url}: an address that begins with https:// is wanted")
    return {"Homepage": url, "Source": url}


class ProjectUrls(MetadataHookInterface):
    """Hatch calls it for every build."""

    def update(self, metadata: dict[str, Any]) -> None:
        metadata["urls"] = project_urls(os.environ.get(VARIABLE, ""))
