"""Hypothesis strategies for commands, replies, batches, and damaged versions of them."""

from __future__ import annotations

import types
import typing
from collections.abc import Sequence
from typing import Any

import msgspec
from hypothesis import strategies as st

from oncemq.protocol.batch import checksum
from oncemq.protocol.commands import Command, Keyed, Numbered, Operation, Transact, envelopes_of
from oncemq.protocol.frames import Frame
from oncemq.protocol.replies import Reply, TakeReply
from oncemq.protocol.schema import Decimal as DecimalType
from oncemq.protocol.schema import Field, ListType, Scalar, Schema, StructType
from oncemq.protocol.schema.definitions.parse import ENCODINGS, KINDS

#: Numbers at limits: signs, and the limits of 32, 53, 63 and 64 bits.
EDGES = [0, 1, -1, -2, 2**31 - 1, 2**31, 2**32, 2**53, 2**62, 2**63 - 1, 2**63, 2**64 - 1, -(2**31), -(2**63)]
integers = st.one_of(st.integers(0, 5), st.sampled_from(EDGES), st.integers(-(2**63), 2**64 - 1))
#: A few names, so that commands refer to the same things; and any text.
names = st.one_of(st.sampled_from(["orders", "alice", "kitchen", ""]), st.text(max_size=8), st.just("x" * 300))


#: Any fields, most of them not valid.
types_of_fields = st.sampled_from(
    [Scalar("int64"), DecimalType(0, 5), ListType(Field("", Scalar("bool"))), StructType(())]
)
schemas = st.builds(
    Schema,
    st.lists(st.builds(Field, names, types_of_fields, st.booleans()), max_size=3).map(tuple),
    st.sampled_from(ENCODINGS),
    names,
    st.sampled_from(KINDS),
    names,
    st.binary(max_size=20),
)


def strategy_for(kind: Any) -> st.SearchStrategy[Any]:
    """Return a strategy for a type that occurs in commands and replies."""
    origin, arguments = typing.get_origin(kind), typing.get_args(kind)
    if origin in (typing.Union, types.UnionType):
        return st.one_of([strategy_for(argument) for argument in arguments])
    if origin is tuple and arguments[-1] is Ellipsis:
        return st.lists(strategy_for(arguments[0]), max_size=3).map(tuple)
    if origin is tuple:
        return st.tuples(*map(strategy_for, arguments))
    if origin is dict:
        return st.dictionaries(*map(strategy_for, arguments), max_size=3)
    if kind is type(None):
        return st.none()
    plain: dict[Any, st.SearchStrategy[Any]] = {
        int: integers,
        str: names,
        bytes: st.binary(max_size=20),
        bool: st.booleans(),
        Schema: schemas,
    }
    return plain[kind] if kind in plain else st.deferred(lambda: _struct(kind))


def _struct(kind: type[msgspec.Struct]) -> st.SearchStrategy[Any]:
    hints = typing.get_type_hints(kind)
    fields = {name: strategy_for(hints[name]) for name in kind.__struct_fields__}
    return st.builds(kind, **fields)


def _with_few_payloads(reply: Reply) -> Reply:
    """Return a strategy for a number of payloads."""
    if not isinstance(reply, TakeReply):
        return reply
    return msgspec.structs.replace(reply, payloads=reply.payloads % 3)


commands = strategy_for(Command)
operations = strategy_for(Operation)
replies = strategy_for(Reply).map(_with_few_payloads)
keys = st.one_of(st.none(), st.binary(max_size=10))
headers = st.one_of(st.none(), st.dictionaries(st.text(max_size=5), st.binary(max_size=10), max_size=3))


@st.composite
def batches(draw: st.DrawFn) -> tuple[list[bytes], list[bytes | None] | None, list[dict[str, bytes] | None] | None]:
    """Values, with the same number of keys and headers, or None."""
    values = draw(st.lists(st.binary(max_size=30), min_size=1, max_size=20))
    count = len(values)
    some_keys = draw(st.one_of(st.none(), st.lists(keys, min_size=count, max_size=count)))
    some_headers = draw(st.one_of(st.none(), st.lists(headers, min_size=count, max_size=count)))
    return values, some_keys, some_headers


