"""Protobuf definitions as schemas: the text of a .proto file, or a FileDescriptorSet. Values are in protobuf_values.py.

The text is compiled by the protoc of the package grpcio-tools. A schema keeps the descriptors, so readers and the
broker need only the package protobuf.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from contextlib import suppress
from pathlib import Path
from typing import Any, NoReturn

from oncemq.protocol import errors
from oncemq.protocol.schema.constraints import ENUM, NUMBER
from oncemq.protocol.schema.extras import require
from oncemq.protocol.schema.model import (
    ITEM,
    VALUE,
    Encoding,
    Field,
    ListType,
    MapType,
    Scalar,
    ScalarKind,
    Schema,
    StructType,
    Type,
)
from oncemq.protocol.schema.validate import FieldCount

_FILE = "schema.proto"
_WHAT = "a Protobuf definition"
_PROTOC_SECONDS_MAX = 60

#: Of FieldDescriptor, whose numbers are those of the wire format's descriptor.proto.
_SCALARS: dict[int, tuple[ScalarKind, Any]] = {
    1: ("float64", 0.0),
    2: ("float32", 0.0),
    3: ("int64", 0),
    4: ("uint64", 0),
    5: ("int32", 0),
    6: ("uint64", 0),
    7: ("uint32", 0),
    8: ("bool", False),
    9: ("string", ""),
    12: ("binary", ""),
    13: ("uint32", 0),
    15: ("int32", 0),
    16: ("int64", 0),
    17: ("int32", 0),
    18: ("int64", 0),
}
_GROUP, _MESSAGE, _ENUM = 10, 11, 14
_WRAPPERS: dict[str, ScalarKind] = {
    "google.protobuf.DoubleValue": "float64",
    "google.protobuf.FloatValue": "float32",
    "google.protobuf.Int64Value": "int64",
    "google.protobuf.UInt64Value": "uint64",
    "google.protobuf.Int32Value": "int32",
    "google.protobuf.UInt32Value": "uint32",
    "google.protobuf.BoolValue": "bool",
    "google.protobuf.StringValue": "string",
    "google.protobuf.BytesValue": "binary",
}
_TIMESTAMP = "google.protobuf.Timestamp"


def parse_protobuf(definition: str | bytes, message: str = "", encoding: Encoding = "protobuf") -> Schema:
    """Return the schema of a message. `definition` is the text of a .proto file, or a serialised FileDescriptorSet.

    Without `message`, the definition must have exactly one message on its top level.
    Raises SchemaInvalid with the path of the field, or MissingExtra.
    """
    require("google.protobuf", _WHAT)
    descriptors = compile_proto(definition) if isinstance(definition, str) else definition
    kind = message_descriptor(descriptors, message)
    fields = message_fields(kind)
    text = definition if isinstance(definition, str) else f"message {kind.full_name} of a FileDescriptorSet"
    return Schema(fields, encoding, text, "protobuf", kind.full_name, descriptors)


def compile_proto(text: str) -> bytes:
    """Return the serialised FileDescriptorSet of the text of a .proto file, with all files that it imports."""
    include = Path(require("grpc_tools", _WHAT).__file__).parent / "_proto"
    with tempfile.TemporaryDirectory() as folder:
        source, target = Path(folder, _FILE), Path(folder, "set")
        source.write_text(text, encoding="utf-8")
        arguments = [f"-I{folder}", f"-I{include}", "--include_imports", f"--descriptor_set_out={target}", str(source)]
        said = _run_protoc(arguments, folder)
        if not target.exists():
            reason = said.replace(f"{folder}/", "").strip()
            raise errors.SchemaInvalid(f"the Protobuf definition is not valid: {reason or 'protoc refused it'}")
        return target.read_bytes()


def _run_protoc(arguments: list[str], folder: str) -> str:
    """Run the compiler, and return what it prints. It has a process of its own: it prints from C to the stderr of its
    process, which is where the threads of a gateway log."""
    command = [sys.executable, "-m", "grpc_tools.protoc", *arguments]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    try:
        done = subprocess.run(
            command,
            cwd=folder,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            timeout=_PROTOC_SECONDS_MAX,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return f"protoc took more than {_PROTOC_SECONDS_MAX} s"
    return done.stderr.decode(errors="replace")


def message_descriptor(descriptors: bytes, message: str) -> Any:
    """Return the descriptor of a message; "" = the only one on the top level."""
    descriptor_pb2 = require("google.protobuf.descriptor_pb2", _WHAT)
    pools = require("google.protobuf.descriptor_pool", _WHAT)
    files = descriptor_pb2.FileDescriptorSet()
    pool = pools.DescriptorPool()
    try:
        files.ParseFromString(descriptors)
        for file in files.file:
            pool.AddSerializedFile(file.SerializeToString())
    except Exception as error:
        # The package has several implementations, with exceptions of their own.
        raise errors.SchemaInvalid(f"the FileDescriptorSet is not valid: {error}") from None
    named = [f"{file.package}.{each.name}".lstrip(".") for file in files.file[-1:] for each in file.message_type]
    if not message:
        if len(named) != 1:
            choice = ", ".join(named) or "none"
            raise errors.SchemaInvalid(f"name the message of the values with `message`; the definition has {choice}")
        message = named[0]
    for name in (message, *(each for each in named if each.endswith(f".{message}"))):
        with suppress(KeyError):
            return pool.FindMessageTypeByName(name)
    raise errors.SchemaInvalid(f"the definition has no message '{message}'; it has {', '.join(named) or 'none'}")


def _fail(path: str, why: str) -> NoReturn:
    raise errors.SchemaInvalid(f"{path}: {why}")


def message_fields(message: Any) -> tuple[Field, ...]:
    """Return the fields of a message, of which this is the descriptor. Raises SchemaInvalid."""
    return _fields(message, "", (message.full_name,), FieldCount())


def _fields(message: Any, path: str, parents: tuple[str, ...], count: FieldCount) -> tuple[Field, ...]:
    return tuple(
        _field(field, f"{path}.{field.name}" if path else field.name, parents, count) for field in message.fields
    )


def _field(field: Any, path: str, parents: tuple[str, ...], count: FieldCount) -> Field:
    count.add()
    limits = {NUMBER: field.number}
    if _is_map(field):
        key, value = field.message_type.fields_by_name["key"], field.message_type.fields_by_name["value"]
        kind, more = _type(value, f"{path}{{}}", parents, count)
        entry = MapType(Scalar(_SCALARS[key.type][0]), Field(VALUE, kind, False, constraints=more))
        return Field(field.name, entry, False, {}, "", limits)
    kind, more = _type(field, path, parents, count)
    if field.is_repeated:
        return Field(field.name, ListType(Field(ITEM, kind, False, constraints=more)), False, [], "", limits)
    limits |= more
    if field.is_required:
        return Field(field.name, kind, False, None, "", limits)
    if field.has_presence:
        return Field(field.name, kind, True, None, "", limits)
    return Field(field.name, kind, False, _zero(field), "", limits)


def _is_map(field: Any) -> bool:
    return field.type == _MESSAGE and bool(field.message_type.GetOptions().map_entry)


def _zero(field: Any) -> Any:
    """What a field without presence has if it is not set."""
    return field.enum_type.values_by_number[0].name if field.type == _ENUM else _SCALARS[field.type][1]


def _type(field: Any, path: str, parents: tuple[str, ...], count: FieldCount) -> tuple[Type, dict[str, Any]]:
    if field.type in _SCALARS:
        return Scalar(_SCALARS[field.type][0]), {}
    if field.type == _ENUM:
        return Scalar("string"), {ENUM: [value.name for value in field.enum_type.values]}
    if field.type == _GROUP:
        _fail(path, "a schema can't express a group")
    name = field.message_type.full_name
    if name == _TIMESTAMP:
        return Scalar("timestamp"), {}
    if name in _WRAPPERS:
        return Scalar(_WRAPPERS[name]), {}
    if name.startswith("google.protobuf."):
        _fail(path, f"a schema can't express {name}")
    if name in parents:
        _fail(path, f"'{name}' contains itself; a schema can't be recursive")
    return StructType(_fields(field.message_type, path, (*parents, name), count)), {}
