"""The real disk: where data is, and what is only reserved."""

import os
from pathlib import Path

import pytest

from twinlog.runtime.disk import PosixDisk, write_atomically


def test_next_data_finds_what_was_written_among_what_is_reserved(tmp_path):
    disk = PosixDisk()
    file = disk.open(str(tmp_path / "segment"), create=True)
    file.allocate(8 << 20)
    file.pwritev([b"x" * 4096], 0)
    file.pwritev([b"y"], 5 << 20)
    first = file.next_data(0)
    assert first == 0
    # Never behind the data, whatever the file system knows.
    found = file.next_data(1 << 20)
    assert found is not None
    assert found <= 5 << 20
    behind = file.next_data(6 << 20)
    assert behind is None or behind >= 6 << 20
    file.close()
    disk.close()


def test_next_data_of_a_sparse_file(tmp_path):
    disk = PosixDisk()
    file = disk.open(str(tmp_path / "queue"), create=True)
    file.truncate(8 << 20)
    assert file.next_data(0) in (0, None)
    for number in range(150):  # More pieces than one question answers.
        file.pwritev([b"z"], number * 16384)
    position = 0
    seen = 0
    while (found := file.next_data(position)) is not None and found < 150 * 16384:
        data = file.pread(4096, found)
        seen += data.count(b"z")
        position = found + 4096
    assert seen == 150
    assert os.stat(file.path).st_size == 8 << 20
    file.close()
    disk.close()


def test_a_mapped_file_shows_what_is_written_later_and_is_closed_with_the_file(
    tmp_path: Path,
) -> None:
    disk = PosixDisk()
    empty = disk.open(str(tmp_path / "empty"), create=True)
    assert empty.map() is None
    file = disk.open(str(tmp_path / "file"), create=True)
    file.allocate(8192)
    data = file.map()
    assert data is not None
    assert data[:4] == bytes(4)
    file.pwritev([b"late"], 4096)
    assert data[4096:4100] == b"late"
    assert file.map() is data
    file.close()
    with pytest.raises(ValueError, match="closed"):
        data[0]
    empty.close()
    disk.close()


@pytest.mark.parametrize("before", [None, 0o400, 0o600, 0o640, 0o644, 0o666])
@pytest.mark.parametrize("is_secret", [False, True])
@pytest.mark.parametrize("umask", [0o000, 0o022, 0o077])
def test_a_rewritten_file_and_its_backup_are_open_to_nobody_else(
    tmp_path: Path, before: int | None, is_secret: bool, umask: int
) -> None:
    disk, path = PosixDisk(), tmp_path / "file"
    leftovers = [tmp_path / "file.tmp", tmp_path / "file.bak.tmp"]
    for leftover in leftovers:  # Of a crash, by a version that cared less.
        leftover.write_bytes(b"old")
        leftover.chmod(0o666)
    if before is not None:
        path.write_bytes(b"old")
        path.chmod(before)
    old = os.umask(umask)
    try:
        write_atomically(disk, str(path), b"new", keep_backup=True, is_secret=is_secret)
    finally:
        os.umask(old)
    expected = 0o600 if is_secret and before is None else before
    if expected is not None:
        expected &= 0o600 if is_secret else 0o777
    for file in (path, tmp_path / "file.bak"):
        if file.exists() and expected is not None:
            assert disk.mode(str(file)) == expected, oct(disk.mode(str(file)))
    assert path.read_bytes() == b"new"
    assert (tmp_path / "file.bak").exists() == (before is not None)
    disk.close()
