"""Clients and brokers of different releases understand each other, because fields are added at the end and have
defaults. An unknown tag is refused by name."""

from __future__ import annotations

import json
from typing import Any

import msgspec
import pytest

from oncemq.protocol import errors
from oncemq.protocol.commands import Numbered, Void
from oncemq.protocol.frames import Response, decode_request, decode_response, encode_refusal
from oncemq.protocol.replies import BatchHead, Done, HelloReply, Refusal
from tests.broker.rig import Rig, code
from tests.protocol.vectors import PATH, REPLIES, REQUESTS

VECTORS: dict[str, list[dict[str, Any]]] = json.loads(PATH.read_text())

#: Headers of the first release, of commands and replies that have got more fields since.
FIRST_REQUESTS = {
    "bye": "9301039193a3627965ab616e6f6e796d6f75732d3103",
    "create a topic": "9301049196a16ea5616c69636501010194a6637265617465a66f7264657273ce0036ee8000",
    "subscribe from the earliest message on": (
        "9301069196a16ea5616c69636501030194a9737562736372696265a66f7264657273a76b69746368656efe"
    ),
    "put": ("93010b9196a16ea5616c69636501080194a3707574a66f7264657273960128cfbbc2d19850a5948d0000c400c3"),
    "commit": ("93010d9196a16ea5616c696365010a0195a6636f6d6d6974a677726974657205a66f72646572739192a773746167652d3101"),
}
FIRST_REPLIES = {
    "opened": "9301079194a66f70656e65644d020a",
    "committed": "93010a9197a9636f6d6d69747465644d0b01cf0000018bcfe5680001c2",
    "no messages": "93010e9196a86d657373616765734d0c0c0c90",
    "topics": "9301109193a6746f70696373919aa66f72646572734dc30a0c6002010000a0",
    "subscriptions": "9301119193ad737562736372697074696f6e739195a66f7264657273a76b69746368656e0a0c02a0",
}


@pytest.mark.parametrize("what", FIRST_REQUESTS)
def test_a_request_of_the_first_release_is_understood(what: str) -> None:
    [(commands, payloads)] = [(commands, payloads) for name, commands, payloads in REQUESTS if name == what]
    request, _ = decode_request([bytes.fromhex(FIRST_REQUESTS[what]), *payloads])
    assert list(request.commands) == commands


@pytest.mark.parametrize("what", FIRST_REPLIES)
def test_a_reply_of_the_first_release_is_understood(what: str) -> None:
    [replies] = [replies for name, replies, _ in REPLIES if name == what]
    response, _ = decode_response([bytes.fromhex(FIRST_REPLIES[what])])
    assert list(response.replies) == replies


def test_a_hello_without_the_batch_limit_is_understood() -> None:
    short = "93010c9196a568656c6c6f02084091920896a673746f7265644d0a01cf0000018bcfe5680001b0" + b"0123456789abcdef".hex()
    [reply] = decode_response([bytes.fromhex(short)])[0].replies
    assert isinstance(reply, HelloReply)
    assert (reply.broker_id, reply.batch_bytes_max) == ("0123456789abcdef", 0)


# Structs of the first release.


class FirstOpened(msgspec.Struct, array_like=True, tag="opened"):
    topic_id: int
    epoch: int
    acked: int


class FirstCommitted(msgspec.Struct, array_like=True, tag="committed"):
    topic_id: int
    first_offset: int
    count: int
    time_ms: int
    subscriptions: int
    before: bool


class FirstMessages(msgspec.Struct, array_like=True, tag="messages"):
    topic_id: int
    next_position: int
    end_offset: int
    acked: int
    batches: tuple[BatchHead, ...] = ()


class FirstTopic(msgspec.Struct, array_like=True):
    name: str
    topic_id: int
    stays: bool
    first_offset: int
    end_offset: int
    stored_bytes: int
    batches: int
    subscriptions: int
    retain_ms: int
    retain_bytes: int


class FirstTopics(msgspec.Struct, array_like=True, tag="topics"):
    topics: tuple[FirstTopic, ...]
    after: str


class FirstSubscription(msgspec.Struct, array_like=True):
    topic: str
    subscriber: str
    acked: int
    end_offset: int
    epoch: int


class FirstSubscriptions(msgspec.Struct, array_like=True, tag="subscriptions"):
    subscriptions: tuple[FirstSubscription, ...]
    after: str


class FirstResponse(msgspec.Struct, array_like=True):
    version: int
    request_id: int
    replies: tuple[FirstOpened | FirstCommitted | FirstMessages | FirstTopics | FirstSubscriptions, ...]


@pytest.mark.parametrize(
    "what", [*FIRST_REPLIES, "opened, shared", "subscriptions: with one owner, by pattern, and shared"]
)
def test_a_client_of_the_first_release_understands_current_replies(what: str) -> None:
    [vector] = [one for one in VECTORS["replies"] if one["what"] == what]
    [reply] = msgspec.msgpack.decode(bytes.fromhex(vector["frames"][0]), type=FirstResponse).replies
    [[known]] = [replies for name, replies, _ in REPLIES if name == what]
    for field in reply.__struct_fields__:
        if field not in ("topics", "subscriptions"):
            assert getattr(reply, field) == getattr(known, field)


def _further(entry: list[Any]) -> list[Any]:
    """Add an unknown field to a command and to its operation."""
    wrapped = [[*field, "further"] if entry[0] in ("n", "k") and isinstance(field, list) else field for field in entry]
    return [*wrapped, "further"]


@pytest.mark.parametrize("kind", ["requests", "replies"])
def test_unknown_fields_are_ignored(kind: str) -> None:
    for vector in VECTORS[kind]:
        header, *payloads = [bytes.fromhex(frame) for frame in vector["frames"]]
        version, request_id, entries = msgspec.msgpack.decode(header)
        longer = msgspec.msgpack.encode((version, request_id, [_further(entry) for entry in entries]))
        if kind == "requests":
            assert decode_request([longer, *payloads]) == decode_request([header, *payloads]), vector["what"]
        else:
            assert decode_response([longer, *payloads]) == decode_response([header, *payloads]), vector["what"]


@pytest.mark.parametrize("command", [["unheard_of", 1], ["n", "alice", 1, 1, 1, ["unheard_of", "orders"]]])
def test_an_unknown_tag_is_refused_by_name(command: list[Any]) -> None:
    frames = [msgspec.msgpack.encode((1, 42, [command]))]
    with pytest.raises(errors.Malformed, match="'unheard_of'") as caught:
        decode_request(frames)
    response, _ = decode_response(encode_refusal(frames, caught.value))
    assert response == Response(1, 42, (Refusal("MALFORMED", caught.value.text),))
    assert "different versions" in caught.value.advice


def test_a_request_refused_as_a_whole_consumes_no_number() -> None:
    rig = Rig()
    rig.hello()
    epoch = rig.epochs["alice"]
    unheard_of = ["n", "alice", epoch, 1, 1, ["unheard_of"]]
    rig.network.arriving.append((b"peer", [msgspec.msgpack.encode((1, 7, [unheard_of]))]))
    rig.rounds()
    [reply], _ = rig.answers()[7]
    assert code(reply) == "MALFORMED"
    assert rig.ask(Numbered("alice", epoch, 1, 1, Void())) == Done()
