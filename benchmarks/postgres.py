"""The journal in PostgreSQL, compared with PostgreSQL alone. Run: python -m benchmarks.postgres [--json] [--rounds N]

The same messages in the same number of commits on the same server, with fsync on: 1,000 messages of 100 bytes each.

    COPY, a row each     the fastest way to fill a table of messages
    INSERT, a row each   one statement for all rows of a commit
    COPY, one value      the same bytes as one row per commit, without separate messages
    journal              appends of the journal alone
    broker               puts of a client, one in flight, through a separate broker process

The cases alternate; each figure is the median of its rounds. If the folder of the server is on tmpfs, the figures are
meaningless: set TMPDIR to a folder on a disk.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from urllib.parse import quote

import msgspec
import psycopg
from psycopg.conninfo import conninfo_to_dict

from benchmarks.raw import RawClient
from oncemq.journal.contract import Group, Record, record_bytes
from oncemq.journal.postgres.journal import PostgresJournal
from oncemq.journal.postgres.standby import open_postgres
from oncemq.protocol import commands
from oncemq.protocol.batch import checksum, encode_batch
from oncemq.testing.broker_process import BrokerProcess
from oncemq.testing.postgres import PostgresServer

_MESSAGES, _MESSAGE_BYTES = 1000, 100
_VALUES = [b"%0*d" % (_MESSAGE_BYTES, number) for number in range(_MESSAGES)]
_PAYLOAD = encode_batch(_VALUES)
_CHECKSUM = checksum(_PAYLOAD)
_ROWS, _VALUE = "COPY, a row each", "COPY, one value"

#: Writes this many groups.
Writer = Callable[[int], None]


class Figure(msgspec.Struct, frozen=True):
    case: str
    mb_per_s: float
    commits_per_s: float
    #: Compared with a COPY of one row per message, and with a COPY of the same bytes as one value.
    per_copy_of_rows: float
    per_copy_of_value: float


@contextmanager
def _copy_rows(dsn: str) -> Iterator[Writer]:
    with psycopg.connect(dsn) as connection:
        connection.execute("create table copied (id bigserial primary key, message bytea)")
        connection.commit()

        def write(groups: int) -> None:
            for _ in range(groups):
                with connection.cursor().copy("copy copied (message) from stdin (format binary)") as copy:
                    copy.set_types(["bytea"])
                    for value in _VALUES:
                        copy.write_row((value,))
                connection.commit()

        yield write


@contextmanager
def _insert_rows(dsn: str) -> Iterator[Writer]:
    with psycopg.connect(dsn, prepare_threshold=0) as connection:
        connection.execute("create table inserted (id bigserial primary key, message bytea)")
        connection.commit()

        def write(groups: int) -> None:
            for _ in range(groups):
                connection.execute("insert into inserted (message) select unnest(%b::bytea[])", (_VALUES,))
                connection.commit()

        yield write


@contextmanager
def _copy_values(dsn: str) -> Iterator[Writer]:
    with psycopg.connect(dsn) as connection:
        connection.execute("create table batches (id bigserial primary key, batch bytea)")
        connection.execute("alter table batches alter column batch set storage external")
        connection.commit()

        def write(groups: int) -> None:
            for _ in range(groups):
                with connection.cursor().copy("copy batches (batch) from stdin (format binary)") as copy:
                    copy.set_types(["bytea"])
                    copy.write_row((_PAYLOAD,))
                connection.commit()

        yield write


@contextmanager
def _journal(dsn: str) -> Iterator[Writer]:
    journal = open_postgres(dsn, lease_ms=60_000)
    list(journal.load().groups)

    def write(groups: int) -> None:
        for number in range(groups):
            _append(journal, number)

    yield write
    journal.close()


def _append(journal: PostgresJournal, number: int) -> None:
    slot = journal.next_slot(record_bytes(len(_PAYLOAD)) + 100)
    record = Record(slot.position, 1, number * _MESSAGES, _MESSAGES, _CHECKSUM, _PAYLOAD)
    journal.append(Group(number, bytes(100), [record]))
    journal.sync()


@contextmanager
def _broker(url: str, folder: Path) -> Iterator[Writer]:
    with BrokerProcess(folder, "--journal", url) as broker, RawClient(broker.url) as client:
        client.do([commands.Subscribe("orders", "kitchen")])
        put = commands.Put("orders", commands.Envelope(_MESSAGES, len(_PAYLOAD), _CHECKSUM))

        def write(groups: int) -> None:
            for _ in range(groups):
                client.do([put], [_PAYLOAD])

        yield write


def url_of(dsn: str) -> str:
    parts = {name: str(value) for name, value in conninfo_to_dict(dsn).items()}
    options = "&".join(f"{name}={quote(parts[name], safe='')}" for name in ("host", "port") if name in parts)
    return f"postgresql://{parts['user']}@/{parts['dbname']}?{options}"


def measure(groups: int, rounds: int) -> list[Figure]:
    with PostgresServer() as server, tempfile.TemporaryDirectory() as folder, ExitStack() as stack:
        plain, alone, served = (stack.enter_context(server.database()) for _ in range(3))
        cases = {
            _ROWS: stack.enter_context(_copy_rows(plain)),
            "INSERT, a row each": stack.enter_context(_insert_rows(plain)),
            _VALUE: stack.enter_context(_copy_values(plain)),
            "journal": stack.enter_context(_journal(alone)),
            "broker": stack.enter_context(_broker(url_of(served), Path(folder) / "data")),
        }
        spent_s: dict[str, list[float]] = {name: [] for name in cases}
        for case in cases.values():
            case(10)
        for _ in range(rounds):
            for name, case in cases.items():
                begin = time.perf_counter()
                case(groups)
                spent_s[name].append(time.perf_counter() - begin)
    medians = {name: statistics.median(spent) for name, spent in spent_s.items()}
    round_mb = groups * _MESSAGES * _MESSAGE_BYTES / 1e6
    return [
        Figure(
            name,
            round(round_mb / spent, 1),
            round(groups / spent, 1),
            round(medians[_ROWS] / spent, 2),
            round(medians[_VALUE] / spent, 2),
        )
        for name, spent in medians.items()
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description="The journal in PostgreSQL, compared with PostgreSQL alone.")
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--groups", type=int, default=200, help="commits of each case in a round")
    parser.add_argument("--rounds", type=int, default=5)
    arguments = parser.parse_args()
    for figure in measure(arguments.groups, arguments.rounds):
        if arguments.json:
            print(msgspec.json.encode(figure).decode())
        else:
            print(
                f"{figure.case:20} {figure.mb_per_s:7.1f} MB/s {figure.commits_per_s:7.1f} commits/s"
                f" {figure.per_copy_of_rows:5.2f} × {_ROWS} {figure.per_copy_of_value:5.2f} × {_VALUE}"
            )


if __name__ == "__main__":
    main()
