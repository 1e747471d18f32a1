"""`journal copy`: a broker moves from files to PostgreSQL and back, and its clients continue."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from contextlib import nullcontext
from itertools import count
from pathlib import Path
from random import Random
from typing import Any

import msgspec
import psycopg
import pytest

import oncemq
from oncemq.broker.offline import copy as journal_copy
from oncemq.broker.offline.check import check
from oncemq.broker.recovery import recover
from oncemq.disk.os_disk import OsDisk
from oncemq.engine.engine import Engine
from oncemq.engine.snapshot.relocation import needed_records, relocated
from oncemq.journal.contract import Group, Journal, RecordRef
from oncemq.journal.files.journal import FileJournal
from oncemq.journal.postgres.journal import PostgresJournal
from oncemq.journal.postgres.standby import PostgresStandby, open_postgres
from oncemq.journal.worker import InlineWorker, ThreadWorker
from oncemq.protocol import errors
from oncemq.protocol.commands import CreateTopic, Hello, PutSchema
from oncemq.protocol.limits import Limits
from oncemq.protocol.replies import HelloReply, SchemaReply
from tests.broker.random_work import RandomWork
from tests.broker.rig import Rig
from tests.engine.schemas import SCHEMAS
from tests.journal.rig import crash
from tests.simulation.environment.disk import SimCrash, SimDisk

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
    rig.do(CreateTopic("typed"), "registrar")
    assert isinstance(rig.do(PutSchema("typed", SCHEMAS[0], "full", "broker"), "registrar"), SchemaReply)
    rig.broker.stop()


def chunks_of(engine: Engine) -> list[bytes]:
    capture = engine.capture()
    return list(iter(capture.chunk, None))


def content_of(place: str, may_create: bool = True) -> tuple[list[object], list[bytes], bytes]:
    """Return the state without positions, every payload that it needs, and the id of the journal."""
    return content_in(open_any(place) if may_create else journal_copy.open_source(place))


def content_in(journal: Journal) -> tuple[list[object], list[bytes], bytes]:
    try:
        chunks = chunks_of(recover(journal, Limits(), Counter()))
        needed = list(needed_records(chunks))
        wanted = [RecordRef(one.position, one.topic_id, one.first_offset, one.size) for one in needed]
        payloads = [bytes(payload) for payload, _ in journal.read(wanted)]
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


class Killed(BaseException):
    """The process ends here."""


def open_copy(disk: SimDisk, source: Journal) -> FileJournal:
    return FileJournal(disk, InlineWorker(), segment_bytes=64 * 1024, journal_id=source.journal_id, is_copy=True)


def test_a_copy_to_files_that_is_killed_at_any_step_is_refused_and_can_be_repeated(tmp_path: Path) -> None:
    place = str(tmp_path / "source")
    make(place, 6)
    before = content_of(place)
    source = open_any(place)
    engine = recover(source, Limits(), Counter())
    step = refusals = 0
    while True:
        disk = SimDisk(Random(step))
        disk.crash_after(step)
        try:
            journal_copy.copy_journal(engine, source, open_copy(disk, source), Limits())
            break
        except SimCrash:
            disk.kill() if step % 2 else disk.power_loss()
        if disk.exists("journal.copying"):
            refusals += 1
            for _ in range(2):
                with pytest.raises(errors.JournalError, match="not finished"):
                    FileJournal(disk, InlineWorker())
            with pytest.raises(errors.JournalError, match="not finished"):
                check(disk)
        elif disk.exists("journal.meta"):
            assert content_in(FileJournal(disk, InlineWorker())) == before
        else:
            assert disk.list("segments") == []
        target = open_copy(disk, source)
        journal_copy.copy_journal(engine, source, target, Limits())
        target.close()
        assert content_in(FileJournal(disk, InlineWorker())) == before
        step += 1
    assert refusals > 50
    source.close()


#: When a copy to PostgreSQL is killed: at which call of which method, after or before it, and what is left then.
POSTGRES_STEPS = (
    (PostgresStandby, "_create_schema", 1, False, "no journal"),
    (PostgresStandby, "_create_schema", 1, True, "not finished"),
    (PostgresStandby, "_take_over", 1, True, "not finished"),
    (PostgresJournal, "sync", 1, True, "not finished"),
    (PostgresJournal, "begin_snapshot", 1, True, "not finished"),
    (PostgresJournal, "finish_copy", 1, False, ""),
)


def test_a_copy_to_postgresql_that_is_killed_is_refused_and_can_be_repeated(
    tmp_path: Path, postgres: str, url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = str(tmp_path / "source")
    make(source, 6)
    before = content_of(source)
    for owner, name, calls, is_after, refusal in POSTGRES_STEPS:
        with psycopg.connect(postgres, autocommit=True) as database:
            database.execute("drop schema if exists oncemq cascade")
        with monkeypatch.context() as patch:
            patch.setattr(owner, name, killing(getattr(owner, name), calls, is_after))
            patch.setattr(PostgresJournal, "close", crash)
            with pytest.raises(Killed):
                journal_copy.copy(source, url)
        end_lease(postgres)
        with pytest.raises(errors.JournalError, match=refusal) if refusal else nullcontext():
            assert content_of(url, may_create=False) == before
        journal_copy.copy(source, url)
        assert content_of(url) == before


def killing(function: Callable[..., Any], calls: int, is_after: bool) -> Callable[..., Any]:
    """Return the function, but with one of its calls the process ends."""
    call = count(1)

    def watched(*args: Any, **options: Any) -> Any:
        is_last = next(call) == calls
        if is_last and not is_after:
            raise Killed
        result = function(*args, **options)
        if is_last:
            raise Killed
        return result

    return watched


def end_lease(postgres: str) -> None:
    """Let the lease of a process that was killed expire."""
    with psycopg.connect(postgres, autocommit=True) as database:
        if database.execute("select to_regclass('oncemq.journal_lease') is not null").fetchone() == (True,):
            database.execute("update oncemq.journal_lease set expires_at = 'epoch'")


def test_a_copy_that_is_complete_can_be_repeated_until_it_is_served(tmp_path: Path, url: str) -> None:
    source = str(tmp_path / "source")
    make(source, 7)
    for target in (url, str(tmp_path / "target")):
        first = journal_copy.copy(source, target)
        assert journal_copy.copy(source, target) == first
        rig = Rig(open_any(target))
        rig.subscribe()
        rig.put(b"goes on")
        rig.broker.stop()
        with pytest.raises(errors.JournalError, match="already"):
            journal_copy.copy(source, target)


def test_a_copy_needs_a_target_without_a_journal(tmp_path: Path, url: str) -> None:
    source, other = str(tmp_path / "source"), str(tmp_path / "other")
    make(source, 4)
    make(other, 5)
    make(url, 6)
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
