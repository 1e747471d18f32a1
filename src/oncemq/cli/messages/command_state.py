"""What a one-shot command is about to do, kept on this machine: a run that is cut off is finished by the next one.

    STATE/BROKER/NAME/slot-0.outbox     an outbox of the client's (client/outbox/client.py)
                      slot-0.lock       locked by the run that uses it

BROKER is made from the address, NAME is that of `--as`. Runs that go on side by side have a slot each; a run finishes
what it finds in the slots that nobody uses; what is for another broker, at the same address, it leaves there. A run
that made the folder, as each does in a container of its own, ends its slot's session if it is done. Where the system
knows no such locks, nothing is kept.
"""

from __future__ import annotations

import hashlib
import logging
import os
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast
from urllib.parse import quote

import click

from oncemq.cli.support.options import Function, Reach, connected
from oncemq.cli.support.output import count_of, note, warn
from oncemq.protocol import errors

if TYPE_CHECKING:
    from oncemq import Client, Receipt
    from oncemq.client.consumer.sync import PatternSubscription, Subscription
    from oncemq.client.outbox.contract import OutboxRefusal
    from oncemq.client.outbox.producer import Ticket
    from oncemq.client.outbox.sync import OutboxClient
    from oncemq.protocol.message import Message

try:
    import fcntl
except ImportError:
    _HAS_LOCKS = False
else:
    _HAS_LOCKS = True

log = logging.getLogger("oncemq.cli")

#: Runs side by side that are kept apart; beyond them nothing is kept.
_SLOTS_MAX = 1000
#: An outbox and a broker that have nothing to do with each other.
_STRANGERS = (errors.OutboxForeign, errors.SessionUnknown, errors.OutboxRewound)


def default_folder() -> Path:
    """As the XDG Base Directory Specification has it."""
    base = os.environ.get("XDG_STATE_HOME") or Path.home() / ".local" / "state"
    return Path(base) / "oncemq"


def state_option(function: Function) -> Function:
    """Adds --state."""
    return click.option(
        "--state",
        metavar="DIR",
        help="Where this run is kept until it is done, so that the next run finishes it if this one is cut off; "
        "`none`: nowhere. [default: oncemq in the user's state folder]",
    )(function)


@contextmanager
def finishing(reach: Reach, state: str | None, *, client_name: str | None = None) -> Iterator[Client]:
    """A client that keeps what it is told, and has finished what earlier runs left."""
    from oncemq.client.internal import outbox_internal_api
    from oncemq.config import sources

    settings = sources.load_client(reach)
    state = state or settings.state
    if state == "none" or not _HAS_LOCKS or settings.url.startswith("memory:"):
        with connected(reach, client_name=client_name) as client:
            yield client
        return
    folder = default_folder() if state == "user" else Path(state)
    folder = folder / _name_of(settings.url) / quote(client_name or "-", safe="")
    is_passing = not folder.exists()
    with ExitStack() as stack:
        mine = None
        for slot in _free_slots(folder, stack):
            is_known = slot.exists()
            if mine is None or (is_known and _has_something(slot)):
                found = stack.enter_context(_outbox(slot, settings))
                if found is not None and _finish(found):
                    if is_passing:
                        outbox_internal_api(found).end_session_at_close()
                    mine = mine or found
            if mine is not None and not is_known:
                break
        if mine is None:
            raise errors.SettingInvalid(f"{_SLOTS_MAX} runs are going on with the state in '{folder}'")
        yield cast("Client", mine)


def _name_of(url: str) -> str:
    """Readable, short, and another one for another address."""
    if url.startswith("file:"):
        url = "file:" + os.path.realpath(url.removeprefix("file:").removeprefix("//"))
    readable = "".join(letter if letter.isalnum() else "-" for letter in url)[:40].strip("-")
    return f"{readable}-{hashlib.sha256(url.encode()).hexdigest()[:12]}"


def _free_slots(folder: Path, stack: ExitStack) -> Iterator[Path]:
    """Those that nobody uses, the ones that exist first. They are locked until the run ends."""
    try:
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        for number in range(_SLOTS_MAX):
            slot = folder / f"slot-{number}.outbox"
            if _lock(slot.with_suffix(".lock"), stack):
                yield slot
    except OSError as error:
        raise errors.SettingInvalid(f"'{folder}' can't be used to keep this run: {error}; see --state") from None


def _has_something(slot: Path) -> bool:
    """Without opening it as a client would. What can't be told is looked at."""
    import sqlite3

    try:
        with closing(sqlite3.connect(f"file:{quote(str(slot))}?mode=rw", uri=True)) as connection:
            query = "SELECT EXISTS (SELECT 1 FROM entries) OR EXISTS (SELECT 1 FROM refusals)"
            return bool(connection.execute(query).fetchone()[0])
    except sqlite3.Error:
        return True


