"""`send_properties.py`, compiled. Its work is for compiled callers: see `_send_properties.pxd`."""

class PropertyScanner:
    def __init__(self, cluster_piece: str) -> None: ...
