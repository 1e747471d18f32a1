"""The broker checks values of topics whose schema says so, before the engine decides."""

from __future__ import annotations

import json

import msgspec
import pytest

from oncemq.broker import schema_checks
from oncemq.broker.requests import work
from oncemq.engine import events
from oncemq.engine.decide.decision import Decision
from oncemq.engine.event_bytes import REFUSAL_BYTES_MAX, need_bytes
from oncemq.protocol import commands, replies
from oncemq.protocol.batch import checksum, encode_batch
from oncemq.protocol.replies import Done, Refusal
from oncemq.protocol.schema import Schema, parse_fields
from oncemq.protocol.schema.definitions.parse import parse_definition
from oncemq.protocol.schema.model import Field, ListType, Scalar, Type
from tests.broker.rig import Rig, code
from tests.protocol.schema.test_definitions import AVRO

SCHEMA = Schema(parse_fields("id: int64 not null"), definition="id: int64 not null")


@pytest.fixture
def rig() -> Rig:
    rig = Rig()
    rig.do(commands.CreateTopic("orders"))
    rig.do(commands.PutSchema("orders", SCHEMA, "", "broker"))
    return rig


def _batch(*values: bytes, version: int = 1) -> tuple[commands.Envelope, bytes]:
    payload = encode_batch(values, None, None, None, version)
    return commands.Envelope(len(values), len(payload), checksum(payload), schema_version=version), payload


def test_a_value_that_does_not_match_is_refused_with_its_index_and_the_reason(rig: Rig) -> None:
    envelope, payload = _batch(b'{"id": 1}', b'{"id": "2"}')
    refusal = rig.do(commands.Put("orders", envelope), payload=payload)
    assert refusal == replies.Refusal(
        "SCHEMA_MISMATCH",
        "message 1 for 'orders' does not match the schema: id: expected int, got str; the schema says int64 not null",
    )
    envelope, payload = _batch(b'{"id": 1}')
    assert isinstance(rig.do(commands.Put("orders", envelope), payload=payload), replies.PutReply)


def test_stages_transactions_and_delayed_puts_are_checked(rig: Rig) -> None:
    envelope, payload = _batch(b"{}")
    assert code(rig.do(commands.Stage("s", "orders", "w", 1, envelope), payload=payload)) == "SCHEMA_MISMATCH"
    transaction = commands.Transact(puts=(commands.Put("orders", envelope),))
    refusal = rig.do(transaction, payload=payload)
    assert isinstance(refusal, replies.Refusal)
    assert refusal.text.startswith("put 0: message 0 for 'orders' does not match the schema: id: the field is missing")
    delayed = commands.Envelope(1, envelope.size, envelope.checksum, 0, 10**9, b"", 1)
    assert code(rig.do(commands.Put("orders", delayed), payload=payload)) == "SCHEMA_MISMATCH"


def test_a_client_that_checked_nothing_is_refused_by_the_engine(rig: Rig) -> None:
    envelope, payload = _batch(b"{}", version=0)
    assert code(rig.do(commands.Put("orders", envelope), payload=payload)) == "SCHEMA_REQUIRED"
    envelope, payload = _batch(b"{}", version=7)
    assert code(rig.do(commands.Put("orders", envelope), payload=payload)) == "SCHEMA_UNKNOWN"


def test_a_batch_for_a_deleted_topic_of_the_same_name_is_refused_as_such(rig: Rig) -> None:
    # SCHEMA_MISMATCH would not tell its client to look the schema up again.
    envelope, payload = _batch(b"{}")
    envelope = msgspec.structs.replace(envelope, schema_topic_id=1)
    assert code(rig.do(commands.Put("orders", envelope), payload=payload)) == "SCHEMA_UNKNOWN"


def test_the_envelope_and_the_payload_name_the_same_version(rig: Rig) -> None:
    payload = encode_batch([b"{}"], None, None, None, 2)
    envelope = commands.Envelope(1, len(payload), checksum(payload), schema_version=1)
    command = rig.numbered(commands.Put("orders", envelope))
    assert code(rig.ask(command, payload)) == "MALFORMED"


def test_values_are_not_decoded_unless_the_broker_checks(rig: Rig) -> None:
    rig.do(commands.PutSchema("orders", None, "", "client"))
    envelope, payload = _batch(b"not even JSON")
    assert isinstance(rig.do(commands.Put("orders", envelope), payload=payload), replies.PutReply)


