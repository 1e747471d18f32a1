"""A standby: what it answers while it waits, how it takes over, and how it loses the lease."""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import partial

import pytest

import oncemq
import oncemq.aio
from oncemq.broker.network.listeners import Listeners
from oncemq.broker.standby import Lease, Standby, serve_with_lease
from oncemq.config.settings import ServeSettings
from oncemq.journal.contract import Journal
from oncemq.journal.memory import MemoryJournal
from oncemq.journal.postgres.standby import PostgresStandby
from oncemq.protocol import errors
from oncemq.protocol.commands import Health, Read
from oncemq.protocol.frames import decode_response, encode_not_now, encode_request
from oncemq.protocol.replies import NotNow, Refusal
from oncemq.server.serve import run_broker
from oncemq.testing.broker_process import Transport, free_url
from oncemq.testing.postgres import PostgresServer
from tests.acceptance.processes import wait_until
from tests.transports import TRANSPORTS


class Database:
    """A journal that several brokers share; the test decides which one gets it."""

    def __init__(self) -> None:
        self.journal = MemoryJournal(extent_bytes=1 << 20)
        self.holder = ""
        self.trouble = ""


class Seat:
    """The lease of one broker."""

    def __init__(self, database: Database, name: str) -> None:
        self._database = database
        self._name = name
        self.is_closed = False

    @property
    def holder(self) -> str:
        return f"{self._database.holder} serves it"

    @property
    def active_address(self) -> str:
        return f"tcp://{self._database.holder}:5555"

    def try_take_over(self) -> Journal | None:
        database = self._database
        if database.trouble:
            raise errors.JournalFailed(database.trouble)
        if database.holder not in ("", self._name):
            return None
        database.holder = self._name
        database.journal = database.journal.take_over()
        return database.journal

    def close(self) -> None:
        self.is_closed = True


class Serving:
    """A broker in a thread."""

    def __init__(self, seat: Lease, transport: Transport = "stream") -> None:
        self.seat = seat
        self.said: list[str] = []
        self.turns = 0
        self.code: int | None = None
        self.url = free_url(transport)
        self._settings = ServeSettings(listen=(self.url,), journal="postgresql://x/y", lease_ms=500)
        self._is_stopping = False
        self._thread = threading.Thread(target=self._serve)
        self._thread.start()

    def _serve(self) -> None:
        stopping: Callable[[], bool] = lambda: self._is_stopping  # noqa: E731
        self.code = serve_with_lease(
            self._settings,
            partial(Listeners, self._settings),
            lambda _: self.seat,
            self._turn,
            stopping,
            self.said.append,
        )

    def _turn(self, journal: Journal, network: Listeners) -> int:
        self.turns += 1
        return run_broker(journal, network, self._settings, lambda _: None, lambda: self._is_stopping)

    def stop(self) -> None:
        self._is_stopping = True
        self._thread.join()


@pytest.fixture
def database() -> Database:
    return Database()


@pytest.fixture(params=TRANSPORTS)
def transport(request: pytest.FixtureRequest) -> Transport:
    found: Transport = request.param
    return found


@pytest.fixture
def serving(database: Database, transport: Transport) -> Iterator[Callable[[str], Serving]]:
    started: list[Serving] = []

    def start(name: str) -> Serving:
        started.append(Serving(Seat(database, name), transport))
        return started[-1]

    yield start
    for one in started:
        one.stop()
        assert one.code == 0
        assert isinstance(one.seat, Seat)
        assert one.seat.is_closed


def test_every_command_of_a_request_is_answered_with_standby() -> None:
    frames = encode_not_now(encode_request(7, (Health(), Read("orders", 0, 1000))), errors.Standby("it waits"))
    response, _ = decode_response(frames)
    assert response.request_id == 7
    assert response.replies == (NotNow("STANDBY", "it waits"),) * 2
    response, _ = decode_response(encode_not_now([b"what?"], errors.Standby("it waits")))
    assert isinstance(response.replies[0], Refusal)


def test_a_client_with_both_addresses_finds_the_active_broker(
    database: Database, serving: Callable[[str], Serving]
) -> None:
    database.holder = "one"
    standby, active = serving("two"), serving("one")
    with oncemq.connect([standby.url, active.url], tries=30) as client:
        client.put("orders", "one pizza", create=True)
    wait_until(lambda: bool(standby.said), "the standby says that it waits")
    assert standby.said == ["OnceMQ waits as a standby: tcp://one:5555 is active."]
    assert standby.turns == 0


def test_asyncio_finds_the_active_broker_too(database: Database, serving: Callable[[str], Serving]) -> None:
    database.holder = "one"
    urls = [serving("two").url, serving("one").url]

    async def main() -> None:
        async with oncemq.aio.connect(urls, tries=30) as client:
            await client.put("orders", "one pizza", create=True)

    asyncio.run(main())


