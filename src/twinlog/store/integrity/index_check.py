"""The index against the log that it follows from: made again elsewhere, compared, mended.

What an index file must hold is known from the records between its first and its last entry. A full
file gets a digest once it was compared, in `store/twinlog/digests/index.json`; later its bytes are
compared with that alone. Slots and header of the file that is being written are in memory, and are
written again as a whole. A file whose part of the log is damaged is named and left as it is until
the log is healed: a damaged key would put a wrong entry in the place of a right one.
"""

from __future__ import annotations

import logging
import posixpath
from array import array
from collections.abc import Awaitable, Callable, Iterator
from typing import TYPE_CHECKING, Any, Final

import msgspec

from twinlog.message.hashing import index_key_hashes
from twinlog.message.layout import INDEX_ENTRY_SIZE, INDEX_HEADER_SIZE, INDEX_SLOT_SIZE
from twinlog.message.properties import tags_and_keys
from twinlog.message.record import ScanStop, scan
from twinlog.message.sysflag import TRANSACTION_ROLLBACK_TYPE
from twinlog.runtime.clock import Clock
from twinlog.runtime.compiled import load
from twinlog.runtime.disk import Disk, write_atomically
from twinlog.runtime.sealed import BrokenSealError, decode_saved, encode_saved
from twinlog.store.errors import OffsetOutOfRangeError
from twinlog.store.index.index_file import IndexFile, index_file_size
from twinlog.store.integrity.digests import digest_of

if TYPE_CHECKING:
    from twinlog.store.index.index_service import IndexService
    from twinlog.store.message_store import MessageStore

_LOG = logging.getLogger("twinlog.store")
_compiled = load("twinlog.store.recovery._scan")
# What the compiled walk leaves is taken in small pieces, so that it has its turn again soon.
_ONE_BY_ONE: Final = 16 if _compiled is not None else 1 << 62
_STEP: Final = 64 << 10
_RECORD_MAX: Final = 8 << 20
_SIZE_SIZE: Final = 4  # A record begins with its size.
_PIECE: Final = 1 << 20
_SLOTS_AT_ONCE: Final = 1 << 16
_SPLIT_MAX: Final = 64  # Keys of a file's first record that the file before may have.
_DECAYED_MAX: Final = 2  # Of the first entries.
# Decay changes a few places. A file that differs in more is not understood, and left as it is.
_SHARE_MAX: Final = 10


class _Keys:
    """Keys in the order of the log: hashes, offsets, times."""

    def __init__(self) -> None:
        self.hashes, self.offsets, self.timestamps = array("q"), array("q"), array("q")

    def __len__(self) -> int:
        return len(self.hashes)

    def add(self, hashes: list[int], offset: int, timestamp: int) -> None:
        self.hashes.extend(hashes)
        self.offsets.extend([offset] * len(hashes))
        self.timestamps.extend([timestamp] * len(hashes))

    def add_plain(self, plain: Any) -> None:
        """What the compiled walk found."""
        self.hashes.frombytes(memoryview(plain.key_hashes).cast("B"))
        self.offsets.frombytes(memoryview(plain.key_offsets).cast("B"))
        self.timestamps.frombytes(memoryview(plain.key_timestamps).cast("B"))

    def cut(self, first: int, count: int) -> None:
        for numbers in (self.hashes, self.offsets, self.timestamps):
            del numbers[:first], numbers[count:]


