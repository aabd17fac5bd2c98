"""One remoting command, request or response: corresponds to RocketMQ's RemotingCommand.

A decoded command keeps its ext fields undecoded until someone asks: `header(StructClass)` decodes
them straight into a typed struct (1 us for a send), `ext()` into a map of strings. The struct
classes live in `remoting/headers`.

On the wire every ext value is a string, but the C++ client sends some as numbers; both are
accepted, and the map holds what Java would have written.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Self, TypeVar

import msgspec

from twinlog.remoting.codes import (
    FLAG_ONEWAY,
    FLAG_RESPONSE,
    OWN_LANGUAGE,
    OWN_VERSION,
    LanguageCode,
    SerializeType,
    language_of,
)
from twinlog.remoting.errors import DECODE_ERRORS, HeaderDecodeError, HeaderError

Int32 = Annotated[int, msgspec.Meta(ge=-(2**31), le=2**31 - 1)]
HeaderT = TypeVar("HeaderT", bound=msgspec.Struct)
Header = msgspec.Struct | Mapping[str, Any]
_V = TypeVar("_V")

# The names in parentheses are used by no peer. One that does use them fools nobody but itself.
_WIRE_NAMES = {
    "raw_language": "language",
    "raw_ext": "extFields",
    "ext_fields": "(ext)",
    "body": "(body)",
    "serialize_type": "(type)",
    "read_header": "(header)",
    "read_body": "(json)",
}
_NO_EXT = msgspec.Raw()
EXT_FIELDS_MAX = 256  # The widest header has 14, and clients add a handful.
_decode_strings = msgspec.json.Decoder(dict[str, str]).decode
_decode_any = msgspec.json.Decoder(dict[str, Any]).decode
_TYPED_DECODERS: dict[type, msgspec.json.Decoder[Any]] = {}


class RemotingCommand(msgspec.Struct, gc=False, rename=_WIRE_NAMES):
    """A command with its header fields in RocketMQ's names; `ext_fields` are the arguments."""

    code: Int32
    opaque: Int32 = 0
    flag: Int32 = 0
    version: Int32 = OWN_VERSION
    raw_language: str | int = OWN_LANGUAGE
    remark: str | None = None
    raw_ext: msgspec.Raw = _NO_EXT
    ext_fields: dict[str, str] | None = None
    body: bytes = b""
    serialize_type: Annotated[int, msgspec.Meta(ge=0, le=1)] = 0
    # The header that an access rule was asked about; its handler gets this object and no other.
    read_header: Any = None
    read_body: Any = None  # The same for a JSON body; see `json_body.py`.

    @classmethod
    def request(
        cls,
        code: int,
        header: Header | None = None,
        body: bytes = b"",
        *,
        remark: str | None = None,
        is_oneway: bool = False,
        serialize_type: int = SerializeType.JSON,
    ) -> Self:
        """A request of ours. The connection that sends it gives it its opaque."""
        return cls(
            code,
            flag=FLAG_ONEWAY if is_oneway else 0,
            remark=remark,
            ext_fields=None if header is None else header_to_ext(header),
            body=body,
            serialize_type=serialize_type,
        )

    @property
    def is_response(self) -> bool:
        return self.flag & FLAG_RESPONSE != 0

    @property
    def is_oneway(self) -> bool:
        return self.flag & FLAG_ONEWAY != 0

    @property
    def language(self) -> LanguageCode | None:
        return language_of(self.raw_language)

    def ext(self) -> dict[str, str]:
        """All ext fields as strings; empty when there are none. Decoded at the first call."""
        if self.ext_fields is None:
            self.ext_fields = _decode_ext(self.raw_ext)
        return self.ext_fields

    def header(self, struct_class: type[HeaderT]) -> HeaderT:
        """Ext fields as a typed struct.

        Raises:
            HeaderError: a required field is missing or a value does not parse; names the field.
        """
        if self.read_header.__class__ is struct_class:
            known: HeaderT = self.read_header
            return known
        assert not isinstance(self.read_header, msgspec.Struct), (
            f"request {self.code} was allowed as {type(self.read_header).__name__} and is read as "
            f"{struct_class.__name__}"
        )
        if self.ext_fields is None:
            raw = self.raw_ext
            try:
                decoder = _TYPED_DECODERS.get(struct_class) or _typed_decoder(struct_class)
                header: HeaderT = decoder.decode(raw)
            except DECODE_ERRORS:
                return header_from_ext(self.ext(), struct_class)
            return header
        return header_from_ext(self.ext_fields, struct_class)

    def bind_header(self, struct_class: type[HeaderT]) -> HeaderT:
        """Read the header once and for all: whoever asks later gets this object."""
        self.read_header = None
        header = self.header(struct_class)
        self.read_header = header
        return header


