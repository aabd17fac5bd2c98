"""Whether servers and their replication are healthy, decided from facts. Pure.

`judge` is the only place that decides. Brokers, the HTTP port, metrics, the command line and the
console collect facts in their own ways and ask it, so that two of them never disagree about the
same facts. Nothing here reads a clock: ages and times are facts.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from datetime import UTC, datetime
from enum import StrEnum

from msgspec import Struct

SILENT_MS_MAX = 1_500
"""A slave that acknowledges nothing for this time while bytes wait for it is not in sync."""
UNHEARD_MS = 2_000
"""Beyond two reports that a slave owes: by then a busy machine is no excuse."""
LOOP_LAG_MS_MAX = 500


class Level(StrEnum):
    """How bad a finding is. Only a PROBLEM makes something unhealthy."""

    OK = "ok"
    WARNING = "warning"
    PROBLEM = "problem"


class Code(StrEnum):
    """What can be wrong. Scripts, metrics and alert rules know a finding by this name."""

    NAME_SERVER_DOWN = "name_server_down"
    BROKER_DOWN = "broker_down"
    TOO_FEW_BROKERS = "too_few_brokers"
    CONTROLLER_DOWN = "controller_down"
    CONTROLLER = "controller"
    NO_MASTER = "no_master"
    MASTER_DOWN = "master_down"
    TWO_MASTERS = "two_masters"
    NO_SLAVE = "no_slave"
    SLAVE_MISSING = "slave_missing"
    SLAVE_NOT_IN_SYNC = "slave_not_in_sync"
    SLAVE_REFUSED = "slave_refused"
    SLAVE_STOPPED = "slave_stopped"
    SLAVE_NOT_LINKED = "slave_not_linked"
    NOT_REPLICATED = "not_replicated"
    METADATA_NOT_TAKEN = "metadata_not_taken"
    LOG_INCOMPLETE = "log_incomplete"
    SENDS_REFUSED = "sends_refused"
    DISK_NEARLY_FULL = "disk_nearly_full"
    NOT_SAVED = "not_saved"
    LOOP_BLOCKED = "loop_blocked"


class Finding(Struct, frozen=True):
    """One sentence about `about` (an address or a name), and what an operator does about it."""

    level: Level
    code: Code
    about: str
    text: str
    next_step: str = ""


class Health(Struct, frozen=True):
    """What was found, the worst first."""

    findings: tuple[Finding, ...] = ()

    @property
    def is_healthy(self) -> bool:
        return not any(finding.level is Level.PROBLEM for finding in self.findings)

    @property
    def level(self) -> Level:
        return self.findings[0].level if self.findings else Level.OK

    @property
    def problems(self) -> tuple[str, ...]:
        return self._texts(Level.PROBLEM)

    @property
    def warnings(self) -> tuple[str, ...]:
        return self._texts(Level.WARNING)

    def _texts(self, level: Level) -> tuple[str, ...]:
        texts = (finding.text for finding in self.findings if finding.level is level)
        return tuple(dict.fromkeys(texts))

    def sentence(self, subject: str) -> str:
        """For people: `the cluster is healthy`, or why it is not."""
        if self.is_healthy:
            return f"{subject} is healthy"
        return f"{subject} is not healthy: {'; '.join(self.problems)}"


# Facts


class SyncLimits(Struct, frozen=True):
    """When a slave is not in sync: haSlaveFallbehindMax, and how long it may be silent."""

    lag_bytes_max: int = 268_435_456
    silent_ms_max: int = SILENT_MS_MAX


def sync_limits(fall_behind_max: int, not_catchup_ms: int) -> SyncLimits:
    """Of a broker's keys haSlaveFallbehindMax and haMaxTimeSlaveNotCatchup."""
    return SyncLimits(fall_behind_max, min(SILENT_MS_MAX, not_catchup_ms))