class IndexCheck:
    """One look at all index files."""

    def __init__(
        self,
        store: MessageStore,
        disk: Disk,
        clock: Clock,
        own: str,
        rest: Callable[[int, int], Awaitable[None]],
    ) -> None:
        """`rest` is called with the bytes and the milliseconds that a piece of the log took."""
        self._store = store
        self._disk = disk
        self._clock = clock
        self._own = own
        self._path = posixpath.join(own, "digests", "index.json")
        self._digests: dict[str, str] = {}
        self.healed_count = 0
        self.unchecked: list[str] = []  # Files of the last look whose part of the log is damaged.
        self.on_event: Callable[..., None] = lambda kind, **details: None
        self._rest = rest

    async def run(self) -> None:
        index = self._store.index
        if index is None:
            return
        index.drain()
        self._load()
        self.unchecked = []
        for file in list(index.files):
            try:
                await self._look_at(index, file)
            except OffsetOutOfRangeError:
                pass  # Its part of the log expired or was cut meanwhile.
            except OSError:
                if file in index.files:
                    raise
            await self._rest(0, 0)  # A file may take a second, and readers wait for repairs.
        self._save([posixpath.basename(file.path) for file in index.files])

    async def _look_at(self, index: IndexService, file: IndexFile) -> None:
        """It may expire, and fill up, before its turn and while it is compared."""
        if file not in index.files:
            return
        is_written_to = file is index.last_file and file.has_slots
        if is_written_to or not await self._is_as_digested(file):
            await self._check(index, file, is_written_to=is_written_to)

    async def _is_as_digested(self, file: IndexFile) -> bool:
        known = self._digests.get(posixpath.basename(file.path))
        return known is not None and known == await self._disk.run(_digest, file)

    async def _check(self, index: IndexService, file: IndexFile, *, is_written_to: bool) -> None:
        """Make it again from the log and compare."""
        count, cut_count = file.entry_count, self._store.commit_log.cut_count
        keys = await self._keys_of(file, count)
        if self._store.damage.places and (keys is None or self._is_damaged(keys)):
            _LOG.warning(
                "index file not compared, its part of the log is damaged path=%s", file.path
            )
            self.unchecked.append(posixpath.basename(file.path))
            return
        is_there = file in index.files and self._store.commit_log.cut_count == cut_count
        if keys is None or not is_there or file.entry_count < count:
            return
        path = posixpath.join(self._own, "index.tmp")
        handle = self._disk.open(path, create=True)
        try:
            handle.truncate(index_file_size(file.slots_max, file.index_max))
            shadow = IndexFile(path, handle, file.slots_max, file.index_max)
            shadow.start(*_end_of_the_one_before(index, file))
            shadow.put_many(keys.hashes, keys.offsets, keys.timestamps)
            shadow.write_slots()
            if is_written_to:
                await self._mend_slots(file, shadow, count)
            await self._compare(index, file, shadow, count, is_written_to=is_written_to)
        finally:
            handle.close()
            self._disk.unlink(path)
        if file.is_full and not is_written_to:
            name = posixpath.basename(file.path)
            self._digests[name] = await self._disk.run(_digest, file)

    async def _mend_slots(self, file: IndexFile, shadow: IndexFile, count: int) -> None:
        """In memory first: then slots and header are written as a whole."""
        mended = 0
        for first in range(0, file.slots_max, _SLOTS_AT_ONCE):
            if not file.has_slots:
                break  # Full, and written as a whole: the next pass compares all of it.
            mended += file.mend_slots(shadow, first, first + _SLOTS_AT_ONCE, count)
            await self._clock.sleep_ms(0)
        file.write_all_slots()
        if mended:
            self._healed(file, mended)

    async def _keys_of(self, file: IndexFile, count: int) -> _Keys | None:
        """The keys of the file's entries as the log has them; None: the log does not say."""
        log = self._store.commit_log
        shown = file.first_entries(count)
        for start in dict.fromkeys((file.begin_offset, *(entry[1] for entry in shown[:1]))):
            if not log.min_offset <= start < log.max_offset:
                continue
            keys = await self._read_keys(start, count + _SPLIT_MAX)
            first = _find(keys, shown, count)
            if first is not None:
                keys.cut(first, count)
                return keys
        return None

    def _is_damaged(self, keys: _Keys) -> bool:
        """Whether a damaged place touches the records that these keys are of."""
        if not keys:
            return False
        log, first, last = self._store.commit_log, keys.offsets[0], keys.offsets[-1]
        end = last + int.from_bytes(log.read(last, _SIZE_SIZE), "big")
        return any(
            place.physical_offset < end and first < place.physical_offset + place.size
            for place in self._store.damage.places.values()
        )

    async def _read_keys(self, at: int, count: int) -> _Keys:
        keys = _Keys()
        while len(keys) < count:
            began = self._clock.monotonic_ms()
            try:
                end = await self._add_keys(keys, at)
            except OffsetOutOfRangeError:
                break  # Cut or expired meanwhile.
            if end == at:
                break
            await self._rest(end - at, self._clock.monotonic_ms() - began)
            at = end
        return keys

    async def _add_keys(self, keys: _Keys, at: int) -> int:
        """Of the records in the next piece of the log; where it ends."""
        log = self._store.commit_log
        limit = min(self._store.dispatched.value, log.segments.segments[-1].end)
        if at >= limit:
            return at
        data = await self._disk.run(log.read, at, min(_STEP, limit - at))
        plain = None if _compiled is None else _compiled.scan_plain(data, 0, at, None, b"")
        if plain is not None:
            keys.add_plain(plain)
            return int(plain.end)
        found = scan(data, 0, at, check_crc=False, count_max=_ONE_BY_ONE)
        if not found.entries and found.stop is ScanStop.INCOMPLETE and found.size <= _RECORD_MAX:
            data = await self._disk.run(log.read, at, min(found.size, limit - at))
            found = scan(data, 0, at, check_crc=False)
        for offset, _, _, _, sys_flag, stored_at, topic, properties in found.entries:
            if sys_flag & TRANSACTION_ROLLBACK_TYPE == TRANSACTION_ROLLBACK_TYPE:
                continue
            _, names = tags_and_keys(properties)
            if names:
                keys.add(index_key_hashes(topic, names), offset, stored_at)
        if found.stop is ScanStop.BLANK:
            return at - at % log.segment_size + log.segment_size
        return at + found.position

    async def _compare(
        self,
        index: IndexService,
        file: IndexFile,
        shadow: IndexFile,
        count: int,
        *,
        is_written_to: bool,
    ) -> None:
        wrong: list[tuple[int, bytes]] = []
        for position, size in _parts(file, count, is_written_to=is_written_to):
            mine = await self._disk.run(file.file.pread, size, position)
            its = await self._disk.run(shadow.file.pread, size, position)
            if mine != its:
                wrong += _differences(mine, its, position)
        if self._store.commit_log.min_offset > 0 and index.files[:1] == [file]:
            # The first entry counts its seconds from the file before, which is gone.
            first = file.entry_position(1)
            wrong = [(at, byte) for at, byte in wrong if not first + 12 <= at < first + 16]
        if not wrong:
            return
        if len(wrong) * _SHARE_MAX > INDEX_ENTRY_SIZE * count:
            _LOG.error("index file does not match the log, left as it is path=%s", file.path)
            self.on_event("index-differs", path=file.path, bytes=len(wrong))
            return
        self._keep_aside(file, wrong)
        for at, byte in wrong:
            file.file.pwritev((byte,), at)
        await self._disk.run(file.file.fdatasync)
        if not is_written_to:
            file.load_header()
        self._healed(file, len(wrong))

    def _healed(self, file: IndexFile, count: int) -> None:
        self.healed_count += count
        _LOG.warning("index healed path=%s places=%d", file.path, count)
        self.on_event("index-healed", path=file.path, places=count)

    def _keep_aside(self, file: IndexFile, wrong: list[tuple[int, bytes]]) -> None:
        was = {str(at): file.file.pread(1, at).hex() for at, _ in wrong}
        name = f"damaged-index-{posixpath.basename(file.path)}-{self._clock.now_ms()}"
        write_atomically(self._disk, posixpath.join(self._own, name), msgspec.json.encode(was))

    # Digests

    def _load(self) -> None:
        if self._digests or not self._disk.exists(self._path):
            return
        try:
            self._digests = decode_saved(self._disk.read_bytes(self._path), dict[str, str])
        except BrokenSealError as error:
            _LOG.warning("digests of the index not readable error=%s", error)

    def _save(self, names: list[str]) -> None:
        kept = {name: digest for name, digest in self._digests.items() if name in names}
        self._digests = kept
        self._disk.make_directories(posixpath.dirname(self._path))
        write_atomically(self._disk, self._path, encode_saved(kept))


