"""A controller in the foreground: what `twinlog controller` without a verb does."""

from __future__ import annotations

import logging

import click

from twinlog.cli.serve import (
    EXIT_BAD_CONFIG,
    Lifetime,
    configure_logging,
    fail,
    log_findings,
    run_service,
)
from twinlog.controller.server import ControllerServer, build_controller
from twinlog.controller.store import RecordStoreError
from twinlog.remoting.acl import AclConfigError
from twinlog.runtime.config import ConfigError, LoadedConfig, load_controller_config
from twinlog.runtime.config_format import ConfigValueError
from twinlog.runtime.controller_config import ControllerConfig

_LOG = logging.getLogger("twinlog.controller")


def run_controller(path: str | None, *, is_print: bool) -> None:
    """Decide who is the master of each group, and who may become it."""
    loaded = _load(path)
    if is_print:
        click.echo(loaded.config.to_properties(), nl=False)
        return
    configure_logging(loaded.config)
    log_findings(_LOG, loaded)
    run_service(
        lambda lifetime: _build(loaded.config, lifetime),
        known_errors=(RecordStoreError, AclConfigError, ConfigValueError),
    )


def _load(path: str | None) -> LoadedConfig[ControllerConfig]:
    try:
        return load_controller_config(path)
    except ConfigError as error:
        fail(str(error), EXIT_BAD_CONFIG)
        raise


def _build(config: ControllerConfig, lifetime: Lifetime) -> ControllerServer:
    return build_controller(
        config, on_failure=lambda name, error: lifetime.fail(f"{name}: {error!r}")
    )
