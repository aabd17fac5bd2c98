"""What `protoc` makes of `message Order { int64 id = 1; string note = 2; }`, without protoc."""

from __future__ import annotations

from typing import Any

from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

_FILE = descriptor_pb2.FileDescriptorProto(name="order.proto", package="tests", syntax="proto3")
_ORDER = _FILE.message_type.add(name="Order")
for _number, (_name, _kind) in enumerate((("id", 3), ("note", 9)), 1):
    _ORDER.field.add(name=_name, number=_number, type=_kind, label=1)
_POOL = descriptor_pool.DescriptorPool()
_POOL.Add(_FILE)
Order: Any = message_factory.GetMessageClass(_POOL.FindMessageTypeByName("tests.Order"))
