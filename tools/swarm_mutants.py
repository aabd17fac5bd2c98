"""Rules of controlled groups, each broken in the code of brokers and controllers: the swarm sees.

The rules are those of docs/FAILOVER.md. What the pure cores alone can show is shown by the model,
too (`testing/model/mutants.py`).
"""

from __future__ import annotations

from mutant_list import Mutant


def _swarm(
    name: str, file: str, function: str, old: str, new: str, also: Mutant | None = None
) -> Mutant:
    return Mutant(name, file, function, old, new, world="swarm", dialect="twin", also=also)


SWARM_MUTANTS = (
    _swarm(
        "R1: one acknowledgement is enough",
        "ha/authority.py",
        "Authority._advance",
        "                return\n",
        "                continue\n",
    ),
    _swarm(
        "R1: the master's own flush is ignored",
        "ha/group_replication.py",
        "GroupReplication.__init__",
        "self.is_durable = is_durable",
        "self.is_durable = False",
    ),
    _swarm(
        "R1: a slave acknowledges before its flush",
        "ha/twin/receiver.py",
        "TwinReceiver.appended",
        "self.log_end = end_offset",
        "self.log_end = self.flushed_offset = end_offset",
    ),
    _swarm(
        "R1: links and acknowledgements outlive their epoch",
        "ha/service.py",
        "HAService.stand_down",
        "            connection.close(reason)",
        "            pass",
    ),
    _swarm(
        "R2: a proposed set is not counted",
        "ha/authority.py",
        "Authority.required",
        "self.members.union(*(proposal.members for proposal in self._sent))",
        "self.members",
    ),
    _swarm(
        "R2: the set is smaller before the controller has said so",
        "ha/authority.py",
        "Authority.required",
        "self.members.union(*(proposal.members for proposal in self._sent))",
        "self._sent[-1].members if self._sent else self.members",
    ),
    _swarm(
        "R2: a proposal over an old set is committed",
        "controller/membership.py",
        "refusal",
        "if proposal.set_epoch != record.sync_state_set_epoch:",
        "if proposal.set_epoch > record.sync_state_set_epoch:",
    ),
    _swarm(
        "R3: a replica is admitted before it has caught up",
        "ha/authority.py",
        "Authority._is_caught_up",
        "if link.acked < max(self.confirmed, self._epoch_start, joining.tables_end):",
        "if link.acked < 0:",
    ),
    _swarm(
        "R3: a replica is admitted without the tables",
        "broker/group/replicas.py",
        "ReplicasManager._admit",
        "self._tables_for(authority.log_start_of(wish.replica_id))",
        "self._tables_for(0)",
    ),
    _swarm(
        "R4: a promoted replica keeps its link",
        "ha/service.py",
        "HAService.stand_down",
        "            client.stop(reason)",
        "            pass",
    ),
    _swarm(
        "R4: the epoch is not stored",
        "broker/group/stored.py",
        "StoredGroup._write",
        "        write_atomically(self._disk, self._path, data)",
        "        pass",
    ),
    _swarm(
        "R4, R7: a process that started again is the master that it was",
        "ha/group_view.py",
        "GroupView.learn",
        "(state.master_id, state.master_incarnation) == (self.own_id, self.incarnation)",
        "state.master_id == self.own_id",
    ),
    _swarm(
        "R5: no lease is needed",
        "ha/authority.py",
        "Authority.may_answer_early",
        "now_ms < self.lease_until_ms",
        "now_ms < 1 << 62",
    ),
    _swarm(
        "R6: the lease counts from the answer, and longer",
        "ha/authority.py",
        "Authority.granted",
        "sent_ms + lease_ms",
        "sent_ms + 2 * lease_ms",
    ),
    _swarm(
        "R6: an election waits too short",
        "controller/events.py",
        "Timing.lease_wait_ms",
        "self.lease_ms + self.lease_ms // 20 + 200",
        "self.lease_ms // 4",
    ),
    _swarm(
        "R6: a controller forgets leases when it starts",
        "controller/group.py",
        "Group._are_leases_over",
        "max(self._since_ms, -(2**62) if self._granted_ms is None else self._granted_ms)",
        "-(2**62) if self._granted_ms is None else self._granted_ms",
    ),
    _swarm(
        "R7: anyone is elected",
        "controller/elect.py",
        "elect",
        "for n in sorted(members) if n in standings",
        "for n in sorted(standings)",
    ),
    _swarm(
        "R8: nobody is in doubt",
        "ha/twin/mark.py",
        "ConfirmedMark.load",
        "self.has_lost_power and not is_durable",
        "False",
    ),
    _swarm(
        "R8: doubt is forgotten by a second start",
        "ha/twin/mark.py",
        "ConfirmedMark.load",
        "self._saved.is_in_doubt or is_doubtful",
        "is_doubtful",
    ),
    _swarm(
        "R9: logs are compared by their length",
        "ha/twin/common.py",
        "CommonSearch.answer",
        "*, is_equal: bool) -> None:",
        "*, is_equal: bool) -> None:\n        is_equal = True",
        also=_swarm(
            "R9: and epochs tell nothing",
            "ha/epochs.py",
            "EpochHistory.common_end",
            "theirs = {entry.epoch: entry for entry in other}",
            "theirs: dict[int, EpochEntry] = {}",
        ),
    ),
    _swarm(
        "R10: consumers see what is not confirmed",
        "broker/server.py",
        "Broker._show_confirmed",
        "        self.store.set_dispatch_limit(self.ha.confirmed)",
        "        self.store.set_dispatch_limit(self.store.appended)",
    ),
    _swarm(
        "R1: who connects has everything",
        "ha/authority.py",
        "Authority.connected",
        "ReplicaLink(connection, incarnation, acked, log_start)",
        "ReplicaLink(connection, incarnation, self._own_end, log_start)",
    ),
    _swarm(
        "R3: another process than the one that was checked is admitted",
        "controller/membership.py",
        "_admission_refusal",
        "if checked != present:",
        "if False:",
    ),
    _swarm(
        "R12: a restored record decides",
        "controller/group.py",
        "Group._freeze_if_newer",
        "record.what_is_newer(beat.known_epoch, beat.stored)",
        "''",
    ),
    _swarm(
        "etcd: who was deposed writes",
        "controller/etcd_store.py",
        "EtcdRecordStore.commit",
        '"compare": [leads, _equal(key, "MOD", "mod_revision", known)],',
        '"compare": [],',
    ),
    _swarm(
        "etcd: a leader believes in its lease for too long",
        "controller/etcd_store.py",
        "EtcdRecordStore.is_leading",
        "self._clock.boot_ms() < self._until_ms",
        "self._clock.boot_ms() < self._until_ms + 20_000",
    ),
    _swarm(
        "A queue lock is not logged",
        "broker/pair/metadata_service.py",
        "MetadataWriter._locks_moved",
        "return self._write(_locks_record(group, client_id, queues))",
        "return True",
    ),
    _swarm(
        "A relay is relayed",
        "broker/group/relay.py",
        "Relay.serve",
        "        if not broker.role.is_master or self.is_holding:\n",
        """\
        if self.master_address and not broker.role.is_master:
            header = request.header(TwinlogRelayRequestHeader)
            again = RemotingCommand.request(RequestCode.TWINLOG_RELAY, header, request.body)
            broker.client.submit(
                self.master_address, again, _ANSWER_MS_MAX,
                lambda answer, _: connection.reply(request, body=answer.body if answer else b""),
            )
            return
        if not broker.role.is_master or self.is_holding:
""",
    ),
    _swarm(
        "Committed offsets are not logged",
        "broker/pair/metadata_service.py",
        "MetadataWriter.tick",
        "                self._write(change)",
        "                pass",
    ),
    _swarm(
        "Copies: who waits does not hear that the set is too small",
        "ha/group_replication.py",
        "GroupReplication.take_set",
        "                self.on_too_few(reason)",
        "                pass",
    ),
    _swarm(
        "Copies: held sends are released before the door is closed",
        "broker/group/role_change.py",
        "RoleChange._serve",
        "        broker.registration.resume()\n",
        "        broker.registration.resume()\n        broker.relay.release()\n",
    ),
    _swarm(
        "R12: a group is adopted without all of its last set",
        "controller/adoption.py",
        "unsure",
        "    newest = newest_stored(living)\n",
        "    return None\n    newest = newest_stored(living)\n",
    ),
    _swarm(
        "R6: a master that drained for an earlier switch is drained for this one",
        "controller/group.py",
        "Group._hand_over_if_drained",
        "if switch.told != beat.connection or not",
        "if not",
    ),
)
