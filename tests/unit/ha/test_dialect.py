"""Which dialect a slave speaks: the table, and what holds whatever is heard in which order."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from twinlog.ha.dialect import Dialect, DialectJudge, Heard

TWIN, NOT, NOTHING = Heard.TWIN, Heard.NOT_TWINLOG, Heard.NOTHING
HERE, THERE = "10.0.0.1:10912", "10.0.0.2:10912"


@pytest.mark.parametrize("setting", ["auto", "classic", "twin"])
@pytest.mark.parametrize("heard", list(Heard))
@pytest.mark.parametrize("has_credentials", [False, True])
@pytest.mark.parametrize("is_listed", [False, True])
@pytest.mark.parametrize("is_copy", [False, True])
def test_the_table(
    setting: str, heard: Heard, has_credentials: bool, is_listed: bool, is_copy: bool
) -> None:
    judge = DialectJudge(setting, has_credentials=has_credentials)
    judge.hear(HERE, heard)
    verdict = judge.verdict(HERE, is_copy=is_copy, is_listed=is_listed)
    known = {"twin": TWIN, "classic": NOT}.get(setting, heard)
    if known is TWIN:
        expected = Dialect.TWIN
    elif known is NOTHING:
        expected = Dialect.UNKNOWN
    elif is_copy or (has_credentials and not is_listed):
        expected = Dialect.REFUSED
    else:
        expected = Dialect.CLASSIC
    assert verdict.dialect is expected
    assert bool(verdict.reason) == (expected in (Dialect.UNKNOWN, Dialect.REFUSED))
    if expected is Dialect.REFUSED:
        claims_answer = "the master does not speak" in verdict.reason
        assert claims_answer == (setting == "auto"), "one that was not asked has not said it"
        assert ("twinlogHADialect=classic is set here" in verdict.reason) == (setting == "classic")


def test_twinlog_is_remembered_while_it_is_away_and_classic_is_not() -> None:
    judge = DialectJudge("auto", has_credentials=False)
    judge.hear(HERE, TWIN)
    judge.hear(HERE, NOTHING)
    assert judge.heard_of(HERE) is TWIN
    judge.hear(HERE, NOT)
    judge.hear(HERE, NOTHING)
    assert judge.heard_of(HERE) is NOTHING


def test_a_change_is_told_also_when_there_was_silence_between() -> None:
    judge = DialectJudge("auto", has_credentials=False)
    told = [judge.hear(HERE, heard) for heard in (NOTHING, NOT, NOTHING, TWIN, NOTHING, NOT)]
    assert told == [False, False, False, True, False, True]


@given(
    st.lists(st.tuples(st.sampled_from([HERE, THERE]), st.sampled_from(Heard)), max_size=20),
    st.booleans(),
    st.booleans(),
    st.booleans(),
)
def test_classic_needs_the_last_answer_of_that_very_address(
    story: list[tuple[str, Heard]], has_credentials: bool, is_listed: bool, is_copy: bool
) -> None:
    judge = DialectJudge("auto", has_credentials=has_credentials)
    definite: Heard | None = None
    for address, heard in story:
        is_other = judge.hear(address, heard)
        if heard is not NOTHING:
            assert is_other == (definite not in (None, heard))
            definite = heard
        else:
            assert not is_other
        for asked in (HERE, THERE):
            verdict = judge.verdict(asked, is_copy=is_copy, is_listed=is_listed)
            if verdict.dialect is Dialect.CLASSIC:
                assert (asked, NOT) == (address, heard)
                assert not is_copy
                assert is_listed or not has_credentials
            if verdict.dialect is Dialect.TWIN:
                assert (asked, TWIN) in story


def test_only_a_dialect_that_nobody_has_fixed_is_asked_for() -> None:
    assert DialectJudge("auto", has_credentials=False).must_ask
    assert not DialectJudge("twin", has_credentials=False).must_ask
