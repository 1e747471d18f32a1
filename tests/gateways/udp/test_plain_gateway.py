"""S4's contract over real sockets, to the letter; floods, forged addresses, and peers that leave."""

from __future__ import annotations

import asyncio
import errno
import socket
import sys
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from oncemq.gateways.contract import Gateway
from oncemq.gateways.udp.endpoint import is_port_closed
from oncemq.gateways.udp.gateway import UdpGateway
from oncemq.gateways.udp.plain.feed import Feed
from oncemq.gateways.udp.settings import SLACK_BYTES, UNPROVED_MESSAGES
from oncemq.protocol import errors
from oncemq.testing.broker_process import BrokerProcess
from tests.forking import ForkedBroker
from tests.gateways.udp.rig import GatewayProcess, GatewayThread, PlainClient, settings_for_tests, wait_until


@pytest.fixture(scope="module")
def gateway(broker: BrokerProcess) -> Iterator[GatewayThread]:
    gateway = GatewayThread([broker.url])
    yield gateway
    gateway.stop()


@pytest.fixture
def one(gateway: GatewayThread) -> Iterator[PlainClient]:
    with closing(PlainClient(gateway.address)) as client:
        yield client


@pytest.fixture
def other(gateway: GatewayThread) -> Iterator[PlainClient]:
    with closing(PlainClient(gateway.address)) as client:
        yield client


def test_every_reply_is_as_s4_has_it(one: PlainClient, other: PlainClient) -> None:
    assert one.ask("2 news") == "Topic does not exist."
    assert one.ask("3 news") == "Topic does not exist."
    assert other.ask("1 news") == "Acknowledged!"
    assert one.ask("4 list") == "[news]"
    assert one.ask("3 news") == "You are not currently subscribed to this topic."
    assert one.ask("2 news") == "Subscribed to news!"
    assert one.ask("2 news") == "Already subscribed to topic."
    assert other.ask("1 news rain at noon") == "Acknowledged!"
    assert one.receive() == b"news: rain at noon"
    assert other.ask("0 news sun at five") == "Acknowledged!"
    assert one.receive() == b"news: sun at five"
    assert one.ask("3 news") == "Unsubscribed!"
    assert one.ask("3 news") == "You are not currently subscribed to this topic."
    assert one.ask("4 list") == "[news]"


def test_a_message_to_a_new_topic_makes_it_and_is_dropped(one: PlainClient, other: PlainClient) -> None:
    assert other.ask("1 fresh nobody hears this") == "Acknowledged!"
    assert one.ask("2 fresh") == "Subscribed to fresh!"
    assert other.ask("1 fresh somebody hears this") == "Acknowledged!"
    assert one.receive() == b"fresh: somebody hears this"


def test_a_topic_with_spaces_is_quoted(one: PlainClient, other: PlainClient) -> None:
    assert one.ask('1 "Cooking Recipes"') == "Acknowledged!"
    assert one.ask('2 "Cooking Recipes"') == "Subscribed to Cooking Recipes!"
    assert '"Cooking Recipes"' in one.ask("4 list")
    assert other.ask('1 "Cooking Recipes" boil the water') == "Acknowledged!"
    assert one.receive() == b"Cooking Recipes: boil the water"


def test_nobody_unsubscribes_another_address(one: PlainClient, other: PlainClient) -> None:
    assert one.ask("1 mine") == "Acknowledged!"
    assert one.ask("2 mine") == "Subscribed to mine!"
    assert other.ask("3 mine") == "You are not currently subscribed to this topic."
    assert other.ask("1 mine still here") == "Acknowledged!"
    assert one.receive() == b"mine: still here"


def test_packets_that_are_filled_up_with_zeros_are_understood(one: PlainClient) -> None:
    assert one.ask(b"1 padded".ljust(60_000, b"\0")) == "Acknowledged!"
    assert one.ask("2 padded\n") == "Subscribed to padded!"
    assert one.ask(b"1 padded short".ljust(60_000, b"\0")) in ("Acknowledged!", "padded: short")


