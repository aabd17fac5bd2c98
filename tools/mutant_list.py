"""The hand-made faults of `tools/mutants.py`: what is changed, where, and in which world it shows.

A mutant is anchored by the name of a function, as in `anchors.py`.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass


@dataclass(frozen=True)
class Mutant:
    """In `function` of `file` (under src/twinlog) `old` becomes `new`."""

    name: str
    file: str
    function: str
    old: str
    new: str
    world: str = "pair"
    dialect: str = "classic"
    also: Mutant | None = None
    """What has to be broken as well, because it stands in for the first."""

    @property
    def edits(self) -> Iterator[Mutant]:
        yield self
        if self.also is not None:
            yield from self.also.edits


PAIR_MUTANTS = (
    Mutant(
        "a failed write is acknowledged",
        "ha/link.py",
        "MasterLink._store",
        "            return\n        self.core.appended(end_offset)",
        "            pass\n        self.core.appended(end_offset)",
    ),
    Mutant(
        "the log is sent from one byte too far",
        "ha/sender.py",
        "HASender._first_report",
        "self.next_offset = report if report else",
        "self.next_offset = report + 1 if report else",
    ),
    Mutant(
        "a first report beyond the end is believed",
        "ha/sender.py",
        "HASender._first_report_refusal",
        "if report == 0 or self.log_min <= report <= self.log_end:",
        "if report == 0 or self.log_min <= report:",
    ),
    Mutant(
        "a later report beyond what was sent is believed",
        "ha/sender.py",
        "HASender._later_report",
        "if report > self.next_offset:",
        "if report > 1 << 62:",
    ),
    Mutant(
        "the rest of a split report is forgotten",
        "ha/sender.py",
        "HASender.receive_data",
        "self._partial = data[complete:]",
        'self._partial = b""',
    ),
    Mutant(
        "a frame crosses the end of a file",
        "ha/sender.py",
        "HASender._readable_size",
        "available = min(self.log_end, file_end) - self.next_offset",
        "available = self.log_end - self.next_offset",
    ),
    Mutant(
        "the ack of a slave that is gone still counts",
        "ha/service.py",
        "HAService.connection_closed",
        "        self.acks.leave(connection.address)\n",
        "",
    ),
    Mutant(
        "any one slave confirms for all",
        "ha/group_transfer.py",
        "GroupTransferService.acks_changed",
        "acked = self._acks.acked_by(self.ack_count)",
        "acked = self._acks.acked_by(1)",
    ),
    Mutant(
        "the best ack instead of the k-th",
        "ha/acks.py",
        "AckTable.acked_by",
        "return offsets[count - 1]",
        "return offsets[0]",
    ),
    Mutant(
        "a half-open connection counts besides the new one",
        "ha/acks.py",
        "AckTable.doubt",
        "replica.doubted_offset = max(replica.doubted_offset, sent_offset)",
        "replica.doubted_offset = -1",
    ),
    Mutant(
        "the first report claims one byte more",
        "ha/receiver.py",
        "HAReceiver.__init__",
        "self._outgoing: list[bytes] = [encode_report(log_end)]",
        "self._outgoing: list[bytes] = [encode_report(log_end + 1)]",
    ),
    Mutant(
        "bodies of two files go into one append",
        "ha/receiver.py",
        "HAReceiver._parse",
        "if run and offset % self.settings.segment_size == 0:",
        "if False:",
    ),
    Mutant(
        "an empty slave is sent the whole log from one file too early",
        "ha/sender.py",
        "HASender._last_file_start",
        "return self.log_end - self.log_end % self.settings.segment_size",
        "return self.log_end - self.log_end % self.settings.segment_size - 1",
    ),
    Mutant(
        "a filler that the master may have forgotten is kept",
        "ha/resume.py",
        "resume_offset",
        "return start if may_be_filler and start else end",
        "return end",
    ),
    Mutant(
        "what the master has in place of a filler is not stored",
        "ha/resume.py",
        "append_again",
        "    if body[: len(known)] == known:",
        "    if True:",
    ),
    Mutant(
        "twin: received is acknowledged as durable",
        "ha/twin/receiver.py",
        "TwinReceiver.data_to_send",
        "ack = (self.log_end, min(self.flushed_offset, self.log_end))",
        "ack = (self.log_end, self.log_end)",
        dialect="twin",
    ),
    Mutant(
        "twin: the master counts received for durable",
        "ha/twin/sender.py",
        "TwinSender.ack_offset",
        "return self.durable_offset if is_durable else self.received_offset",
        "return self.received_offset",
        dialect="twin",
    ),
    Mutant(
        "twin: a frame is stored whatever its checksum",
        "ha/twin/wire.py",
        "FrameParser.buffer_filled",
        "yield Frame(frame_type, payload, crc32(payload, 0) == checksum, round_number)",
        "yield Frame(frame_type, payload, True, round_number)",
        dialect="twin",
    ),
    Mutant(
        "twin: a different tail is taken for common",
        "ha/twin/common.py",
        "CommonSearch.answer",
        "            if is_equal:\n                self._finish(self.high)",
        "            if True:\n                self._finish(self.high)",
        dialect="twin",
    ),
    Mutant(
        "twin: a longer slave is not cut",
        "ha/twin/sender.py",
        "TwinSender._settle",
        "elif search.common < hello.log_end:",
        "elif search.common < self.log_end:",
        dialect="twin",
    ),
    Mutant(
        "twin: the record behind the last common one is kept",
        "ha/twin/common.py",
        "CommonSearch._settle_records",
        "            self._finish(start)",
        "            self._finish(min([e for e in self._ends if e > start], default=start))",
        dialect="twin",
    ),
    Mutant(
        "twin: a failed write is acknowledged",
        "ha/link.py",
        "MasterLink._store",
        "            self._not_stored(end_offset, error)\n            return\n",
        "            pass\n",
        dialect="twin",
        also=Mutant(
            "of a frame that came alone, which is seldom the first of a file",
            "ha/link.py",
            "MasterLink._take_run",
            "self._not_stored(offset + len(body), error)\n"
            "            self._run_events()\n"
            "        else:\n",
            "pass\n        if True:\n",
        ),
    ),
    Mutant(
        "twin: the log is sent from one byte too far",
        "ha/twin/sender.py",
        "TwinSender._start",
        "self.request_offset = self.next_offset = self.received_offset = offset",
        "self.request_offset = self.next_offset = self.received_offset = offset + 1",
        dialect="twin",
    ),
    Mutant(
        "twin: a frame damaged on the way is skipped",
        "ha/twin/receiver.py",
        "TwinReceiver._receive_data",
        "            self._outgoing.append(wire.encode_resend(self._expected))\n",
        "",
        dialect="twin",
    ),
)

# Of other kinds: answers, disks, tables, consumers, roles. Whole brokers show them.
GROUP_MUTANTS = (
    Mutant(
        "an answer does not wait for the master's disk",
        "broker/put/replies.py",
        "PutReplies._demand",
        "demand = Demand.FLUSH",
        "demand = Demand.NONE",
        world="group",
        dialect="twin",
    ),
    Mutant(
        "either of disk and slave is enough",
        "broker/put/durability.py",
        "DurabilityQueue.advance",
        "min(flushed, confirmed)",
        "max(flushed, confirmed)",
        world="group",
        dialect="twin",
    ),
    Mutant(
        "no slave there is answered as OK",
        "broker/put/replies.py",
        "PutReplies._demand",
        "return Demand.NONE, reason or status.name",
        'return Demand.NONE, ""',
        world="group",
        dialect="classic",
    ),
    Mutant(
        "a send that ran out of time is answered as OK",
        "broker/put/replies.py",
        "PutReplies._time_out",
        "",
        'self._answer(waiting, PutMessageStatus.PUT_OK, "")',
        world="group",
        dialect="classic",
    ),
    Mutant(
        "a stopping broker answers as OK what still waits",
        "broker/put/replies.py",
        "PutReplies.stop",
        "PutMessageStatus.FLUSH_DISK_TIMEOUT",
        "PutMessageStatus.PUT_OK",
        world="group",
        dialect="twin",
    ),
    Mutant(
        "flushed moves without a sync",
        "store/log/flush.py",
        "FlushService.flush",
        "segments = log.unsynced(target)",
        "segments = []",
        world="group",
        dialect="twin",
    ),
    Mutant(
        "a new file's name is not made safe",
        "store/log/segment.py",
        "create_segment",
        "        disk.fsync_directory(posixpath.dirname(path))\n",
        "",
        world="group",
        dialect="twin",
    ),
    Mutant(
        "tables are renamed before they are on the disk",
        "runtime/disk.py",
        "_write_new",
        "        file.fdatasync()\n",
        "",
        world="group",
        dialect="twin",
    ),
    Mutant(
        "what recovery finds in the page cache counts as flushed",
        "store/recovery/recover.py",
        "Recovery._sync_log",
        "",
        "return",
        world="group",
        dialect="twin",
    ),
    Mutant(
        "a repeat is stored again",
        "broker/put/idempotence.py",
        "ProducerTable.decide",
        "known = min(expected - mark.number, count)",
        "known = 0",
        world="group",
        dialect="twin",
    ),
    Mutant(
        "what was cut from the log still counts as stored by its producer",
        "broker/put/once_service.py",
        "IdempotentSends._cut",
        "",
        "return",
        world="group",
        dialect="twin",
    ),
    Mutant(
        "consumer offsets are never saved",
        "broker/tables/consumer_offset.py",
        "ConsumerOffsetManager._write",
        "",
        "return",
        world="group",
        dialect="classic",
    ),
    Mutant(
        "offsets in the log are not applied",
        "broker/tables/consumer_offset.py",
        "ConsumerOffsetManager.merge",
        "",
        "return",
        world="group",
        dialect="twin",
    ),
    Mutant(
        "a promoted copy does not send back who read further",
        "broker/pair/skip_guard.py",
        "SkipGuard.pull",
        "",
        "return None",
        world="group",
        dialect="twin",
    ),
    Mutant(
        "a slave does not keep the name of the log that it copies",
        "broker/pair/identity.py",
        "StoreIdentity.adopt",
        "",
        "return",
        world="group",
        dialect="twin",
    ),
    Mutant(
        "the dispatcher of a slave passes over a record",
        "store/recovery/reput.py",
        "ReputService._take",
        "self._dispatcher.dispatch(result.entries)",
        "self._dispatcher.dispatch(result.entries[1:])",
        world="group",
        dialect="twin",
    ),
    Mutant(
        "retention takes the file that is being written, too",
        "store/cleaner.py",
        "Cleaner._clean_commit_log",
        "len(log.segments.segments) > 1",
        "len(log.segments.segments) > 0",
        world="group",
        dialect="twin",
    ),
    Mutant(
        "queues are not cut with their log",
        "store/queue/queue_table.py",
        "ConsumeQueueTable.truncate",
        "",
        "return {}",
        world="group",
        dialect="twin",
    ),
    Mutant(
        "a copy takes a record that came in part for whole",
        "message/record.py",
        "_is_cut_short",
        "",
        "return False",
        world="group",
        dialect="classic",
    ),
    Mutant(
        "retention takes records whose numbers are not saved",
        "store/cleaner.py",
        "Cleaner._is_saved",
        "",
        "return True",
        world="group",
        dialect="twin",
    ),
    Mutant(
        "an empty copy that is promoted guards nothing",
        "broker/pair/skip_guard.py",
        "SkipGuard.promoted",
        "is_rest_empty=True",
        "is_rest_empty=False",
        world="group",
        dialect="twin",
    ),
    Mutant(
        "a slave does not hear whom its master sends back",
        "broker/pair/skip_guard.py",
        "SkipGuard.heard",
        "",
        "return",
        world="group",
        dialect="twin",
    ),
)
