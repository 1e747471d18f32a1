"""Recording: every way to put and to consume leaves its lines, wherever the process is killed, and none without it."""

from __future__ import annotations

import os
import signal
import sqlite3
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest

import oncemq
import oncemq.aio
from oncemq.client.recording import records
from oncemq.client.recording.recorder import Recorder
from oncemq.client.recording.records import digest_of
from oncemq.protocol import errors
from oncemq.testing.broker_process import BrokerProcess
from tests.client.event_loop import on_event_loop

_VALUES = [b"a", b"b", b"c"]
_decode = msgspec.json.Decoder(records.AnyLine).decode


def _lines(folder: Path) -> list[Any]:
    """Of all files, as the audit reads them: without what was cut off."""
    found = []
    for path in sorted(folder.glob("*.ndjson")):
        for line in path.read_bytes().split(b"\n"):
            try:
                found.append(_decode(line))
            except msgspec.DecodeError:
                continue
    return found


def _of(folder: Path, kind: type) -> list[Any]:
    return [line for line in _lines(folder) if isinstance(line, kind)]


def _offsets(lines: list[Any]) -> list[int]:
    return [offset for line in lines for first, count in line.ranges for offset in range(first, first + count)]


@pytest.fixture
def url(tmp_path: Path) -> str:
    return f"memory:{tmp_path.name}"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "records"


def _check_puts(folder: Path) -> None:
    """Each value was announced once, and is stored where its announcement's answer says."""
    sent = {(line.session, line.number, line.part): line for line in _of(folder, records.Sent)}
    stored = {(line.session, line.number, line.part): line for line in _of(folder, records.Stored)}
    assert sent.keys() == stored.keys()
    places = {
        stored[put].first + place: digest for put, line in sent.items() for place, digest in enumerate(line.digests)
    }
    assert places == {place: digest_of(value, None, None) for place, value in enumerate(_VALUES)}


# Ways to put.


def _put(client: oncemq.Client) -> None:
    for value in _VALUES:
        client.put("orders", value, create=True)


def _put_many(client: oncemq.Client) -> None:
    client.put_many("orders", _VALUES, create=True)


def _put_nowait(client: oncemq.Client) -> None:
    for value in _VALUES:
        client.put_nowait("orders", value, create=True)
    client.flush()


def _transact(client: oncemq.Client) -> None:
    with client.transaction() as transaction:
        transaction.put("orders", _VALUES[0], create=True)
        transaction.put("orders", _VALUES[1], create=True)
        transaction.put("orders", _VALUES[2], create=True, ttl_s=60)


@pytest.mark.parametrize("way", [_put, _put_many, _put_nowait, _transact])
@pytest.mark.parametrize("with_outbox", [False, True])
def test_every_way_to_put_is_recorded(
    url: str, folder: Path, tmp_path: Path, way: Callable[[oncemq.Client], None], with_outbox: bool
) -> None:
    keeper = oncemq.connect(url)
    keeper.create_topic("orders", retain_ms=10**9)
    options: Any = {"outbox": tmp_path / "outbox"} if with_outbox else {}
    with oncemq.connect(url, record=folder, **options) as client:
        way(client)
        client.flush()
    _check_puts(folder)
    keeper.close()


async def _aput(client: oncemq.aio.Client) -> None:
    for value in _VALUES:
        await client.put("orders", value)


async def _aput_many(client: oncemq.aio.Client) -> None:
    await client.put_many("orders", _VALUES)


async def _aput_nowait(client: oncemq.aio.Client) -> None:
    for value in _VALUES:
        client.put_nowait("orders", value)
    await client.flush()


async def _atransact(client: oncemq.aio.Client) -> None:
    async with client.transaction() as transaction:
        transaction.put_many("orders", _VALUES)


@pytest.mark.parametrize("way", [_aput, _aput_many, _aput_nowait, _atransact])
@on_event_loop
async def test_every_way_to_put_is_recorded_in_asyncio(
    url: str, folder: Path, way: Callable[[oncemq.aio.Client], Awaitable[None]]
) -> None:
    async with oncemq.aio.connect(url, record=folder) as client:
        await client.create_topic("orders", retain_ms=10**9)
        await way(client)
    _check_puts(folder)


# Ways to consume.


