"""Who is asked, and whose answer counts: generated worlds of processes behind ports.

Processes come, go and are replaced, a name server says the truth or what was true once, questions
fail. Whatever happens: classic is never the verdict while the HA port that is to be dialled is a
twinlog's, and a master that answers is found.
"""

from __future__ import annotations

import asyncio
import json
from dataclasses import dataclass
from typing import Any

import pytest
from hypothesis import Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from twinlog.broker.pair.dialect_question import DialectQuestion
from twinlog.ha.dialect import Dialect, Heard, Verdict
from twinlog.remoting.codes import RequestCode
from twinlog.remoting.command import RemotingCommand
from twinlog.remoting.errors import ConnectError
from twinlog.runtime.broker_config import BrokerConfig, BrokerRole, HADialect

HOST = "10.0.0.1"
SERVICE_PORTS = (10911, 10921, 11000, 9876)
HA_PORTS = (10912, 10922, 9877)
TWIN, APACHE, NAMESRV, STUB, DENIES, ODD = "twin", "apache", "namesrv", "stub", "denies", "odd"
BROKERS = (TWIN, APACHE)


@dataclass(frozen=True)
class Process:
    kind: str
    name: str = "a"
    ha_port: int = 0


class Network:
    """What answers at which service port; stands for the remoting client."""

    def __init__(self) -> None:
        self.processes: dict[int, Process] = {}
        self.is_down = False
        self.asked: list[str] = []

    async def invoke(self, address: str, command: RemotingCommand, timeout_ms: int) -> Any:
        host, _, port = address.rpartition(":")
        self.asked.append(address)
        process = self.processes.get(int(port)) if host == HOST else None
        if process is None or self.is_down:
            raise ConnectError(address, "refused")
        await asyncio.sleep(0)
        return _answer(process, command.code)


def _answer(process: Process, code: int) -> Any:
    class Answer:
        remark = "org.apache.rocketmq.acl.common.AclException: no"
        body = b""

    answer = Answer()
    answer.code = {DENIES: 1, ODD: 0}.get(process.kind, 3)  # type: ignore[attr-defined]
    if process.kind == ODD:
        answer.body = b"[1, 2"
    if process.kind == TWIN and code == RequestCode.TWINLOG_INFO:
        answer.code = 0  # type: ignore[attr-defined]
        body = {"clusterName": "c", "brokerName": process.name, "brokerId": "0"}
        answer.body = json.dumps(body).encode()
    if process.kind in BROKERS and code == RequestCode.GET_BROKER_CONFIG:
        answer.code = 0  # type: ignore[attr-defined]
        answer.body = f"brokerName={process.name}\nhaListenPort={process.ha_port}\n".encode()
    return answer


def make_question(network: Network, news: list[bool], **config: Any) -> DialectQuestion:
    values = {
        "broker_role": BrokerRole.SLAVE, "broker_id": 1, "broker_name": "a",
        "broker_cluster_name": "c", "listen_port": 11000, "broker_ip1": "10.0.0.2",
        "broker_ip2": "10.0.0.2", **config,
    }  # fmt: skip
    identity = {"clusterName": "c", "brokerName": "a", "brokerId": "1"}
    return DialectQuestion(
        BrokerConfig(**values),
        client=network,  # type: ignore[arg-type]
        identity=lambda: identity,
        heard=news.append,
        is_copy=lambda: False,
    )


