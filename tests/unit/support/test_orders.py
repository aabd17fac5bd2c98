"""Orders by a seed: nothing is lost, files stay whole, and a seed gives the same again."""

from __future__ import annotations

from support.orders import shuffled, spread

TESTS = [f"tests/{file}.py::{number}" for file in "abcdefgh" for number in range(20)]


def file_of(test: str) -> str:
    return test.partition("::")[0]


def test_a_seed_gives_one_order_of_all_tests() -> None:
    order = shuffled(TESTS, 7, file_of)
    assert order != TESTS
    assert sorted(order) == sorted(TESTS)
    assert order == shuffled(TESTS, 7, file_of)
    assert order != shuffled(TESTS, 8, file_of)


def test_the_tests_of_a_file_stay_together() -> None:
    files = [file_of(test) for test in shuffled(TESTS, 3, file_of)]
    changes = [file for file, before in zip(files, [None, *files], strict=False) if file != before]
    assert len(changes) == 8


def test_a_sample_takes_one_of_each_file_first() -> None:
    sample = spread(TESTS, 5)
    assert sorted(sample) == sorted(TESTS)
    assert len({file_of(test) for test in sample[:8]}) == 8
    assert sample[:8] != spread(TESTS, 6)[:8]
