"""Whether the process may open as many files as its store has."""

from __future__ import annotations

import posixpath

from twinlog.runtime.config import BrokerConfig
from twinlog.runtime.descriptors import descriptor_limit, shortage
from twinlog.runtime.disk import Disk
from twinlog.store.errors import StoreError


def check_descriptors(disk: Disk, config: BrokerConfig) -> None:
    """Running out of descriptors later would be refused clients and queues that cannot be read."""
    logs = (*config.commit_log_paths, *config.read_only_commit_log_paths)
    log_files = sum(len(disk.list(path)) for path in logs)
    index_files = len(disk.list(posixpath.join(config.store_path_root_dir, "index")))
    reason = shortage(log_files, index_files, descriptor_limit())
    if reason is not None:
        raise StoreError(reason)