def _end_of_the_one_before(index: IndexService, file: IndexFile) -> tuple[int, int]:
    """Time and offset that a new file takes over."""
    number = index.files.index(file)
    before = index.files[number - 1] if number else None
    return (0, 0) if before is None else (before.end_timestamp, before.end_offset)


def _digest(file: IndexFile) -> str:
    size = index_file_size(file.slots_max, file.index_max)
    parts = (file.file.pread(min(_PIECE, size - at), at) for at in range(0, size, _PIECE))
    return digest_of(b"".join(digest_of(part) for part in parts)).hex()


def _find(keys: _Keys, shown: list[tuple[int, int]], count: int) -> int | None:
    """Which key is the file's first: keys of one record may be in two files."""
    wanted = max(1, len(shown) - _DECAYED_MAX)
    for first in range(min(_SPLIT_MAX, len(keys) - count) + 1):
        hits = sum(
            (keys.hashes[first + n], keys.offsets[first + n]) == entry
            for n, entry in enumerate(shown)
        )
        if hits >= wanted:
            return first
    return None


def _parts(file: IndexFile, count: int, *, is_written_to: bool) -> Iterator[tuple[int, int]]:
    """(position, size) of what is compared: entries, and header and slots unless in memory."""
    spans = [(file.entry_position(1), INDEX_ENTRY_SIZE * count)]
    if not is_written_to:
        spans.insert(0, (0, INDEX_HEADER_SIZE + INDEX_SLOT_SIZE * file.slots_max))
    for start, length in spans:
        for at in range(start, start + length, _PIECE):
            yield at, min(_PIECE, start + length - at)


def _differences(mine: bytes, its: bytes, position: int) -> list[tuple[int, bytes]]:
    pairs = zip(mine, its, strict=True)
    return [(position + n, bytes([b])) for n, (a, b) in enumerate(pairs) if a != b]
