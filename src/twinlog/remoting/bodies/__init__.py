"""JSON bodies that travel between name server, broker, client and tools, as structs.

Encoded by `fastjson.dumps` (members in alphabetical order, as Java sends them), decoded by
`fastjson.loads_as`.
"""

from __future__ import annotations
