"""The outbox's file: what is in it after any end of its process, and who may write it."""

from __future__ import annotations

import multiprocessing
import os
import shutil
import sqlite3
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from oncemq.client.outbox.file import OutboxFile
from oncemq.client.outbox.storage import FORMAT_VERSION, sync_folder
from oncemq.protocol import errors
from oncemq.protocol.commands import Envelope, Operation, Put, Subscribe, Transact, Void
from oncemq.protocol.frames import Frame


def put(value: bytes, topic: str = "orders") -> tuple[Operation, tuple[Frame, ...]]:
    return Put(topic, Envelope(1, len(value), 0)), (value,)


def transaction(*values: bytes) -> tuple[Operation, tuple[Frame, ...]]:
    return Transact(puts=tuple(Put("orders", Envelope(1, len(value), 0)) for value in values)), values


def crashed(outbox: OutboxFile, to: Path) -> Path:
    """The file as a process leaves it that is killed now."""
    to.mkdir()
    for name in (outbox.path, outbox.path + "-wal"):
        if os.path.exists(name):
            shutil.copy(name, to)
    return to / os.path.basename(outbox.path)


def values_in(outbox: OutboxFile) -> list[bytes]:
    return [bytes(payload) for kept in outbox.entries() for payload in kept.payloads]


def test_what_was_appended_is_there_after_a_crash_in_order_with_its_numbers(tmp_path: Path) -> None:
    outbox = OutboxFile.open(tmp_path / "out")
    assert outbox.append([put(b"one"), (Subscribe("orders", "kitchen"), ())]) == range(1, 3)
    assert outbox.append([transaction(b"two", b"", b"three")]) == range(3, 4)
    again = OutboxFile.open(crashed(outbox, tmp_path / "after"))
    assert again.session == outbox.session
    assert again.next_number == 4
    assert again.pending_count == 3
    first, second, third = again.entries()
    assert (first.number, first.operation, first.payloads) == (1, put(b"one")[0], (b"one",))
    assert (second.operation, second.payloads) == (Subscribe("orders", "kitchen"), ())
    assert third.operation == transaction(b"two", b"", b"three")[0]
    assert [bytes(payload) for payload in third.payloads] == [b"two", b"", b"three"]
    outbox.close()
    again.close()


def test_each_commit_is_synced_and_the_folder_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    synced: list[str] = []

    def note(path: str) -> None:
        synced.append(path)
        sync_folder(path)

    monkeypatch.setattr("oncemq.client.outbox.storage.sync_folder", note)
    outbox = OutboxFile.open(tmp_path / "out")
    assert synced == [str(tmp_path / "out")]
    execute = outbox._storage.connection.execute
    assert execute("PRAGMA synchronous").fetchone() == (2,)
    assert execute("PRAGMA journal_mode").fetchone() == ("wal",)
    outbox.close()


def test_an_append_is_kept_whole_or_not_at_all(tmp_path: Path) -> None:
    outbox = OutboxFile.open(tmp_path / "out")
    outbox.append([put(b"before")])
    execute = outbox._storage.connection.execute
    [pages] = execute("PRAGMA page_count").fetchone()
    execute(f"PRAGMA max_page_count = {pages + 4}")
    with pytest.raises(errors.OutboxFull, match="nothing was written"):
        outbox.append([put(b"small"), put(b"x" * 100_000)])
    assert outbox.next_number == 2
    assert values_in(outbox) == [b"before"]
    execute(f"PRAGMA max_page_count = {pages + 1000}")
    assert outbox.append([put(b"after")]) == range(2, 3)
    assert values_in(outbox) == [b"before", b"after"]
    outbox.close()


def test_successes_are_marked_with_the_next_write(tmp_path: Path) -> None:
    outbox = OutboxFile.open(tmp_path / "out")
    outbox.append([put(b"1"), put(b"2"), put(b"3")])
    outbox.complete(1)
    assert outbox.pending_count == 2
    assert values_in(outbox) == [b"2", b"3"]
    unmarked = OutboxFile.open(crashed(outbox, tmp_path / "before"))
    assert values_in(unmarked) == [b"1", b"2", b"3"]
    assert unmarked.answered_number == 0
    outbox.append([put(b"4")])
    marked = OutboxFile.open(crashed(outbox, tmp_path / "after"))
    assert values_in(marked) == [b"2", b"3", b"4"]
    assert (marked.answered_number, marked.next_number, marked.pending_count) == (1, 5, 3)
    for each in (outbox, unmarked, marked):
        each.close()


