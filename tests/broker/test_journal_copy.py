"""`journal copy`: a broker moves from files to PostgreSQL and back, and its clients continue."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import msgspec
import psycopg
import pytest

import oncemq
from oncemq.broker import journal_copy
from oncemq.broker.recovery import recover
from oncemq.disk.os_disk import OsDisk
from oncemq.engine.engine import Engine
from oncemq.engine.snapshot.relocation import needed_records, relocated
from oncemq.journal.contract import Group, Journal, RecordRef
from oncemq.journal.files.journal import FileJournal
from oncemq.journal.postgres.standby import open_postgres
from oncemq.journal.worker import InlineWorker, ThreadWorker
from oncemq.protocol import errors
from oncemq.protocol.commands import Hello
from oncemq.protocol.limits import Limits
from oncemq.protocol.replies import HelloReply
from tests.broker.random_work import RandomWork
from tests.broker.rig import Rig

EXTENT_BYTES = 512 * 1024


@pytest.fixture
def url(postgres: str) -> str:
    """The database of `postgres`, as a URL."""
    parts = psycopg.conninfo.conninfo_to_dict(postgres)
    host = str(parts.pop("host", "")).replace("/", "%2F")
    user, name = parts.get("user", ""), parts.get("dbname", "")
    return f"postgresql://{user}@/{name}?host={host}"


def open_any(place: str) -> Journal:
    if place.startswith("postgresql:"):
        return open_postgres(place, lease_ms=60_000, extent_bytes=EXTENT_BYTES)
    return FileJournal(OsDisk(place), ThreadWorker(), segment_bytes=EXTENT_BYTES)


def make(place: str, seed: int) -> None:
    """Run a broker with some state of every kind, and stop it."""
    rig = Rig(open_any(place))
    work = RandomWork(rig, seed)
    work.run(150)
    work.stage()
    work.put_later()
    rig.broker.stop()


def chunks_of(engine: Engine) -> list[bytes]:
    capture = engine.capture()
    return list(iter(capture.chunk, None))


def content_of(place: str) -> tuple[list[object], list[bytes], bytes]:
    """Return the state without positions, every payload that it needs, and the id of the journal."""
    journal = open_any(place)
    try:
        chunks = chunks_of(recover(journal, Limits(), Counter()))
        needed = list(needed_records(chunks))
        wanted = [RecordRef(one.position, one.topic_id, one.first_offset, one.size) for one in needed]
        payloads = [payload for payload, _ in journal.read(wanted)]
        nowhere = {one.position: 0 for one in needed}
        state = [image for chunk in chunks for image in msgspec.msgpack.decode(relocated(chunk, nowhere))]
        return state, payloads, journal.journal_id
    finally:
        journal.close()


def test_everything_survives_a_copy_to_postgresql_and_back(tmp_path: Path, url: str) -> None:
    first, last = str(tmp_path / "first"), str(tmp_path / "last")
    make(first, 1)
    before = content_of(first)
    assert len(before[1]) > 20
    copied = journal_copy.copy(first, url)
    assert (copied.records, copied.topics > 0, copied.sessions > 0) == (len(before[1]), True, True)
    assert content_of(url) == before
    journal_copy.copy(url, f"file:{last}")
    assert content_of(last) == before
    # The source has not changed.
    assert content_of(first) == before


def test_a_copy_continues_where_the_source_ended(tmp_path: Path, url: str) -> None:
    place = str(tmp_path / "data")
    with oncemq.connect(f"file:{place}", name="till") as client:
        client.subscribe("orders", "kitchen").close()
        receipts = [client.put("orders", b"pizza %d" % number) for number in range(3)]
    journal_copy.copy(place, url)
    journal_copy.copy(url, str(tmp_path / "back"))
    with oncemq.connect(f"file:{tmp_path / 'back'}", name="till") as client:
        assert client.put("orders", b"pizza 3").offset == receipts[-1].offset + 1
        with client.subscribe("orders", "kitchen") as kitchen:
            assert [message.value for message in kitchen.messages(0)] == [b"pizza %d" % number for number in range(4)]


def test_tables_are_there_after_a_copy(tmp_path: Path, url: str) -> None:
    place = str(tmp_path / "data")
    make(place, 2)
    journal_copy.copy(place, url)
    with psycopg.connect(url) as database:
        assert database.execute("select are_tables_current from oncemq.journal_meta").fetchone() == (True,)
        [(topics, messages)] = database.execute(
            "select (select count(*) from oncemq.topic), (select count(*) from oncemq.message)"
        ).fetchall()
    assert topics > 1
    assert messages > 10


@pytest.mark.parametrize("to_postgres", [True, False])
def test_an_interrupted_copy_is_refused_and_can_be_repeated(
    tmp_path: Path, url: str, to_postgres: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    source, target = str(tmp_path / "source"), url if to_postgres else str(tmp_path / "target")
    make(source, 3)
    before = content_of(source)
    monkeypatch.setattr(journal_copy, "_GROUP_BYTES", 20_000)

    class Crash(Exception):
        pass

    def crash(done: int, total: int) -> None:
        if done > total // 2:
            raise Crash

    for _ in range(2):
        with pytest.raises(Crash):
            journal_copy.copy(source, target, crash)
        with pytest.raises(errors.JournalError, match="not finished"):
            content_of(target)
    journal_copy.copy(source, target)
    assert content_of(target) == before


def test_a_copy_needs_a_target_without_a_journal(tmp_path: Path, url: str) -> None:
    source, other = str(tmp_path / "source"), str(tmp_path / "other")
    make(source, 4)
    make(other, 5)
    journal_copy.copy(source, url)
    for place in (other, url):
        with pytest.raises(errors.JournalError, match="already"):
            journal_copy.copy(source, place)
    with pytest.raises(errors.JournalLocked):
        journal_copy.copy(source, source)


def told_term(place: str) -> int:
    """Return the term that a broker sends to its clients, which ignore lower ones later."""
    rig = Rig(open_any(place))
    reply = rig.ask(Hello("anybody", 0, 1, 10))
    rig.broker.stop()
    assert isinstance(reply, HelloReply)
    return reply.term


def test_the_term_is_copied(tmp_path: Path, postgres: str, url: str) -> None:
    folder = str(tmp_path / "folder")
    assert [told_term(url) for _ in range(3)] == [1, 2, 3]
    journal_copy.copy(url, folder)
    terms = [told_term(folder), told_term(folder)]
    assert terms[0] == terms[1] >= 3
    with psycopg.connect(postgres, autocommit=True) as database:
        database.execute("drop schema oncemq cascade")
    journal_copy.copy(folder, url)
    assert told_term(url) > terms[0]


def test_records_are_copied_into_small_segments(tmp_path: Path) -> None:
    source, target = str(tmp_path / "source"), str(tmp_path / "target")
    rig = Rig(FileJournal(OsDisk(source), InlineWorker(), segment_bytes=64 * 1024))
    rig.subscribe()
    for _ in range(40):
        commands, payloads = zip(*(rig.put_command(b"x" * 500) for _ in range(10)), strict=True)
        rig.post(commands, payloads)
        rig.rounds(2)
    rig.broker.stop()
    assert journal_copy.copy(source, target).records == 400


def test_a_source_that_cannot_be_recovered_is_closed(url: str) -> None:
    journal = open_any(url)
    list(journal.load().groups)
    journal.next_slot(10)
    journal.append(Group(1, b"no events", ()))
    journal.sync()
    journal.close()
    for _ in range(2):
        with pytest.raises(errors.JournalCorrupt):
            recover(open_any(url), Limits(), Counter())


def test_a_copy_needs_a_source(tmp_path: Path, url: str) -> None:
    for place in (str(tmp_path / "nowhere"), url):
        with pytest.raises(errors.JournalError, match="no journal"):
            journal_copy.copy(place, str(tmp_path / "target"))
    assert not (tmp_path / "nowhere").exists()
    assert not (tmp_path / "target").exists()
