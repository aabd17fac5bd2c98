"""Becoming the master or a slave in a running process: lists of steps that can be taken up again.

Corresponds to RocketMQ 5's changeToMaster and changeToSlave, which set the epoch first and never
retry. Here a promotion counts when its last step is done: whatever interrupts it, a full disk or a
newer epoch, the next call begins again and finds done what is done.

Order of a promotion: nobody is followed and nobody connected (`stand_down`); the epoch is stored;
queues have all of the log; a torn record is cut; the record that opens the epoch is appended; the
tables have what the log says of them; slaves may join; delayed messages and transactions go on;
sends are taken; name servers are told. Every step that waits is before the epoch's record, so that
from there on the broker is the master in one turn of the loop.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import TYPE_CHECKING

from twinlog.broker.host import store_host
from twinlog.broker.pair.dispatch_damage import damage_advice
from twinlog.broker.pair.metadata_log import EpochBegan, encode_change
from twinlog.broker.role import MASTER_ID, RoleState
from twinlog.ha.authority import Authority
from twinlog.ha.group_view import GroupState
from twinlog.message.model import PutMessage
from twinlog.message.names import METADATA_TOPIC
from twinlog.runtime.config import BrokerRole
from twinlog.store.status import PutMessageStatus

if TYPE_CHECKING:
    from twinlog.broker.server import Broker
    from twinlog.controller.record import GroupRecord

_LOG = logging.getLogger("twinlog.broker")
BECOMING = "this broker becomes the master of its group"
NO_MASTER = "this broker is not the master of its group"


class RoleChange:
    """The steps of one broker."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self.leading_epoch = 0
        """Of the promotion that is complete; 0 while this broker is not the master."""

    # Neither

    def stand_down(self, reason: str) -> None:
        """End what the last epoch allowed, at once: safe at any time, and done before anything
        else is. Sends that wait may be in the next master's log, or not: 12, never 14."""
        broker = self._broker
        store, group, relay = broker.store, broker.ha.group, broker.relay
        assert group is not None
        assert relay is not None
        was_master = broker.role.is_master
        store.close_for_puts(NO_MASTER)
        store.write_pending()
        self.leading_epoch = 0
        broker.ha.stand_down(reason)
        if was_master:
            _LOG.warning("this broker is no longer the master: %s", reason)
            broker.schedule.stop()
            broker.transactions.stop()
            broker.pair.keep_commits()
            broker.pair.writer.disable()
            broker.role.change(RoleState(BrokerRole.SLAVE, group.own_id, broker.role.epoch))
            broker.replies.give_up(reason)
            broker.registration.pause()
            relay.lost_mastership()
        if store.is_master:
            store.change_role(is_master=False)

    # Slave

    def follow(self, state: GroupState, address: str) -> None:
        """Copy the log of the group's master."""
        broker = self._broker
        group = broker.ha.group
        assert group is not None
        broker.role.change(RoleState(BrokerRole.SLAVE, group.own_id, state.epoch))
        broker.pair.follow_group(address)
        broker.ha.follow(state.master_ha_address)
        assert broker.relay is not None
        broker.relay.master_is(address)

    # Master

    async def promote(
        self, state: GroupState, record: GroupRecord, is_wanted: Callable[[], bool]
    ) -> bool:
        """Lead epoch `state.epoch`, which is stored. False: something newer was learnt.

        Raises:
            OSError: a disk that is full, or damage that is not healed yet. Nothing was promised;
                the call may be repeated.
        """
        broker = self._broker
        store, group = broker.store, broker.ha.group
        assert group is not None
        store.close_for_puts(BECOMING)
        while store.dispatch_step():
            await broker.clock.sleep_ms(0)
            if not is_wanted():
                return False
        if damage := damage_advice(store.reput.damage_offset):
            raise OSError(damage)
        store.change_role(is_master=True)
        if group.last_epoch < state.epoch:
            broker.identity.be_origin()
            await broker.disk.run(lambda: group.begin_epoch(state.epoch, is_clean=state.is_clean))
            if not is_wanted():
                return False
            self._append_epoch_record(state)
        self._take_tables(state)
        self._serve(state, record)
        return True

    def _append_epoch_record(self, state: GroupState) -> None:
        """No two elections share a place of the log, and what follows is this master's."""
        broker = self._broker
        store, group = broker.store, broker.ha.group
        assert group is not None
        host = store_host(broker.config)
        change = EpochBegan(state.epoch, group.own_id, store.commit_log.max_offset, state.is_clean)
        message = PutMessage(
            METADATA_TOPIC,
            0,
            encode_change(change),
            born_timestamp=broker.clock.now_ms(),
            born_host=host,
            store_host=host,
        )
        store.close_for_puts("")
        result = store.put(message)
        store.write_pending()
        store.close_for_puts(BECOMING)
        if result.status is not PutMessageStatus.PUT_OK or group.last_epoch != state.epoch:
            raise OSError(f"the record of epoch {state.epoch} was not written: {result.reason}")

    def _take_tables(self, state: GroupState) -> None:
        """Topics, groups and offsets as the log has them, also in what is not confirmed yet."""
        broker = self._broker
        broker.pair.lead_group()
        if not state.is_clean:
            # Consumers may have read what this log has not.
            broker.shorter_log.began(was_master=False, is_promotion=True, is_doubtful=True)

    def _serve(self, state: GroupState, record: GroupRecord) -> None:
        broker = self._broker
        group, store = broker.ha.group, broker.store
        assert group is not None
        authority = Authority(
            own_id=group.own_id,
            incarnation=group.incarnation,
            epoch=state.epoch,
            epoch_start=store.commit_log.max_offset,
            members=state.members,
            set_epoch=state.set_epoch,
        )
        role = BrokerRole(record.policy.broker_role)
        broker.ha.lead(authority, role.value)
        broker.role.change(RoleState(role, MASTER_ID, state.epoch))
        broker.locks.renew_all(broker.clock.monotonic_ms())
        store.close_for_puts("")
        broker.pair.writer.enable(at_once=True)  # Where it is, those who join want to know.
        broker.schedule.start(after_crash=True)
        broker.transactions.start(after_crash=True, after_switch=True)
        self.leading_epoch = state.epoch
        broker.registration.lineage = record.lineage
        broker.registration.resume()
        _LOG.warning(
            "this broker is the master now epoch=%d log end=%d members=%s",
            state.epoch, store.commit_log.max_offset, sorted(state.members),
        )  # fmt: skip
