"""Which dialect a slave speaks to its master, and whether it dials at all. Pure.

A slave that speaks classic to a twinlog appends whatever follows at the end of its own log, also
behind a tail that went another way; nothing in that dialect would tell it. So classic needs a
definite "not twinlog", given again for every connection; twin may be remembered, because a peer
that does not speak it sends nothing that is taken.

| said by twinlogHADialect, or heard | and                                   | verdict |
|------------------------------------|---------------------------------------|---------|
| twin                               |                                       | TWIN    |
| nothing                            |                                       | UNKNOWN |
| not twinlog                        | the log is a copy of a twinlog's      | REFUSED |
| not twinlog                        | credentials set, the peer not listed  | REFUSED |
| not twinlog                        | else                                  | CLASSIC |
"""

from __future__ import annotations

import enum
from typing import Final, NamedTuple


class Dialect(enum.Enum):
    """What to do."""

    TWIN = "twin"
    CLASSIC = "classic"
    UNKNOWN = "unknown"  # Ask again, do not dial.
    REFUSED = "refused"


class Verdict(NamedTuple):
    """What to do, and why not to dial."""

    dialect: Dialect
    reason: str = ""


class Heard(enum.Enum):
    """What a question brought."""

    TWIN = "twinlog"
    NOT_TWINLOG = "not twinlog"
    NOTHING = "nothing"  # No answer, or one of which nothing follows.


TWIN: Final = Verdict(Dialect.TWIN)
CLASSIC: Final = Verdict(Dialect.CLASSIC)
_SETTINGS: Final = {"twin": Heard.TWIN, "classic": Heard.NOT_TWINLOG}
_NOT_HEARD: Final = (
    "the master has not said yet whether it is twinlog; it is asked again. If it is an Apache"
    " master whose service port cannot be guessed, set twinlogHADialect=classic"
)
_IS_COPY: Final = (
    "{}, and this log is a copy of a twinlog's: in the classic dialect it could be continued with"
    " the bytes of another log. Use an empty store"
)
_NO_CREDENTIALS: Final = (
    "{}, so it cannot prove itself: twinlogHASecret or twinlogHATLS is set here, and it is not in"
    " twinlogHAClassicPeers"
)
_HEARD_SO: Final = "the master does not speak the twin dialect"
_SET_SO: Final = "twinlogHADialect=classic is set here, so the master is not asked for its dialect"


class DialectJudge:
    """Remembers what was heard of one master. `setting` is twinlogHADialect."""

    def __init__(self, setting: str, *, has_credentials: bool) -> None:
        self._fixed = _SETTINGS.get(setting)
        self._has_credentials = has_credentials
        self._address = ""
        self._heard = Heard.NOTHING
        self._spoken = Heard.NOTHING  # The last of any master that was not nothing.

    @property
    def must_ask(self) -> bool:
        return self._fixed is None

    def hear(self, address: str, heard: Heard) -> bool:
        """What the question about the master at `address` brought.

        Returns whether what was known of the dialect is wrong now, and with it all that was learnt
        while it was spoken.
        """
        if heard is Heard.NOTHING and self.heard_of(address) is Heard.TWIN:
            return False
        self._address, self._heard = address, heard
        if heard is Heard.NOTHING:
            return False
        before, self._spoken = self._spoken, heard
        return before not in (Heard.NOTHING, heard)

    def heard_of(self, address: str) -> Heard:
        """What is known about the master at `address`; another address is another question."""
        if self._fixed is not None:
            return self._fixed
        return self._heard if address == self._address else Heard.NOTHING

    def verdict(self, address: str, *, is_copy: bool, is_listed: bool) -> Verdict:
        """`is_copy`: the log was taken from a twinlog. `is_listed`: the address may go without
        credentials."""
        heard = self.heard_of(address)
        if heard is Heard.TWIN:
            return TWIN
        if heard is Heard.NOTHING:
            return Verdict(Dialect.UNKNOWN, _NOT_HEARD)
        if is_copy:
            return self._refused(_IS_COPY, " or, if the master is twinlog, twinlogHADialect=auto")
        if self._has_credentials and not is_listed:
            return self._refused(_NO_CREDENTIALS, "")
        return CLASSIC

    def _refused(self, text: str, way_out: str) -> Verdict:
        """The master's word and the own setting are different things to mend."""
        is_set = self._fixed is not None
        reason = text.format(_SET_SO if is_set else _HEARD_SO)
        return Verdict(Dialect.REFUSED, reason + (way_out if is_set else ""))
