"""Buffers, batches and handles: what `put_nowait` guarantees, with a broker of a few lines."""

from __future__ import annotations

import itertools
import threading
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import pytest

from oncemq.client.core.core import Core
from oncemq.client.core.options import Options
from oncemq.client.internal import internal_api
from oncemq.client.options import ConnectSettings
from oncemq.client.producer import producer
from oncemq.client.producer.encoding import NO_TIMES, as_bytes, cuts, make_put
from oncemq.client.runtime import background
from oncemq.client.runtime.threads import ThreadDriver
from oncemq.client.schemas import claims
from oncemq.client.sync import Client, Handle, make_client
from oncemq.protocol import errors
from oncemq.protocol.batch import decode_batch
from oncemq.protocol.commands import Hello, Numbered, Put, Schemas
from oncemq.protocol.frames import Frame, decode_request, encode_response
from oncemq.protocol.message import Message
from oncemq.protocol.replies import Done, HelloReply, PutReply, Refusal, Reply, SchemasReply
from oncemq.protocol.schema import SchemaVersion
from oncemq.protocol.schema.definitions.parse import parse_definition


class Store:
    """A transport that is its own broker: it stores batches, and answers at once unless `is_slow`."""

    is_renewed = False
    is_waited_for = False
    refusal: errors.OnceMQError | None = None

    def __init__(self) -> None:
        self.batches: list[tuple[str, bool, list[Message]]] = []
        #: What the broker knows of the schema of each topic.
        self.schema: Reply = SchemasReply(1, 0, "", "")
        #: The next answer to a lookup is withheld until `release`.
        self.withholds = False
        self._withheld: list[list[Frame]] = []
        self.refuses: set[str] = set()
        self.is_slow = False
        self.is_closed = False
        self._answers: deque[list[Frame]] = deque()
        self._offset = 0
        self._woken = threading.Event()

    def send(self, frames: Sequence[Frame]) -> None:
        request, payloads = decode_request(frames)
        replies = [self._reply(command, frames) for command, frames in zip(request.commands, payloads, strict=True)]
        answer = encode_response(request.request_id, replies)
        if self.withholds and any(isinstance(command, Schemas) for command in request.commands):
            self.withholds = False
            self._withheld.append(answer)
        else:
            self._answers.append(answer)

    def release(self) -> None:
        self._answers += self._withheld
        self.wake()

    def _reply(self, command: object, payloads: Sequence[Frame]) -> Reply:
        if isinstance(command, Hello):
            return HelloReply(1, 0, command.window, (), "store")
        if not isinstance(command, Numbered) or not isinstance(command.operation, Put):
            return self.schema if isinstance(command, Schemas) else Done()
        operation = command.operation
        if isinstance(self.schema, SchemasReply) and self.schema.newest and not operation.envelope.schema_version:
            return Refusal("SCHEMA_REQUIRED", "not checked")
        if operation.topic in self.refuses:
            return Refusal("TOPIC_UNKNOWN", f"there is no topic '{operation.topic}'")
        [payload] = payloads
        count = operation.envelope.count
        messages = decode_batch(bytes(payload), operation.topic, 1, self._offset, 0, 0, count)
        self.batches.append((operation.topic, operation.create, messages))
        self._offset += count
        return PutReply(1, self._offset - count, count, 0, 1)

    def receive(self) -> Sequence[Frame] | None:
        assert not self.is_closed
        return self._answers.popleft() if self._answers and not self.is_slow else None

    def wait(self, timeout_ms: float) -> None:
        self._woken.wait(min(timeout_ms, 5) / 1000)
        self._woken.clear()

    def wake(self) -> None:
        self._woken.set()

    def wire_bytes(self) -> None: ...

    def reconnect(self) -> None: ...

    def close(self) -> None: ...

    def values(self, topic: str = "t") -> list[bytes]:
        return [message.value for name, _, messages in self.batches for message in messages if name == topic]

    def sizes(self) -> list[int]:
        return [len(messages) for _, _, messages in self.batches]


@pytest.fixture
def store() -> Store:
    return Store()


@pytest.fixture
def client(store: Store) -> Iterator[Client]:
    yield from clients(store)


