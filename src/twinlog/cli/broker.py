"""A broker in the foreground: what `twinlog broker` without a verb does."""

from __future__ import annotations

import gc
import logging
import os
from pathlib import Path
from random import Random

import click

from twinlog.broker.server import Broker, build_broker
from twinlog.broker.tables.config_file import ConfigFileError
from twinlog.cli.serve import (
    EXIT_BAD_CONFIG,
    Lifetime,
    configure_logging,
    fail,
    log_findings,
    run_service,
)
from twinlog.remoting.acl import AclConfigError
from twinlog.runtime.addresses import resolve
from twinlog.runtime.audit_file import write_audit_to
from twinlog.runtime.config import BrokerConfig, ConfigError, LoadedConfig, load_broker_config
from twinlog.runtime.config_format import ConfigValueError
from twinlog.runtime.config_key import declarations
from twinlog.store.errors import StoreError
from twinlog.store.message_store import MEMORY_UNKNOWN

_LOG = logging.getLogger("twinlog.broker")


def run_broker(
    path: str | None,
    namesrv: str | None,
    *,
    is_print: bool,
    is_important: bool,
    returns_as_slave: bool = False,
) -> None:
    """Store and serve messages; replicate them to slaves, or from a master."""
    loaded = _load(path, namesrv, returns_as_slave)
    if is_print or is_important:
        _print(loaded.config, only_important=not is_print)
        return
    try:
        resolve(loaded.config.broker_ip1)
    except ValueError as error:
        where = path or "command line"
        fail(f"{where}: brokerIP1={loaded.config.broker_ip1}: {error}", EXIT_BAD_CONFIG)
    configure_logging(loaded.config)
    root = os.path.abspath(loaded.config.store_path_root_dir)
    write_audit_to(os.path.join(root, "twinlog", "audit.log"))
    log_findings(_LOG, loaded)
    config_path = None if path is None else str(Path(path).resolve())
    run_service(
        lambda lifetime: _build(loaded.config, config_path, lifetime),
        known_errors=(StoreError, ConfigFileError, AclConfigError, ConfigValueError),
    )


def _load(
    path: str | None, namesrv: str | None, returns_as_slave: bool
) -> LoadedConfig[BrokerConfig]:
    overrides = {} if namesrv is None else {"namesrvAddr": namesrv}
    if returns_as_slave:
        overrides["twinlogReturnAsSlave"] = "true"
    try:
        return load_broker_config(path, overrides)
    except ConfigError as error:
        fail(str(error), EXIT_BAD_CONFIG)
        raise


def _print(config: BrokerConfig, *, only_important: bool) -> None:
    important = {d.key for d in declarations(BrokerConfig).values() if d.says.is_important}
    for line in config.to_properties().splitlines():
        if not only_important or line.partition("=")[0] in important:
            click.echo(line)


def _build(config: BrokerConfig, config_path: str | None, lifetime: Lifetime) -> Broker:
    # What is loaded now stays: the collector need not walk it again and again. Per message almost
    # nothing is made that it must look at, so it may come less often.
    gc.collect()
    gc.freeze()
    gc.set_threshold(50_000, 20, 50)
    broker = build_broker(
        config,
        rng=Random(os.urandom(8)),
        memory_size=_memory_size(),
        config_path=config_path,
        on_failure=lambda name, error: lifetime.fail(f"{name}: {error!r}"),
    )
    broker.on_restart = lifetime.restart
    broker.on_end = lifetime.fail
    return broker


def _memory_size() -> int:
    try:
        return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (OSError, ValueError):
        return MEMORY_UNKNOWN
