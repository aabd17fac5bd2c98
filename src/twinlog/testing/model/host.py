"""A replica on the drawing board: its disk, its machine, and its process while there is one."""

from __future__ import annotations

from dataclasses import dataclass, field

from twinlog.controller.record import GroupRecord
from twinlog.ha.authority import Authority
from twinlog.ha.group_view import GroupState, GroupView, ReplicaRole
from twinlog.ha.in_sync import InSync

Entry = tuple[int, int]  # epoch, value; the record that opens epoch e has the value -e


@dataclass
class Link:
    """A slave's connection to its master."""

    connection: int
    master: int
    dialled_ms: int
    is_live: bool = False
    heard_ms: int = 0
    epoch: int = 0


@dataclass
class Host:
    """Survives its processes; `boots` counts them."""

    id: int
    rate: float
    # Disk.
    log: list[Entry] = field(default_factory=list)
    flushed: int = 0
    state: GroupState = field(default_factory=GroupState)
    known_epoch: int = 0
    is_in_doubt: bool = False
    known_confirmed: int = 0
    stored: GroupRecord | None = None
    """The newest record that the controller told it: what a lost controller is rebuilt from."""
    # Machine.
    is_up: bool = False
    is_paused: bool = False
    boots: int = 0
    # Process.
    view: GroupView | None = None
    authority: Authority | None = None
    in_sync: InSync = field(default_factory=InSync)
    link: Link | None = None
    heartbeat_connection: int = 0
    beats: dict[int, int] = field(default_factory=dict)
    waiting: list[tuple[int, int]] = field(default_factory=list)
    is_holding: bool = False
    joining_since_ms: int | None = None
    last_acks: dict[int, int] = field(default_factory=dict)

    @property
    def incarnation(self) -> str:
        return f"{self.id}.{self.boots}"

    @property
    def is_master(self) -> bool:
        return self.view is not None and self.view.role is ReplicaRole.MASTER

    @property
    def last_epoch(self) -> int:
        return self.log[-1][0] if self.log else 0
