"""What a replica of a controlled group knows of it, and what it does when it learns more. Pure.

Rules R4 and R11 as the broker sees them. The epoch is fenced here: it is stored before anything is
done by it, and an older one is refused from then on. The steps that are returned are carried out
in order; a later call begins only when they are done.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import Enum


class ReplicaRole(Enum):
    """FENCED serves no sends and follows nobody, until the controller has answered."""

    FENCED = "fenced"
    MASTER = "master"
    SLAVE = "slave"


@dataclass(frozen=True, slots=True)
class GroupState:
    """The part of a controller's record that a replica acts by."""

    epoch: int = 0
    set_epoch: int = 0
    master_id: int | None = None
    master_incarnation: str = ""
    master_ha_address: str = ""
    members: frozenset[int] = frozenset()
    is_clean: bool = True


class StepKind(Enum):
    """STORE is durable before the next step begins."""

    STORE = "store"
    PROMOTE = "promote"
    FOLLOW = "follow"
    FENCE = "fence"
    SET_CHANGED = "set changed"


@dataclass(frozen=True, slots=True)
class Step:
    kind: StepKind
    state: GroupState


class GroupView:
    """One process. `known_epoch` and `state` are what earlier processes of this store kept."""

    def __init__(self, own_id: int, incarnation: str, state: GroupState, known_epoch: int) -> None:
        assert known_epoch >= state.epoch
        self.own_id = own_id
        self.incarnation = incarnation
        self.role = ReplicaRole.FENCED
        self.state = state
        self.known_epoch = known_epoch

    def is_stale(self, epoch: int) -> bool:
        """Whether a peer of `epoch` is to be refused with STALE_EPOCH."""
        return epoch < self.known_epoch

    def go_on(self) -> bool:
        """No controller answers: a slave that started again follows the master that it knows, as
        if it had not stopped. Its epoch is stored, so older masters stay refused (R4), and who is
        elected meanwhile is of the set that this master counts. Whether anything changed."""
        is_other = self.state.master_id not in (None, self.own_id)
        if self.role is not ReplicaRole.FENCED or not is_other:
            return False
        if not self.state.epoch or self.state.epoch != self.known_epoch:
            return False
        self.role = ReplicaRole.SLAVE
        return True

    def learn(self, state: GroupState) -> list[Step]:
        """The controller's record. Only newer knowledge counts; copies may come late."""
        if state.epoch == 0 or state.epoch < self.known_epoch:
            return []
        if (state.epoch, state.set_epoch) < (self.state.epoch, self.state.set_epoch):
            return []
        if (state.master_id, state.master_incarnation) == (self.own_id, self.incarnation):
            return self._lead(state)
        if self.role is ReplicaRole.MASTER and state.epoch == self.state.epoch:
            return []  # Within an epoch there is one master: this.
        return self._follow(state)

    def _lead(self, state: GroupState) -> list[Step]:
        if self.role is ReplicaRole.MASTER and state.epoch == self.state.epoch:
            if state.set_epoch == self.state.set_epoch:
                return []
            return self._take(state, StepKind.SET_CHANGED)
        self.role = ReplicaRole.MASTER
        return self._take(state, StepKind.PROMOTE)

    def _follow(self, state: GroupState) -> list[Step]:
        """Another master; or this replica as it was before it started again, which is nobody."""
        role = ReplicaRole.FENCED if state.master_id == self.own_id else ReplicaRole.SLAVE
        is_same_master = (
            role is self.role
            and state.epoch == self.state.epoch
            and state.master_ha_address == self.state.master_ha_address
        )
        if is_same_master:
            if state.set_epoch == self.state.set_epoch:
                return []
            return self._take(state)
        self.role = role
        return self._take(state, StepKind.FENCE if role is ReplicaRole.FENCED else StepKind.FOLLOW)

    def _take(self, state: GroupState, *kinds: StepKind) -> list[Step]:
        self.state = state
        self.known_epoch = state.epoch
        return [Step(StepKind.STORE, state), *(Step(kind, state) for kind in kinds)]

    def met(self, epoch: int) -> list[Step]:
        """A peer or a name server spoke of `epoch`. A newer one than ours ends what we do by ours;
        who is the master then is for the controller to say."""
        if epoch <= self.known_epoch:
            return []
        self.known_epoch = epoch
        is_master = self.role is ReplicaRole.MASTER
        if is_master:
            self.role = ReplicaRole.FENCED
        steps = [Step(StepKind.STORE, replace(self.state))]
        return [*steps, Step(StepKind.FENCE, self.state)] if is_master else steps
