"""The client with real brokers: inside the process, on files, and over ZeroMQ. The guarantees are the same."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

import oncemq
from oncemq.protocol import errors
from oncemq.testing.broker_process import BrokerProcess
from tests.forking import ForkedBroker

Connect = Callable[..., oncemq.Client]


@pytest.fixture(scope="module")
def process(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    broker = ForkedBroker(tmp_path_factory.mktemp("broker") / "data")
    broker.start()
    yield broker
    broker.stop()


@pytest.fixture(params=["memory", "file", "zeromq"])
def connect(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Connect]:
    """Returns clients of the same broker."""
    if request.param == "zeromq":
        url = request.getfixturevalue("process").url
    else:
        url = f"memory:{tmp_path.name}" if request.param == "memory" else f"file:{tmp_path}/data"
    made: list[oncemq.Client] = []

    def make(**options: object) -> oncemq.Client:
        made.append(oncemq.connect(url, **options))  # type: ignore[call-overload]
        return made[-1]

    yield make
    for client in reversed(made):
        client._close(clean=False)


@pytest.fixture
def client(connect: Connect) -> oncemq.Client:
    return connect()


@pytest.fixture
def topic(request: pytest.FixtureRequest) -> str:
    return request.node.name[:200].replace("[", " ").replace("]", "")  # type: ignore[no-any-return]


def texts(messages: object) -> list[str]:
    return [message.text for message in messages]  # type: ignore[attr-defined]


def test_a_message_that_was_put_is_delivered(client: oncemq.Client, topic: str) -> None:
    subscription = client.subscribe(topic, "kitchen")
    assert subscription.created
    assert not client.subscribe(topic, "kitchen").created
    receipt = client.put(topic, "one pizza", key="table-7", headers={"source": "web"})
    assert (receipt.topic, receipt.offset, receipt.count, receipt.subscriptions) == (topic, 0, 1, 1)
    message = subscription.get(timeout_s=5)
    assert message is not None
    assert (message.value, message.key, dict(message.headers)) == (b"one pizza", b"table-7", {"source": b"web"})
    assert (message.topic, message.topic_id, message.timestamp_ms) == (topic, receipt.topic_id, receipt.timestamp_ms)
    assert subscription.get() is None


def test_a_topic_must_exist_unless_a_put_may_create_it(client: oncemq.Client, topic: str) -> None:
    with pytest.raises(errors.TopicUnknown):
        client.put(topic, b"x")
    assert client.put(topic, b"x", create=True).offset == 0
    assert client.put(topic, b"x").offset == 1


def test_many_messages_are_delivered_once_and_in_order(client: oncemq.Client, topic: str) -> None:
    subscription = client.subscribe(topic, "s", prefetch_bytes=64 * 1024)
    values = [b"%d" % index for index in range(30_000)]
    client.put_many(topic, values[:10_000])
    for value in values[10_000:20_000]:
        client.put_nowait(topic, value)
    client.flush()
    client.put_many(topic, values[20_000:])
    assert [message.value for message in subscription.messages(timeout_s=0)] == values


def test_a_message_is_acked_when_the_next_one_is_requested(connect: Connect, topic: str) -> None:
    client = connect()
    with client.subscribe(topic, "s") as subscription:
        client.put_many(topic, ["a", "b", "c", "d"])
        assert texts([subscription.get(), subscription.get()]) == ["a", "b"]
        assert texts(subscription.get_many(1)) == ["c"]
    again = connect()
    assert again.subscriptions(topic)[0].acked == 3
    assert texts(again.subscription(topic, "s").get_many(10)) == ["d"]


def test_the_last_message_is_not_acked_when_an_exception_ends_the_block(client: oncemq.Client, topic: str) -> None:
    client.subscribe(topic, "s")
    client.put_many(topic, ["a", "b", "c"])

    def consume() -> None:
        with client.subscription(topic, "s") as subscription:
            for message in subscription:
                if message.text == "b":
                    raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        consume()
    assert texts(client.subscription(topic, "s").get_many(10)) == ["b", "c"]


def test_breaking_out_of_a_loop_loses_nothing(client: oncemq.Client, topic: str) -> None:
    subscription = client.subscribe(topic, "s")
    client.put_many(topic, [str(index) for index in range(10)])
    for message in subscription:
        if message.text == "3":
            break
    rest = [subscription.get(), *subscription.get_many(2), *subscription.messages(timeout_s=0)]
    assert texts(rest) == ["4", "5", "6", "7", "8", "9"]


def test_without_auto_ack_only_acked_messages_are_not_delivered_again(client: oncemq.Client, topic: str) -> None:
    client.subscribe(topic, "s")
    client.put_many(topic, ["a", "b", "c", "d"])
    with client.subscription(topic, "s", auto_ack=False) as subscription:
        messages = subscription.get_many(3)
        subscription.ack(messages[1])
    with client.subscription(topic, "s", auto_ack=False) as subscription:
        assert texts(subscription.get_many(10)) == ["c", "d"]
        subscription.ack(wait=True)
        assert client.subscriptions(topic)[0].lag == 0


def test_a_waiting_get_is_answered_when_a_message_arrives(connect: Connect, topic: str) -> None:
    client, other = connect(), connect()
    subscription = client.subscribe(topic, "s")
    got: list[oncemq.Message | None] = []
    waiting = threading.Thread(target=lambda: got.append(subscription.get(timeout_s=20)))
    waiting.start()
    other.put(topic, "at last")
    waiting.join(20)
    assert texts(got) == ["at last"]


def test_one_client_may_wait_and_put_at_the_same_time(client: oncemq.Client, topic: str) -> None:
    subscription = client.subscribe(topic, "s")
    got: list[oncemq.Message | None] = []
    waiting = threading.Thread(target=lambda: got.append(subscription.get(timeout_s=20)))
    waiting.start()
    client.put(topic, "from another thread")
    waiting.join(20)
    assert texts(got) == ["from another thread"]


def test_threads_share_a_client(client: oncemq.Client, topic: str) -> None:
    client.create_topic(topic)
    offsets: list[int] = []

    def work() -> None:
        offsets.extend([client.put(topic, b"x").offset for _ in range(20)])

    threads = [threading.Thread(target=work) for _ in range(5)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(offsets) == list(range(100))


def test_a_second_owner_fences_the_first_and_its_prefetched_messages_are_dropped(connect: Connect, topic: str) -> None:
    first, second = connect(), connect()
    old = first.subscribe(topic, "s", prefetch_bytes=1000)
    first.put_many(topic, [b"x" * 100] * 100)
    assert old.get() is not None
    new = second.subscription(topic, "s")
    assert new.get() is not None
    with pytest.raises(errors.Fenced):
        for _ in old.messages(timeout_s=0):
            pass
    with pytest.raises(errors.Fenced):
        old.get()
    assert first.put(topic, b"the client itself goes on").offset == 100


def test_a_second_client_of_the_same_name_fences_the_first(connect: Connect, topic: str) -> None:
    first = connect(name=topic)
    first.create_topic(topic)
    first.put(topic, b"1")
    second = connect(name=topic)
    assert second.put(topic, b"2").offset == 1
    with pytest.raises(errors.Fenced):
        first.put(topic, b"3")
    with pytest.raises(errors.Fenced):
        first.health()
    third = connect(name=topic)
    assert third.put(topic, b"4").offset == 2


def test_the_subscribers_of_a_deleted_topic_get_an_error(connect: Connect, topic: str) -> None:
    client = connect()
    subscription = client.subscribe(topic, "s")
    assert subscription.get() is None
    client.delete_topic(topic)
    with pytest.raises(errors.TopicGone):
        subscription.get(timeout_s=1)


def test_a_subscription_must_exist(client: oncemq.Client, topic: str) -> None:
    client.create_topic(topic)
    with pytest.raises(errors.NotSubscribed):
        client.subscription(topic, "nobody").get()


def test_owners_that_hold_a_subscription_take_turns(connect: Connect, topic: str) -> None:
    first, second = connect(), connect()
    first.subscribe(topic, "s")
    held = first.subscription(topic, "s", hold_ms=60_000)
    with pytest.raises(errors.Busy):
        second.subscription(topic, "s", hold_ms=60_000)
    held.close()
    second.subscription(topic, "s", hold_ms=60_000).close()
    assert second.create_topic(topic + "2")


def test_reading_moves_nothing(client: oncemq.Client, topic: str) -> None:
    client.subscribe(topic, "s")
    client.put_many(topic, [str(index) for index in range(10)])
    assert texts(client.read(topic, start="earliest")) == [str(index) for index in range(10)]
    assert texts(client.read(topic, start=3, stop=6)) == ["3", "4", "5"]
    assert texts(client.read(topic)) == [str(index) for index in range(10)]
    assert texts(client.read(topic, start="new")) == []
    assert client.subscriptions(topic)[0].lag == 10
    with pytest.raises(errors.OffsetOutOfRange):
        list(client.read(topic, start=99))
    with pytest.raises(ValueError, match="earliest"):
        client.read(topic, start="soon")


def test_follow_continues_with_new_messages(client: oncemq.Client, topic: str) -> None:
    client.create_topic(topic, retain_bytes=10_000)
    following = client.read(topic, start="earliest", follow=True)
    client.put(topic, "1")
    assert next(following).text == "1"
    client.put(topic, "2")
    assert next(following).text == "2"


def test_follow_starts_with_new_messages(client: oncemq.Client, topic: str) -> None:
    client.create_topic(topic, retain_bytes=10_000)
    client.put(topic, "old")
    got: list[oncemq.Message] = []
    following = threading.Thread(target=lambda: got.append(next(client.read(topic, follow=True))))
    following.start()
    while following.is_alive():
        client.put(topic, "new")
        following.join(0.05)
    assert texts(got) == ["new"]


def test_a_wrong_argument_affects_no_other_call(client: oncemq.Client, topic: str) -> None:
    client.create_topic(topic)
    handle = client.put_nowait(topic, b"0")
    for call, kind in (
        (lambda: client.put("\ud800", b"x"), errors.NameInvalid),
        (lambda: client.put_many("\ud800", [b"x"]), errors.NameInvalid),
        (lambda: client.put_nowait("\ud800", b"x"), errors.NameInvalid),
        (lambda: client.put_nowait(5, b"x"), TypeError),  # type: ignore[arg-type]
        (lambda: client.create_topic("other", retain_ms=2**70), errors.Malformed),
        (lambda: client.create_topic("other", retain_ms=1.5), TypeError),  # type: ignore[arg-type]
        (lambda: client.create_topic(5), TypeError),  # type: ignore[arg-type]
        (lambda: client.subscriptions(5), TypeError),  # type: ignore[arg-type]
        (lambda: list(client.read("\ud800")), errors.NameInvalid),
        (lambda: client.put_many(topic, "abc"), TypeError),
        (lambda: client.put_many(topic, b"abc"), TypeError),
        (lambda: client.put_many(topic, [b"a"], keys="k"), TypeError),
        (lambda: client.put(topic, b"x", headers={"\ud800": b""}), errors.NameInvalid),
    ):
        with pytest.raises(kind):
            call()
    assert handle.result().offset == 0
    assert client.put(topic, b"1", create=1).offset == 1  # type: ignore[arg-type]


def test_an_anonymous_session_that_expired_is_replaced(connect: Connect, topic: str) -> None:
    client, other = connect(), connect()
    subscription = client.subscribe(topic, "s")
    client.put(topic, "before")
    assert texts([subscription.get(timeout_s=5)]) == ["before"]
    former = client.name
    other.remove_session(former)
    assert subscription.get() is None
    assert client.put(topic, "after").offset == 1
    assert client.name != former
    assert texts([subscription.get(timeout_s=5)]) == ["after"]


def test_topics_subscriptions_and_sessions_are_listed(connect: Connect, topic: str) -> None:
    client = connect(name=f"session of {topic}")
    assert client.create_topic(topic, retain_ms=1000)
    assert not client.create_topic(topic, retain_ms=1000)
    client.subscribe(topic, "s")
    client.put(topic, b"x")
    [info] = [entry for entry in client.topics() if entry.name == topic]
    assert (info.end_offset, info.subscriptions, info.retain_ms) == (1, 1, 1000)
    assert [entry.lag for entry in client.subscriptions() if entry.topic == topic] == [1]
    assert f"session of {topic}" in [entry.name for entry in client.sessions()]
    assert client.health().topics >= 1
    client.unsubscribe(topic, "s")
    assert client.subscriptions(topic) == []
    client.delete_topic(topic)
    assert topic not in [entry.name for entry in client.topics()]


def test_a_session_can_be_deleted(connect: Connect, topic: str) -> None:
    client = connect()
    doomed = connect(name=topic)
    client.remove_session(topic)
    with pytest.raises(errors.SessionUnknown):
        doomed.create_topic(topic)
    with pytest.raises(errors.SessionUnknown):
        client.remove_session(topic)
    client.create_topic(topic)


def test_a_subscription_can_be_given_to_a_user(client: oncemq.Client, topic: str) -> None:
    client.subscribe(topic, "s")
    client.assign("kitchen", "subscription", "s", of=topic)
    with pytest.raises(errors.Malformed, match="there is no session"):
        client.assign("kitchen", "session", f"nobody's {topic}")
    with pytest.raises(ValueError, match="kind is one of"):
        client.assign("kitchen", "topic", topic)  # type: ignore[arg-type]


def test_stages_are_visible_after_their_commit(client: oncemq.Client, topic: str) -> None:
    subscription = client.subscribe(topic, "s")
    assert client.stage(f"{topic} a", topic, topic, 1, ["1", "2"]) == 2
    assert client.stage(f"{topic} b", topic, topic, 1, ["3"]) == 1
    client.stage(f"{topic} c", topic, topic, 1, ["never"])
    assert subscription.get() is None
    stages = [(f"{topic} b", 1), (f"{topic} a", 2)]
    assert client.commit(topic, 1, topic, stages).count == 3
    assert client.commit(topic, 1, topic, stages).before
    client.abort([f"{topic} c"])
    assert texts(subscription.messages(timeout_s=0)) == ["3", "1", "2"]


def test_the_registry_stores_entries(client: oncemq.Client, topic: str) -> None:
    first = client.registry_set("push", f"{topic} alice", "tcp://127.0.0.1:7000")
    second = client.registry_set("push", f"{topic} alice", "tcp://127.0.0.1:7001", version=first)
    with pytest.raises(errors.RegistryConflict):
        client.registry_set("push", f"{topic} alice", "late", version=first)
    [entry] = client.registry_list("push", topic)
    assert (entry.value, entry.version) == (b"tcp://127.0.0.1:7001", second)
    client.registry_set("push", f"{topic} alice", None)
    assert client.registry_list("push", topic) == []


def test_an_anonymous_session_ends_with_its_client(connect: Connect) -> None:
    client, other = connect(), connect()
    assert client.name in [session.name for session in other.sessions()]
    client.close()
    assert client.name not in [session.name for session in other.sessions()]


def test_a_closed_client_refuses_every_call(connect: Connect, topic: str) -> None:
    client = connect()
    subscription = client.subscribe(topic, "s")
    subscription.get()
    client.close()
    client.close()
    for call in (client.health, client.topics, subscription.get, lambda: client.put(topic, b"x")):
        with pytest.raises(errors.ClientClosed):
            call()


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_a_forked_child_has_to_connect_again(connect: Connect, topic: str) -> None:
    client = connect()
    client.create_topic(topic)
    handle = client.put_nowait(topic, b"parent's")
    child = os.fork()
    if child == 0:
        try:
            for call in (client.health, lambda: client.put_nowait(topic, b"x"), lambda: handle.result()):
                try:
                    call()
                    os._exit(1)
                except errors.ForkedError:
                    continue
            client.close()
            os._exit(0)
        finally:
            os._exit(2)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert handle.result().offset == 0
