"""Golden vectors of the native protocol: vectors.json, written by `python -m tests.protocol.vectors`.

A change of existing vectors is a change of the protocol. Fields with defaults may be added at the end, and so may
commands, operations and replies with new tags. Anything else needs a new WIRE_VERSION.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from datetime import UTC, date, datetime, time
from decimal import Decimal
from pathlib import Path

import pyarrow as pa

from oncemq.arrow.typed_payloads import TypedRows, build_typed_payloads
from oncemq.protocol.batch import checksum, encode_batch, key_hashes
from oncemq.protocol.commands import (
    DROP,
    Abort,
    Ack,
    AckUpto,
    As,
    Assign,
    AuthReload,
    Bye,
    Close,
    Command,
    Commit,
    CreateTopic,
    DeleteTopic,
    Envelope,
    Extend,
    Find,
    Get,
    GetAny,
    Health,
    Hello,
    Keyed,
    Keys,
    Leave,
    Login,
    Measure,
    Numbered,
    Open,
    Operation,
    Patterns,
    Put,
    PutSchema,
    Read,
    RegistryList,
    RegistrySet,
    RemoveKeys,
    RemoveSession,
    Schemas,
    Seek,
    Sessions,
    Settle,
    Shares,
    Sharing,
    Stage,
    Subscribe,
    Subscriptions,
    Take,
    Topics,
    Transact,
    Unsubscribe,
    Void,
    Writer,
)
from oncemq.protocol.frames import Frame, encode_request, encode_response
from oncemq.protocol.replies import (
    AckReply,
    AnyPart,
    BatchHead,
    CommitPart,
    CommitReply,
    Done,
    ExtendReply,
    FindReply,
    GetAnyReply,
    GetReply,
    HealthReply,
    HelloReply,
    KeyInfo,
    KeysReply,
    LoginReply,
    MeasureReply,
    NotNow,
    OpenReply,
    PatternInfo,
    PatternsReply,
    PutReply,
    Refusal,
    RegistryEntry,
    RegistryListReply,
    RegistryReply,
    Reply,
    SchemaReply,
    SchemasReply,
    SeekReply,
    SessionInfo,
    SessionsReply,
    SettleReply,
    ShareInfo,
    SharesReply,
    StageReply,
    SubscribeReply,
    SubscriptionInfo,
    SubscriptionsReply,
    TakeReply,
    TaskHead,
    TopicInfo,
    TopicReply,
    TopicsReply,
    TransactReply,
    WriterReply,
)
from oncemq.protocol.schema import Decimal as DecimalType
from oncemq.protocol.schema import Field, ListType, Scalar, Schema, SchemaVersion, parse_fields
from oncemq.protocol.schema.arrow import to_arrow
from oncemq.protocol.stream import encode_message, encode_opening

PATH = Path(__file__).with_name("vectors.json")

Batch = tuple[str, Sequence[bytes], Sequence[bytes | None] | None, Sequence[Mapping[str, bytes] | None] | None]

BATCHES: list[Batch] = [
    ("one message", [b"hello"], None, None),
    ("one empty message", [b""], None, None),
    ("three messages, the second one empty", [b"a", b"", b"ccc"], None, None),
    ("keys: the first has one, the second none, the third an empty one", [b"1", b"2", b"3"], [b"k", None, b""], None),
    ("headers at the second message", [b"1", b"2"], None, [None, {"type": b"text"}]),
    ("a key and headers", [b"hello"], [b"table-7"], [{"a": b"1", "b": b""}]),
]
#: What it shows, fields, version, rows, and the rows as JSON.
TypedBatch = tuple[str, str, int, Sequence[Mapping[str, object]], Sequence[str]]
TYPED_BATCHES: list[TypedBatch] = [
    ("one row of one column", "id: int64 not null", 1, [{"id": 7}], ['{"id":7}']),
    (
        "two rows, with text and a null",
        "id: int32 not null, name: string",
        2,
        [{"id": 1, "name": "Ärzte"}, {"id": -2, "name": None}],
        ['{"id":1,"name":"Ärzte"}', '{"id":-2,"name":null}'],
    ),
    (
        "every scalar type",
        "a: bool, b: int8, c: int16, d: uint8, e: uint16, f: uint32, g: uint64, h: float32, i: float64, j: binary, "
        "k: date, l: time, m: timestamp, n: timestamp_ntz, o: decimal(9,2)",
        3,
        [
            {
                "a": True,
                "b": -1,
                "c": -2,
                "d": 1,
                "e": 2,
                "f": 3,
                "g": 2**64 - 1,
                "h": 0.5,
                "i": float("-inf"),
                "j": b"\0\1",
                "k": date(2024, 2, 29),
                "l": time(12, 30, 0, 5),
                "m": datetime(2024, 2, 29, 12, 30, tzinfo=UTC),
                "n": datetime(1969, 12, 31, 23, 59, 59, 999_999),
                "o": Decimal("-1234567.80"),
            }
        ],
        [
            '{"a":true,"b":-1,"c":-2,"d":1,"e":2,"f":3,"g":18446744073709551615,"h":0.5,"i":"-Infinity","j":"AAE=",'
            '"k":"2024-02-29","l":"12:30:00.000005","m":"2024-02-29T12:30:00Z","n":"1969-12-31T23:59:59.999999",'
            '"o":"-1234567.80"}'
        ],
    ),
    (
        "a list, a map and a struct",
        "l: list<int16>, m: map<string, bool>, s: struct<x: int8, y: string>",
        4,
        [
            {"l": [1, None, 3], "m": [("a", True), ("b", None)], "s": {"x": 1, "y": "z"}},
            {"l": None, "m": [], "s": None},
        ],
        ['{"l":[1,null,3],"m":{"a":true,"b":null},"s":{"x":1,"y":"z"}}', '{"l":null,"m":{},"s":null}'],
    ),
]
#: Keys and their hashes.
KEY_HASHES: list[bytes | None] = [None, b"", b"a", b"table-7", "Grüße".encode(), b"x" * 300]
PAYLOAD = encode_batch([b"hello"])
ENVELOPE = Envelope(1, len(PAYLOAD), checksum(PAYLOAD))
KEYS: list[bytes | None] = [b"table-7", None]
KEYED_PAYLOAD = encode_batch([b"soup", b"water"], KEYS)
KEYED = Envelope(2, len(KEYED_PAYLOAD), checksum(KEYED_PAYLOAD), key_hashes=key_hashes(KEYS))
SCHEMA = Schema(
    (
        Field("id", Scalar("int64"), False),
        Field("price", DecimalType(10, 2), doc="in euros"),
        Field("tags", ListType(Field("item", Scalar("string"), False))),
        Field("kind", Scalar("string"), False, "FOOD", "", {"enum": ["FOOD", "DRINK"]}),
    ),
    definition="id: int64 not null, …",
)
TYPED_PAYLOAD = encode_batch([b'{"id":1}'], None, None, None, 1)
TYPED = Envelope(1, len(TYPED_PAYLOAD), checksum(TYPED_PAYLOAD), schema_version=1, schema_topic_id=77)
SHARING = Sharing(30_000, 5, "orders.dead", True)


def _numbered(number: int, operation: Operation) -> Numbered:
    return Numbered("alice", 1, number, 1, operation)


REQUESTS: list[tuple[str, list[Command], list[Frame]]] = [
    ("hello: a user's call", [Hello("alice", 0, 42, 64)], []),
    ("hello: an automatic reconnect of an anonymous session", [Hello("anonymous-1", 3, 42, 64, True)], []),
    ("bye", [Bye("anonymous-1", 3)], []),
    ("create a topic", [_numbered(1, CreateTopic("orders", 3_600_000, 0))], []),
    ("delete a topic", [_numbered(2, DeleteTopic("orders"))], []),
    ("subscribe from the earliest message on", [_numbered(3, Subscribe("orders", "kitchen", -2))], []),
    ("unsubscribe", [_numbered(4, Unsubscribe("orders", "kitchen"))], []),
    ("open a subscription", [_numbered(5, Open("orders", "kitchen"))], []),
    ("open a subscription politely, for ten seconds", [_numbered(6, Open("orders", "kitchen", 10_000))], []),
    ("close a subscription", [_numbered(7, Close(77, "kitchen", 2))], []),
    ("put", [_numbered(8, Put("orders", ENVELOPE, True))], [PAYLOAD]),
    ("stage", [_numbered(9, Stage("stage-1", "orders", "writer", 5, ENVELOPE))], [PAYLOAD]),
    ("commit", [_numbered(10, Commit("writer", 5, "orders", (("stage-1", 1),)))], []),
    ("abort", [_numbered(11, Abort(("stage-1", "stage-2")))], []),
    ("set a registry entry", [_numbered(12, RegistrySet("http", "push/1", b"value", 0))], []),
    ("remove a registry entry", [_numbered(13, RegistrySet("http", "push/1", None))], []),
    ("remove a session", [_numbered(14, RemoveSession("bob"))], []),
    ("give a number up", [_numbered(15, Void())], []),
    ("put under a free-form key", [Keyed("http", "key-1", Put("orders", ENVELOPE))], [PAYLOAD]),
    ("get, waiting, with an ack", [Get(77, "kitchen", 2, 10, 1_048_576, 2_000, 10)], []),
    ("ack", [Ack(77, "kitchen", 2, 11)], []),
    ("read from the earliest message on", [Read("orders", -2, 65_536)], []),
    ("list topics", [Topics("", 1000)], []),
    ("list subscriptions", [Subscriptions("orders", "", 1000)], []),
    ("list sessions", [Sessions("", 1000)], []),
    ("list a registry", [RegistryList("http", "push/", "", 1000)], []),
    ("health", [Health()], []),
    (
        "two sessions' puts in one request",
        [
            Numbered("alice", 1, 16, 9, Put("orders", ENVELOPE)),
            Numbered("bob", 4, 1, 1, Put("orders", ENVELOPE)),
        ],
        [PAYLOAD, PAYLOAD],
    ),
    (
        "change a topic's settings: a quota, at which the oldest messages go",
        [_numbered(1, CreateTopic("orders", 0, 0, 1_000_000, DROP, True))],
        [],
    ),
    ("subscribe, shared, in order per key", [_numbered(3, Subscribe("orders", "cooks", -1, SHARING))], []),
    ("subscribe by pattern", [_numbered(3, Subscribe("orders.*", "audit", -2))], []),
    ("seek to an offset", [_numbered(7, Seek("orders", "kitchen", 10))], []),
    ("seek to a time", [_numbered(7, Seek("orders.*", "audit", -2, 1_700_000_000_000))], []),
    (
        "put for later, with a time to live",
        [_numbered(8, Put("orders", Envelope(1, len(PAYLOAD), ENVELOPE.checksum, 60_000, 1_700_000_600_000)))],
        [PAYLOAD],
    ),
    ("put with key hashes: the second message has no key", [_numbered(8, Put("orders", KEYED))], [KEYED_PAYLOAD]),
    (
        "settle: two messages are done, one comes again after a second",
        [_numbered(8, Settle(77, "cooks", 3, ((12, 10, 2),), ((12, 12, 1, 1_000),)))],
        [],
    ),
    (
        "transact: an ack, a settled message, and two puts",
        [
            _numbered(
                8,
                Transact(
                    (AckUpto(77, "kitchen", 2, 11),),
                    (Settle(78, "cooks", 3, ((12, 10, 1),)),),
                    (Put("bills", ENVELOPE), Put("orders.new", KEYED, True)),
                ),
            )
        ],
        [PAYLOAD, KEYED_PAYLOAD],
    ),
    (
        "get by pattern, waiting, with positions and acks",
        [GetAny("orders.*", "audit", 4, ((77, 12), (78, 3)), 1_048_576, 2_000, ((77, 11),))],
        [],
    ),
    ("take up to ten messages, waiting", [Take(77, "cooks", 3, "cook-1", 1, 10, 1_048_576, 2_000)], []),
    ("extend two leases", [Extend(77, "cooks", 3, (12, 14))], []),
    ("leave", [Leave(77, "cooks", 3, "cook-1")], []),
    ("find the first offset of a time", [Find("orders", 1_700_000_000_000)], []),
    ("list subscriptions by pattern", [Patterns("", 1000)], []),
    ("open a subscription again", [_numbered(6, Open("orders", "kitchen", 0, 12))], []),
    (
        "stage for a commit that nobody remembers",
        [_numbered(9, Stage("stage-2", "bills", "", 0, ENVELOPE))],
        [PAYLOAD],
    ),
    (
        "commit to two topics, once, remembered by nobody",
        [
            _numbered(
                10,
                Commit("", 0, "", (), (("orders", (("stage-1", 2), ("stage-3", 1))), ("bills", (("stage-2", 1),)))),
            )
        ],
        [],
    ),
    ("commit a batch in which there is nothing", [_numbered(10, Commit("writer", 6, "", ()))], []),
    ("subscribe, deleted when idle", [_numbered(3, Subscribe("orders", "guest", -1, None, 3_600_000))], []),
    ("free idempotency keys", [_numbered(21, RemoveKeys("http", ("key-1", "key-2")))], []),
    (
        "list idempotency keys, and who has how many",
        [Keys("http", "key-1", 10), Shares("keys"), Shares("registry", "a")],
        [],
    ),
    ("measure a range, in parts", [Measure("orders", 0, 40, 1_000, 77)], []),
    (
        "commit a batch with its content",
        [_numbered(10, Commit("writer", 7, "orders", (("stage-1", 1),), content=bytes(range(16))))],
        [],
    ),
    ("ask for the commits of a writer", [Writer("writer")], []),
    ("put a schema", [_numbered(9, PutSchema("orders", SCHEMA, "full", "broker"))], []),
    ("change the settings of a schema", [_numbered(10, PutSchema("orders", None, "", "none"))], []),
    (
        "put messages that were checked",
        [_numbered(11, Put("orders", TYPED))],
        [TYPED_PAYLOAD],
    ),
    ("list versions of a schema", [Schemas("orders", 1, 100)], []),
    (
        "transact: what continues an unanswered transaction",
        [_numbered(9, Transact((AckUpto(77, "kitchen", 2, 15, 11),), (), (Put("bills", ENVELOPE),)))],
        [PAYLOAD],
    ),
    (
        "a gateway: whose token is this, a command of a caller, and an operation for a caller in its own session",
        [
            Login("token", "omq_k3v9x2aa_secret", "10.0.0.7", "http"),
            As("kitchen/k3v9x2aa", Topics()),
            As("kitchen/k3v9x2aa", _numbered(22, CreateTopic("orders")), True),
        ],
        [],
    ),
    (
        "an administrator: read auth.toml again, and give a subscription to a user",
        [AuthReload(), _numbered(23, Assign("subscription", "billing", "kitchen", "orders"))],
        [],
    ),
]

REPLIES: list[tuple[str, list[Reply], list[Frame]]] = [
    ("done", [Done()], []),
    ("refused", [Refusal("TOPIC_UNKNOWN", "there is no topic 'orders'")], []),
    ("not now: a gap", [NotNow("GAP", "number 9 came, 8 is next", 7)], []),
    ("not now: the disk is full", [NotNow("DISK_FULL", "the disk is full")], []),
    ("a topic was created", [TopicReply(77, True)], []),
    ("subscribed", [SubscribeReply(77, 0, True)], []),
    ("opened", [OpenReply(77, 2, 10)], []),
    ("stored", [PutReply(77, 10, 1, 1_700_000_000_000, 1)], []),
    ("staged", [StageReply(1)], []),
    ("committed", [CommitReply(77, 11, 1, 1_700_000_000_000, 1, False)], []),
    ("a registry entry was set", [RegistryReply(1)], []),
    (
        "hello, with a verdict that was not seen",
        [HelloReply(2, 8, 64, ((8, PutReply(77, 10, 1, 1_700_000_000_000, 1)),), "0123456789abcdef", 16_777_216)],
        [],
    ),
    (
        "messages: the second half of a batch, and a whole one",
        [
            GetReply(
                77,
                12,
                12,
                10,
                (
                    BatchHead(10, 1, 1, 1_700_000_000_000, checksum(encode_batch([b"a", b"b"]))),
                    BatchHead(11, 1, 0, 1_700_000_000_001, checksum(PAYLOAD)),
                ),
            )
        ],
        [encode_batch([b"a", b"b"]), PAYLOAD],
    ),
    ("no messages", [GetReply(77, 12, 12, 12)], []),
    ("acked", [AckReply(11)], []),
    ("topics", [TopicsReply((TopicInfo("orders", 77, True, 10, 12, 96, 2, 1, 0, 0),), "")], []),
    ("subscriptions", [SubscriptionsReply((SubscriptionInfo("orders", "kitchen", 10, 12, 2),), "")], []),
    ("sessions", [SessionsReply((SessionInfo("alice", 1, 8, 64, 1, False, 1_700_000_000_000),), "")], []),
    ("registry", [RegistryListReply((RegistryEntry("push/1", b"value", 1),), "")], []),
    ("health", [HealthReply("0.1.0", "0123456789abcdef", "memory:", 5, 4, 1, 1, -1, {"groups": 3})], []),
    ("opened, shared", [OpenReply(77, 3, 10, SHARING)], []),
    ("sought", [SeekReply(77, 10)], []),
    ("stored, and not due yet", [PutReply(77, -1, 1, 1_700_000_000_000, 1)], []),
    ("settled", [SettleReply()], []),
    ("settled, but for two messages whose lease was lost", [SettleReply(((11, 2),))], []),
    (
        "transacted",
        [TransactReply((PutReply(79, 4, 1, 1_700_000_000_000, 1), PutReply(80, 0, 2, 1_700_000_000_000, 0)))],
        [],
    ),
    (
        "messages by pattern, of two topics",
        [
            GetAnyReply(
                (
                    AnyPart("orders.new", 77, 13, 13, 11, (BatchHead(12, 1, 0, 1_700_000_000_000, ENVELOPE.checksum),)),
                    AnyPart("orders.old", 78, 5, 9, 3, (BatchHead(3, 2, 0, 1_700_000_000_000, KEYED.checksum),), 3),
                ),
                False,
            )
        ],
        [PAYLOAD, KEYED_PAYLOAD],
    ),
    ("nothing by pattern", [GetAnyReply((), True)], []),
    (
        "taken: three messages, two of them from one payload",
        [
            TakeReply(
                77,
                12,
                30_000,
                (
                    TaskHead(10, 1, 0, 1_700_000_000_000, ENVELOPE.checksum, 2, 0),
                    TaskHead(11, 1, 0, 1_700_000_000_001, KEYED.checksum, 1, 1),
                    TaskHead(12, 1, 1, 1_700_000_000_001, KEYED.checksum, 3, 1),
                ),
                2,
            )
        ],
        [PAYLOAD, KEYED_PAYLOAD],
    ),
    ("nothing to take", [TakeReply(77, 0, 0)], []),
    ("extended, but for a lease that is over", [ExtendReply((14,))], []),
    ("found", [FindReply(77, 10)], []),
    (
        "topics: one with a quota, and with a message that is not due yet",
        [TopicsReply((TopicInfo("orders", 78, True, 0, 4, 96, 2, 3, 0, 0, 1_000_000, DROP, 1),), "orders")],
        [],
    ),
    (
        "subscriptions: with one owner, by pattern, and shared",
        [
            SubscriptionsReply(
                (
                    SubscriptionInfo("orders.new", "kitchen", 10, 12, 2),
                    SubscriptionInfo("orders.new", "audit", 11, 12, 4, "orders.*", dropped=3),
                    SubscriptionInfo("orders.new", "cooks", 10, 20, 3, "", SHARING, 2, 4, 1),
                ),
                "",
            )
        ],
        [],
    ),
    ("subscriptions by pattern", [PatternsReply((PatternInfo("orders.*", "audit", 2, 4, 7),), "")], []),
    (
        "committed to two topics",
        [CommitReply(0, -1, 4, 1_700_000_000_000, 0, False, (CommitPart(77, 12, 3, 1), CommitPart(78, 0, 1, 0)))],
        [],
    ),
    ("committed before", [CommitReply(0, -1, 0, 1_700_000_000_000, 0, True)], []),
    ("idempotency keys", [KeysReply((KeyInfo("key-1", 1_700_000_000_000),), "key-1")], []),
    ("the number of keys of each principal", [SharesReply((ShareInfo("http", 2),), "")], []),
    (
        "measured, in two parts and a rest",
        [MeasureReply(77, 40, 2_500, 1_700_000_000_000, ((10, 1_000), (30, 1_200)))],
        [],
    ),
    ("the commits of a writer", [WriterReply(7, ((6, bytes(4)), (7, bytes(range(16)))))], []),
    ("a schema was put", [SchemaReply(77, 2, True)], []),
    (
        "versions of a schema",
        [SchemasReply(77, 1, "full", "broker", (SchemaVersion(1, SCHEMA, 1_700_000_000_000),))],
        [],
    ),
    ("the caller of a credential, and the key of its MACs", [LoginReply("kitchen/k3v9x2aa", b"key")], []),
]

#: The openings of the stream transport: what it is, and its properties.
OPENINGS: list[tuple[str, dict[str, object]]] = [
    ("a client's, without properties", {}),
    ("a client's, with its name", {"client": "example 1.0"}),
    ("a broker's", {"message_bytes_max": 21_037_056}),
    ("a broker's that has no space for the connection", {"error": ["LIMIT_REACHED", "there are too many connections"]}),
]
#: Messages of the stream transport: what it is, and which request or reply it contains.
MESSAGES: list[tuple[str, str, str]] = [
    ("a request with one frame: hello", "requests", "hello: a user's call"),
    ("a request with two frames: put", "requests", "put"),
    ("a request with three frames", "requests", "two sessions' puts in one request"),
    ("a reply with one frame: stored", "replies", "stored"),
    ("a reply with three frames: messages", "replies", "messages: the second half of a batch, and a whole one"),
]


def typed_payload(fields: str, version: int, rows: Sequence[Mapping[str, object]]) -> bytes:
    """Encode rows as one typed batch."""
    schema = Schema(parse_fields(fields))
    values = pa.RecordBatch.from_pylist(list(rows), schema=to_arrow(schema))
    (payload,) = build_typed_payloads(TypedRows(values), SchemaVersion(version, schema), 2**20)
    return payload.payload


def frames_of(kind: str, what: str) -> list[Frame]:
    """Return the frames of one of the requests or replies."""
    if kind == "requests":
        return next(
            encode_request(number, commands, payloads)
            for number, (name, commands, payloads) in enumerate(REQUESTS, 1)
            if name == what
        )
    return next(
        encode_response(number, replies, payloads)
        for number, (name, replies, payloads) in enumerate(REPLIES, 1)
        if name == what
    )


def make() -> dict[str, list[dict[str, object]]]:
    """Return all vectors, with bytes, frames, payloads, keys and hashes in hexadecimal."""
    return {
        "batches": [
            {"what": what, "hex": encode_batch(values, keys, headers).hex()} for what, values, keys, headers in BATCHES
        ],
        "typed_batches": [
            {"what": what, "hex": typed_payload(fields, version, rows).hex(), "rows": list(texts)}
            for what, fields, version, rows, texts in TYPED_BATCHES
        ],
        "key_hashes": [
            {"what": f"key {number}", "key": key if key is None else key.hex(), "hash": key_hashes([key]).hex()}
            for number, key in enumerate(KEY_HASHES)
        ],
        "requests": [
            {"what": what, "frames": _hex(encode_request(number, commands, payloads))}
            for number, (what, commands, payloads) in enumerate(REQUESTS, 1)
        ],
        "replies": [
            {"what": what, "frames": _hex(encode_response(number, replies, payloads))}
            for number, (what, replies, payloads) in enumerate(REPLIES, 1)
        ],
        "openings": [
            {"what": what, "properties": properties, "hex": encode_opening(properties).hex()}
            for what, properties in OPENINGS
        ],
        "messages": [
            {"what": what, "frames": _hex(frames_of(kind, name)), "hex": message_bytes(frames_of(kind, name)).hex()}
            for what, kind, name in MESSAGES
        ],
    }


def message_bytes(frames: Sequence[Frame]) -> bytes:
    """Return a message of the stream transport."""
    return b"".join(encode_message(frames))


def _hex(frames: Sequence[Frame]) -> list[str]:
    return [bytes(frame).hex() for frame in frames]


if __name__ == "__main__":
    PATH.write_text(json.dumps(make(), indent=1, ensure_ascii=False) + "\n")