def test_a_message_that_another_client_puts_reaches_plain_subscribers(broker: BrokerProcess, one: PlainClient) -> None:
    assert one.ask("1 shared") == "Acknowledged!"
    assert one.ask("2 shared") == "Subscribed to shared!"
    with broker.connect() as client:
        client.put("shared", b"from elsewhere")
        client.put_many("shared", [b"a", b"b", b"c"])
    assert [one.receive() for _ in range(4)] == [b"shared: " + text for text in (b"from elsewhere", b"a", b"b", b"c")]


def test_what_is_acknowledged_survives_the_broker(broker: BrokerProcess, one: PlainClient, other: PlainClient) -> None:
    assert one.ask("1 lasting") == "Acknowledged!"
    with broker.connect() as client:
        client.subscribe("lasting", "auditor").close()
        assert other.ask("1 lasting kept") == "Acknowledged!"
        broker.restart()
        with client.subscribe("lasting", "auditor") as auditor:
            message = auditor.get(timeout_s=20)
            assert message is not None
            assert message.value == b"kept"


def test_plain_subscribers_outlive_the_gateway_and_get_what_was_put_meanwhile(broker: BrokerProcess) -> None:
    gateway = GatewayProcess([broker.url], name="restarted")
    gateway.start()
    with closing(PlainClient(gateway.address)) as client, broker.connect() as native:
        try:
            assert client.ask("1 kept") == "Acknowledged!"
            assert client.ask("2 kept") == "Subscribed to kept!"
            gateway.kill()
            native.put("kept", b"while it was away")
            gateway.start()
            assert client.receive() == b"kept: while it was away"
            assert client.ask("2 kept") == "Already subscribed to topic."
            assert client.ask("3 kept") == "Unsubscribed!"
            assert native.subscriptions("kept") == []
        finally:
            gateway.kill()