def test_successes_do_not_pile_up_unmarked(tmp_path: Path) -> None:
    outbox = OutboxFile.open(tmp_path / "out")
    outbox.append([put(b"%d" % number) for number in range(1000)])
    for number in range(1, 1001):
        outbox.complete(number)
    again = OutboxFile.open(crashed(outbox, tmp_path / "after"))
    assert again.answered_number >= 512
    assert again.pending_count < 500
    outbox.close()
    again.close()
    closed = OutboxFile.open(tmp_path / "out")
    assert (closed.pending_count, closed.answered_number, closed.next_number) == (0, 1000, 1001)
    closed.close()


def test_a_refusal_is_durable_at_once_and_kept_until_it_was_seen(tmp_path: Path) -> None:
    outbox = OutboxFile.open(tmp_path / "out")
    outbox.append([put(b"1"), put(b"2", "nowhere"), put(b"3")])
    outbox.complete(1)
    outbox.refuse(2, "TOPIC_UNKNOWN", "there is no topic 'nowhere'")
    again = OutboxFile.open(crashed(outbox, tmp_path / "after"))
    assert values_in(again) == [b"3"]
    assert again.answered_number == 2
    [refusal] = again.refusals()
    assert (refusal.number, refusal.code, refusal.text) == (2, "TOPIC_UNKNOWN", "there is no topic 'nowhere'")
    assert (refusal.operation, refusal.payloads) == put(b"2", "nowhere")
    assert again.refusals_count == 1
    again.seen(2)
    seen = OutboxFile.open(crashed(again, tmp_path / "seen"))
    assert (list(seen.refusals()), seen.refusals_count) == ([], 0)
    for each in (outbox, again, seen):
        each.close()


def test_a_void_stands_for_its_number_until_that_is_used_up(tmp_path: Path) -> None:
    outbox = OutboxFile.open(tmp_path / "out")
    outbox.append([put(b"too large"), put(b"2")])
    outbox.void(1, "TOO_LARGE", "a message of 9 bytes")
    again = OutboxFile.open(crashed(outbox, tmp_path / "after"))
    assert [(kept.number, kept.operation) for kept in again.entries()] == [(1, Void()), (2, put(b"2")[0])]
    [refusal] = again.refusals()
    assert (refusal.code, refusal.payloads) == ("TOO_LARGE", (b"too large",))
    again.complete_void(1)
    again.flush()
    assert values_in(again) == [b"2"]
    assert again.refusals_count == 1
    outbox.close()
    again.close()


def test_what_was_refused_on_the_way_and_had_happened_before_is_no_refusal(tmp_path: Path) -> None:
    outbox = OutboxFile.open(tmp_path / "out")
    outbox.append([put(b"1")])
    outbox.void(1, "BROKER_BUG", "the broker failed")
    outbox.complete(1)
    outbox.flush()
    assert (list(outbox.refusals()), outbox.refusals_count, outbox.pending_count) == ([], 0, 0)
    outbox.close()


def test_whoever_opens_it_fences_the_one_before(tmp_path: Path) -> None:
    first = OutboxFile.open(tmp_path / "out")
    first.append([put(b"1")])
    second = OutboxFile.open(tmp_path / "out")
    for write in (
        lambda: first.append([put(b"lost")]),
        lambda: first.refuse(1, "TOPIC_UNKNOWN", ""),
        lambda: first.connected("broker"),
        lambda: first.entries(),
        lambda: first.seen(1),
    ):
        with pytest.raises(errors.Fenced, match="another process has opened"):
            write()
    first.complete(1)
    first.close()
    assert values_in(second) == [b"1"]
    assert second.append([put(b"2")]) == range(2, 3)
    second.close()


def test_entries_that_were_kept_while_no_broker_was_found_count_as_not_sent(tmp_path: Path) -> None:
    def sent_below() -> int:
        outbox = OutboxFile.open(tmp_path / "out")
        outbox.append([put(b"x")])
        outbox.close()
        return outbox.sent_below

    assert [sent_below(), sent_below()] == [1, 1]
    outbox = OutboxFile.open(tmp_path / "out")
    outbox.append([put(b"before")])
    outbox.connected("broker")
    outbox.append([put(b"after")])
    outbox.close()
    assert [sent_below(), sent_below()] == [5, 5]


