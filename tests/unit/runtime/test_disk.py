"""The real disk: where data is, and what is only reserved."""

import os

from twinlog.runtime.disk import PosixDisk


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