class QuestionMachine(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.loop = asyncio.new_event_loop()
        self.network = Network()
        self.news: list[bool] = []
        self.question = make_question(self.network, self.news)
        self.known: set[tuple[str, str]] = set()  # Pairs that were registered at some time.
        self.said: tuple[str, str] | None = None
        self.spoken: Heard | None = None

    def owner(self, ha_port: int) -> tuple[int, Process] | None:
        for port, process in self.network.processes.items():
            if process.kind in BROKERS and process.ha_port == ha_port:
                return port, process
        return None

    @rule(
        port=st.sampled_from(SERVICE_PORTS),
        ha_port=st.sampled_from(HA_PORTS),
        kind=st.sampled_from(BROKERS),
        name=st.sampled_from(["a", "a", "b"]),
    )
    def start_broker(self, port: int, ha_port: int, kind: str, name: str) -> None:
        if port in self.network.processes or self.owner(ha_port) is not None:
            return  # The port is taken.
        self.network.processes[port] = Process(kind, name, ha_port)

    @rule(port=st.sampled_from(SERVICE_PORTS), kind=st.sampled_from([NAMESRV, STUB, DENIES, ODD]))
    def start_stranger(self, port: int, kind: str) -> None:
        if port not in self.network.processes:
            self.network.processes[port] = Process(kind)

    @rule(port=st.sampled_from(SERVICE_PORTS))
    def stop(self, port: int) -> None:
        self.network.processes.pop(port, None)

    @rule(port=st.sampled_from(SERVICE_PORTS))
    def register(self, port: int) -> None:
        """The name server gives what a broker of the group has registered, also if it is gone."""
        process = self.network.processes.get(port)
        if process is not None and process.kind in BROKERS and process.name == "a":
            self.known.add((f"{HOST}:{port}", f"{HOST}:{process.ha_port}"))

    @rule(data=st.data())
    def name_server_says(self, data: st.DataObject) -> None:
        if self.known:
            self.said = data.draw(st.sampled_from(sorted(self.known)))
            self.question.registered(*self.said)

    @rule(ha_port=st.sampled_from(HA_PORTS))
    def ask(self, ha_port: int) -> None:
        verdict = self._ask(ha_port)
        owner = self.owner(ha_port)
        is_usual = owner is not None and owner[0] in (ha_port - 1, 11000)
        if verdict.dialect is Dialect.CLASSIC and not self.is_taken_at_its_word(ha_port):
            is_twin = owner is not None and owner[1].kind == TWIN
            assert not is_twin, "classic to a twinlog"
        if owner is not None and is_usual and owner[1].name == "a":
            expected = Dialect.TWIN if owner[1].kind == TWIN else Dialect.CLASSIC
            others = [
                process for port, process in self.network.processes.items() if port != owner[0]
            ]
            is_clear = not self.is_taken_at_its_word(ha_port)
            if is_clear and not any(process.kind == TWIN for process in others):
                assert verdict.dialect is expected, "a master that answers is not found"

    def is_taken_at_its_word(self, ha_port: int) -> bool:
        """Code 3 from the address that is registered for the HA port is enough. Wrong only where a
        stranger that says nothing more took over just that port."""
        address, ha_address = self.said or ("", "")
        process = self.network.processes.get(int(address.rpartition(":")[2] or 0))
        is_mute = process is not None and process.kind in (NAMESRV, STUB)
        return is_mute and ha_address == f"{HOST}:{ha_port}"

    @rule(ha_port=st.sampled_from(HA_PORTS))
    def ask_in_vain(self, ha_port: int) -> None:
        self.network.is_down = True
        assert self._ask(ha_port).dialect is not Dialect.CLASSIC, "silence is no verdict"
        self.network.is_down = False

    def _ask(self, ha_port: int) -> Verdict:
        self.news.clear()
        verdict = self.loop.run_until_complete(self.question.ask(f"{HOST}:{ha_port}"))
        heard = self.question.heard
        if heard is not Heard.NOTHING:
            was_other = self.spoken not in (None, heard)
            assert self.news == [True] if was_other else True not in self.news
            self.spoken = heard
        return verdict

    @invariant()
    def no_ha_port_is_asked(self) -> None:
        assert not {f"{HOST}:{port}" for port in HA_PORTS} & set(self.network.asked)

    def teardown(self) -> None:
        self.loop.close()


TestQuestion = QuestionMachine.TestCase
TestQuestion.settings = settings(
    max_examples=200,
    stateful_step_count=30,
    phases=[phase for phase in Phase if phase is not Phase.shrink],
)


@pytest.fixture
def network() -> Network:
    return Network()


async def verdict_of(network: Network, **config: Any) -> Verdict:
    return await make_question(network, [], **config).ask(f"{HOST}:10912")


async def test_without_a_name_server_the_port_before_the_ha_port_is_asked(network: Network) -> None:
    network.processes[10911] = Process(TWIN, ha_port=10912)
    assert (await verdict_of(network)).dialect is Dialect.TWIN
    network.processes[10911] = Process(APACHE, ha_port=10912)
    assert (await verdict_of(network)).dialect is Dialect.CLASSIC


async def test_a_name_server_on_that_port_says_nothing_about_the_broker(network: Network) -> None:
    network.processes[10911] = Process(NAMESRV)
    assert (await verdict_of(network)).dialect is Dialect.UNKNOWN
    network.processes[11000] = Process(TWIN, ha_port=10912)
    assert (await verdict_of(network)).dialect is Dialect.TWIN


async def test_an_odd_layout_is_said_by_the_operator_and_nobody_is_asked(network: Network) -> None:
    verdict = await verdict_of(network, twinlog_ha_dialect=HADialect.CLASSIC)
    assert verdict.dialect is Dialect.CLASSIC
    assert network.asked == []


@pytest.mark.parametrize(
    ("peers", "dialect"),
    [
        ("", Dialect.REFUSED),
        ("10.0.0.9", Dialect.REFUSED),
        ("10.0.0.1", Dialect.CLASSIC),
        ("10.0.0.9; 10.0.0.0/30", Dialect.CLASSIC),
    ],
)
async def test_with_a_secret_an_apache_master_must_be_listed(
    network: Network, peers: str, dialect: Dialect
) -> None:
    network.processes[10911] = Process(APACHE, ha_port=10912)
    config = {"twinlog_ha_secret": "s", "twinlog_ha_classic_peers": peers}
    assert (await verdict_of(network, **config)).dialect is dialect
