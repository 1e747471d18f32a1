"""Every reply of both forms, to plain ZeroMQ sockets; the broker is in memory."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest

import oncemq
from oncemq.gateways.link import Link
from oncemq.gateways.text.gateway import TextGateway
from oncemq.gateways.text.peers import Peers
from oncemq.gateways.text.settings import TextSettings
from oncemq.protocol import errors
from oncemq.protocol.commands import RegistryList
from oncemq.protocol.replies import RegistryListReply
from tests.acceptance.processes import wait_until
from tests.gateways.hosts import TIMEOUT_S
from tests.gateways.text.rig import GatewayThread, Req, dealing


@pytest.fixture
def gateway() -> Iterator[GatewayThread]:
    thread = GatewayThread()
    yield thread
    thread.stop()


@pytest.fixture
def client(gateway: GatewayThread) -> Req:
    return gateway.client()


# One line.


def test_a_message_is_put_and_got_in_one_line_each(client: Req) -> None:
    assert client.ask("sub orders alice") == "OK SUBSCRIBED"
    assert client.ask("sub orders bob") == "OK SUBSCRIBED"
    assert client.ask("put orders one pizza") == "OK STORED 2"
    assert client.ask("put orders ERROR NOTHING_NEW\nno") == "OK STORED 2"
    for subscriber in ("alice", "bob"):
        assert client.ask(f"get orders {subscriber}") == "OK one pizza"
        assert client.ask(f"get orders {subscriber}") == "OK ERROR NOTHING_NEW\nno"
        assert client.code(f"get orders {subscriber}") == "NOTHING_NEW"
    assert client.ask("unsub orders alice") == "OK UNSUBSCRIBED"


def test_what_can_not_be_done_has_a_code(client: Req) -> None:
    for request in ("put orders x", "get orders alice", "unsub orders alice"):
        assert client.code(request) == "TOPIC_UNKNOWN"
    client.ask("sub orders alice")
    assert client.ask("sub orders alice") == "OK ALREADY_SUBSCRIBED"
    for request in ("get orders bob", "unsub orders bob"):
        assert client.code(request) == "NOT_SUBSCRIBED"
    assert client.code("get orders alice") == "NOTHING_NEW"


def test_a_topic_goes_with_its_last_subscriber(client: Req) -> None:
    client.ask('sub "Cooking Recipes" alice')
    client.ask('sub "Cooking Recipes" bob')
    client.ask('unsub "Cooking Recipes" alice')
    assert client.ask('put "Cooking Recipes" soup') == "OK STORED 1"
    client.ask('unsub "Cooking Recipes" bob')
    assert client.code('put "Cooking Recipes" soup') == "TOPIC_UNKNOWN"


def test_a_late_subscriber_starts_with_what_is_new_unless_it_says_otherwise(client: Req) -> None:
    client.ask("sub orders alice")
    client.ask("put orders old")
    client.ask("sub orders bob")
    client.ask("sub orders carol earliest")
    client.ask("put orders new")
    assert [client.ask(f"get orders {name}") for name in ("bob", "carol", "carol")] == ["OK new", "OK old", "OK new"]


def test_a_message_stays_until_the_next_get(gateway: GatewayThread, client: Req) -> None:
    client.ask("sub orders alice")
    client.ask("put orders x")
    with oncemq.connect(gateway.broker) as broker:

        def lag() -> int:
            return next(iter(broker.subscriptions("orders"))).lag

        assert client.ask("get orders alice") == "OK x"
        assert lag() == 1
        assert client.code("get orders alice") == "NOTHING_NEW"
        assert lag() == 0


def test_a_get_in_one_line_goes_on_where_a_killed_gateway_was(gateway: GatewayThread, client: Req) -> None:
    client.ask("sub orders alice")
    for number in range(4):
        client.ask(f"put orders {number}")
    got = []
    for _ in range(4):
        got.append(client.ask("get orders alice"))
        gateway.forget_everything()
    assert got == [f"OK {number}" for number in range(4)]


def test_a_get_that_is_sent_again_before_it_is_answered_takes_no_other_message(
    gateway: GatewayThread, client: Req, monkeypatch: pytest.MonkeyPatch
) -> None:
    client.ask("sub orders alice")
    for number in range(3):
        client.ask(f"put orders {number}")
    server = gateway.gateway._servers._servers[""]
    arrived: list[tuple[str, str]] = []
    get, get_unnamed = server._get, server._get_unnamed

    async def slowly(*arguments: str) -> bytes:
        while len(arrived) < 3:
            await asyncio.sleep(0.001)
        return await get(*arguments)

    async def counted(place: tuple[str, str]) -> bytes:
        arrived.append(place)
        return await get_unnamed(place)

    monkeypatch.setattr(server, "_get", slowly)
    monkeypatch.setattr(server, "_get_unnamed", counted)
    clients = [gateway.client() for _ in range(3)]
    with ThreadPoolExecutor(3) as pool:
        assert set(pool.map(lambda each: each.ask("get orders alice"), clients)) == {"OK 0"}
    assert client.ask("get orders alice") == "OK 1"


# Lines with an id.


def test_a_repeated_id_gets_the_same_answer_and_changes_nothing(client: Req) -> None:
    for _ in range(2):
        assert client.lines("1", "sub", "alice", "orders") == "OK SUBSCRIBED"
    for _ in range(2):
        assert client.lines("2", "put", "bob", "orders", "one\npizza") == "OK STORED 1"
    assert client.lines("3", "put", "bob", "orders", "two") == "OK STORED 1"
    for _ in range(2):
        assert client.lines("4", "get", "alice", "orders") == "OK one\npizza"
    for _ in range(2):
        assert client.lines("5", "get", "alice", "orders") == "OK two"
    assert client.code_of_lines("6", "get", "alice", "orders") == "NOTHING_NEW"
    for _ in range(2):
        assert client.lines("7", "unsub", "alice", "orders") == "OK UNSUBSCRIBED"
    for _ in range(2):
        assert client.code_of_lines("8", "unsub", "alice", "orders") == "TOPIC_UNKNOWN"


def test_errors_have_the_same_codes_in_both_forms(client: Req) -> None:
    assert client.code_of_lines("1", "put", "bob", "orders", "x") == "TOPIC_UNKNOWN"
    assert client.code_of_lines("2", "get", "bob", "orders") == "TOPIC_UNKNOWN"
    client.lines("3", "sub", "alice", "orders")
    assert client.lines("4", "sub", "alice", "orders") == "OK ALREADY_SUBSCRIBED"
    assert client.code_of_lines("5", "get", "bob", "orders") == "NOT_SUBSCRIBED"
    assert client.code_of_lines("6", "unsub", "bob", "orders") == "NOT_SUBSCRIBED"
    assert client.code_of_lines("7", "get", "alice", "orders") == "NOTHING_NEW"
    # A request that was refused under an id stays refused under it.
    assert client.code_of_lines("1", "put", "bob", "orders", "x") == "TOPIC_UNKNOWN"
    assert client.code_of_lines("1", "put", "bob", "orders", "y") == "KEY_REUSED"
    assert client.lines("1", "put", "carol", "orders", "y") == "OK STORED 1"


def test_a_get_that_found_nothing_may_be_sent_again(client: Req) -> None:
    client.lines("1", "sub", "alice", "orders")
    assert client.code_of_lines("2", "get", "alice", "orders") == "NOTHING_NEW"
    client.ask("put orders x")
    assert client.lines("2", "get", "alice", "orders") == "OK x"


def test_late_copies_of_requests_do_no_harm(gateway: GatewayThread, client: Req) -> None:
    client.lines("s1", "sub", "alice", "orders")
    client.lines("u1", "unsub", "alice", "orders")
    client.lines("s2", "sub", "alice", "orders")
    assert client.code_of_lines("vain", "get", "alice", "orders") == "NOTHING_NEW"
    for number in range(40):
        client.lines(f"p{number}", "put", "bob", "orders", f"{number}")
    got = []
    for number in range(40):
        got.append(client.lines(f"g{number}", "get", "alice", "orders"))
        assert client.lines("u1", "unsub", "alice", "orders") == "OK UNSUBSCRIBED"
        assert client.lines("s1", "sub", "alice", "orders") == "OK SUBSCRIBED"
        assert client.lines(f"p{number}", "put", "bob", "orders", f"{number}") == "OK STORED 1"
        assert client.code_of_lines("vain", "get", "alice", "orders") == "CONSUMED"
        if number:
            assert client.code_of_lines("g0", "get", "alice", "orders") == "CONSUMED"
            assert client.code_of_lines(f"g{number - 1}", "get", "alice", "orders") == "CONSUMED"
    assert got == [f"OK {number}" for number in range(40)]


def test_a_gateway_that_starts_anew_knows_what_was_given(gateway: GatewayThread, client: Req) -> None:
    client.ask("sub orders alice")
    for number in range(5):
        client.ask(f"put orders {number}")
    got = []
    for number in range(5):
        for _ in range(2):
            got.append(client.lines(f"g{number}", "get", "alice", "orders"))
            gateway.forget_everything()
    assert got == [f"OK {number // 2}" for number in range(10)]


def test_both_forms_may_be_mixed(client: Req) -> None:
    client.ask("sub orders alice")
    for number in range(4):
        client.ask(f"put orders {number}")
    assert client.lines("a", "get", "alice", "orders") == "OK 0"
    assert client.ask("get orders alice") == "OK 1"
    assert client.code_of_lines("a", "get", "alice", "orders") == "CONSUMED"
    assert client.lines("b", "get", "alice", "orders") == "OK 2"
    assert client.ask("get orders alice") == "OK 3"


def test_two_gateways_serve_one_subscriber_in_turn(gateway: GatewayThread, client: Req) -> None:
    other = GatewayThread(gateway.broker)
    clients = [client, other.client()]
    try:
        client.ask("sub orders alice")
        for number in range(6):
            client.ask(f"put orders {number}")
        got = []
        for number in range(6):
            got += [each.lines(f"g{number}", "get", "alice", "orders") for each in clients]
        assert got == [f"OK {number // 2}" for number in range(12)]
    finally:
        other.stop()


def test_what_was_given_is_forgotten_with_the_subscription(gateway: GatewayThread, client: Req) -> None:
    client.ask("sub orders keeper")
    for number in range(3):
        client.lines(f"s{number}", "sub", "alice", "orders")
        client.ask("put orders x")
        assert client.lines(f"g{number}", "get", "alice", "orders") == "OK x"
        assert len(given(gateway)) == 1
        client.lines(f"u{number}", "unsub", "alice", "orders")
        assert given(gateway) == []


@pytest.mark.parametrize("has_keeper", [True, False], ids=["the topic stays", "the topic is created again"])
@pytest.mark.parametrize("is_restarted", [False, True], ids=["", "the gateway is restarted"])
def test_a_late_copy_of_a_get_from_before_an_unsub_takes_no_message(
    gateway: GatewayThread, client: Req, has_keeper: bool, is_restarted: bool
) -> None:
    if has_keeper:
        client.ask("sub orders keeper")
    client.lines("s1", "sub", "alice", "orders")
    client.lines("p1", "put", "bob", "orders", "old")
    assert client.lines("got", "get", "alice", "orders") == "OK old"
    assert client.code_of_lines("vain", "get", "alice", "orders") == "NOTHING_NEW"
    client.lines("u1", "unsub", "alice", "orders")
    client.lines("s2", "sub", "alice", "orders")
    if is_restarted:
        gateway.forget_everything()
    assert client.code_of_lines("pending", "get", "alice", "orders") == "NOTHING_NEW"
    client.lines("p2", "put", "bob", "orders", "new")
    for late in ("got", "vain"):
        assert client.code_of_lines(late, "get", "alice", "orders") == "CONSUMED"
    assert client.lines("pending", "get", "alice", "orders") == "OK new"


def given(gateway: GatewayThread) -> list[str]:
    async def ask() -> list[str]:
        link = gateway.gateway._servers._link
        reply = (await link.ask(RegistryList("given")))[0]
        assert isinstance(reply, RegistryListReply)
        return [entry.key for entry in reply.entries]

    found: list[str] = gateway.call(ask)
    return found


# Peers of all kinds.


def test_a_dealer_is_answered_in_order_with_and_without_an_empty_frame(gateway: GatewayThread, client: Req) -> None:
    client.ask("sub orders alice")
    with dealing(gateway.url) as dealer:
        for number in range(50):
            dealer.send_multipart([b"", f"put orders {number}".encode()])
            dealer.send_multipart([b"get orders alice"])
        replies = [dealer.recv_multipart() for _ in range(100)]
    assert replies[0::2] == [[b"", b"OK STORED 1"]] * 50
    assert replies[1::2] == [[f"OK {number}".encode()] for number in range(50)]


def test_whoever_sends_nonsense_is_told(gateway: GatewayThread, client: Req) -> None:
    assert client.code("") == "MALFORMED"
    assert client.code(b"\xff\x00") == "MALFORMED"
    with dealing(gateway.url) as dealer:
        for frames in ([b""], [b"", b""], [b"", b"one", b"two"], [b"one", b"two"], [b"one", b""], [b"x"] * 30):
            dealer.send_multipart(frames)
            reply = dealer.recv_multipart()
            assert reply[-1].startswith(b"ERROR MALFORMED ")
            assert reply[:-1] == ([b""] if frames[0] == b"" and len(frames) > 1 else [])


def test_large_requests_are_stored_or_refused() -> None:
    gateway = GatewayThread(request_bytes_max=2_000_000)
    try:
        client = gateway.client()
        client.ask("sub orders alice")
        content = b"x" * 1_900_000
        assert client.ask(b"put orders " + content) == "OK STORED 1"
        assert client.ask(b"1\nput\nbob\norders\n" + content) == "OK STORED 1"
        assert client.ask_bytes("get orders alice") == b"OK " + content
        assert client.ask_bytes("2\nget\nalice\norders") == b"OK " + content
        assert client.code(b"put orders " + b"x" * 2_000_000) == "TOO_LARGE"
    finally:
        gateway.stop()


def test_any_bytes_that_others_put_are_got_as_they_are(gateway: GatewayThread, client: Req) -> None:
    client.ask("sub orders alice")
    with oncemq.connect(gateway.broker) as broker:
        broker.put("orders", b"\x00\xff\n")
    assert client.ask_bytes("get orders alice") == b"OK \x00\xff\n"


def test_requests_beyond_what_fits_are_answered_in_order_too() -> None:
    gateway = GatewayThread(peer_requests_max=3)
    try:
        with dealing(gateway.url) as dealer:
            dealer.send(b"sub orders alice")
            dealer.recv()
            for number in range(100):
                dealer.send(f"put orders {number}".encode())
            replies = [dealer.recv().split()[1] for _ in range(100)]
            assert set(replies) == {b"STORED", b"OVERLOADED"}
            dealer.send(b"get orders alice")
            assert dealer.recv() == b"OK 0"
        wait_until(lambda: not gateway.gateway._peers._peers, "a peer that is answered is forgotten")
        assert gateway.gateway._peers._bytes == 0
    finally:
        gateway.stop()


def test_one_peer_does_not_take_all_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    gateway = GatewayThread(requests_bytes_max=1000)
    is_held = threading.Event()
    answer = gateway.gateway._peers._answer

    async def hold(body: list[bytes], caller: str) -> bytes:
        while body[0].startswith(b"put") and is_held.is_set():
            await asyncio.sleep(0.005)
        return await answer(body, caller)

    monkeypatch.setattr(gateway.gateway._peers, "_answer", hold)
    is_held.set()
    try:
        with dealing(gateway.url) as greedy:
            for _ in range(10):
                greedy.send(b"put orders " + b"x" * 200)
            wait_until(lambda: gateway.gateway._peers._refused_runs == 1, "it has too much")
            assert gateway.gateway._peers._bytes <= 500
            assert gateway.client().ask("sub orders alice") == "OK SUBSCRIBED"
            is_held.clear()
            assert [greedy.recv().split()[1] for _ in range(10)][2:] == [b"OVERLOADED"] * 8
    finally:
        gateway.stop()


def test_a_peer_that_goes_does_not_hurt_the_others(gateway: GatewayThread, client: Req) -> None:
    client.ask("sub orders alice")
    for _ in range(20):
        with dealing(gateway.url) as other:
            for _ in range(10):
                other.send(b"put orders x")
            other.recv()
    assert client.ask("put orders y") == "OK STORED 1"


def test_a_peer_that_does_not_read_holds_nobody_up_and_gets_its_replies_later(gateway: GatewayThread) -> None:
    client, content = gateway.client(), b"x" * 500_000
    client.ask("sub orders alice")
    client.ask(b"put orders " + content)
    with dealing(gateway.url, received_max=1) as dealer:
        for _ in range(80):
            dealer.send(b"1\nget\nalice\norders")
        for number in range(20):
            assert client.ask(f"put orders {number}") == "OK STORED 1"
        assert {dealer.recv() for _ in range(80)} == {b"OK " + content}


def test_a_peer_whose_request_failed_is_told_and_served_again(
    gateway: GatewayThread, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def fail(*_: object) -> None:
        raise RuntimeError("planted")

    with dealing(gateway.url) as dealer:
        with monkeypatch.context() as patch:
            patch.setattr("oncemq.gateways.text.peers.Peers._serve_one", fail)
            for number in range(3):
                dealer.send_string(f"put orders {number}")
            replies = [dealer.recv_string().split(" ")[1] for _ in range(3)]
        assert replies == ["BROKER_BUG"] * 3
        dealer.send_string("sub orders alice")
        assert dealer.recv_string() == "OK SUBSCRIBED"


def test_peers_that_are_made_up_take_no_room() -> None:
    async def answer(_: list[bytes], __: str) -> bytes:
        return b"OK"

    async def flood() -> tuple[int, int]:
        peers = Peers(TextSettings(listen="tcp://127.0.0.1:*", requests_max=5), answer)
        peers._receive([b"dealer", b"x" * 5000, b"", b"get orders alice"], "")
        for number in range(100):
            # Each seems to come from another peer behind a proxy.
            peers._receive([b"dealer", b"%d" % number, b"", b"get orders alice"], "")
        held = sum(len(peer.waiting) for peer in peers._peers.values())
        await peers.stop(TIMEOUT_S)
        return held, len(peers._peers)

    assert asyncio.run(flood()) == (5 + 5, 0)


def test_without_a_broker_every_request_is_told_so() -> None:
    async def answers() -> list[str]:
        link = Link(["tcp://127.0.0.1:9"], label="text", timeout_s=0.05, tries=1)
        gateway = TextGateway(link, TextSettings(listen="tcp://127.0.0.1:*"))
        await gateway.start()
        requests = ("sub a b", "unsub a b", "get a b", "put a b", "1\nput\na\nb\nc", "2\nget\na\nb")
        try:
            replies = await asyncio.gather(*(gateway._answer([request.encode()], "") for request in requests))
        finally:
            await gateway.stop()
            link.close()
        return [reply.decode().split()[1] for reply in replies]

    assert set(asyncio.run(answers())) == {"BROKER_AWAY"}


def test_an_address_that_is_taken_is_an_error(gateway: GatewayThread) -> None:
    with pytest.raises(errors.ListenFailed, match="can't listen at"):
        asyncio.run(TextGateway([gateway.broker], TextSettings(listen=gateway.url)).start())
