"""The archive without its rules: what the tests must be able to see going wrong."""

from __future__ import annotations

from typing import Any

from twinlog.spark.archive.manifest import Manifest
from twinlog.spark.archive.sink import ArchiveSink, ArchiveWriter


class CarelessWriter(ArchiveWriter):
    """Never asks whether a batch is published, nor where the archive ends."""

    def is_published(self, manifest: Manifest, query: str, batch: int) -> bool:
        return False

    def _check_chain(self, manifest: Manifest, ranges: list[list[Any]]) -> list[list[Any]]:
        return []

    def _rename(self, staged: list[Any]) -> None:
        import os
        from dataclasses import replace

        for number, file in enumerate(staged):
            final = replace(
                file.final, name=f"{file.final.name}.{os.path.basename(file.temporary)}"
            )
            staged[number] = replace(file, final=final)
        super()._rename(staged)


class CarelessSink(ArchiveSink):
    """Format "twinlog_archive" with the careless writer."""

    def streamWriter(self, schema: Any, overwrite: bool) -> CarelessWriter:  # noqa: N802
        return CarelessWriter(dict(self.options))