def why_not_in_sync(
    lag_bytes: int, silent_ms: int, limits: SyncLimits, *, unheard_ms: int = 0, report_ms: int = 0
) -> str:
    """Empty when a connected slave is in sync.

    `silent_ms` is how long it has acknowledged nothing although there was something to acknowledge:
    a connection that is open says nothing, a stopped process keeps its connections. A slave that
    has everything still reports every `report_ms`; `unheard_ms` is how long it has not.
    """
    if lag_bytes > 0 and silent_ms >= limits.silent_ms_max:
        return f"has acknowledged nothing for {silent_ms} ms while {lag_bytes} bytes are waiting"
    if lag_bytes >= limits.lag_bytes_max:
        return f"is {lag_bytes} bytes behind, the limit is {limits.lag_bytes_max}"
    if report_ms and unheard_ms >= 2 * report_ms + UNHEARD_MS:
        return f"has said nothing for {unheard_ms} ms, although it reports every {report_ms} ms"
    return ""


class ReplicaFacts(Struct, frozen=True):
    """A connection to the HA port. Only one that has reported an offset is a slave: whoever looks
    whether the port is open is none."""

    address: str
    is_slave: bool = True
    is_in_sync: bool = True
    lag_bytes: int = 0
    reason: str = ""


class MissingFacts(Struct, frozen=True):
    """A slave that left its master, did not return and was not replaced."""

    name: str
    reason: str = ""
    since: str = ""
    """For people: when it left."""


def missing_slave(connection: str, left_ms: int, reason: str) -> MissingFacts:
    """Named as metrics and events name it: `HOST/ID`, in the classic dialect `HOST`."""
    place, _, replica_id = connection.partition("/")
    host = place.rpartition(":")[0]
    name = f"{host}/{replica_id}" if replica_id else host
    return MissingFacts(name, reason, time_text(left_ms) if left_ms else "")


def time_text(wall_ms: int) -> str:
    """UTC, for people."""
    return datetime.fromtimestamp(wall_ms / 1000, tz=UTC).strftime("%Y-%m-%d %H:%M:%S UTC")


class SlaveFacts(Struct, frozen=True):
    """What a slave says of itself."""

    address: str
    is_linked: bool = True
    link_reason: str = ""
    """Why its last connection to the master ended, or was not made."""
    damage: str = ""
    """Why it does not go on although its master is there."""
    metadata_problems: tuple[str, ...] = ()


class RivalFacts(Struct, frozen=True):
    """Two brokers with one name and id: `holder` is in the route, `rival` is not. `namesrv` told
    the broker that tells of it; empty when the name server itself tells."""

    broker_id: int
    holder: str
    rival: str
    namesrv: str = ""


class GroupFacts(Struct, frozen=True, kw_only=True):
    """A master and its slaves."""

    name: str
    master_address: str | None
    master_error: str = ""
    """Why the master did not answer; its own facts are unknown then."""
    role: str = ""
    replicas: tuple[ReplicaFacts, ...] = ()
    registered_slaves: int = 0
    needed_slaves: int = 0
    """How many must be in sync for a send to be confirmed; 0 in an asynchronous group."""
    slaves: tuple[SlaveFacts, ...] = ()
    departed_reason: str | None = None
    """Why the last slave left; None when none ever did."""
    missing: tuple[MissingFacts, ...] = ()
    """Whoever has left the route as well is known to its master alone."""
    rivals: tuple[RivalFacts, ...] = ()
    incomplete: str = ""
    last_seen: str = ""
    """For people: when a lost master was last seen."""
    is_controlled: bool = False
    """Whether a controller says who its master is."""
    decided: str = ""
    """What is wrong with it for its controller; empty without one."""


class DecidedFacts(Struct, frozen=True):
    """A group as its controller sees it; `problem` is empty when nothing is wrong."""

    name: str
    problem: str


class DiskFacts(Struct, frozen=True):
    """A directory. Ratios are of 1; `refuse_ratio` is diskSpaceWarningLevelRatio."""

    path: str
    used_ratio: float
    clean_ratio: float = 0.75
    refuse_ratio: float = 0.90


