"""Writes docs/REQUESTS.md from the servers' request tables; a test compares the two.

python tools/request_reference.py
"""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

from twinlog.remoting.codes import RequestCode
from twinlog.remoting.request_table import Row
from twinlog.testing.request_rows import broker_rows, controller_rows, namesrv_rows

PAGE = Path(__file__).resolve().parent.parent / "docs" / "REQUESTS.md"
HEAD = """\
# Compatibility by request code

This table lists every request of RocketMQ's remoting protocol that twinlog knows, and which server
answers it. Codes up to 329 are those of RocketMQ 4.9, codes from 343 to 3543 come from RocketMQ 5,
and codes above 10000 are twinlog's own. *To clients* means that a broker sends the request and a
client answers it. A request that no server answers gets response code 3, as in RocketMQ.

This page is written by `python tools/request_reference.py`. The bytes of the requests are described
in [WIRE](WIRE.md).

| code | name | answered by | largest body |
|---|---|---|---|
"""
TO_CLIENTS = {
    RequestCode.CHECK_TRANSACTION_STATE, RequestCode.NOTIFY_CONSUMER_IDS_CHANGED,
    RequestCode.RESET_CONSUMER_CLIENT_OFFSET, RequestCode.GET_CONSUMER_STATUS_FROM_CLIENT,
    RequestCode.PUSH_REPLY_MESSAGE_TO_CLIENT,
}  # fmt: skip


def page() -> str:
    servers = {
        # Of a controlled group: it answers what a fixed pair answers, and more.
        "broker": asyncio.run(
            broker_rows(enable_controller_mode=True, controller_addr="127.0.0.1:9878")
        ),
        "name server": namesrv_rows(),
        "controller": controller_rows(),
    }
    return HEAD + "".join(_row(code, servers) for code in RequestCode)


def _row(code: RequestCode, servers: dict[str, list[Row[Any]]]) -> str:
    found = {name: row for name, rows in servers.items() for row in rows if row.code == code}
    names = [*found, *(["to clients"] if code in TO_CLIENTS else [])]
    sizes = {_size(row.body_max) for row in found.values()}
    cells = [str(code.value), f"`{code.name}`", ", ".join(names) or "-", ", ".join(sizes) or "-"]
    return f"| {' | '.join(cells)} |\n"


def _size(count: int) -> str:
    return f"{count >> 20} MiB" if count >= 1 << 20 else f"{count >> 10} KiB"


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
