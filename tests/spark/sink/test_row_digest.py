"""The digest of rows depends on the messages, and not on their order or partitions."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import pyarrow as pa

from oncemq.arrow.payloads import MessageColumns, message_columns
from oncemq.spark.sink.row_digest import RowDigest, rows_content

Row = tuple[bytes, bytes | None]


def content(*tasks: Sequence[Row], topic: str = "out", times_ms: Sequence[int] | None = None) -> bytes:
    digests = []
    for rows in tasks:
        values, keys = (pa.array([row[index] for row in rows], pa.binary()) for index in (0, 1))
        times = None if times_ms is None else pa.array(times_ms, pa.int64())
        digest = RowDigest()
        digest.add(topic, MessageColumns(values, keys, None, times))
        digests.append(digest)
    return rows_content(itertools.chain.from_iterable(digest.topics() for digest in digests))


ROWS: list[Row] = [(b"a", b"1"), (b"b", None), (b"c", b""), (b"a", b"1")]


def test_order_and_partitions_do_not_matter() -> None:
    for rows in itertools.permutations(ROWS):
        assert content(rows) == content(ROWS)
        assert content(rows[:1], rows[1:3], rows[3:]) == content(ROWS)


def test_rows_without_keys_and_headers_have_the_same_digest_in_batches_of_their_own() -> None:
    headers = pa.array([[("h", b"1")], None, [], [("h", b"")]], pa.map_(pa.string(), pa.binary()))
    rows = pa.record_batch(
        {
            "value": pa.array([b"a", b"b", b"c", b"d"], pa.binary()),
            "key": pa.array([None, None, b"", b"1"], pa.binary()),
            "headers": headers,
        }
    )
    found = set()
    for sizes in ((4,), (1, 3), (2, 2), (1, 1, 1, 1)):
        digest, start = RowDigest(), 0
        for size in sizes:
            digest.add("out", message_columns(rows.slice(start, size), keeps_times=False))
            start += size
        found.add(rows_content(digest.topics()))
    assert len(found) == 1


def test_everything_that_is_stored_matters() -> None:
    others: list[list[Row]] = [
        ROWS[:3],
        [*ROWS, ROWS[0]],
        [*ROWS[:3], (b"a", b"2")],
        [*ROWS[:3], (b"1", b"a")],
        [(b"a", b"1"), (b"b", b""), (b"c", None), (b"a", b"1")],
        [(b"a", None), (b"b", b"1"), (b"c", b""), (b"a", b"1")],
        [],
    ]
    found = [content(rows) for rows in [ROWS, *others]]
    found += [content(ROWS, topic="other"), content(ROWS, times_ms=[1, 2, 3, 4]), content(ROWS, times_ms=[1, 2, 3, 5])]
    assert len(set(found)) == len(found)