def test_a_check_that_needs_a_missing_package_can_not_be_set(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(schema_checks, "missing_for", lambda _: "avro")
    rig.do(commands.CreateTopic("events"))
    schema = parse_definition(json.dumps(AVRO))
    refusal = rig.do(commands.PutSchema("events", schema, "", "broker"))
    assert isinstance(refusal, replies.Refusal)
    assert refusal.code == "UNSUPPORTED"
    assert "pip install 'oncemq[avro]'" in refusal.text
    assert isinstance(rig.do(commands.PutSchema("events", schema)), replies.SchemaReply)
    assert code(rig.do(commands.PutSchema("events", None, "", "broker"))) == "UNSUPPORTED"


def test_a_schema_whose_constraints_are_not_valid_is_refused(rig: Rig) -> None:
    field = parse_fields("name: string")[0]
    unusable = Schema((type(field)("name", field.type, constraints={"pattern": "("}),))
    assert code(rig.do(commands.PutSchema("orders", unusable, "none"))) == "SCHEMA_INVALID"


def test_the_broker_does_not_match_patterns(rig: Rig) -> None:
    field = parse_fields("name: string")[0]
    limited = Schema((type(field)("name", field.type, constraints={"pattern": "^a*a*a*a*b$", "maxLength": 90}),))
    rig.do(commands.CreateTopic("names"))
    assert isinstance(rig.do(commands.PutSchema("names", limited, "", "broker")), replies.SchemaReply)
    envelope, payload = _batch(b'{"name": "%s"}' % (b"a" * 90))
    assert isinstance(rig.do(commands.Put("names", envelope), payload=payload), replies.PutReply)
    envelope, payload = _batch(b'{"name": "%s"}' % (b"a" * 91))
    assert code(rig.do(commands.Put("names", envelope), payload=payload)) == "SCHEMA_MISMATCH"


def test_checks_count_as_work_of_the_peer(rig: Rig) -> None:
    envelope, _ = _batch(*[b'{"id": 1}'] * 10_000)
    command = rig.numbered(commands.Put("orders", envelope))
    state = rig.broker.engine.state
    checked = work.units_of(state, command, Decision(Done()))
    rig.do(commands.PutSchema("orders", None, "", "client"), session="bob")
    assert checked > 100 > work.units_of(state, command, Decision(Done()))


def test_a_large_schema_overdraws_the_turn_of_its_peer_however_its_fields_are_nested(rig: Rig) -> None:
    # The broker makes what checks its values, which takes tens of milliseconds.
    text = ", ".join(f"f{number}: int64" for number in range(1_000))
    state = rig.broker.engine.state
    for definition in (text, f"one: struct<{text}>"):
        command = rig.numbered(commands.PutSchema("orders", Schema(parse_fields(definition))))
        assert work.units_of(state, command, Decision(Done())) > work.OVERDRAFT_UNITS_MIN
    nested: Type = Scalar("int64")
    for _ in range(2_000):
        nested = ListType(Field("item", nested))
    command = rig.numbered(commands.PutSchema("orders", Schema((Field("deep", nested),))))
    assert work.units_of(state, command, Decision(Refusal("SCHEMA_INVALID", ""))) > work.OVERDRAFT_UNITS_MIN


def test_an_exception_during_a_check_ends_the_command_and_not_the_broker(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> None:
        raise KeyError("id")

    envelope, payload = _batch(b'{"id": 1}')
    with monkeypatch.context() as broken:
        broken.setattr(schema_checks, "check_payload", fail)
        command = rig.numbered(commands.Put("orders", envelope))
        assert code(rig.ask(command, payload)) == "BROKER_BUG"
    assert isinstance(rig.ask(command, payload), replies.PutReply)


def test_a_schema_whose_definition_has_other_fields_is_refused(rig: Rig) -> None:
    schema = parse_definition(json.dumps(AVRO))
    lying = msgspec.structs.replace(schema, fields=SCHEMA.fields)
    rig.do(commands.CreateTopic("events"))
    assert code(rig.do(commands.PutSchema("events", lying, "", "broker"))) == "SCHEMA_INVALID"


WIDE = "struct<" + ", ".join(f"{'ü' * 100}{n}: int64" for n in range(1_000)) + ">"


@pytest.mark.parametrize(
    ("operation", "value", "expected"),
    [
        (None, b'{"wide": 1}', "SCHEMA_MISMATCH"),
        (commands.PutSchema("events", Schema(parse_fields("wide: int64"))), b"", "SCHEMA_INCOMPATIBLE"),
    ],
)
def test_a_refusal_takes_no_more_journal_than_its_command_has_asked_for(
    rig: Rig, operation: commands.PutSchema | None, value: bytes, expected: str
) -> None:
    rig.do(commands.CreateTopic("events"))
    made = rig.do(commands.PutSchema("events", Schema(parse_fields(f"wide: {WIDE}")), "", "broker"))
    assert isinstance(made, replies.SchemaReply)
    envelope, payload = _batch(value)
    asked: commands.Operation = operation or commands.Put("events", envelope)
    key, principal = "k" * 512, "p" * 255
    command = commands.Keyed(principal, key, asked)
    refusal = rig.ask(command, payload) if operation is None else rig.ask(command)
    assert isinstance(refusal, replies.Refusal)
    assert refusal.code == expected
    assert len(refusal.text.encode()) <= REFUSAL_BYTES_MAX
    declined = events.Declined(events.KeyClaim(principal, key, 2**63), refusal.code, refusal.text)
    assert len(msgspec.msgpack.encode(declined)) <= need_bytes(command)


def test_a_default_that_is_not_a_value_of_its_field_is_refused(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    schema = Schema(parse_fields('id: int64 not null, level: int32 not null default "high"'))
    for missing in ("", "avro"):
        monkeypatch.setattr(schema_checks, "missing_for", lambda _, missing=missing: missing)
        assert code(rig.do(commands.PutSchema("orders", schema, "", "client"))) == "SCHEMA_INVALID"
