"""Faults are put where they belong: every anchor of the checklist and of the mutants holds."""

import ast
from pathlib import Path

import pytest

from anchors import AnchorError, with_fault
from ha_checklist import find_tests
from ha_checklist_items import ITEMS
from mutant_list import GROUP_MUTANTS, PAIR_MUTANTS
from swarm_mutants import SWARM_MUTANTS

PACKAGE = Path(__file__).parents[3] / "src" / "twinlog"
SOURCE = """\
LIMIT = 3

class Shop:
    size: int = 1

    def sell(self):
        self.count -= 1
        return self.count

    def count(self):
        return 1

def sell():
    return 1
"""

ANCHORS = [
    *((f"item {item.number}", item.file, item.name, item.old, item.new) for item in ITEMS),
    *(
        (edit.name, edit.file, edit.function, edit.old, edit.new)
        for mutant in PAIR_MUTANTS + GROUP_MUTANTS + SWARM_MUTANTS
        for edit in mutant.edits
    ),
]


@pytest.mark.parametrize(
    ("name", "old", "new", "changed"),
    [
        ("LIMIT", "3", "4", "LIMIT = 4"),
        ("Shop.size", "= 1", "= 2", "    size: int = 2"),
        ("Shop.sell", "-= 1", "+= 1", "        self.count += 1"),
        ("Shop.count", "return 1", "return 2", "        return 2"),
        ("sell", "", "return 2", "    return 2"),
    ],
)
def test_a_definition_is_found_by_its_name(name, old, new, changed):
    before, after = SOURCE.splitlines(), with_fault(SOURCE, name, old, new).splitlines()
    assert [line for line in zip(before, after, strict=True) if line[0] != line[1]] == [
        (before[after.index(changed)], changed)
    ]


@pytest.mark.parametrize(
    ("name", "old"),
    [("Shop.buy", "1"), ("Office.sell", "1"), ("size", "1"), ("Shop.sell", "self"), ("sell", "2")],
)
def test_a_name_or_text_that_is_not_there_once_is_an_error(name, old):
    with pytest.raises(AnchorError):
        with_fault(SOURCE, name, old, "")


@pytest.mark.parametrize("anchor", ANCHORS, ids=lambda anchor: anchor[0])
def test_every_fault_has_its_place_in_the_source(anchor):
    """Red: the code under it changed. Put the same fault into the code as it is now."""
    _, file, name, old, new = anchor
    text = (PACKAGE / file).read_text()
    changed = with_fault(text, name, old, new)
    assert ast.dump(ast.parse(changed)) != ast.dump(ast.parse(text))


def test_every_item_has_a_test():
    tests = find_tests()
    assert [item.number for item in ITEMS if item.number not in tests] == []
