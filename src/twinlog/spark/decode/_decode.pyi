"""Loops over rows of the log, compiled: `records.py` and `vector.py` have the Python forms."""

from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt

def find_parts(
    data: npt.NDArray[np.uint8],
    starts: npt.NDArray[np.int64],
    heads: npt.NDArray[np.uint8],
    parts: npt.NDArray[np.int64],
) -> bool: ...
def walk(
    data: npt.NDArray[np.uint8], position: int, limit: int, starts: npt.NDArray[np.int64]
) -> int: ...
def check_bodies(
    data: npt.NDArray[np.uint8],
    starts: npt.NDArray[np.int64],
    body_at: npt.NDArray[np.int64],
    body_sizes: npt.NDArray[np.int64],
    crc32: Callable[[Any], int],
    wrong: npt.NDArray[np.uint8],
) -> None: ...
def gather(
    data: npt.NDArray[np.uint8],
    starts: npt.NDArray[np.int64],
    lengths: npt.NDArray[np.int64],
    offsets: npt.NDArray[np.int32],
    out: npt.NDArray[np.uint8],
) -> None: ...
def split_alike(
    data: npt.NDArray[np.uint8],
    starts: npt.NDArray[np.int64],
    lengths: npt.NDArray[np.int64],
    names: tuple[bytes, ...],
    is_kept: bytes,
    offsets: npt.NDArray[np.int32],
    out: npt.NDArray[np.uint8],
) -> bool: ...
