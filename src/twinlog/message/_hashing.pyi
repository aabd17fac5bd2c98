"""Hashes of index keys, compiled: `IndexService` has the Python form."""

def hash_pending(
    pending: list[tuple[str, tuple[str, ...], int, int]],
    floor: int,
    hashes: list[int],
    offsets: list[int],
    timestamps: list[int],
) -> None: ...
