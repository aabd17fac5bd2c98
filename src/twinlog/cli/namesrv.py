"""`twinlog namesrv`: a name server in the foreground."""

from __future__ import annotations

import logging
from pathlib import Path

import click

from twinlog.cli.serve import (
    EXIT_BAD_CONFIG,
    Lifetime,
    configure_logging,
    fail,
    log_findings,
    run_service,
)
from twinlog.controller.store import RecordStoreError
from twinlog.namesrv.kv_config import KVConfigError
from twinlog.namesrv.server import Namesrv, build_namesrv
from twinlog.remoting.acl import AclConfigError
from twinlog.runtime.audit_file import write_audit_to
from twinlog.runtime.config import ConfigError, LoadedConfig, NamesrvConfig, load_namesrv_config
from twinlog.runtime.config_format import ConfigValueError

_LOG = logging.getLogger("twinlog.namesrv")


@click.command(short_help="Run a name server in the foreground.")
@click.option("-c", "--configFile", "path", help="A RocketMQ properties file.")
@click.option("-p", "--printConfigItem", "is_print", is_flag=True, help="Print all keys and exit.")
@click.option("-n", "--namesrvAddr", "ignored", hidden=True,
              help="Accepted and ignored, as by Apache's name server.")  # fmt: skip
def namesrv(path: str | None, is_print: bool, ignored: str | None) -> None:
    """Run a name server: it knows which brokers are alive and which queues they have."""
    loaded = _load(path)
    if is_print:
        click.echo(loaded.config.to_properties(), nl=False)
        return
    configure_logging(loaded.config)
    folder = Path(loaded.config.kv_config_path).absolute().parent
    write_audit_to(str(folder / "twinlog" / "audit.log"))
    log_findings(_LOG, loaded)
    run_service(
        lambda lifetime: _build(loaded.config, lifetime),
        known_errors=(KVConfigError, RecordStoreError, AclConfigError, ConfigValueError),
    )


def _load(path: str | None) -> LoadedConfig[NamesrvConfig]:
    try:
        loaded = load_namesrv_config(path)
    except ConfigError as error:
        fail(str(error), EXIT_BAD_CONFIG)
        raise
    if path is not None and "config_store_path" not in loaded.given:
        # As with Apache, a change at run time goes to the file that was named here.
        loaded.config.config_store_path = str(Path(path).resolve())
    return loaded


def _build(config: NamesrvConfig, lifetime: Lifetime) -> Namesrv:
    return build_namesrv(config, on_failure=lambda name, error: lifetime.fail(f"{name}: {error!r}"))