class ServerFacts(Struct, frozen=True, kw_only=True):
    """One process: a broker, a name server or a controller."""

    kind: str
    name: str
    address: str = ""
    error: str = ""
    """Why it did not answer; nothing else is known of it then."""
    refusal: str = ""
    """Why it takes no sends although it should."""
    is_slave: bool = False
    """It takes none anyway: `refusal` says why it could not as a master."""
    disks: tuple[DiskFacts, ...] = ()
    unsaved: tuple[str, ...] = ()
    loop_lag_ms: int = 0


class Facts(Struct, frozen=True, kw_only=True):
    """What is known of a cluster, or of one server that judges itself."""

    servers: tuple[ServerFacts, ...] = ()
    groups: tuple[GroupFacts, ...] = ()
    decided: tuple[DecidedFacts, ...] = ()
    """Of a controller that judges itself."""
    brokers_min: int = 0


# The decision

_ORDER = {Level.PROBLEM: 0, Level.WARNING: 1, Level.OK: 2}


def judge(facts: Facts) -> Health:
    """What is wrong, and what to do about it."""
    found = [*_counts(facts)]
    for server in facts.servers:
        found += _server(server)
    for group in facts.groups:
        found += _group(group)
    found += [_decided(group.name, group.problem) for group in facts.decided if group.problem]
    found.sort(key=lambda finding: _ORDER[finding.level])
    return Health(tuple(found))


_NOT_READY = frozenset({Code.SENDS_REFUSED, Code.SLAVE_STOPPED, Code.LOG_INCOMPLETE})


def why_not_ready(health: Health) -> str:
    """Why a server cannot do what it is for; empty when it can.

    A pair whose slave is gone is not healthy, but its master serves: taking it away helps nobody.
    """
    texts = (finding.text for finding in health.findings if finding.code in _NOT_READY)
    return "; ".join(dict.fromkeys(texts))


def judge_group(group: GroupFacts) -> Health:
    return judge(Facts(groups=(group,)))


def judge_server(server: ServerFacts) -> Health:
    return judge(Facts(servers=(server,)))


def _counts(facts: Facts) -> Iterator[Finding]:
    count = sum(server.kind == "broker" for server in facts.servers)
    if count < facts.brokers_min:
        yield Finding(
            Level.PROBLEM,
            Code.TOO_FEW_BROKERS,
            "cluster",
            f"{count} {'broker' if count == 1 else 'brokers'}, {facts.brokers_min} are expected",
            "start the brokers that are missing",
        )


def _server(server: ServerFacts) -> Iterator[Finding]:
    if server.error:
        yield _down(server)
        return
    if server.refusal:
        yield Finding(
            Level.PROBLEM,
            Code.SENDS_REFUSED,
            server.name,
            f"{server.kind} {server.name} {_refuses(server)}: {server.refusal}",
            _after_refusal(server),
        )
    yield from (_disk(server, disk) for disk in server.disks if _is_disk_notable(server, disk))
    for table in server.unsaved:
        yield Finding(
            Level.PROBLEM,
            Code.NOT_SAVED,
            server.name,
            f"{server.kind} {server.name} cannot save {table}",
            "see its log: a table that is not saved is lost when the process ends",
        )
    if server.loop_lag_ms > LOOP_LAG_MS_MAX:
        yield Finding(
            Level.WARNING,
            Code.LOOP_BLOCKED,
            server.name,
            f"{server.kind} {server.name} answered nobody for {server.loop_lag_ms} ms",
            "look for a busy machine, swapping, or a disk that stalls",
        )


_DOWN = {"broker": Code.BROKER_DOWN, "controller": Code.CONTROLLER_DOWN}


def _down(server: ServerFacts) -> Finding:
    code = _DOWN.get(server.kind, Code.NAME_SERVER_DOWN)
    where = f" at {server.address}" if server.address and server.address != server.name else ""
    return Finding(
        Level.PROBLEM,
        code,
        server.name,
        f"{server.kind} {server.name}{where} does not answer",
        "start it; if it runs, check that its address can be reached from here",
    )


