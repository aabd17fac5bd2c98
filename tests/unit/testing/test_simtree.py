"""The names of a simulated disk: what a directory lists is what a walk over all names finds."""

from __future__ import annotations

import random

from twinlog.testing.siminode import SimInode
from twinlog.testing.simtree import DIRECTORY, NameTree, parent_of


def walked(tree: NameTree, directory: str) -> list[str]:
    inside = [name for name in tree if name not in ("", "/") and parent_of(name) == directory]
    return sorted(name.rpartition("/")[2] for name in inside)


def test_a_directory_lists_what_a_walk_finds() -> None:
    rng = random.Random(1)
    tree = NameTree()
    directories = ["/", "/store", "/store/commitlog", "", "relative"]
    for _ in range(2000):
        directory = rng.choice(directories)
        name = f"{directory.rstrip('/')}/{rng.randrange(20)}" if directory else "relative"
        match rng.randrange(4):
            case 0:
                tree.set(name, SimInode())
            case 1:
                tree.set(name, DIRECTORY)
            case 2:
                tree.remove(name)
            case _:
                tree = tree.copy()
        for each in directories:
            assert list(tree.names(each)) == walked(tree, each)


def test_a_name_that_never_was_can_be_removed() -> None:
    tree = NameTree()
    tree.remove("/nothing")
    assert list(tree.names("/")) == []


def test_below_a_directory_is_all_that_is_in_it_and_nothing_beside_it() -> None:
    tree = NameTree()
    for name in ("/a", "/a/b", "/ab"):
        tree.set(name, DIRECTORY)
    tree.set("/a/b/file", SimInode())
    assert sorted(tree.below("/a")) == ["/a", "/a/b", "/a/b/file"]
    assert tree.below("/a/b/file") == ["/a/b/file"]


def test_names_without_their_directory_are_orphans() -> None:
    tree = NameTree()
    tree.set("/lost/file", SimInode())
    tree.set("/kept", DIRECTORY)
    tree.set("/kept/file", SimInode())
    assert sorted(tree.without_orphans()) == ["", "/", "/kept", "/kept/file"]
