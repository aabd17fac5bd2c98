"""Who this store is: drawn once, kept in `store/twinlog/identity.json` and in a copy next to it.

The store id names the lineage of the log, so a slave that is pointed at another master's log is
told so before a byte is written. The replica id tells a slave that connects again from another one
that was given the same brokerId. The role of the last process tells a master that it was a slave
until now: its delay offsets and transaction state are a copy, a moment older than its log; the
number of its promotion tells which of two masters is the newer (`succession.py`).
"""

from __future__ import annotations

import logging
import posixpath
import secrets
import threading
from collections.abc import Callable

import msgspec

from twinlog.broker.role import Role
from twinlog.ha.twin.identity import TwinIdentity
from twinlog.ha.twin.mark import ConfirmedMark
from twinlog.runtime.config import BrokerConfig
from twinlog.runtime.disk import Disk, make_own_directory, write_atomically
from twinlog.runtime.sealed import BrokenSealError, decode_saved, encode_saved
from twinlog.store.errors import StoreError

_LOG = logging.getLogger("twinlog.broker")

Token = Callable[[], str]


def random_token() -> str:
    """A nonce or an id that nobody can guess."""
    return secrets.token_hex(16)


class _Saved(msgspec.Struct):
    store_id: str
    replica_uid: str
    is_master: bool = False
    promotion: int = 0
    is_granted: bool = False
    is_copy: bool | None = None  # The store id was taken from a twinlog; None in older files.
    granted_end: int = 0
    is_taking_over: bool = False
    granted_from_id: int = 0
    newest: int = 0  # 0 in older files: `promotion` was the highest of all then.