def _refuses(server: ServerFacts) -> str:
    """A slave takes what its master sends for as long as there is room at all."""
    return "could take no messages as the master" if server.is_slave else "refuses messages"


def _after_refusal(server: ServerFacts) -> str:
    if any(disk.used_ratio > disk.refuse_ratio for disk in server.disks):
        return "free disk space, or lower fileReservedTime"
    return "see its log"


def _is_disk_notable(server: ServerFacts, disk: DiskFacts) -> bool:
    """A full one is told once, as the reason for which sends are refused."""
    return disk.used_ratio >= disk.clean_ratio and not (
        server.refusal and disk.used_ratio > disk.refuse_ratio
    )


def _disk(server: ServerFacts, disk: DiskFacts) -> Finding:
    text = f"{server.kind} {server.name}: {disk.path} is {100 * disk.used_ratio:.0f} % full"
    return Finding(
        Level.WARNING,
        Code.DISK_NEARLY_FULL,
        server.name,
        f"{text}; messages are refused above {100 * disk.refuse_ratio:.0f} %",
        "free disk space, or lower fileReservedTime",
    )


_CONTROLLER_ACTS = "start replicas that are down; for the rest the controller acts by itself"
_RESTORE_OR_ADOPT = (
    "restore the newest copy of the controller's state; or start all replicas and adopt the group"
)


def _group(group: GroupFacts) -> Iterator[Finding]:
    yield from dict.fromkeys(_rival(group, rival) for rival in group.rivals)
    if group.master_address is None:
        yield _no_master(group)
    elif group.master_error:
        yield Finding(
            Level.PROBLEM,
            Code.MASTER_DOWN,
            group.name,
            f"the master does not answer: {group.master_error}",
            _after_master_loss(group),
        )
    else:
        yield from _replication(group)
    if group.decided:
        yield _decided(group.name, group.decided)
    yield from _slaves(group)


def _decided(name: str, problem: str) -> Finding:
    return Finding(Level.PROBLEM, Code.CONTROLLER, name, problem, _after_decision(problem))


def _after_decision(problem: str) -> str:
    """A frozen group waits for a person: its controller has an old copy of its state."""
    return _RESTORE_OR_ADOPT if problem.startswith("FROZEN") else _CONTROLLER_ACTS


def _rival(group: GroupFacts, facts: RivalFacts) -> Finding:
    kind = f"slaves with id {facts.broker_id}" if facts.broker_id else "masters"
    return Finding(
        Level.PROBLEM,
        Code.TWO_MASTERS,
        group.name,
        f"two {kind}: {facts.holder} is in the route, {facts.rival} is not: stop one of the two",
        "stop the one whose messages you do not want to keep",
    )


def _no_master(group: GroupFacts) -> Finding:
    count = len(group.slaves) or group.registered_slaves
    serving = f", {count} slave(s) serve reads" if count else ""
    seen = f", last seen {group.last_seen}" if group.last_seen else ""
    return Finding(
        Level.PROBLEM,
        Code.NO_MASTER,
        group.name,
        f"no master is registered{serving}{seen}",
        _after_master_loss(group),
    )


def _after_master_loss(group: GroupFacts) -> str:
    if group.decided:
        return _after_decision(group.decided)
    if group.is_controlled:
        return "start the controller: it elects one of the replicas that are left"
    promote = f"twinlog ha promote {group.name} --dry-run"
    return f"start the master again; if it is lost for good: {promote}"


def _replication(group: GroupFacts) -> Iterator[Finding]:
    slaves = [replica for replica in group.replicas if replica.is_slave]
    yield from (_not_in_sync(r) for r in slaves if not r.is_in_sync)
    yield from _refused(group)
    yield from _missing(group, len(slaves), sum(r.is_in_sync for r in slaves))
    if group.incomplete:
        yield Finding(
            Level.PROBLEM,
            Code.LOG_INCOMPLETE,
            group.name,
            f"the master's log is not complete: {group.incomplete}",
            "start the replica that has the rest; sends wait until then",
        )