def clients(store: Store, *, linger_ms: float = 60_000, buffer_bytes: int = 1 << 26) -> Iterator[Client]:
    driver = ThreadDriver(Core("test", True, 1, Options()), store)
    settings = ConnectSettings(
        urls=["test"], batch_messages=10, batch_bytes=1000, linger_ms=linger_ms, buffer_bytes=buffer_bytes
    )
    made = make_client(driver, settings)
    driver.run(made._connection.greet())
    yield made
    store.is_slow = store.is_closed = False
    made._close(clean=False)


def test_a_batch_is_sent_when_it_has_enough_messages(client: Client, store: Store) -> None:
    handles = [client.put_nowait("t", b"%d" % index) for index in range(25)]
    assert store.sizes() == [10, 10]
    assert [handle.done() for handle in handles] == [True] * 20 + [False] * 5
    client.flush()
    assert store.sizes() == [10, 10, 5]
    assert [handle.result().offset for handle in handles] == list(range(25))
    assert store.values() == [b"%d" % index for index in range(25)]


def test_what_was_put_while_a_topic_is_looked_up_is_sent_in_batches_of_the_usual_size(
    client: Client, store: Store
) -> None:
    client.put("other", b"")
    store.is_slow = True
    for _ in range(25):
        client.put_nowait("t", b"", key=b"k")
    store.is_slow = False
    client.flush()
    assert [len(messages) for topic, _, messages in store.batches if topic == "t"] == [10, 10, 5]


def typed(*definitions: str) -> SchemasReply:
    """What a broker says of a topic whose schema has these versions."""
    newest = SchemaVersion(len(definitions), parse_definition(definitions[-1]), 0)
    return SchemasReply(1, len(definitions), "none", "client", (newest,))


def test_waits_for_messages_end_while_their_topic_is_looked_up(client: Client, store: Store) -> None:
    store.is_slow = True
    handle = client.put_nowait("t", b"x")
    with pytest.raises(TimeoutError, match="the schemas of topics are still being looked up"):
        client.flush(timeout_s=0.01)
    with pytest.raises(TimeoutError, match="the schema of 't' is still being looked up"):
        handle.result(timeout_s=0.01)
    store.is_slow = False
    assert handle.result().offset == 0


def test_a_second_lookup_that_is_answered_first_changes_no_order(client: Client, store: Store) -> None:
    client.put("other", b"")
    store.schema = typed("id: int64")
    store.withholds = True
    client.put_nowait("t", b'{"id": 1}')
    putting = threading.Thread(target=client.put_many, args=("t", [b'{"id": 2}']))
    putting.start()
    putting.join(0.05)
    store.release()
    putting.join(5)
    assert not putting.is_alive()
    client.flush()
    assert store.values() == [b'{"id": 1}', b'{"id": 2}']


