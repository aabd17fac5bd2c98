"""What the world of a controlled group was told, and whether it stays true. Trusts nobody."""

from __future__ import annotations

from collections import defaultdict

from twinlog.controller.record import Election, GroupRecord
from twinlog.testing.model.host import Entry, Host


class Violation(Exception):
    """A promise was broken."""


class Truth:
    """What the world was told, and whether it stays true."""

    def __init__(self) -> None:
        self.answered: dict[int, tuple[int, int, bool]] = {}  # value: place, epoch, early?
        self.visible: list[Entry] = []
        self.promoted: list[tuple[int, int, frozenset[int]]] = []
        self.lost_early = 0
        self._anew_since = 0
        """The epoch of the last incomplete election: older logs are not judged by the new one."""
        self.epochs: dict[int, int] = {}
        self.acted: dict[int, int] = defaultdict(int)
        """The newest epoch in which each replica led or acknowledged."""
        self._heard: dict[int, tuple[int, bool]] = {}

    def answer(self, host: Host, place: int, value: int, epoch: int, is_early: bool) -> None:
        if value in self.answered:
            return
        self.answered[value] = (place, epoch, is_early)
        for later, who, values in self.promoted:
            if later <= epoch:
                continue
            if is_early:
                raise Violation(f"{host.id} answers early in {epoch}, {who} leads {later}")
            if value not in values:
                raise Violation(f"{host.id} answers {value} in {epoch}; {who} leads {later}")

    def see(self, host: Host, end: int) -> None:
        """A consumer reads up to `end`: one value for each place, forever."""
        if host.last_epoch < self._anew_since:
            return
        common = min(end, len(self.visible))
        if host.log[:common] != self.visible[:common]:
            raise Violation(f"a visible place has changed at {host.id}")
        self.visible += host.log[len(self.visible) : end]

    def promote(self, host: Host, epoch: int) -> None:
        if self.epochs.setdefault(epoch, host.id) != host.id:
            raise Violation(f"{host.id} and {self.epochs[epoch]} lead epoch {epoch}")
        if host.log[: len(self.visible)] != self.visible:
            raise Violation(f"{host.id} leads {epoch} without a record that was visible")
        places = {value: place for place, (_, value) in enumerate(host.log)}
        for value, (place, answered_in, is_early) in self.answered.items():
            if answered_in < epoch and places.get(value) != place:
                if not is_early:
                    raise Violation(f"{host.id} leads {epoch} without {value} of {answered_in}")
                self.lost_early += 1
        self.promoted.append((epoch, host.id, frozenset(places)))
        self.act(host, epoch)

    def act(self, host: Host, epoch: int) -> None:
        """R4: who knows of an epoch, or has acted in it, has nothing to do with older ones."""
        newest = max(self.acted[host.id], host.known_epoch)
        if epoch < newest:
            raise Violation(f"{host.id} acts in {epoch} after {newest}")
        self.acted[host.id] = epoch

    def boot(self, host: Host) -> None:
        """R4: the epoch was stored before it was acted on."""
        if host.known_epoch < self.acted[host.id]:
            raise Violation(f"{host.id} starts in {host.known_epoch}, was in {self.acted[host.id]}")

    def admit(self, host: Host, incarnation: str) -> None:
        """R3: the very process that is admitted has what was ever visible."""
        is_here = host.is_up and host.incarnation == incarnation
        if is_here and host.log[: len(self.visible)] != self.visible:
            raise Violation(f"{host.id} was admitted without a record that was visible")

    def hear(self, host: Host, boots: int, *, is_complete: bool) -> None:
        """The controller is told by a process of this replica, perhaps not its last one."""
        if boots >= self._heard.get(host.id, (0, False))[0]:
            self._heard[host.id] = (boots, is_complete)

    def controller_began(self) -> None:
        """It has heard nothing yet."""
        self._heard.clear()

    def choose(self, before: GroupRecord, after: GroupRecord) -> None:
        """R8: at the moment of an election nobody wins of whom the controller has heard that its
        present process is in doubt, whatever an earlier process says later."""
        n = after.master_broker_id
        is_election = after.master_epoch > before.master_epoch > 0
        if not is_election or n is None or after.election is not Election.CLEAN:
            return
        boots, is_complete = self._heard.get(n, (0, True))
        if not is_complete and before.admitted.get(n) != f"{n}.{boots}":
            raise Violation(
                f"{n} was elected, and its process {boots} has said that it is in doubt"
            )

    def decide(self, before: GroupRecord, after: GroupRecord, hosts: dict[int, Host]) -> None:
        """R7, R8: numbers grow, only members are elected, and nobody in doubt while one is not.
        With all members in doubt the longest log wins, whoever has it."""
        numbers = (after.master_epoch, after.sync_state_set_epoch)
        if numbers < (before.master_epoch, before.sync_state_set_epoch):
            raise Violation(f"numbers fall to {numbers}")
        if not before.master_epoch:
            return
        if after.master_epoch == before.master_epoch:
            for n in sorted(after.sync_state_set - before.sync_state_set):
                self.admit(hosts[n], after.admitted.get(n, ""))
            return
        assert after.master_broker_id is not None
        is_clean = after.election is Election.CLEAN
        if is_clean and after.master_broker_id not in before.sync_state_set:
            raise Violation(f"{after.master_broker_id} is not of {sorted(before.sync_state_set)}")
        if after.election is Election.INCOMPLETE:
            # Who was chosen before and died before its log said so is chosen again.
            is_again = before.election is Election.INCOMPLETE
            whole = [n for n in before.sync_state_set if not hosts[n].is_in_doubt]
            if whole and not is_again:
                raise Violation(f"an incomplete log was chosen, {whole} are whole")
            self._anew_since = after.master_epoch
            self.forget_beyond(hosts[after.master_broker_id])

    def forget_beyond(self, host: Host) -> None:
        """All members lost power within a flush interval: outside of the promise, said loudly. The
        longest log may be that of one who had left the set: from some place on it is another."""
        pairs = zip(host.log, self.visible, strict=False)
        shorter = min(len(host.log), len(self.visible))
        del self.visible[next((n for n, (a, b) in enumerate(pairs) if a != b), shorter) :]
        values = {value for _, value in host.log}
        self.answered = {v: told for v, told in self.answered.items() if v in values}