def _get(client: oncemq.Client) -> None:
    with client.subscription("orders", "reader") as subscription:
        while subscription.get(timeout_s=0.05):
            pass


def _get_many(client: oncemq.Client) -> None:
    with client.subscription("orders", "reader") as subscription:
        assert len(subscription.get_many(10, timeout_s=5)) == len(_VALUES)


def _iterate(client: oncemq.Client) -> None:
    with client.subscription("orders", "reader") as subscription:
        assert len(list(subscription.messages(timeout_s=0.05))) == len(_VALUES)


def _ack_in_a_transaction(client: oncemq.Client) -> None:
    with client.subscription("orders", "reader", auto_ack=False) as subscription, client.transaction() as transaction:
        subscription.get_many(10, timeout_s=5)
        transaction.ack(subscription)


def _inbox(client: oncemq.Client) -> None:
    inbox = client.inbox("orders", "reader", sqlite3.connect(":memory:", isolation_level=None))
    with inbox.batch(10, timeout_s=5) as messages:
        assert len(messages) == len(_VALUES)
    inbox.close()


@pytest.mark.parametrize("way", [_get, _get_many, _iterate, _ack_in_a_transaction, _inbox])
def test_every_way_to_consume_is_recorded(url: str, folder: Path, way: Callable[[oncemq.Client], None]) -> None:
    with oncemq.connect(url, record=folder) as client:
        client.subscribe("orders", "reader")
        client.put_many("orders", _VALUES)
        way(client)
    _check_consumed(folder)


def _check_consumed(folder: Path) -> None:
    got = _of(folder, records.Got)
    assert _offsets(got) == [0, 1, 2]
    assert [digest for line in got for digest in line.digests] == [digest_of(value, None, None) for value in _VALUES]
    assert {line.subscriber for line in got} == {"reader"}
    assert max(line.acked for line in _of(folder, records.Acked)) == 3
    [opened] = _of(folder, records.Opened)
    assert opened.epoch == got[0].epoch


@pytest.mark.parametrize("way", ["get", "get_many", "iterate"])
@on_event_loop
async def test_every_way_to_consume_is_recorded_in_asyncio(url: str, folder: Path, way: str) -> None:
    async with oncemq.aio.connect(url, record=folder) as client:
        subscription = await client.subscribe("orders", "reader")
        await client.put_many("orders", _VALUES)
        if way == "get":
            while await subscription.get(timeout_s=0.05):
                pass
        elif way == "get_many":
            await subscription.get_many(10, timeout_s=5)
        else:
            assert len([message async for message in subscription.messages(timeout_s=0.05)]) == len(_VALUES)
    _check_consumed(folder)


def test_a_pattern_is_recorded_topic_by_topic(url: str, folder: Path) -> None:
    with oncemq.connect(url, record=folder) as client:
        pattern = client.subscribe_pattern("orders.*", "reader")
        client.put("orders.eu", "1", create=True)
        client.put("orders.us", "2", create=True)
        assert len(list(pattern.messages(timeout_s=0.1))) == 2
    got = _of(folder, records.Got)
    assert {(line.topic, line.pattern, line.subscriber) for line in got} == {
        ("orders.eu", "orders.*", "reader"),
        ("orders.us", "orders.*", "reader"),
    }
    acked = {line.topic_id: line.acked for line in _of(folder, records.Acked)}
    assert acked == {line.topic_id: 1 for line in got}


@pytest.mark.parametrize("in_transaction", [False, True])
def test_a_shared_subscription_records_its_leases_and_what_is_done(
    url: str, folder: Path, in_transaction: bool
) -> None:
    with oncemq.connect(url, record=folder) as client:
        workers = client.subscribe_shared("orders", "reader")
        client.put_many("orders", _VALUES)
        tasks = workers.take_many(1, timeout_s=5) + workers.take_many(2, timeout_s=5)
        while len(tasks) < len(_VALUES):
            tasks += workers.take_many(3, timeout_s=5)
        if in_transaction:
            with client.transaction() as transaction:
                for task in tasks:
                    transaction.ack(task)
        else:
            for task in tasks:
                task.ack()
    got = _of(folder, records.Got)
    tokens = {offset: line.token for line in got for offset in _offsets([line])}
    done = {
        offset: token
        for line in _of(folder, records.Settled)
        for token, first, count in line.done
        for offset in range(first, first + count)
    }
    assert sorted(tokens) == [0, 1, 2]
    assert all(tokens.values())
    assert done == tokens