class StoreIdentity:
    """The file and what is in it. Loaded after the store has its lock."""

    def __init__(
        self,
        config: BrokerConfig,
        disk: Disk,
        token: Token = random_token,
        role: Role | None = None,
    ) -> None:
        self._config = config
        self._role = role or Role(config)
        self._disk = disk
        self._token = token
        self._path = posixpath.join(config.store_path_root_dir, "twinlog", "identity.json")
        self._copy_path = self._path + ".bak"  # The same, not the one before: see `_read`.
        self._twin: TwinIdentity | None = None
        self._saved_id = ""
        self._writing = threading.Lock()
        self._saved = _Saved("", "")
        self.was_master = False
        self._kept = (0, 0)  # The two numbers that are on the disk.
        self.promotion = 0
        """Number of the newest promotion that this log follows; see succession.py."""
        self._newest = 0  # The highest that this replica has ever heard of.
        self.is_granted = False
        """`twinlog ha promote` has compared the replicas: the next start may be as the master."""
        self.granted_end = 0
        """Where the longest log ended that was compared for that; a longer one voids it."""
        self.granted_from_id = 0
        """The brokerId that it had before: if the promotion is void, it has it again."""
        self.promoted_from_id = 0
        """The same, while this process is the first one after a promotion that was compared."""
        self.is_copy = False
        """The log was taken from a twinlog, at least in part."""
        self.is_taking_over = False
        """This copy is the master, and what its log says is not all in the files of its tables."""

    def twin(self) -> TwinIdentity:
        """What a twinlog peer is told; its ids are filled in by `load`."""
        config = self._config
        self._twin = TwinIdentity(
            cluster=config.broker_cluster_name,
            group=config.broker_name,
            replica_id=self._role.broker_id,
            store_id="",
            replica_uid="",
            new_nonce=self._token,
            adopt_store_id=self.adopt,
            secret=config.twinlog_ha_secret,
            reseed=config.twinlog_reseed.value,
            is_durable=config.flush_disk_type == "SYNC_FLUSH",
            wants_last_file_only=config.sync_from_last_file,
            has_tls=config.twinlog_ha_tls,
            classic_peers=config.ha_classic_peers,
            mark=ConfirmedMark(self._disk, config.store_path_root_dir),
        )
        return self._twin

    @property
    def store_id(self) -> str:
        assert self._twin is not None
        return self._twin.store_id

    def new_token(self) -> str:
        return self._token()

    @property
    def replica_uid(self) -> str:
        assert self._twin is not None
        return self._twin.replica_uid

    def note_role(self) -> None:
        """In a controlled group: what it is now counts when it becomes a fixed pair again, and
        for a controller that lost its records. In a thread: nobody waits for these four syncs."""
        if self.was_master != self._role.is_master:
            self.was_master = self._role.is_master
            self._save_if_possible()

    def be_origin(self) -> None:
        """The first master of a controlled group names the lineage of its log."""
        assert self._twin is not None
        if not self._twin.store_id:
            self._twin.store_id = self._token()
            self._save()

    @property
    def is_promotion(self) -> bool:
        """Whether this start makes a copy the master."""
        return self._role.is_master and bool(self._saved.replica_uid) and not self.was_master

    @property
    def has_led(self) -> bool:
        """Whether its tables are its own: it was the master, and had taken over for good."""
        return self.was_master and not self.is_taking_over

    def was_copy(self) -> bool:
        """Whether the last process was a slave. Before the store is loaded: its recovery asks."""
        saved = self._read()
        return bool(saved.replica_uid) and not saved.is_master

    def load(self) -> None:
        """Read the ids, or draw them. A slave draws no store id: it takes its master's.

        Nothing is written yet: `settle` does, when the role that the file asks for may be had.
        """
        assert self._twin is not None
        saved = self._saved = self._read()
        self._saved_id = saved.store_id
        self.promotion = saved.promotion
        self._newest = max(saved.newest, saved.promotion)
        self._kept = (saved.promotion, saved.newest)
        self.is_granted = saved.is_granted
        self.granted_end = saved.granted_end
        self.granted_from_id = saved.granted_from_id
        self._twin.replica_uid = saved.replica_uid or self._token()
        self._twin.store_id = saved.store_id
        self.was_master = saved.is_master
        self.is_copy = saved.is_copy or (
            saved.is_copy is None and bool(saved.store_id) and not saved.is_master
        )
        self.is_taking_over = self._role.is_master and (saved.is_taking_over or self.is_promotion)
        if not saved.store_id and self._role.is_master:
            self._twin.store_id = self._token()

    def taken_over(self) -> None:
        """The tables were saved since the log was complete: the next start is as any other."""
        if self.is_taking_over:
            self.is_taking_over = False
            self._save_if_possible()

    def settle(self, now_ms: int) -> None:
        """The broker serves in its role: a copy that is the master now was promoted."""
        is_promotion = self.is_promotion and not self._role.is_controlled
        if is_promotion:
            self.promotion = self._newest = max(self._newest + 1, now_ms)
            self.promoted_from_id = self.granted_from_id
        self._forget_grant()
        if is_promotion:
            self._save_promotion()
        elif not self._is_in_both_files():
            self._save_if_possible()

    def _save_promotion(self) -> None:
        """A master that forgot its promotion would take its next start for the first one, and its
        own slaves for those whom it must not replace."""
        try:
            self._save()
        except OSError as error:
            if self._read() != self._now():  # Of two files, see `_read`, one is enough.
                text = f"the promotion cannot be written to {self._path}: {error}"
                raise StoreError(text) from error

    def _save_if_possible(self) -> None:
        try:
            self._save()
        except OSError as error:
            if not self._saved.store_id:
                raise  # An id that nobody remembers would be another one after a restart.
            _LOG.warning("identity not saved path=%s error=%s", self._path, error)

    def heard(self, promotion: int) -> None:
        """The number of the master that this slave is linked to: its log is that master's now, and
        the next promotion must be above all that was ever heard. A clock that stood wrong may have
        given the later of two promotions the lower number: what this replica followed before it was
        cut to its master's log is no reason to refuse those who follow it, too.

        Raises:
            OSError: it is known to this process, and not saved; the next call tries again.
        """
        self.promotion = promotion
        self._newest = max(self._newest, promotion)
        if self._kept != (self.promotion, self._newest):
            self._save()

    def grant(self, promotion: int, compared_end: int) -> None:
        """The next start is a promotion that was compared; `promotion` is the group's newest."""
        self.promotion = max(self.promotion, promotion)
        self._newest = max(self._newest, promotion)
        self.is_granted, self.granted_end = True, compared_end
        self.granted_from_id = self._role.broker_id
        self._save()

    def _forget_grant(self) -> None:
        self.is_granted, self.granted_end, self.granted_from_id = False, 0, 0

    def revoke(self) -> None:
        """The promotion did not come about."""
        self._forget_grant()
        try:
            self._save()
        except OSError as error:
            # A full disk. A slave's next start takes it back, too.
            _LOG.warning("identity not saved path=%s error=%s", self._path, error)

    def adopt(self, store_id: str) -> None:
        """The log is now a copy of that one."""
        assert self._twin is not None
        if not store_id or (store_id == self._saved_id and self.is_copy):
            return
        self._twin.store_id = store_id
        self.is_copy = True
        try:
            self._save()
        except OSError as error:
            # A full disk: known to this process, and written at the next connection.
            _LOG.warning("store id not saved yet path=%s error=%s", self._path, error)

    def _read(self) -> _Saved:
        """The file, else its copy. A master under a new id would be refused by its own slaves."""
        faults = []
        for path in (self._path, self._copy_path):
            if not self._disk.exists(path):
                continue
            try:
                return decode_saved(self._disk.read_bytes(path), _Saved)
            except BrokenSealError as error:
                _LOG.warning("identity not readable path=%s error=%s", path, error)
                faults.append(f"{path}: {error}")
        if faults:
            raise StoreError(
                f"the identity of this store cannot be read ({'; '.join(faults)}): copy store_id"
                " from a replica's identity.json, or remove the file and its .bak to start as a new"
                " store. A file that is edited must not have the member `crc`"
            )
        return _Saved("", "")

    def _is_in_both_files(self) -> bool:
        """As they must be, byte by byte: a copy that has decayed is no copy."""
        data = encode_saved(self._now())
        paths = (self._path, self._copy_path)
        return all(
            self._disk.exists(path) and self._disk.read_bytes(path) == data for path in paths
        )

    def _save(self) -> None:
        with self._writing:
            make_own_directory(self._disk, self._config.store_path_root_dir)
            saved = self._now()
            for path in (self._path, self._copy_path):
                write_atomically(self._disk, path, encode_saved(saved))
            self._saved_id = saved.store_id
            self._kept = (saved.promotion, saved.newest)

    def _now(self) -> _Saved:
        assert self._twin is not None
        return _Saved(
            self._twin.store_id,
            self._twin.replica_uid,
            self.was_master if self._role.is_controlled else self._role.is_master,
            self.promotion,
            self.is_granted,
            self.is_copy,
            self.granted_end,
            self.is_taking_over,
            self.granted_from_id,
            self._newest,
        )
