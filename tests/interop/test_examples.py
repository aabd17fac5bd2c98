"""The programs of `examples/` against Apache's servers, 4.9.7 and 5.3."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from interop.cluster import apache_of
from support import examples
from support.apache import APACHE, APACHE_5
from support.command_line import Result, twinlog
from support.examples import Start, starter

pytestmark = [pytest.mark.interop, pytest.mark.timeout(600)]


@dataclass
class Apache:
    """Its name server; one broker is registered with it."""

    namesrv: str

    def twinlog(self, *arguments: object) -> Result:
        return twinlog("-n", self.namesrv, *arguments)


@pytest.fixture(scope="module", params=[APACHE, APACHE_5])
def place(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Apache]:
    with apache_of(request.param, tmp_path_factory.mktemp(request.param)) as address:
        yield Apache(address)


@pytest.fixture
def start(place: Apache, tmp_path: Path) -> Iterator[Start]:
    with starter(place, tmp_path) as begin:
        yield begin


def test_orders_over_the_web_are_billed(place: Apache, start: Start) -> None:
    examples.orders_over_the_web_are_billed(place, start)


def test_messages_and_database_agree(place: Apache, start: Start, tmp_path: Path) -> None:
    examples.messages_and_database_agree(place, start, tmp_path)


def test_steps_stay_in_order(place: Apache, start: Start) -> None:
    examples.steps_stay_in_order(place, start)


def test_questions_are_answered(place: Apache, start: Start) -> None:
    examples.questions_are_answered(place, start)