def test_a_client_that_knows_only_standbys_learns_which_broker_is_active(
    database: Database, serving: Callable[[str], Serving]
) -> None:
    database.holder = "one"
    standby = serving("two")
    with pytest.raises(errors.Standby, match="one serves it"):
        oncemq.connect(standby.url, timeout_s=0.5, tries=1)


def test_a_broker_that_is_fenced_waits_and_what_it_acknowledged_is_at_the_other_one(
    database: Database, serving: Callable[[str], Serving]
) -> None:
    first = serving("one")
    wait_until(lambda: first.turns == 1, "the first one has its turn")
    second = serving("two")
    with oncemq.connect([first.url, second.url], tries=60) as client:
        client.subscribe("orders", "kitchen", start="earliest")
        for number in range(10):
            if number == 5:
                database.holder = "two"
                wait_until(lambda: second.turns == 1, "the second one has its turn")
            client.put("orders", str(number))
        found = client.subscription("orders", "kitchen").get_many(20, timeout_s=30)
        assert [message.text for message in found] == [str(number) for number in range(10)]
    wait_until(lambda: bool(first.said), "the first one waits")
    said = len(second.said)
    database.holder = "one"
    wait_until(lambda: first.turns == 2, "the first one has its second turn")
    wait_until(lambda: len(second.said) > said, "the second one waits again")


def test_a_standby_waits_for_a_database_that_is_down(database: Database, serving: Callable[[str], Serving]) -> None:
    database.trouble = "nobody there"
    waiting = serving("one")
    with pytest.raises(errors.Standby):
        oncemq.connect(waiting.url, timeout_s=0.5, tries=1)
    database.trouble = ""
    with oncemq.connect(waiting.url, tries=60) as client:
        client.put("orders", "one pizza", create=True)


def test_a_port_in_use_is_an_immediate_error(database: Database, serving: Callable[[str], Serving]) -> None:
    one = serving("one")
    oncemq.connect(one.url, tries=30).close()
    settings = ServeSettings(listen=(one.url,), journal="postgresql://x/y")
    with pytest.raises(errors.ListenFailed):
        serve_with_lease(
            settings,
            partial(Listeners, settings),
            lambda _: Seat(database, "two"),
            lambda *_: 0,
            lambda: True,
            lambda _: None,
        )


def test_a_failure_that_persists_is_logged_repeatedly(database: Database, caplog: pytest.LogCaptureFixture) -> None:
    database.trouble = "nobody there"
    waiting = Standby(Seat(database, "one"), 500, lambda _: None)
    with caplog.at_level(logging.WARNING, "oncemq.broker"):
        for _ in range(2):
            assert waiting._try_take_over() is None
        assert len(caplog.records) == 1
        waiting._log_again_s = 0.0
        assert waiting._try_take_over() is None
    assert ["nobody there" in record.getMessage() for record in caplog.records] == [True, True]


def test_a_client_detects_a_database_that_is_older_than_one_it_has_seen(
    database: Database, serving: Callable[[str], Serving]
) -> None:
    database.journal = database.journal.take_over()
    active = serving("one")
    with oncemq.connect(active.url, timeout_s=0.3, tries=2) as client:
        client.put("orders", "one pizza", create=True)
        # As after a restore from a backup: the next take-over is its first one.
        database.holder, older = "nobody", MemoryJournal(extent_bytes=1 << 20)
        database.journal.take_over()
        wait_until(lambda: bool(active.said), "its turn is over")
        database.journal, database.holder = older, ""
        wait_until(lambda: active.turns == 2, "it has its second turn")
        # A put that is sent over a connection that has ended would be in doubt. A query finds out, and changes nothing.
        with suppress(errors.Standby):
            client.topics()
        with pytest.raises(errors.Standby, match=r"a broker of term 1 answered.* restored from a backup"):
            client.put("orders", "two pizzas")


def test_a_database_that_is_killed_and_comes_back_is_taken_over_again(caplog: pytest.LogCaptureFixture) -> None:
    with PostgresServer() as server:
        if not server.is_own:
            pytest.skip("the server is not ours to kill")
        with server.database() as dsn:
            active = Serving(PostgresStandby(dsn, lease_ms=500))
            try:
                with oncemq.connect(active.url, timeout_s=0.3, tries=300) as client:
                    client.subscribe("orders", "kitchen", start="earliest")
                    client.put("orders", "before")
                    server.kill()
                    meanwhile = threading.Thread(target=client.put, args=("orders", "meanwhile"))
                    meanwhile.start()
                    wait_until(lambda: "waiting for the journal" in caplog.text, "it waits for the database")
                    server.start()
                    meanwhile.join()
                    client.put("orders", "after")
                    found = client.subscription("orders", "kitchen").get_many(20, timeout_s=30)
                    assert [message.text for message in found] == ["before", "meanwhile", "after"]
            finally:
                active.stop()
            assert (active.turns, active.code) == (2, 0)