def test_a_message_is_acked_before_it_is_sent_so_that_no_crash_sends_it_twice(
    broker: BrokerProcess, one: PlainClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert one.ask("1 once") == "Acknowledged!"
    assert one.ask("2 once") == "Subscribed to once!"
    publish = Feed._publish
    with broker.connect() as client:
        is_acked = []

        def watch(feed: Feed, offset: int, value: bytes) -> None:
            [subscription] = client.subscriptions("once")
            is_acked.append(subscription.acked > offset)
            publish(feed, offset, value)

        monkeypatch.setattr(Feed, "_publish", watch)
        with broker.connect() as publisher:
            publisher.put("once", b"x")
        assert one.receive() == b"once: x"
    assert is_acked == [True]


def test_a_subscriber_at_whose_port_nobody_listens_is_forgotten(
    broker: BrokerProcess, gateway: GatewayThread, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("oncemq.gateways.udp.peers._STRIKE_MS", 0)
    with closing(PlainClient(gateway.address)) as gone:
        assert gone.ask("1 left") == "Acknowledged!"
        assert gone.ask("2 left") == "Subscribed to left!"
    with broker.connect() as client:

        def is_forgotten() -> bool:
            client.put("left", b"anybody?")
            return not client.subscriptions("left")

        wait_until(is_forgotten, "the subscription ends")
    assert gateway.counter("subscribers_forgotten") == 1


def test_a_topic_that_is_deleted_takes_its_plain_subscriptions_along(broker: BrokerProcess, one: PlainClient) -> None:
    assert one.ask("1 doomed") == "Acknowledged!"
    assert one.ask("2 doomed") == "Subscribed to doomed!"
    with broker.connect() as client:
        client.delete_topic("doomed")
        wait_until(lambda: one.ask("3 doomed") == "Topic does not exist.", "the subscription goes")


def test_a_topic_that_was_made_anew_while_the_gateway_was_away_has_other_subscribers(broker: BrokerProcess) -> None:
    former = GatewayThread([broker.url], name="away")
    with closing(PlainClient(former.address)) as client, broker.connect() as native:
        native.create_topic("remade")
        native.put_many("remade", [b"x"] * 3)
        assert client.ask("2 remade") == "Subscribed to remade!"
        former.stop()
        native.delete_topic("remade")
        native.create_topic("remade")
        gateway = GatewayThread([broker.url], name="away")
        client.gateway = gateway.address
        # It finds out, and deletes the subscribers.
        wait_until(lambda: client.insist("2 remade") == "Subscribed to remade!", "it can be subscribed to")
        native.put("remade", b"the first")
        wait_until(lambda: client.receive() == b"remade: the first", "it comes")
        wait_until(lambda: client.insist("3 remade") == "Unsubscribed!", "it leaves")
        assert native.subscriptions("remade") == []
        gateway.stop()


def test_an_answer_is_not_answered_so_that_two_who_answer_everything_come_to_an_end(
    gateway: GatewayThread, one: PlainClient
) -> None:
    before = gateway.counter("malformed")
    one.send("Error MALFORMED: a packet starts with a code, 0 to 4")
    assert one.ask("4 list").startswith("[")
    assert gateway.counter("malformed") == before + 1


def test_only_a_closed_port_says_that_nobody_listens() -> None:
    def told(number: int) -> list[tuple[int, int, bytes]]:
        return [(socket.IPPROTO_IP, 11, number.to_bytes(4, sys.byteorder) + bytes(12))]

    assert is_port_closed(told(errno.ECONNREFUSED))
    assert not is_port_closed(told(errno.EHOSTUNREACH))
    assert not is_port_closed(told(errno.EMSGSIZE))
    assert not is_port_closed([])


def test_malformed_packets_are_answered_and_counted(gateway: GatewayThread, one: PlainClient) -> None:
    before = gateway.counter("malformed")
    for packet in (b"", b"9 x", b"2", b"2 ", b'2 "open', b"1 a*b x", b"2 \xff\xfe", b"4", b"4 lists"):
        one.send(packet)
        assert one.receive().startswith((b"Error MALFORMED: ", b"Error NAME_INVALID: ")), packet
    assert gateway.counter("malformed") == before + 9
    assert one.ask("4 list").startswith("[")


@pytest.fixture(scope="module")
def strict(broker: BrokerProcess) -> Iterator[GatewayThread]:
    """A gateway without validated addresses, with small limits."""
    gateway = GatewayThread(
        [broker.url],
        name="strict",
        loopback_is_validated=False,
        packet_bytes_max=2000,
        source_packets_per_s=200,
        unvalidated_bytes_per_s=50_000,
        plain_subscriptions_max=5,
    )
    yield gateway
    gateway.stop()


def test_a_packet_that_is_too_long_is_refused_with_the_limit(strict: GatewayThread) -> None:
    with closing(PlainClient(strict.address)) as client:
        assert client.ask(b"1 long " + b"x" * 3000) == "Error TOO_LARGE: a packet may have at most 2000 bytes"
        assert strict.counter("oversized") == 1


def test_a_list_is_no_longer_than_its_question_allows_until_the_address_is_validated(
    broker: BrokerProcess, strict: GatewayThread
) -> None:
    with closing(PlainClient(strict.address)) as client, broker.connect() as native:
        names = [f"list-{number:03}" for number in range(60)]
        for name in names:
            native.create_topic(name)
        cut = client.ask("4 list list-")
        assert len(cut) <= len("4 list list-") + SLACK_BYTES
        assert cut.startswith("[list-000, list-001, ")
        assert cut.endswith(", ...]")
        # A longer request gets a longer reply; the rest is listed after a name.
        found: list[str] = []
        after = "list-"
        while len(found) < len(names):
            page = client.ask(f"4 list {after}".ljust(400)).strip("[]").split(", ")
            found += [name for name in page if name.startswith("list-")]
            after = found[-1]
        assert found == names


def test_no_reply_to_an_unvalidated_address_is_much_longer_than_its_question(strict: GatewayThread) -> None:
    with closing(PlainClient(strict.address)) as client:
        questions = ["1 t", "2 t", "2 t", "3 t", "3 t", "2 u", "3 u", "4 list", "9", "2 " + "x" * 300, "4"]
        for question in questions:
            assert len(client.ask(question).encode()) <= len(question) + SLACK_BYTES, question


def test_a_flood_from_one_source_is_cut_and_others_are_still_answered(strict: GatewayThread) -> None:
    before = strict.counter("dropped_rate")
    with closing(PlainClient(strict.address)) as flooder, closing(PlainClient(strict.address)) as other:
        for _ in range(2000):
            flooder.send("4 list")
        assert other.insist("1 calm") == "Acknowledged!"
        wait_until(lambda: strict.counter("dropped_rate") > before, "the flood is cut")


def test_the_bytes_to_unvalidated_addresses_are_bounded_in_all(broker: BrokerProcess, strict: GatewayThread) -> None:
    with closing(PlainClient(strict.address)) as victim, broker.connect() as native:
        assert victim.ask("1 busy") == "Acknowledged!"
        assert victim.ask("2 busy") == "Subscribed to busy!"
        before = strict.counter("dropped_unvalidated")
        native.put_many("busy", [b"x" * 1500] * 200)
        wait_until(lambda: strict.counter("dropped_unvalidated") - before > 50, "the bound holds")

        def has_left() -> bool:
            victim.send("3 busy")
            return not native.subscriptions("busy")

        wait_until(has_left, "it leaves")
    with closing(PlainClient(strict.address)) as other:
        assert other.insist("1 busy") == "Acknowledged!"


def test_a_subscriber_that_says_nothing_gets_so_many_messages_and_no_more(broker: BrokerProcess) -> None:
    gateway = GatewayThread([broker.url], name="tired", loopback_is_validated=False)
    try:
        with closing(PlainClient(gateway.address)) as mute, broker.connect() as native:
            assert mute.ask("1 much") == "Acknowledged!"
            assert mute.ask("2 much") == "Subscribed to much!"
            native.put_many("much", [b"x"] * (UNPROVED_MESSAGES + 100))
            wait_until(lambda: not native.subscriptions("much"), "it is forgotten")
            assert gateway.counter("messages_out") <= UNPROVED_MESSAGES
            assert mute.ask("3 much") != "Unsubscribed!"
    finally:
        gateway.stop()


def test_there_are_so_many_plain_subscriptions_and_no_more(strict: GatewayThread) -> None:
    clients = [PlainClient(strict.address) for _ in range(6)]
    try:
        assert clients[0].ask("1 crowded") == "Acknowledged!"
        said = [client.ask("2 crowded") for client in clients]
        assert said[-1].startswith("Error LIMIT_REACHED")
        for client, words in zip(clients, said, strict=True):
            if words.startswith("Subscribed"):
                assert client.ask("3 crowded") == "Unsubscribed!"
    finally:
        for client in clients:
            client.close()


def test_it_listens_on_an_event_loop_of_another_make_too(broker: BrokerProcess) -> None:
    uvloop = pytest.importorskip("uvloop")

    async def live() -> tuple[str, dict[str, int]]:
        settings = settings_for_tests(name="other-loop")
        gateway = UdpGateway([broker.url], settings)
        await gateway.start()
        loop = asyncio.get_running_loop()
        gone = PlainClient((settings.host, settings.port))
        await loop.run_in_executor(None, gone.ask, "1 looped")
        gone.send("4 list")
        # Its reply goes to a closed port, and the socket still works.
        gone.close()
        with closing(PlainClient((settings.host, settings.port))) as client:
            while not gateway.counters().get("unreachable"):
                await asyncio.sleep(0.01)
            said = await loop.run_in_executor(None, client.ask, "1 looped")
        await gateway.stop()
        return said, gateway.counters()

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        said, counters = runner.run(live())
    assert said == "Acknowledged!"
    assert counters["unreachable"] == 1


def test_a_gateway_that_starts_before_its_broker_serves_once_that_is_there(tmp_path: Path) -> None:
    broker = ForkedBroker(tmp_path / "data", "--segment-bytes=6MiB", "--batch-bytes-max=4MiB")
    gateway = GatewayProcess([broker.url])
    gateway.start()
    with closing(PlainClient(gateway.address)) as client:
        try:
            client.send("1 early")
            broker.start()
            assert client.receive() == b"Acknowledged!"
            # It loads the subscribers a moment later; until then it does not reply.
            client.socket.settimeout(0.2)
            said = []

            def is_subscribed() -> bool:
                client.send("2 early")
                try:
                    said.append(client.receive())
                except TimeoutError:
                    return False
                return True

            wait_until(is_subscribed, "it is subscribed")
            assert said == [b"Subscribed to early!"]
        finally:
            gateway.kill()
            broker.kill()


def test_an_address_that_is_taken_is_named(gateway: GatewayThread) -> None:
    second: Gateway = UdpGateway(["tcp://127.0.0.1:1"], gateway.settings)

    async def start() -> None:
        try:
            await second.start()
        finally:
            await second.stop()

    with pytest.raises(errors.ListenFailed, match=gateway.settings.listen):
        asyncio.run(start())