def test_the_broker_is_remembered(tmp_path: Path) -> None:
    outbox = OutboxFile.open(tmp_path / "out")
    assert outbox.broker_id == ""
    outbox.connected("broker-1")
    again = OutboxFile.open(crashed(outbox, tmp_path / "after"))
    assert again.broker_id == "broker-1"
    outbox.close()
    again.close()


def test_entries_come_in_pages(tmp_path: Path) -> None:
    outbox = OutboxFile.open(tmp_path / "out")
    outbox.append([put(b"x" * 100) for _ in range(10)])
    assert [kept.number for kept in outbox.entries(1, 3)] == [1, 2, 3]
    assert [kept.number for kept in outbox.entries(4, 100, 250)] == [4, 5]
    assert [kept.number for kept in outbox.entries(6, 100, 1)] == [6]
    assert [kept.number for kept in outbox.entries(7)] == [7, 8, 9, 10]
    assert outbox.entries(11) == []
    outbox.close()


def test_threads_may_share_it_under_a_lock(tmp_path: Path) -> None:
    outbox = OutboxFile.open(tmp_path / "out")
    lock = threading.Lock()

    def work(name: bytes) -> None:
        for _ in range(20):
            with lock:
                outbox.append([put(name)])

    threads = [threading.Thread(target=work, args=(b"%d" % index,)) for index in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(values_in(outbox)) == sorted([b"0", b"1", b"2", b"3"] * 20)
    outbox.close()


def _use_in_child(outbox: OutboxFile, answers: multiprocessing.SimpleQueue[str]) -> None:
    try:
        outbox.append([put(b"of the child")])
        answers.put("kept")
    except errors.ForkedError:
        answers.put("forked")
    outbox.close()


@pytest.mark.skipif(not hasattr(os, "fork"), reason="there is no fork here")
def test_a_forked_child_may_not_use_it_and_does_not_harm_it(tmp_path: Path) -> None:
    outbox = OutboxFile.open(tmp_path / "out")
    outbox.append([put(b"1")])
    context = multiprocessing.get_context("fork")
    answers = context.SimpleQueue()
    child = context.Process(target=_use_in_child, args=(outbox, answers))
    child.start()
    assert answers.get() == "forked"
    child.join()
    assert outbox.append([put(b"2")]) == range(2, 3)
    assert values_in(outbox) == [b"1", b"2"]
    outbox.close()


def test_after_its_close_it_is_closed(tmp_path: Path) -> None:
    outbox = OutboxFile.open(tmp_path / "out")
    outbox.close()
    outbox.close()
    with pytest.raises(errors.ClientClosed):
        outbox.append([put(b"1")])
    assert sorted(os.listdir(tmp_path)) == ["out"]


def test_a_file_that_was_replaced_while_in_use_is_noticed(tmp_path: Path) -> None:
    outbox = OutboxFile.open(tmp_path / "out")
    outbox.append([put(b"1")])
    shutil.copy(tmp_path / "out", tmp_path / "copy")
    os.replace(tmp_path / "copy", tmp_path / "out")
    with pytest.raises(errors.OutboxError, match="deleted or replaced"):
        outbox.append([put(b"2")])
    outbox.close()


def test_a_file_of_something_else_is_refused_and_left_alone(tmp_path: Path) -> None:
    text = tmp_path / "notes"
    text.write_bytes(b"not an outbox at all. " * 100)
    with pytest.raises(errors.OutboxInvalid, match="is not an outbox"):
        OutboxFile.open(text)
    assert text.read_bytes() == b"not an outbox at all. " * 100
    other = sqlite3.connect(tmp_path / "shop")
    other.execute("CREATE TABLE orders (id INTEGER)")
    other.commit()
    other.close()
    before = (tmp_path / "shop").read_bytes()
    with pytest.raises(errors.OutboxInvalid, match="something else"):
        OutboxFile.open(tmp_path / "shop")
    assert (tmp_path / "shop").read_bytes() == before
    with pytest.raises(errors.OutboxInvalid, match="is a folder"):
        OutboxFile.open(tmp_path)


def test_a_newer_format_is_refused_by_name(tmp_path: Path) -> None:
    outbox = OutboxFile.open(tmp_path / "out")
    outbox._storage.connection.execute(f"PRAGMA user_version = {FORMAT_VERSION + 1}")
    outbox.close()
    with pytest.raises(errors.OutboxVersion, match=f"version {FORMAT_VERSION + 1}"):
        OutboxFile.open(tmp_path / "out")


def test_a_damaged_file_is_refused(tmp_path: Path) -> None:
    outbox = OutboxFile.open(tmp_path / "out")
    outbox.append([put(b"x" * 100_000)])
    outbox.close()
    with open(tmp_path / "out", "r+b") as file:
        file.seek(4096)
        file.write(b"\xff" * 3 * 4096)
    with pytest.raises(errors.OutboxInvalid, match="damaged"):
        values_in(OutboxFile.open(tmp_path / "out"))


def test_a_folder_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(errors.OutboxError, match="there is no folder"):
        OutboxFile.open(tmp_path / "no" / "out")


@pytest.mark.skipif(not os.path.isdir("/proc/self"), reason="needs a place that nobody can write")
def test_a_place_that_can_not_be_written_is_named() -> None:
    with pytest.raises(errors.OutboxError, match="can't be written"):
        OutboxFile.open("/proc/out")


def test_a_maker_that_was_killed_before_it_was_done_leaves_nothing_in_the_way(tmp_path: Path) -> None:
    (tmp_path / "out").touch()
    half = sqlite3.connect(tmp_path / "half")
    half.execute("PRAGMA journal_mode = WAL")
    half.close()
    for name in ("out", "half"):
        outbox = OutboxFile.open(tmp_path / name)
        assert outbox.append([put(b"1")]) == range(1, 2)
        outbox.close()


_OPENER = """
import sys
from oncemq.client.outbox.file import OutboxFile
print(OutboxFile.open(sys.argv[1]).session)
"""


def test_several_that_make_it_at_once_make_one(tmp_path: Path) -> None:
    command = [sys.executable, "-c", _OPENER, str(tmp_path / "out")]
    openers = [subprocess.Popen(command, stdout=subprocess.PIPE, text=True) for _ in range(4)]
    sessions = {opener.communicate()[0] for opener in openers}
    assert [opener.returncode for opener in openers] == [0] * 4
    assert len(sessions) == 1


_WRITER = """
import sys
from oncemq.client.outbox.file import OutboxFile
from oncemq.protocol.commands import Envelope, Put
outbox = OutboxFile.open(sys.argv[1])
while True:
    value = b"%d" % outbox.next_number
    [number] = outbox.append([(Put("orders", Envelope(1, len(value), 0)), (value,))])
    if number % 3 == 0:
        outbox.refuse(number, "TOPIC_UNKNOWN", "no")
    print(number, flush=True)
"""


def test_a_killed_process_has_kept_whatever_it_was_told_is_kept(tmp_path: Path) -> None:
    path = tmp_path / "out"
    told = 0
    #: Was perhaps appended, and not refused, when its process was killed.
    limbo = set()
    for _ in range(3):
        writer = subprocess.Popen([sys.executable, "-c", _WRITER, str(path)], stdout=subprocess.PIPE, text=True)
        assert writer.stdout is not None
        for _ in range(20):
            told = int(writer.stdout.readline())
        writer.kill()
        told = int([str(told), *writer.stdout.read().split()][-1])
        limbo.add(told + 1)
        writer.stdout.close()
        writer.wait()
    outbox = OutboxFile.open(path)
    assert outbox.next_number > told
    kept = {kept.number: bytes(kept.payloads[0]) for kept in outbox.entries(1, 10**6)}
    refused = {refusal.number: bytes(refusal.payloads[0]) for refusal in outbox.refusals()}
    assert set(refused) == {number for number in range(1, outbox.next_number) if number % 3 == 0} - set(kept)
    assert kept | refused == {number: b"%d" % number for number in range(1, outbox.next_number)}
    assert {number for number in kept if number % 3 == 0} <= limbo
    outbox.close()


def test_only_its_owner_can_read_an_outbox(tmp_path: Path) -> None:
    former = os.umask(0o022)
    try:
        outbox = OutboxFile.open(tmp_path / "orders.outbox")
        outbox.append([(Void(), ())])
        modes = {path.name: path.stat().st_mode & 0o777 for path in tmp_path.iterdir()}
    finally:
        os.umask(former)
    outbox.close()
    assert {"orders.outbox", "orders.outbox-wal", "orders.outbox-reserve"} <= set(modes)
    assert set(modes.values()) == {0o600}
