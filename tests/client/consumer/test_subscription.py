"""What a subscription's owner may say, and what it may not."""

from __future__ import annotations

import threading
from collections.abc import Iterator

import pytest

import oncemq
from oncemq.client.consumer.fetch_buffer import FetchBuffer
from oncemq.client.consumer.topic import TopicCursor
from oncemq.client.core.commands.pending import Pending
from oncemq.protocol import errors
from oncemq.protocol.commands import Ack, Command, Get
from oncemq.protocol.replies import Refusal


@pytest.fixture
def client(request: pytest.FixtureRequest) -> Iterator[oncemq.Client]:
    made = oncemq.connect(f"memory:{request.node.name}")
    made.subscribe("t", "s")
    made.put_many("t", [str(index) for index in range(10)])
    yield made
    made._close(clean=False)


def texts(messages: object) -> list[str]:
    return [message.text for message in messages]  # type: ignore[attr-defined]


def test_only_what_the_topic_has_can_be_acked(client: oncemq.Client) -> None:
    subscription = client.subscription("t", "s", auto_ack=False)
    for offset in (10, 2**70, -1):
        with pytest.raises(errors.OffsetOutOfRange, match=str(offset)):
            subscription.ack(offset)
    for wrong in (1.5, "1", True):
        with pytest.raises(TypeError, match="offset"):
            subscription.ack(wrong)  # type: ignore[arg-type]
    assert texts(subscription.get_many(3)) == ["0", "1", "2"]
    subscription.ack(9, wait=True)
    assert client.subscriptions("t")[0].lag == 0


def test_a_message_of_another_topic_can_not_be_acked(client: oncemq.Client) -> None:
    other = client.subscribe("other", "s")
    client.put("other", b"x")
    stranger = other.get()
    with pytest.raises(ValueError, match="'other'"):
        client.subscription("t", "s").ack(stranger)


def test_an_ack_of_an_offset_that_was_not_delivered_skips_to_it(client: oncemq.Client) -> None:
    subscription = client.subscription("t", "s", auto_ack=False)
    assert texts([subscription.get()]) == ["0"]
    subscription.ack(3)
    assert texts([subscription.get()]) == ["4"]
    subscription.ack(5)
    subscription.ack(2)
    assert texts(subscription.get_many(2)) == ["6", "7"]


def test_an_ack_within_a_loop_moves_the_loop_on(client: oncemq.Client) -> None:
    subscription = client.subscription("t", "s")
    seen = []
    for message in subscription.messages(timeout_s=0):
        seen.append(message.text)
        if message.text in ("1", "5"):
            subscription.ack(message.offset + 2)
    assert seen == ["0", "1", "4", "5", "8", "9"]
    subscription.close()
    assert client.subscriptions("t")[0].lag == 0


def test_an_ack_may_be_ahead_of_what_was_fetched(client: oncemq.Client) -> None:
    subscription = client.subscription("t", "s", auto_ack=False)
    assert subscription.get_many(10)
    offset = client.put("t", "ten").offset
    client.put("t", "eleven")
    subscription.ack(offset)
    assert texts(subscription.get_many(10)) == ["eleven"]


def test_a_message_that_can_not_be_decoded_is_passed_by_an_ack(client: oncemq.Client) -> None:
    subscription = client.subscription("t", "s", auto_ack=False)
    assert len(subscription.get_many(10)) == 10
    for value in (b"good", b"bad", b"behind"):
        client.put("t", value)
    assert subscription._driver.run(subscription.consumer.session.fetch(0))
    cursor = subscription.consumer.cursor
    assert isinstance(cursor, TopicCursor)
    head, payload = cursor.buffer._batches[1]
    cursor.buffer._batches[1] = (head, b"\x09" + payload[1:])
    assert texts(subscription.get_many(10)) == ["good"]
    for _ in range(2):
        with pytest.raises(errors.Unsupported, match="offset 11 of 't' can't be decoded"):
            subscription.get()
    subscription.ack(11)
    assert texts(subscription.get_many(10)) == ["behind"]