class Request(RemotingCommand, gc=False, rename=_WIRE_NAMES):
    """A command that came from a peer. What a peer leaves out means what Java takes it for."""

    version: Int32 = 0
    raw_language: str | int | None = "JAVA"  # type: ignore[assignment]


def _typed_decoder(struct_class: type[HeaderT]) -> msgspec.json.Decoder[HeaderT]:
    decoder = msgspec.json.Decoder(struct_class, strict=False)
    _TYPED_DECODERS[struct_class] = decoder
    return decoder


def _decode_ext(raw: msgspec.Raw) -> dict[str, str]:
    text = bytes(raw)
    if not text or text == b"null":
        return {}
    try:
        return check_field_count(_decode_strings(text))
    except DECODE_ERRORS:
        pass  # Not all strings: numbers, booleans and nulls are converted one by one.
    try:
        values = check_field_count(_decode_any(text))
    except DECODE_ERRORS as error:
        raise HeaderDecodeError(f"extFields: {error}") from error
    return {key: ext_text(value) for key, value in values.items() if value is not None}


def check_field_count(fields: dict[str, _V]) -> dict[str, _V]:
    """The fields. Raises HeaderDecodeError when there are too many."""
    if len(fields) > EXT_FIELDS_MAX:
        raise HeaderDecodeError(f"{len(fields)} ext fields, at most {EXT_FIELDS_MAX} are taken")
    return fields


def ext_text(value: Any) -> str:
    """Text of an ext value as Java writes it."""
    if isinstance(value, str):
        return value
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, bytes):
        return value.decode("utf-8")
    if isinstance(value, int | float):
        return str(value)
    return msgspec.json.encode(value).decode("utf-8")


_FIELD_NAMES: dict[type, tuple[tuple[str, str], ...]] = {}


def wire_names(struct_class: type[msgspec.Struct]) -> tuple[tuple[str, str], ...]:
    """Pairs of attribute and wire name, in the order of declaration."""
    names = _FIELD_NAMES.get(struct_class)
    if names is None:
        names = tuple((f.name, f.encode_name) for f in msgspec.structs.fields(struct_class))
        _FIELD_NAMES[struct_class] = names
    return names


def header_to_ext(header: Header) -> dict[str, str]:
    """Ext fields of a typed header or a mapping; None means not sent."""
    if isinstance(header, Mapping):
        return {key: ext_text(value) for key, value in header.items() if value is not None}
    return {
        wire_name: ext_text(value)
        for name, wire_name in wire_names(type(header))
        if (value := getattr(header, name)) is not None
    }


def header_from_ext(ext: Mapping[str, str], struct_class: type[HeaderT]) -> HeaderT:
    """Typed header out of a map of strings, by Java's rules for booleans and absent values."""
    try:
        return msgspec.convert(ext, struct_class, strict=False)
    except msgspec.ValidationError:
        return _header_leniently(ext, struct_class)


def _header_leniently(ext: Mapping[str, str], struct_class: type[HeaderT]) -> HeaderT:
    values: dict[str, Any] = {}
    for field in msgspec.structs.fields(struct_class):
        text = ext.get(field.encode_name)
        if text is None or (text == "" and not _takes(field.type, str)):
            if field.required:
                raise HeaderError(f"the field {field.encode_name} of the request header is missing")
            continue
        values[field.name] = _parse_field(field, text)
    return struct_class(**values)


def _takes(annotation: Any, wanted: type) -> bool:
    return annotation is wanted or wanted in getattr(annotation, "__args__", ())


def _parse_field(field: msgspec.structs.FieldInfo, text: str) -> Any:
    if _takes(field.type, bool):
        return text.lower() == "true"
    try:
        return msgspec.convert(text, field.type, strict=False)
    except msgspec.ValidationError as error:
        raise HeaderError(
            f"the field {field.encode_name} of the request header is not readable: {text[:64]!r}"
        ) from error
