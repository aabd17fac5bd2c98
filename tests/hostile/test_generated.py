"""Generated requests of hostile peers against real processes, in the time of one long test.

First the cases of a fixed seed, then those of a random one, which is printed: with
`TWINLOG_HOSTILE_SEED` and `TWINLOG_HOSTILE_FIRST` a run is repeated, or begins where another ended.
`make fuzz TARGETS=hostile T=600` goes on for longer. What it found once is in
`test_generated_findings.py`.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import msgspec
import pytest

from support.captured import Peer, world
from support.hostile_cases import HALF, Case, config_cases, properties_text, send_ext
from support.hostile_world import BROKER, attack, cases_for, tables
from twinlog.runtime.config import BrokerConfig, ConfigError, update_config
from twinlog.runtime.config_format import parse_update
from twinlog.runtime.config_key import live_keys

ATTACK_SECONDS = 25.0  # With starts, restart and promotion a minute, on two busy cores.
KNOWN_CODES = {
    "broker": {10, 11, 12, 14, 15, 17, 25, 34, 36, 37, 41, 46, 200, 310, 320, 324, 10004},
    "namesrv": {100, 103, 104, 105, 318, 322, 904},
    "controller": {904, 1001, 1002, 1003, 1009, 1011, 1013},
}


def test_every_code_and_field_is_attacked() -> None:
    """The generator follows the tables: no code and no field is left out."""
    for kind, table in tables().items():
        assert KNOWN_CODES[kind] <= set(table.rows)
        cases = cases_for(kind, table, {}, ["key"])
        for row in table:
            mine = [case for case in cases if case.code == row.code]
            assert len(mine) > 60, row.code
            for name in row.header.__struct_encode_fields__:
                texts = {case.name for case in mine if case.name.startswith(f"{name}: ")}
                assert len(texts) > 30, (row.code, name)


async def test_no_generated_setting_gives_up_a_transaction() -> None:
    """Settings whose purpose that is are left out; a check may come while any other is in force."""
    limits = {"transaction_check_max": 10**6, "transaction_time_out": BROKER["transactionTimeOut"]}
    async with world(end=0, tables=False, **limits) as broker:
        half = send_ext(10, "hostile", properties_text(HALF), sysFlag="4")
        half["bornTimestamp"] = str(broker.clock.now_ms() - 60_000)
        assert (await Peer(broker.server).ask(Case("half", 10, half, b"x").frame(1))).code == 0
        before = msgspec.structs.asdict(broker.config)
        for case in config_cases(25, sorted(live_keys(BrokerConfig))):
            with suppress(ConfigError, ValueError):
                update_config(broker.config, parse_update(case.body))
            await broker.transactions.check()
            broker.store.write_pending()
            assert broker.transactions.pending_count == 1, case
            for name, value in before.items():
                setattr(broker.config, name, value)


@pytest.mark.timeout(300)
def test_generated_requests_harm_nobody(
    tmp_path: Path, record_property: Callable[[str, object], None]
) -> None:
    seed = os.environ.get("TWINLOG_HOSTILE_SEED") or os.urandom(4).hex()
    first = int(os.environ.get("TWINLOG_HOSTILE_FIRST", "0"))
    report = attack(tmp_path, seconds=ATTACK_SECONDS, seed=seed, first=first)
    record_property("say", report.text())
    assert not report.findings, report.text()