@pytest.mark.parametrize("code", ["OFFSET_OUT_OF_RANGE", "RECORD_CORRUPT"])
@pytest.mark.parametrize("kind", [Ack, Get])
def test_what_is_about_one_ack_or_message_is_not_final(
    client: oncemq.Client, monkeypatch: pytest.MonkeyPatch, code: str, kind: type
) -> None:
    core = client._driver.core
    real = core.ask

    def ask(command: Command, *, give_up_ms: float = 0.0) -> Pending:
        if not isinstance(command, kind):
            return real(command, give_up_ms=give_up_ms)
        monkeypatch.undo()
        pending = Pending(0.0)
        pending.succeed(Refusal(code, "no"))
        return pending

    subscription = client.subscription("t", "s", auto_ack=False)
    assert len(subscription.get_many(10)) == 10
    client.put("t", "more")
    monkeypatch.setattr(core, "ask", ask)
    with pytest.raises(errors.BY_CODE[code]):
        subscription.ack(4, wait=True) if kind is Ack else subscription.get()
    assert texts([subscription.get()]) == ["more"]
    subscription.ack(wait=True)
    assert client.subscriptions("t")[0].lag == 0


def test_overlapping_calls_of_two_threads_are_an_error(client: oncemq.Client) -> None:
    subscription = client.subscription("t", "s")
    assert len(subscription.get_many(10)) == 10
    got: list[oncemq.Message | None] = []
    waiting = threading.Thread(target=lambda: got.append(subscription.get(timeout_s=20)))
    waiting.start()
    never = threading.Event()
    assert any(subscription.consumer.session.get_pending is not None or never.wait(0.005) for _ in range(1000))
    for call in (subscription.get, subscription.get_many, subscription.ack, lambda: next(iter(subscription))):
        with pytest.raises(RuntimeError, match="another thread"):
            call()
    client.put("t", "at last")
    waiting.join(20)
    assert texts(got) == ["at last"]


@pytest.mark.parametrize("by_pattern", [False, True])
def test_a_caller_that_waits_gets_an_error_when_the_subscription_is_closed(
    client: oncemq.Client, by_pattern: bool
) -> None:
    subscription = client.subscribe_pattern("*", "p") if by_pattern else client.subscribe("t", "p")
    assert subscription.get() is None
    found: list[Exception] = []

    def wait() -> None:
        try:
            subscription.get(timeout_s=20)
        except Exception as error:
            found.append(error)

    waiting = threading.Thread(target=wait)
    waiting.start()
    never = threading.Event()
    assert any(subscription.consumer.session.get_pending is not None or never.wait(0.005) for _ in range(1000))
    subscription.close()
    waiting.join(20)
    assert [type(error) for error in found] == [errors.ClientClosed]


def test_closing_a_client_closes_every_subscription_and_raises_the_first_error(client: oncemq.Client) -> None:
    for name in ("a", "b", "c"):
        client.subscribe("t", name, start="earliest")
    subscriptions = [client.subscription("t", name) for name in ("a", "b", "c")]
    for subscription in subscriptions:
        assert subscription.get() is not None
    other = oncemq.connect(client._driver.core.options.where)
    other.unsubscribe("t", "b")
    with pytest.raises(errors.NotSubscribed):
        client.close()
    assert [(entry.subscriber, entry.acked) for entry in other.subscriptions("t")] == [("a", 1), ("c", 1), ("s", 0)]
    other.close()


def test_a_limit_of_idle_time_that_a_waiting_get_could_exceed_is_refused(client: oncemq.Client) -> None:
    with pytest.raises(ValueError, match="idle_s"):
        client.subscribe("t", "guest", idle_s=1.0)
    assert client.subscribe("t", "guest", idle_s=60.0).created
    with pytest.raises(oncemq.SubscriptionExists, match="idle for 60000 ms"):
        client.subscribe("t", "guest")


def _record_asks(client: oncemq.Client, monkeypatch: pytest.MonkeyPatch) -> list[Command]:
    asked: list[Command] = []
    real = client._driver.core.ask

    def ask(command: Command, *args: object, **options: object) -> Pending:
        asked.append(command)
        return real(command, *args, **options)  # type: ignore[arg-type]

    monkeypatch.setattr(client._driver.core, "ask", ask)
    return asked