def test_what_a_filter_leaves_out_is_recorded_as_passed(url: str, folder: Path) -> None:
    with oncemq.connect(url, record=folder) as client:
        reader = client.subscribe("orders", "reader", filter=lambda message: message.value != b"b")
        client.put_many("orders", _VALUES)
        assert [message.value for message in reader.messages(timeout_s=0.05)] == [b"a", b"c"]
    [got] = _of(folder, records.Got)
    assert (got.ranges, got.passed) == ([(0, 1), (2, 1)], [(1, 1)])


def test_what_has_expired_is_recorded_as_skipped(url: str, folder: Path) -> None:
    with oncemq.connect(url, record=folder) as client:
        reader = client.subscribe("orders", "reader")
        gone = client.put("orders", "gone", ttl_s=0.001)
        until = time.monotonic() + 30
        while client.health().time_ms <= gone.timestamp_ms + 1:
            assert time.monotonic() < until
        client.put("orders", "here")
        assert [message.text for message in reader.get_many(10, timeout_s=5)] == ["here"]
    assert _of(folder, records.Skipped)[0].ranges == [(0, 1)]
    assert _of(folder, records.Sent)[0].ttl_ms == 1


def test_an_ack_of_what_was_not_given_and_a_seek_are_recorded(url: str, folder: Path) -> None:
    with oncemq.connect(url, record=folder) as client:
        client.create_topic("orders", retain_ms=10**9)
        reader = client.subscribe("orders", "reader", auto_ack=False)
        client.put_many("orders", _VALUES)
        reader.ack(1, wait=True)
        assert reader.seek("earliest") == 0
    assert _of(folder, records.Left)[0].ranges == [(0, 2)]
    [moving], [moved] = _of(folder, records.Moving), _of(folder, records.Moved)
    assert (moving.what, moved.acked, moved.number) == ("seek", 0, moving.number)


def test_a_transaction_that_is_rolled_back_says_where_it_reads_again(url: str, folder: Path) -> None:
    with oncemq.connect(url, record=folder) as client:
        reader = client.subscribe("orders", "reader", auto_ack=False)
        client.put_many("orders", _VALUES)
        with pytest.raises(KeyError), client.transaction():
            reader.get_many(10, timeout_s=5)
            raise KeyError
        reader.get_many(10, timeout_s=5)
    kinds = [type(line) for line in _lines(folder) if isinstance(line, records.Got | records.Back)]
    assert kinds == [records.Got, records.Back, records.Got]


def test_a_refused_put_is_recorded_as_refused(url: str, folder: Path) -> None:
    with oncemq.connect(url, record=folder) as client, pytest.raises(errors.TopicUnknown):
        client.put("nowhere", "x")
    [sent], [refused] = _of(folder, records.Sent), _of(folder, records.Refused)
    assert (refused.number, refused.code) == (sent.number, "TOPIC_UNKNOWN")
    assert not _of(folder, records.Stored)


def test_keys_and_headers_are_part_of_a_digest(url: str, folder: Path) -> None:
    with oncemq.connect(url, record=folder) as client:
        reader = client.subscribe("orders", "reader")
        client.put("orders", "x", key="k", headers={"a": "1", "b": "2"})
        client.put("orders", "x", key="k")
        client.put("orders", "x")
        reader.get_many(10, timeout_s=5)
    put = [digest for line in _of(folder, records.Sent) for digest in line.digests]
    got = [digest for line in _of(folder, records.Got) for digest in line.digests]
    assert put == got
    assert len(set(put)) == 3


# On and off.