def with_payloads(found: Sequence[Command], payloads: Sequence[bytes]) -> tuple[list[Command], list[Frame]]:
    """Change envelopes so that each fits the next payload."""
    fitted: list[Command] = []
    frames: list[Frame] = []

    def fit(operation: Any) -> Any:
        if isinstance(operation, Transact):
            return msgspec.structs.replace(operation, puts=tuple(fit(put) for put in operation.puts))
        if not envelopes_of(operation):
            return operation
        payload = payloads[len(frames) % len(payloads)]
        frames.append(payload)
        envelope = msgspec.structs.replace(operation.envelope, size=len(payload), checksum=checksum(payload))
        return msgspec.structs.replace(operation, envelope=envelope)

    for command in found:
        if isinstance(command, Numbered | Keyed):
            command = msgspec.structs.replace(command, operation=fit(command.operation))
        fitted.append(command)
    return fitted, frames


# Damage.


@st.composite
def damaged(draw: st.DrawFn, frames: Sequence[Frame]) -> list[bytes]:
    """Damage frames: flip, cut or add bytes; remove, duplicate or add frames; change types of fields."""
    result = [bytes(frame) for frame in frames]
    for _ in range(draw(st.integers(1, 3))):
        _DAMAGES[draw(st.sampled_from(sorted(_DAMAGES)))](draw, result)
    return result


def _flip(draw: st.DrawFn, frames: list[bytes]) -> None:
    place = _place(draw, frames)
    if place is not None and frames[place]:
        at = draw(st.integers(0, len(frames[place]) - 1))
        flipped = bytearray(frames[place])
        flipped[at] ^= 1 << draw(st.integers(0, 7))
        frames[place] = bytes(flipped)


def _cut(draw: st.DrawFn, frames: list[bytes]) -> None:
    place = _place(draw, frames)
    if place is not None:
        frames[place] = frames[place][: draw(st.integers(0, len(frames[place])))]


def _grow(draw: st.DrawFn, frames: list[bytes]) -> None:
    place = _place(draw, frames)
    if place is not None:
        frames[place] += draw(st.binary(min_size=1, max_size=20))


def _remove(draw: st.DrawFn, frames: list[bytes]) -> None:
    place = _place(draw, frames)
    if place is not None:
        del frames[place]


def _add(draw: st.DrawFn, frames: list[bytes]) -> None:
    frames.insert(draw(st.integers(0, len(frames))), draw(st.binary(max_size=30)))


_odd_values = st.one_of(
    st.none(), st.floats(), st.text(max_size=5), st.binary(max_size=5), integers, st.just([]), st.just({})
)


def _retype(draw: st.DrawFn, frames: list[bytes]) -> None:
    """Change a value in the header, which remains valid msgpack."""
    try:
        header = msgspec.msgpack.decode(frames[0])
    except (msgspec.MsgspecError, RecursionError, ValueError, IndexError):
        return
    odd = draw(_odd_values)
    frames[0] = msgspec.msgpack.encode(_replaced(draw, header, odd))


def _replaced(draw: st.DrawFn, value: object, odd: object) -> object:
    if not isinstance(value, list) or not value or draw(st.integers(0, 4)) == 0:
        return odd
    place = draw(st.integers(0, len(value) - 1))
    return [*value[:place], _replaced(draw, value[place], odd), *value[place + 1 :]]


def _nest(draw: st.DrawFn, frames: list[bytes]) -> None:
    depth = draw(st.sampled_from([10, 100_000]))
    frames[:1] = [b"\x93\x01\x01" + b"\x91" * depth]


def _claim_much(draw: st.DrawFn, frames: list[bytes]) -> None:
    """Return a header that claims four billion entries."""
    frames[:1] = [b"\x93\x01\x01" + draw(st.sampled_from([b"\xdd\xff\xff\xff\xff", b"\xdb\xff\xff\xff\xff", b"\xdf"]))]


def _place(draw: st.DrawFn, frames: list[bytes]) -> int | None:
    return draw(st.integers(0, len(frames) - 1)) if frames else None


_DAMAGES = {
    "flip": _flip,
    "cut": _cut,
    "grow": _grow,
    "remove": _remove,
    "add": _add,
    "retype": _retype,
    "nest": _nest,
    "claim": _claim_much,
}