def test_gets_that_are_sent_ahead_rarely_carry_acks(client: oncemq.Client, monkeypatch: pytest.MonkeyPatch) -> None:
    for _ in range(20):
        client.put_many("t", [b"x" * 1000] * 10)
    clock = [1000.0]
    monkeypatch.setattr("oncemq.client.consumer.session.now_ms", lambda: clock[0])
    asked = _record_asks(client, monkeypatch)
    subscription = client.subscription("t", "s", prefetch_bytes=20_000)
    received = 0
    while received < 200:
        clock[0] += 4.0
        received += len(subscription.get_many(10))
    gets = [command for command in asked if isinstance(command, Get)]
    assert sum(get.ack >= 0 for get in gets) < len(gets) / 3
    acked = max(get.ack for get in gets)
    assert acked > 0
    # What is owed travels with the next get that waits.
    monkeypatch.undo()
    while subscription.get_many(10):
        pass
    assert client.subscriptions("t")[0].lag == 0


def test_the_next_get_is_sent_before_messages_are_decoded(
    client: oncemq.Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    for _ in range(5):
        client.put_many("t", [b"x" * 1000] * 10)
    subscription = client.subscription("t", "s", prefetch_bytes=30_000)
    gets_in_flight: list[bool] = []
    real = FetchBuffer.decode

    def decode(buffer: FetchBuffer) -> list[oncemq.Message]:
        gets_in_flight.append(subscription.consumer.session.get_pending is not None)
        return real(buffer)

    monkeypatch.setattr(FetchBuffer, "decode", decode)
    subscription.get()
    assert gets_in_flight == [True]


def test_other_calls_within_a_loop_see_what_the_loop_has_delivered(client: oncemq.Client) -> None:
    subscription = client.subscription("t", "s", auto_ack=False)
    messages = iter(subscription.messages(timeout_s=0))
    assert next(messages).text == "0"
    subscription.ack(wait=True)
    assert client.subscriptions("t")[0].lag == 9
    assert texts([next(messages), next(messages)]) == ["1", "2"]
    assert texts([subscription.get()]) == ["3"]
    assert texts(subscription.get_many(2)) == ["4", "5"]
    assert next(messages).text == "6"
    subscription.ack(wait=True)
    assert client.subscriptions("t")[0].lag == 3
    assert texts(messages) == ["7", "8", "9"]


def test_a_loop_goes_on_after_other_calls_and_what_it_delivers_then_counts_too(client: oncemq.Client) -> None:
    with client.subscription("t", "s") as subscription:
        for message in subscription:
            if message.text == "3":
                # The loop is in the middle of a stride, and continues with it.
                assert texts(subscription.get_many(1)) == ["4"]
            if message.text == "6":
                break
    assert client.subscriptions("t")[0].lag == 3


def test_a_transaction_acks_what_a_loop_delivers_after_other_calls(client: oncemq.Client) -> None:
    subscription = client.subscription("t", "s", auto_ack=False)
    for message in subscription.messages(timeout_s=0):
        if message.text == "3":
            assert texts(subscription.get_many(1)) == ["4"]
        if message.text == "6":
            with client.transaction() as transaction:
                transaction.ack(subscription, message)
            break
    assert client.subscriptions("t")[0].lag == 3


def test_a_loop_that_ends_early_has_not_finished_its_last_message(client: oncemq.Client) -> None:
    with pytest.raises(ZeroDivisionError), client.subscription("t", "s") as subscription:
        for message in subscription:
            if message.text == "4":
                raise ZeroDivisionError
    assert client.subscriptions("t")[0].lag == 6
    with client.subscription("t", "s") as subscription:
        for message in subscription:
            if message.text == "6":
                break
    assert client.subscriptions("t")[0].lag == 3


def test_a_transaction_within_a_loop_acks_what_the_loop_has_delivered(client: oncemq.Client) -> None:
    subscription = client.subscription("t", "s", auto_ack=False)
    for message in subscription.messages(timeout_s=0):
        if message.text in ("2", "7"):
            with client.transaction() as transaction:
                transaction.ack(subscription)
            assert client.subscriptions("t")[0].lag == 9 - message.offset


def test_a_seek_within_a_loop_moves_the_loop(client: oncemq.Client) -> None:
    subscription = client.subscription("t", "s", auto_ack=False)
    seen: list[str] = []
    for message in subscription.messages(timeout_s=0):
        seen.append(message.text)
        if seen == ["0", "1", "2"]:
            subscription.seek(8)
    assert seen == ["0", "1", "2", "8", "9"]
