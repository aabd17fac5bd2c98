"""Files that people write and name, such as configurations: read whole, but only up to a limit.

`/dev/zero` has no end, and a log that was named by mistake has gigabytes: without a limit the
process would read until its memory is used up.
"""

from __future__ import annotations

import errno
import os

MIB = 1024 * 1024


def read_small_file(path: str | os.PathLike[str], size_max: int = MIB) -> bytes:
    """All bytes of a file.

    Raises:
        OSError: it cannot be read, or has more than `size_max` bytes.
    """
    with open(path, "rb") as file:
        data = file.read(size_max + 1)
    if len(data) > size_max:
        raise OSError(errno.EFBIG, f"it has more than {size_max // MIB} MiB", os.fspath(path))
    return data
