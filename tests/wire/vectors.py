"""Golden vectors of the native protocol: vectors.json, made by `python -m tests.wire.vectors`.

Making them anew is a change of the protocol. Fields may be added at the end, with a default, and commands,
operations and replies with tags of their own; anything else needs another WIRE_VERSION.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path

from oncemq.engine import commands as co
from oncemq.engine import replies as re
from oncemq.message import checksum, encode_batch, key_hashes
from oncemq.wire.frames import Frame, encode_request, encode_response

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
#: Each with its hash.
KEY_HASHES: list[bytes | None] = [None, b"", b"a", b"table-7", "Grüße".encode(), b"x" * 300]
PAYLOAD = encode_batch([b"hello"])
ENVELOPE = co.Envelope(1, len(PAYLOAD), checksum(PAYLOAD))
KEYS: list[bytes | None] = [b"table-7", None]
KEYED_PAYLOAD = encode_batch([b"soup", b"water"], KEYS)
KEYED = co.Envelope(2, len(KEYED_PAYLOAD), checksum(KEYED_PAYLOAD), key_hashes=key_hashes(KEYS))
SHARING = co.Sharing(30_000, 5, "orders.dead", True)


def _numbered(number: int, operation: co.Operation) -> co.Numbered:
    return co.Numbered("alice", 1, number, 1, operation)


REQUESTS: list[tuple[str, list[co.Command], list[Frame]]] = [
    ("hello: a user's call", [co.Hello("alice", 0, 42, 64)], []),
    ("hello: an automatic reconnect of an anonymous session", [co.Hello("anonymous-1", 3, 42, 64, True)], []),
    ("bye", [co.Bye("anonymous-1", 3)], []),
    ("create a topic", [_numbered(1, co.CreateTopic("orders", 3_600_000, 0))], []),
    ("delete a topic", [_numbered(2, co.DeleteTopic("orders"))], []),
    ("subscribe from the earliest message on", [_numbered(3, co.Subscribe("orders", "kitchen", -2))], []),
    ("unsubscribe", [_numbered(4, co.Unsubscribe("orders", "kitchen"))], []),
    ("open a subscription", [_numbered(5, co.Open("orders", "kitchen"))], []),
    ("open a subscription politely, for ten seconds", [_numbered(6, co.Open("orders", "kitchen", 10_000))], []),
    ("close a subscription", [_numbered(7, co.Close(77, "kitchen", 2))], []),
    ("put", [_numbered(8, co.Put("orders", ENVELOPE, True))], [PAYLOAD]),
    ("stage", [_numbered(9, co.Stage("stage-1", "orders", "writer", 5, ENVELOPE))], [PAYLOAD]),
    ("commit", [_numbered(10, co.Commit("writer", 5, "orders", (("stage-1", 1),)))], []),
    ("abort", [_numbered(11, co.Abort(("stage-1", "stage-2")))], []),
    ("set a registry entry", [_numbered(12, co.RegistrySet("http", "push/1", b"value", 0))], []),
    ("remove a registry entry", [_numbered(13, co.RegistrySet("http", "push/1", None))], []),
    ("remove a session", [_numbered(14, co.RemoveSession("bob"))], []),
    ("give a number up", [_numbered(15, co.Void())], []),
    ("put under a free-form key", [co.Keyed("http", "key-1", co.Put("orders", ENVELOPE))], [PAYLOAD]),
    ("get, waiting, with an ack", [co.Get(77, "kitchen", 2, 10, 1_048_576, 2_000, 10)], []),
    ("ack", [co.Ack(77, "kitchen", 2, 11)], []),
    ("read from the earliest message on", [co.Read("orders", -2, 65_536)], []),
    ("list topics", [co.Topics("", 1000)], []),
    ("list subscriptions", [co.Subscriptions("orders", "", 1000)], []),
    ("list sessions", [co.Sessions("", 1000)], []),
    ("list a registry", [co.RegistryList("http", "push/", "", 1000)], []),
    ("health", [co.Health()], []),
    (
        "two sessions' puts in one request",
        [
            co.Numbered("alice", 1, 16, 9, co.Put("orders", ENVELOPE)),
            co.Numbered("bob", 4, 1, 1, co.Put("orders", ENVELOPE)),
        ],
        [PAYLOAD, PAYLOAD],
    ),
    (
        "change a topic's settings: a quota, at which the oldest messages go",
        [_numbered(1, co.CreateTopic("orders", 0, 0, 1_000_000, co.DROP, True))],
        [],
    ),
    ("subscribe, shared, in order per key", [_numbered(3, co.Subscribe("orders", "cooks", -1, SHARING))], []),
    ("subscribe by pattern", [_numbered(3, co.Subscribe("orders.*", "audit", -2))], []),
    ("seek to an offset", [_numbered(7, co.Seek("orders", "kitchen", 10))], []),
    ("seek to a time", [_numbered(7, co.Seek("orders.*", "audit", -2, 1_700_000_000_000))], []),
    (
        "put for later, with a time to live",
        [_numbered(8, co.Put("orders", co.Envelope(1, len(PAYLOAD), ENVELOPE.checksum, 60_000, 1_700_000_600_000)))],
        [PAYLOAD],
    ),
    ("put with key hashes: the second message has no key", [_numbered(8, co.Put("orders", KEYED))], [KEYED_PAYLOAD]),
    (
        "settle: two messages are done, one comes again after a second",
        [_numbered(8, co.Settle(77, "cooks", 3, ((12, 10, 2),), ((12, 12, 1, 1_000),)))],
        [],
    ),
    (
        "transact: an ack, a settled message, and two puts",
        [
            _numbered(
                8,
                co.Transact(
                    (co.AckUpto(77, "kitchen", 2, 11),),
                    (co.Settle(78, "cooks", 3, ((12, 10, 1),)),),
                    (co.Put("bills", ENVELOPE), co.Put("orders.new", KEYED, True)),
                ),
            )
        ],
        [PAYLOAD, KEYED_PAYLOAD],
    ),
    (
        "get by pattern, waiting, with positions and acks",
        [co.GetAny("orders.*", "audit", 4, ((77, 12), (78, 3)), 1_048_576, 2_000, ((77, 11),))],
        [],
    ),
    ("take up to ten messages, waiting", [co.Take(77, "cooks", 3, "cook-1", 1, 10, 1_048_576, 2_000)], []),
    ("extend two leases", [co.Extend(77, "cooks", 3, (12, 14))], []),
    ("leave", [co.Leave(77, "cooks", 3, "cook-1")], []),
    ("find the first offset of a time", [co.Find("orders", 1_700_000_000_000)], []),
    ("list subscriptions by pattern", [co.Patterns("", 1000)], []),
    ("open a subscription again", [_numbered(6, co.Open("orders", "kitchen", 0, 12))], []),
    (
        "stage for a commit that nobody remembers",
        [_numbered(9, co.Stage("stage-2", "bills", "", 0, ENVELOPE))],
        [PAYLOAD],
    ),
    (
        "commit to two topics, once, remembered by nobody",
        [
            _numbered(
                10,
                co.Commit("", 0, "", (), (("orders", (("stage-1", 2), ("stage-3", 1))), ("bills", (("stage-2", 1),)))),
            )
        ],
        [],
    ),
    ("commit a batch in which there is nothing", [_numbered(10, co.Commit("writer", 6, "", ()))], []),
]

REPLIES: list[tuple[str, list[re.Reply], list[Frame]]] = [
    ("done", [re.Done()], []),
    ("refused", [re.Refusal("TOPIC_UNKNOWN", "there is no topic 'orders'")], []),
    ("not now: a gap", [re.NotNow("GAP", "number 9 came, 8 is next", 7)], []),
    ("not now: the disk is full", [re.NotNow("DISK_FULL", "the disk is full")], []),
    ("a topic was created", [re.TopicReply(77, True)], []),
    ("subscribed", [re.SubscribeReply(77, 0, True)], []),
    ("opened", [re.OpenReply(77, 2, 10)], []),
    ("stored", [re.PutReply(77, 10, 1, 1_700_000_000_000, 1)], []),
    ("staged", [re.StageReply(1)], []),
    ("committed", [re.CommitReply(77, 11, 1, 1_700_000_000_000, 1, False)], []),
    ("a registry entry was set", [re.RegistryReply(1)], []),
    (
        "hello, with a verdict that was not seen",
        [re.HelloReply(2, 8, 64, ((8, re.PutReply(77, 10, 1, 1_700_000_000_000, 1)),), "0123456789abcdef", 16_777_216)],
        [],
    ),
    (
        "messages: the second half of a batch, and a whole one",
        [
            re.GetReply(
                77,
                12,
                12,
                10,
                (
                    re.BatchHead(10, 1, 1, 1_700_000_000_000, checksum(encode_batch([b"a", b"b"]))),
                    re.BatchHead(11, 1, 0, 1_700_000_000_001, checksum(PAYLOAD)),
                ),
            )
        ],
        [encode_batch([b"a", b"b"]), PAYLOAD],
    ),
    ("no messages", [re.GetReply(77, 12, 12, 12)], []),
    ("acked", [re.AckReply(11)], []),
    ("topics", [re.TopicsReply((re.TopicInfo("orders", 77, True, 10, 12, 96, 2, 1, 0, 0),), "")], []),
    ("subscriptions", [re.SubscriptionsReply((re.SubscriptionInfo("orders", "kitchen", 10, 12, 2),), "")], []),
    ("sessions", [re.SessionsReply((re.SessionInfo("alice", 1, 8, 64, 1, False, 1_700_000_000_000),), "")], []),
    ("registry", [re.RegistryListReply((re.RegistryEntry("push/1", b"value", 1),), "")], []),
    ("health", [re.HealthReply("0.1.0", "0123456789abcdef", "memory:", 5, 4, 1, 1, -1, {"groups": 3})], []),
    ("opened, shared", [re.OpenReply(77, 3, 10, SHARING)], []),
    ("sought", [re.SeekReply(77, 10)], []),
    ("stored, and not due yet", [re.PutReply(77, -1, 1, 1_700_000_000_000, 1)], []),
    ("settled", [re.SettleReply()], []),
    ("settled, but for two messages whose lease was lost", [re.SettleReply(((11, 2),))], []),
    (
        "transacted",
        [
            re.TransactReply(
                (re.PutReply(79, 4, 1, 1_700_000_000_000, 1), re.PutReply(80, 0, 2, 1_700_000_000_000, 0))
            )
        ],
        [],
    ),
    (
        "messages by pattern, of two topics",
        [
            re.GetAnyReply(
                (
                    re.AnyPart(
                        "orders.new", 77, 13, 13, 11, (re.BatchHead(12, 1, 0, 1_700_000_000_000, ENVELOPE.checksum),)
                    ),
                    re.AnyPart(
                        "orders.old", 78, 5, 9, 3, (re.BatchHead(3, 2, 0, 1_700_000_000_000, KEYED.checksum),), 3
                    ),
                ),
                False,
            )
        ],
        [PAYLOAD, KEYED_PAYLOAD],
    ),
    ("nothing by pattern", [re.GetAnyReply((), True)], []),
    (
        "taken: three messages, two of them from one payload",
        [
            re.TakeReply(
                77,
                12,
                30_000,
                (
                    re.TaskHead(10, 1, 0, 1_700_000_000_000, ENVELOPE.checksum, 2, 0),
                    re.TaskHead(11, 1, 0, 1_700_000_000_001, KEYED.checksum, 1, 1),
                    re.TaskHead(12, 1, 1, 1_700_000_000_001, KEYED.checksum, 3, 1),
                ),
                2,
            )
        ],
        [PAYLOAD, KEYED_PAYLOAD],
    ),
    ("nothing to take", [re.TakeReply(77, 0, 0)], []),
    ("extended, but for a lease that is over", [re.ExtendReply((14,))], []),
    ("found", [re.FindReply(77, 10)], []),
    (
        "topics: one with a quota, and with a message that is not due yet",
        [re.TopicsReply((re.TopicInfo("orders", 78, True, 0, 4, 96, 2, 3, 0, 0, 1_000_000, co.DROP, 1),), "orders")],
        [],
    ),
    (
        "subscriptions: with one owner, by pattern, and shared",
        [
            re.SubscriptionsReply(
                (
                    re.SubscriptionInfo("orders.new", "kitchen", 10, 12, 2),
                    re.SubscriptionInfo("orders.new", "audit", 11, 12, 4, "orders.*", dropped=3),
                    re.SubscriptionInfo("orders.new", "cooks", 10, 20, 3, "", SHARING, 2, 4, 1),
                ),
                "",
            )
        ],
        [],
    ),
    ("subscriptions by pattern", [re.PatternsReply((re.PatternInfo("orders.*", "audit", 2, 4, 7),), "")], []),
    (
        "committed to two topics",
        [
            re.CommitReply(
                0, -1, 4, 1_700_000_000_000, 0, False, (re.CommitPart(77, 12, 3, 1), re.CommitPart(78, 0, 1, 0))
            )
        ],
        [],
    ),
    ("committed before", [re.CommitReply(0, -1, 0, 1_700_000_000_000, 0, True)], []),
]


def make() -> dict[str, list[dict[str, object]]]:
    """All vectors; frames, payloads, keys and hashes in hexadecimal."""
    return {
        "batches": [
            {"what": what, "hex": encode_batch(values, keys, headers).hex()} for what, values, keys, headers in BATCHES
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
    }


def _hex(frames: Sequence[Frame]) -> list[str]:
    return [bytes(frame).hex() for frame in frames]


if __name__ == "__main__":
    PATH.write_text(json.dumps(make(), indent=1, ensure_ascii=False) + "\n")