def _lock(path: Path, stack: ExitStack) -> bool:
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(descriptor)
        return False
    stack.callback(os.close, descriptor)
    return True


@contextmanager
def _outbox(slot: Path, settings: Any) -> Iterator[OutboxClient | None]:
    """A client on a slot, once its broker has answered; None: what is in it is for another one. Raises BrokerAway, and
    nothing is kept."""
    from oncemq.client.internal import outbox_internal_api

    client = _connect(slot, settings)
    left = client.pending
    try:
        outbox_internal_api(client).connect()
    except _STRANGERS as error:
        refusals = outbox_internal_api(client).kept_refusals()
        outbox_internal_api(client).shut()
        if left:
            _leave_alone(slot, left, error)
            yield None
            return
        # Another broker than before, and nothing left to say to the former one.
        for refusal in refusals:
            _tell(refusal)
        _remove(slot)
        client = _connect(slot, settings)
        outbox_internal_api(client).connect()
    except BaseException:
        outbox_internal_api(client).shut()
        raise
    if left:
        note(f"Finishing what an earlier run had begun: {count_of(left, 'operation')} in {slot}.")
    try:
        with client:
            yield client
    finally:
        if outbox_internal_api(client).session_has_ended:
            _remove(slot)


def _leave_alone(slot: Path, left: int, error: errors.OnceMQError) -> None:
    what = f"{count_of(left, 'operation')} of an earlier run can't be finished here"
    warn(f"{what}: {error.text}. Kept in {slot}; delete that file if it is not wanted any more.")


def _tell(refusal: OutboxRefusal) -> None:
    note(f"An earlier run was refused: {refusal.text} ({refusal.code}).")


def _remove(slot: Path) -> None:
    for suffix in ("", "-wal", "-shm", "-reserve"):
        with suppress(FileNotFoundError):
            os.remove(f"{slot}{suffix}")


def _connect(slot: Path, settings: Any) -> OutboxClient:
    import oncemq

    return oncemq.connect(
        settings.url,
        outbox=slot,
        timeout_s=settings.timeout_s,
        tries=settings.tries,
        window=settings.window,
        batch_messages=settings.batch_messages,
        batch_bytes=settings.batch_bytes,
        linger_ms=settings.linger_ms,
        record=settings.record,
    )


def _finish(client: OutboxClient) -> bool:
    """What an earlier run has left. What it was refused is told, once. False: it has to wait, and this run is better
    off with a slot of its own."""
    if client.pending:
        try:
            client.flush(timeout_s=client._driver.core.options.timeout_ms / 1000)
        except TimeoutError:
            note(f"It has to wait: {client._driver.core.obstacle or 'there is no answer yet'}")
            return False
        except errors.Refused:
            pass
    for refusal in client.refusals():
        _tell(refusal)
        client.seen(refusal)
    return True


def keeps(client: Client) -> bool:
    """What it is told is on this machine's disk before it is sent."""
    from oncemq.client.outbox.sync import OutboxClient

    return isinstance(client, OutboxClient)


def store(client: Client, topic: str, value: bytes, options: dict[str, Any]) -> Receipt:
    """One message; through the outbox, where the client has one. Raises BrokerAway: it is kept."""
    from oncemq.client.outbox.sync import OutboxClient

    stored = client.put(topic, value, **options)
    if not isinstance(client, OutboxClient):
        return stored
    ticket = cast("Ticket", stored)
    patience_s = client._driver.core.options.patience_ms / 1000
    try:
        client.flush(timeout_s=patience_s)
    except TimeoutError:
        obstacle = client._driver.core.obstacle
        kept = "The message is kept: the next run stores it, if it can. Don't repeat it"
        if obstacle is not None:
            raise type(obstacle)(f"{obstacle.text}. {kept}") from None
        where = client._driver.core.options.where
        raise errors.BrokerAway(f"no answer from {where} within {patience_s:g} s. {kept}") from None
    except errors.Refused:
        for refusal in client.refusals():
            client.seen(refusal)
        raise
    return ticket.receipts[0]


def acknowledge(client: Client, subscription: Subscription | PatternSubscription, messages: list[Message]) -> None:
    """Everything up to these messages, one for each topic, is done; through the outbox, where the client has one."""
    from oncemq.client.outbox.sync import OutboxClient

    if not messages:
        return
    if isinstance(client, OutboxClient):
        with client.transaction() as transaction:
            for message in messages:
                transaction.ack(subscription, message)
        return
    for message in messages:
        subscription.ack(message)