def test_a_message_whose_topic_changes_while_it_is_checked_is_not_lost(
    client: Client, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    store.schema = typed("id: int64")
    client.put_nowait("t", b'{"id": 1}').result()
    real = claims.checked
    changes = iter([typed("id: int64", "id: int32"), typed("id: int64", "id: int32", "id: int16")])

    def slow(*arguments: Any) -> Any:
        # As another thread would do while this one checks a large value.
        for store.schema in changes:
            client._driver.run(client._producer.schemas.refresh("t"))
        return real(*arguments)

    monkeypatch.setattr(producer, "checked", slow)
    client.put_nowait("t", b'{"id": 2}')
    client.flush()
    client.put_nowait("t", b'{"id": 3}')
    client.flush()
    assert store.values() == [b'{"id": 1}', b'{"id": 2}', b'{"id": 3}']


def test_more_topics_than_may_have_a_buffer_lose_nothing_while_they_are_looked_up(
    client: Client, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(producer, "_BUFFERS_MAX", 2)
    topics = ["a", "b", "c", "d", "e"]

    def put() -> None:
        for topic in topics:
            client.put_nowait(topic, b"x")

    store.is_slow = True
    putting = threading.Thread(target=put)
    putting.start()
    putting.join(0.05)
    store.is_slow = False
    putting.join(5)
    assert not putting.is_alive()
    client.flush()
    assert [topic for topic in topics if store.values(topic) != [b"x"]] == []


def test_the_buffers_of_all_topics_that_are_looked_up_are_bounded_together(store: Store) -> None:
    for client in clients(store, buffer_bytes=3000):
        store.is_slow = True
        for topic in ("a", "b"):
            client.put_nowait(topic, b"x" * 1000)
        putting = threading.Thread(target=client.put_nowait, args=("c", b"x" * 1000))
        putting.start()
        putting.join(0.05)
        assert putting.is_alive()
        store.is_slow = False
        putting.join(5)
        assert not putting.is_alive()
        client.flush()


def test_a_lookup_that_failed_is_repeated_when_a_value_needs_it(client: Client, store: Store) -> None:
    store.schema = Refusal("BROKER_BUG", "at this moment")
    client.put_nowait("t", b"x")
    client.flush()
    store.schema = typed("id: int64")
    client.put("t", {"id": 1})
    assert store.values() == [b"x", b'{"id":1}']


def test_a_batch_is_sent_when_it_has_enough_bytes(client: Client, store: Store) -> None:
    for _ in range(3):
        client.put_nowait("t", b"x" * 600)
    assert store.sizes() == [2]


def test_a_lingering_batch_is_sent_automatically(store: Store) -> None:
    for client in clients(store, linger_ms=1):
        handle = client.put_nowait("t", b"alone")
        waited = threading.Event()
        for _ in range(1000):
            if handle.done():
                break
            waited.wait(0.005)
        assert store.values() == [b"alone"]
        assert handle.result().offset == 0


def test_asking_for_a_result_sends_the_batch(client: Client, store: Store) -> None:
    first = client.put_nowait("t", "text")
    second = client.put_nowait("t", b"bytes")
    assert second.result().offset == 1
    assert first.done()
    assert store.values() == [b"text", b"bytes"]


def test_all_kinds_of_put_keep_the_order_of_a_topic(client: Client, store: Store) -> None:
    client.put_nowait("t", b"0")
    client.put_nowait("other", b"elsewhere")
    client.put("t", b"1")
    client.put_nowait("t", b"2", key=b"k")
    client.put_nowait("t", b"3")
    client.put_many("t", [b"4", b"5"])
    client.put_nowait("t", b"6", create=True)
    client.put_nowait("t", b"7")
    client.flush()
    assert store.values() == [b"%d" % index for index in range(8)]


def test_keys_and_headers_stay_with_their_messages(client: Client, store: Store) -> None:
    client.put_nowait("t", b"plain")
    client.put_nowait("t", "keyed", key="k")
    client.put_nowait("t", b"headed", headers={"h": "1"})
    client.put_nowait("t", b"plain again")
    client.flush()
    [(_, _, messages)] = store.batches
    assert [(message.value, message.key, dict(message.headers)) for message in messages] == [
        (b"plain", None, {}),
        (b"keyed", b"k", {}),
        (b"headed", None, {"h": b"1"}),
        (b"plain again", None, {}),
    ]


def test_create_starts_another_batch_without_changing_the_order(client: Client, store: Store) -> None:
    handles = [client.put_nowait("t", b"%d" % index, create=index in (2, 3)) for index in range(6)]
    client.flush()
    assert [(create, len(messages)) for _, create, messages in store.batches] == [(False, 2), (True, 2), (False, 2)]
    assert [handle.result().offset for handle in handles] == list(range(6))


def test_a_refused_batch_fails_its_handles_and_the_next_flush(client: Client, store: Store) -> None:
    store.refuses.add("missing")
    good = client.put_nowait("t", b"good")
    bad = client.put_nowait("missing", b"bad")
    with pytest.raises(errors.TopicUnknown, match="missing"):
        client.flush()
    assert good.result().offset == 0
    for _ in range(2):
        with pytest.raises(errors.TopicUnknown):
            bad.result()
    client.flush()


def test_put_many_says_how_much_was_stored_before_it_failed(client: Client, store: Store) -> None:
    store.refuses.add("missing")
    with pytest.raises(errors.TopicUnknown) as caught:
        client.put_many("missing", [b"a", b"b"])
    assert caught.value.__notes__ == ["0 messages of this put_many were stored, in 0 batches."]


def test_put_many_takes_any_iterable_and_makes_batches_of_a_sensible_size(client: Client, store: Store) -> None:
    receipt = client.put_many("t", (b"%d" % index for index in range(20_000)))
    assert (receipt.offset, receipt.count, receipt.batches) == (0, 20_000, len(store.batches))
    assert store.values() == [b"%d" % index for index in range(20_000)]
    assert max(store.sizes()) <= 4000


def test_put_many_cuts_large_values_apart(client: Client, store: Store) -> None:
    client.put_many("t", [b"x" * 200_000] * 40)
    assert sum(store.sizes()) == 40
    assert max(store.sizes()) <= 6


def test_put_many_of_nothing_stores_nothing(client: Client, store: Store) -> None:
    assert client.put_many("t", []).count == 0
    assert store.batches == []


@pytest.mark.parametrize("keys", [[b"k"], [b"k", b"k", b"k"]])
def test_put_many_needs_a_key_for_each_value(client: Client, store: Store, keys: list[bytes]) -> None:
    with pytest.raises(ValueError, match=f"{len(keys)} keys for 2 values"):
        client.put_many("t", [b"a", b"b"], keys=keys)
    with pytest.raises(ValueError, match="fewer keys than values"):
        client.put_many("t", [b"a", b"b"], keys=iter([b"k"]))
    assert store.batches == []


def test_put_many_takes_as_many_keys_from_an_iterator_as_it_needs(client: Client, store: Store) -> None:
    client.put_many("t", [b"a", b"b"], keys=itertools.repeat(b"k"))
    assert store.values() == [b"a", b"b"]


def test_put_many_needs_headers_for_each_value(client: Client, store: Store) -> None:
    with pytest.raises(TypeError, match="not one mapping"):
        client.put_many("t", [b"a"], headers={"x": b"1"})  # type: ignore[dict-item]
    with pytest.raises(ValueError, match="2 headers for 1 values"):
        client.put_many("t", [b"a"], headers=[None, None])
    assert store.batches == []


def test_a_full_buffer_makes_the_next_put_wait(store: Store) -> None:
    for client in clients(store, buffer_bytes=500):
        client.put_nowait("t", b"first, so that the topic is known")
        client.flush()
        store.is_slow = True
        for _ in range(10):
            client.put_nowait("t", b"x" * 100)
        putting = threading.Thread(target=client.put_nowait, args=("t", b"late"))
        putting.start()
        putting.join(0.05)
        assert putting.is_alive()
        store.is_slow = False
        putting.join(5)
        assert not putting.is_alive()
        client.flush()
        assert store.values()[-1] == b"late"


def test_flush_gives_up_when_its_time_is_over(client: Client, store: Store) -> None:
    store.is_slow = True
    handle = client.put_nowait("t", b"x")
    with pytest.raises(TimeoutError):
        client.flush(timeout_s=0.01)
    with pytest.raises(TimeoutError):
        handle.result(timeout_s=0.01)


def test_many_threads_lose_and_repeat_nothing(client: Client, store: Store) -> None:
    def work(name: int) -> None:
        handles = [client.put_nowait("t", b"%d-%d" % (name, index)) for index in range(500)]
        offsets = [handle.result().offset for handle in handles]
        assert offsets == sorted(offsets)
        found.extend((offset, b"%d-%d" % (name, index)) for index, offset in enumerate(offsets))

    found: list[tuple[int, bytes]] = []
    threads = [threading.Thread(target=work, args=(name,)) for name in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [value for _, value in sorted(found)] == store.values()


def test_closing_sends_what_is_left(store: Store) -> None:
    for client in clients(store):
        client.put_nowait("t", b"last words")
        client.close()
        assert store.values() == [b"last words"]
        with pytest.raises(errors.ClientClosed):
            client.put_nowait("t", b"too late")
        with pytest.raises(errors.ClientClosed):
            client.put("t", b"too late")


def test_only_bytes_and_text_are_values() -> None:
    assert as_bytes(bytearray(b"a")) == as_bytes(memoryview(b"a")) == as_bytes("a") == b"a"
    with pytest.raises(TypeError, match="not int"):
        as_bytes(5)  # type: ignore[arg-type]


def test_subclasses_of_bytes_become_plain_bytes() -> None:
    class Tagged(bytes): ...

    assert type(as_bytes(Tagged(b"a"))) is bytes


def test_headers_are_checked_by_the_put(client: Client, store: Store) -> None:
    for headers, kind in (
        ([("h", b"1")], TypeError),
        ("h", TypeError),
        ({5: b"1"}, TypeError),
        ({"h": 5}, TypeError),
        ({"\ud800": b"1"}, errors.NameInvalid),
        ({"h": b"x" * (64 * 1024)}, errors.TooLarge),
    ):
        for call in (client.put, client.put_nowait):
            with pytest.raises(kind):
                call("t", b"x", headers=headers)  # type: ignore[arg-type]
        with pytest.raises(kind):
            client.put_many("t", [b"x"], headers=[headers])  # type: ignore[list-item]
    client.put_nowait("t", b"good", headers={"h": b"1"})
    client.flush()
    assert store.values() == [b"good"]


def test_a_batch_that_can_not_be_made_fails_alone(
    client: Client, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    def make(topic: str, *parts: Any) -> tuple[Put, bytes]:
        if topic == "huge":
            raise OverflowError("signed integer is greater than maximum")
        return make_put(topic, *parts)

    monkeypatch.setattr(producer, "make_put", make)
    bad = client.put_nowait("huge", b"bad")
    good = client.put_nowait("t", b"good")
    with pytest.raises(errors.TooLarge, match="greater than maximum"):
        client.flush()
    with pytest.raises(errors.TooLarge):
        bad.result()
    assert good.result().offset == 0
    client.flush()


def test_the_background_thread_survives_an_error(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(background, "_IDLE_WAIT_MS", 1.0)
    for client in clients(store, linger_ms=1):
        failing = iter([ZeroDivisionError(), ZeroDivisionError()])
        real = client._context.background._next_due_ms

        def next_due_ms(failing: Iterator[Exception] = failing, real: Callable[[], float] = real) -> float:
            for error in failing:
                raise error
            return real()

        monkeypatch.setattr(client._context.background, "_next_due_ms", next_due_ms)
        assert wait_for(client.put_nowait("t", b"alone").done)
        assert next(failing, None) is None


def test_a_message_that_no_thread_took_for_the_first_is_sent_too(store: Store) -> None:
    for client in clients(store, linger_ms=1):
        buffer = client._producer.open_buffer("t", False)
        handles = [buffer.add_item(Handle, (value, None, None, False, NO_TIMES)) for value in (b"1", b"2")]
        assert wait_for(handles[1].done)
        assert store.values() == [b"1", b"2"]


def test_a_second_message_that_overtakes_the_first_one_does_not_hide_it(store: Store) -> None:
    for client in clients(store, linger_ms=1):
        buffer = client._producer.open_buffer("t", False)
        with client._driver.lock:
            first = threading.Thread(target=client.put_nowait, args=("t", b"1"))
            first.start()
            assert wait_for(lambda buffer=buffer: len(buffer.handles) == 1)  # type: ignore[misc]
            second = client.put_nowait("t", b"2")
        first.join(5)
        assert wait_for(second.done)
        assert store.values() == [b"1", b"2"]


def test_what_a_handle_has_raised_is_not_raised_by_flush_again(client: Client, store: Store) -> None:
    store.refuses |= {"missing", "gone"}
    told = client.put_nowait("missing", b"x")
    client.put_nowait("gone", b"x")
    with pytest.raises(errors.TopicUnknown, match="missing"):
        told.result()
    with pytest.raises(errors.TopicUnknown, match="gone"):
        client.flush()
    client.flush()


def test_every_wait_ends_when_the_client_is_closed(client: Client, store: Store) -> None:
    store.is_slow = True
    found: list[BaseException] = []

    def wait() -> None:
        try:
            client.put("t", b"x")
        except BaseException as error:
            found.append(error)

    threads = [threading.Thread(target=wait) for _ in range(3)]
    for thread in threads:
        thread.start()
    assert wait_for(lambda: client._driver._followers == 2)
    store.is_closed = True
    internal_api(client).shut()
    for thread in threads:
        thread.join(5)
    assert [type(error) for error in found] == [errors.ClientClosed] * 3


def wait_for(is_true: Callable[[], bool]) -> bool:
    never = threading.Event()
    return any(is_true() or never.wait(0.005) for _ in range(1000))


def test_cuts_fall_between_values_and_end_at_the_end() -> None:
    assert cuts([], 10, 9) == []
    assert cuts([b"x" * 10] * 2, 10, 9) == [2]
    assert cuts([b"x" * 10] * 5, 20, 9) == [2, 4, 5]
    assert cuts([b"x" * 100] * 3, 10, 9) == [1, 2, 3]
    assert cuts([b""] * 7, 10, 3) == [3, 6, 7]
    assert cuts([b"x" * 10] * 5, 40, 3) == [3, 5]
