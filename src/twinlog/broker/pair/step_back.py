"""A broker that must not be the master goes back to being a slave.

Has no counterpart in RocketMQ, where the operator edits the file. Two cases:

- `twinlog ha promote` wrote the role, and it is void: another replica was faster, or went on. The
  broker never served in it, or nobody has sent it anything since: it undoes what it wrote.
- The file has always said so: this was the master and was replaced while it was away. Its tail will
  be cut to the new master's log, so it goes back only when it was told to (`twinlogReturnAsSlave`,
  or `twinlog broker --as-slave`). Otherwise it ends, and says what to type.
"""

from __future__ import annotations

import logging
import shlex
from collections.abc import Callable, Collection

from twinlog.broker.pair.identity import StoreIdentity
from twinlog.broker.processors.admin_config import write_values
from twinlog.runtime.config import BrokerConfig
from twinlog.runtime.disk import Disk

_LOG = logging.getLogger("twinlog.broker")


class StepBack:
    """Writes the role of a slave into the configuration file, and starts the broker again."""

    def __init__(
        self,
        config: BrokerConfig,
        *,
        disk: Disk,
        identity: StoreIdentity,
        has_taken_sends: Callable[[], bool],
        restart: Callable[[str], None],
    ) -> None:
        self.is_wanted = config.twinlog_return_as_slave
        self._disk = disk
        self._identity = identity
        self._has_taken_sends = has_taken_sends
        self._restart = restart
        self.config_path: str | None = None
        """The file that the role is read from; whoever builds the broker knows it."""

    @property
    def advice(self) -> str:
        """What an operator types to bring a replaced master back."""
        if self.config_path is None:
            return "Start it with brokerRole=SLAVE and a brokerId above 0 that is free"
        path = shlex.quote(self.config_path)
        return f"To bring it back as a slave, start it with: twinlog broker -c {path} --as-slave"

    def void_promotion(self, reason: str) -> bool:
        """At a start that was refused: undo the promotion if it was never carried out."""
        number = self._identity.granted_from_id
        if not self._identity.is_granted or number <= 0:
            return False
        return self._go(number, f"the promotion is void: {reason}")

    def unused_promotion(self, reason: str) -> bool:
        """Of two promotions at the same time this is the earlier one. Neither saw the other at its
        start, so both serve; as long as nobody has sent anything here, nothing is lost by it."""
        number = self._identity.promoted_from_id
        if number <= 0 or self._has_taken_sends():
            return False
        return self._go(number, f"the promotion is void: {reason}")

    def replaced(self, taken_ids: Collection[int], reason: str) -> bool:
        """Another broker is the master: become its slave, if that is wanted."""
        if not self.is_wanted:
            return False
        free = next(number for number in range(1, len(taken_ids) + 2) if number not in taken_ids)
        return self._go(free, reason)

    def _go(self, broker_id: int, reason: str) -> bool:
        if self.config_path is None:
            return False
        values = {"brokerRole": "SLAVE", "brokerId": str(broker_id)}
        try:
            write_values(self._disk, self.config_path, values)
        except (OSError, UnicodeDecodeError) as error:
            _LOG.error("role not written path=%s error=%s", self.config_path, error)
            return False
        _LOG.warning("becomes a slave brokerId=%d reason=%s", broker_id, reason)
        self._restart(reason)
        return True
