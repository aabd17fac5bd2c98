"""`config/*.json`: a damaged file is read from its backup, and this is said."""

from __future__ import annotations

import pytest

from twinlog.broker.tables.config_file import ConfigFile, ConfigFileError
from twinlog.testing.simdisk import SimDisk

PATH = "/config/topics.json"


async def saved_twice() -> tuple[SimDisk, ConfigFile]:
    disk = SimDisk()
    disk.make_directories("/config")
    file = ConfigFile(disk, PATH)
    await file.save({"saved": "first"})
    await file.save({"saved": "second"})
    return disk, file


def overwrite(disk: SimDisk, path: str, data: bytes) -> None:
    file = disk.open(path)
    file.truncate(0)
    if data:
        file.pwritev([data], 0)
    file.close()


async def test_what_was_there_before_is_the_backup() -> None:
    disk, file = await saved_twice()
    assert file.load() == {"saved": "second"}
    disk.unlink(PATH)
    assert file.load() == {"saved": "first"}
    disk.unlink(PATH + ".bak")
    assert file.load() is None


@pytest.mark.parametrize("damage", [b'{"saved": "sec', b"\0" * 40, b'["no object"]'])
async def test_a_damaged_file_falls_back_and_says_so(
    damage: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    disk, file = await saved_twice()
    overwrite(disk, PATH, damage)
    assert file.load() == {"saved": "first"}
    assert f"config file not readable path={PATH}" in caplog.text
    assert disk.read_bytes(PATH) == damage, "nothing is changed by reading"


async def test_file_and_backup_damaged_is_an_error_that_names_them() -> None:
    disk, file = await saved_twice()
    for path in (PATH, PATH + ".bak"):
        overwrite(disk, path, b"{")
    with pytest.raises(ConfigFileError, match=r"is not JSON: .*repair or remove it and its backup"):
        file.load()


async def test_an_empty_file_is_as_none_and_named(caplog: pytest.LogCaptureFixture) -> None:
    disk, file = await saved_twice()
    overwrite(disk, PATH, b"")
    assert file.load() == {"saved": "first"}
    assert f"config file empty path={PATH}" in caplog.text