def _not_in_sync(replica: ReplicaFacts) -> Finding:
    why = replica.reason or f"is {replica.lag_bytes} bytes behind"
    return Finding(
        Level.PROBLEM,
        Code.SLAVE_NOT_IN_SYNC,
        replica.address,
        f"slave {replica.address} {why}",
        "look at the slave's process, its disk and the network between the two",
    )


def _refused(group: GroupFacts) -> Iterator[Finding]:
    """Held connections. Whoever has not said anything is nobody yet."""
    for replica in group.replicas:
        if not replica.is_slave and replica.reason:
            yield Finding(
                Level.WARNING,
                Code.SLAVE_REFUSED,
                replica.address,
                f"{replica.address} is not taken as a slave: {replica.reason}",
                "see: twinlog ha status, and the log of that slave",
            )


def _missing(group: GroupFacts, count: int, in_sync: int) -> Iterator[Finding]:
    if count == 0:
        yield _no_slave(group)
        return
    yield from map(_left, group.missing)
    if count < group.registered_slaves:
        yield Finding(
            Level.PROBLEM,
            Code.SLAVE_MISSING,
            group.name,
            f"{count} of {group.registered_slaves} registered slaves replicate",
            "look at the log of the slave that is missing",
        )
    if in_sync < group.needed_slaves and in_sync == count:
        yield Finding(
            Level.PROBLEM,
            Code.SLAVE_MISSING,
            group.name,
            f"{in_sync} slave(s) in sync, a send needs {group.needed_slaves}",
            "start the slaves that are missing",
        )


def _left(slave: MissingFacts) -> Finding:
    since = f" {slave.since}" if slave.since else ""
    why = f": {slave.reason}" if slave.reason else ""
    return Finding(
        Level.PROBLEM,
        Code.SLAVE_MISSING,
        slave.name,
        f"slave {slave.name} left{since} and has not returned{why}",
        "start it again; its master forgets it when another one has its place, or with a restart",
    )


def _no_slave(group: GroupFacts) -> Finding:
    last = "" if group.departed_reason is None else f", the last one left: {group.departed_reason}"
    refused = [r.reason for r in group.replicas if not r.is_slave and r.reason]
    last = f", one is refused: {refused[-1]}" if refused else last
    is_expected = (
        group.registered_slaves
        or group.needed_slaves
        or group.departed_reason is not None
        or group.role == "SYNC_MASTER"
    )
    if is_expected:
        text = f"no slave is connected{last}"
        step = "start a slave; if one runs, its log says why it does not replicate"
        return Finding(Level.PROBLEM, Code.NO_SLAVE, group.name, text, step)
    text = f"{group.name} has no slave: nothing is replicated"
    step = "start a slave with this brokerName"
    return Finding(Level.WARNING, Code.NOT_REPLICATED, group.name, text, step)


def _slaves(group: GroupFacts) -> Iterator[Finding]:
    for slave in group.slaves:
        if slave.damage:
            yield Finding(
                Level.PROBLEM,
                Code.SLAVE_STOPPED,
                slave.address,
                f"slave {slave.address} does not go on: {slave.damage}",
                "see the log of the slave, and docs/PAIR.md",
            )
        if group.master_address is None or group.master_error:
            continue  # What else is wrong with a slave follows from that.
        if slave.is_linked:
            yield from _metadata(slave)
        elif not slave.damage:
            yield _not_linked(slave)


def _not_linked(slave: SlaveFacts) -> Finding:
    why = f": {slave.link_reason}" if slave.link_reason else ""
    return Finding(
        Level.PROBLEM,
        Code.SLAVE_NOT_LINKED,
        slave.address,
        f"slave {slave.address} has no connection to its master{why}",
        "look at the master, and at the slave's log",
    )


def _metadata(slave: SlaveFacts) -> Iterable[Finding]:
    return (
        Finding(
            Level.PROBLEM,
            Code.METADATA_NOT_TAKEN,
            slave.address,
            f"slave {slave.address} {problem}",
            "without it, topics, groups or offsets are older on the slave than messages",
        )
        for problem in slave.metadata_problems
    )