def test_nothing_is_recorded_unless_it_is_asked_for(
    url: str, folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("ONCEMQ_RECORD", raising=False)
    with oncemq.connect(url) as client:
        client.put("orders", "x", create=True)
    assert not list(tmp_path.rglob("*.ndjson"))
    monkeypatch.setenv("ONCEMQ_RECORD", str(folder))
    with oncemq.connect(url, record="") as client:
        client.put("orders", "x", create=True)
    assert not list(tmp_path.rglob("*.ndjson"))


def test_the_environment_turns_it_on(url: str, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ONCEMQ_RECORD", str(folder))
    with oncemq.connect(url, name="till/7") as client:
        client.put("orders", "x", create=True)
    [path] = folder.glob("*.ndjson")
    assert path.name.startswith(f"till%2F7-{os.getpid()}-")
    assert [type(line) for line in _lines(folder)] == [records.Begin, records.Sent, records.Stored, records.End]


def test_the_command_line_records_too(tmp_path: Path, folder: Path) -> None:
    command = [sys.executable, "-m", "oncemq", "put", "--url", f"file:{tmp_path / 'data'}", "--create", "orders", "x"]
    subprocess.run(command, check=True, env={**os.environ, "ONCEMQ_RECORD": str(folder)}, timeout=60)
    assert len(_of(folder, records.Stored)) == 1


def test_a_folder_that_cannot_be_written_to_is_refused_before_anything_begins(url: str, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(errors.SettingInvalid, match="records can't be written to"):
        oncemq.connect(url, record=tmp_path / "file" / "records")


# When things go wrong.


def test_a_put_is_announced_before_it_is_answered(url: str, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    client = oncemq.connect(url, record=folder, timeout_s=0.05, tries=1)
    monkeypatch.setattr(client._driver.transport, "receive", lambda: None)
    with pytest.raises(errors.BrokerAway):
        client.put("orders", "x", create=True)
    assert [type(line) for line in _lines(folder)] == [records.Begin, records.Sent]
    client._close(clean=False)


def test_a_file_that_could_not_be_written_says_so_and_the_work_goes_on(url: str, folder: Path) -> None:
    with oncemq.connect(url, record=folder) as client:
        client.put("orders", "x", create=True)
        recorder = client._driver.core.observer
        assert isinstance(recorder, Recorder)
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(os, "write", _full(recorder._file._descriptor))
            assert client.put("orders", "y").offset == 1
        client.put("orders", "z")
    [begin] = _of(folder, records.Begin)
    assert begin.complete is False
    assert len(_of(folder, records.Stored)) == 1


def _full(ours: int) -> Callable[[int, bytes], int]:
    """A write that fails for this one file."""
    real = os.write

    def write(descriptor: int, data: bytes) -> int:
        if descriptor == ours:
            raise OSError(28, "No space left on device")
        return real(descriptor, data)

    return write


_PROGRAM = """
import sys, oncemq
with oncemq.connect(sys.argv[1], record=sys.argv[2]) as client:
    reader = client.subscribe("orders", "reader")
    number = 0
    while True:
        client.put_many("orders", [b"%d" % each for each in range(number, number + 50)])
        number += 50
        reader.get_many(30)
"""


def test_the_records_of_a_killed_process_stay_readable(broker_process: BrokerProcess, folder: Path) -> None:
    broker_process.start()
    process = subprocess.Popen([sys.executable, "-c", _PROGRAM, broker_process.url, str(folder)])
    try:
        until = time.monotonic() + 30
        while not (folder.exists() and len(_of(folder, records.Got)) > 5):
            assert process.poll() is None
            assert time.monotonic() < until
            time.sleep(0.01)
    finally:
        process.send_signal(signal.SIGKILL)
        process.wait()
    assert not _of(folder, records.End)
    sent = {line.number for line in _of(folder, records.Sent)}
    stored = {line.number: line for line in _of(folder, records.Stored)}
    assert stored.keys() <= sent
    with broker_process.connect() as client:
        [topic] = client.topics()
    # Whatever the broker has was announced before it left.
    assert topic.end_offset <= sum(line.count for line in _of(folder, records.Sent))
    assert topic.end_offset >= max(line.first + line.count for line in stored.values())


def test_what_an_outbox_leaves_is_reported_by_the_process_that_sends_it(url: str, folder: Path, tmp_path: Path) -> None:
    keeper = oncemq.connect(url)
    keeper.create_topic("orders", retain_ms=10**9)
    away = oncemq.connect("tcp://127.0.0.1:9", outbox=tmp_path / "outbox", timeout_s=0.05, record=folder)
    away.put("orders", "x")
    away._close(clean=False)
    assert not _of(folder, records.Sent)
    with oncemq.connect(url, outbox=tmp_path / "outbox", record=folder) as client:
        client.flush(timeout_s=10)
    [sent], [stored] = _of(folder, records.Sent), _of(folder, records.Stored)
    assert (sent.session, sent.number) == (stored.session, stored.number)
    keeper.close()
