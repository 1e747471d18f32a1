"""The state of one-shot commands on this machine: if a run is interrupted, the next run finishes its work.

    STATE/BROKER/NAME/slot-0.outbox     an outbox of the client (client/outbox/file.py)
                      slot-0.lock       locked by the run that uses the slot

BROKER is made from the broker's address and the user's credentials, NAME from `--as`. Each of several concurrent runs
has a slot of its own. A run finishes what it finds in unused slots, and leaves alone what belongs to another broker at
the same address. A run that created the folder, as every run in a new container does, also ends its slot's session when
its work is done. On systems without file locks, no state is kept.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast
from urllib.parse import quote

import click

from oncemq.cli.support.options import Function, Reach, connect_options, connected
from oncemq.protocol import errors
from oncemq.terminal import count_of, note, warn

if TYPE_CHECKING:
    from oncemq import Client, Receipt
    from oncemq.client.consumer.sync import PatternSubscription, Subscription
    from oncemq.client.outbox.contract import OutboxRefusal
    from oncemq.client.outbox.producer import Ticket
    from oncemq.client.outbox.sync import OutboxClient
    from oncemq.config.settings import ClientSettings
    from oncemq.protocol.message import Message

try:
    import fcntl
except ImportError:
    _HAS_LOCKS = False
else:
    _HAS_LOCKS = True

#: The maximum number of concurrent runs with state in one folder.
_SLOTS_MAX = 1000
#: Raised when an outbox does not belong to the broker at its address.
_WRONG_BROKER = (errors.OutboxForeign, errors.SessionUnknown, errors.OutboxRewound)


def default_folder() -> Path:
    """Return the state folder that the XDG Base Directory Specification defines."""
    base = os.environ.get("XDG_STATE_HOME") or Path.home() / ".local" / "state"
    return Path(base) / "oncemq"


def state_option(function: Function) -> Function:
    """Add --state."""
    return click.option(
        "--state",
        metavar="DIR",
        help="Folder that holds this run's operations until they are done, so that the next run can finish them; "
        "`none` keeps nothing. [default: oncemq in the user's state folder]",
    )(function)


@contextmanager
def stateful_client(reach: Reach, state: str | None, *, client_name: str | None = None) -> Iterator[Client]:
    """Connect a client that keeps its operations on disk, after it has finished those of earlier runs."""
    from oncemq.client.internal import outbox_internal_api
    from oncemq.config import sources

    settings = sources.load_client(reach)
    state = state or settings.state
    if state == "none" or not _HAS_LOCKS or settings.url.startswith("memory:"):
        with connected(reach, client_name=client_name) as client:
            yield client
        return
    folder = default_folder() if state == "user" else Path(state)
    folder = folder / folder_name(settings) / quote(client_name or "-", safe="")
    is_new_folder = not folder.exists()
    with ExitStack() as stack:
        chosen = None
        for slot in _free_slots(folder, stack):
            is_used_before = slot.exists()
            if chosen is None or (is_used_before and _has_entries(slot)):
                found = stack.enter_context(_outbox_client(slot, settings))
                if found is not None and _finish_earlier_run(found):
                    if is_new_folder:
                        outbox_internal_api(found).end_session_at_close()
                    chosen = chosen or found
            if chosen is not None and not is_used_before:
                break
        if chosen is None:
            raise errors.SettingInvalid(
                f"all {_SLOTS_MAX} slots in '{folder}' are in use; try again later, or use another --state"
            )
        yield cast("Client", chosen)


def folder_name(settings: ClientSettings) -> str:
    """Return a readable and short name that is different for every address and every user: a user can't finish what
    another one has begun."""
    url = settings.url
    if url.startswith("file:"):
        url = "file:" + os.path.realpath(url.removeprefix("file:").removeprefix("//"))
    readable = "".join(letter if letter.isalnum() else "-" for letter in url)[:40].strip("-")
    user = _user_of(settings)
    key = f"{url}\n{user}" if user else url
    return f"{readable}-{hashlib.sha256(key.encode()).hexdigest()[:12]}"


def _user_of(settings: ClientSettings) -> str:
    """Return what stands for the user and stays the same if the token is replaced; a token's id, if there is nothing
    else. Empty if there are no credentials."""
    from oncemq.auth.tokens import token_id

    if settings.context:
        return f"context {settings.context}" if settings.credentials else ""
    if settings.token_file:
        return f"file {os.path.realpath(os.path.expanduser(settings.token_file))}"
    return token_id(settings.token) or settings.curve_public or settings.tls_certificate


def _free_slots(folder: Path, stack: ExitStack) -> Iterator[Path]:
    """Yield unused slots, existing ones first. Each is locked until the run ends."""
    try:
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        for number in range(_SLOTS_MAX):
            slot = folder / f"slot-{number}.outbox"
            if _lock(slot.with_suffix(".lock"), stack):
                yield slot
    except OSError as error:
        text = f"the folder '{folder}' can't be used for the state of this run: {error}; choose another with --state"
        raise errors.SettingInvalid(text) from None


def _has_entries(slot: Path) -> bool:
    """Look into an outbox file without opening it as a client would. A file that can't be read counts as used."""
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
def _outbox_client(slot: Path, settings: ClientSettings) -> Iterator[OutboxClient | None]:
    """Yield a client on a slot after its broker has answered, or None if the slot belongs to another broker.

    Raises BrokerAway; nothing of this run has been kept then.
    """
    from oncemq.client.internal import outbox_internal_api

    client = _connect(slot, settings)
    left = client.pending
    internal = outbox_internal_api(client)
    try:
        internal.connect()
    except _WRONG_BROKER as error:
        refusals = internal.kept_refusals()
        internal.shut()
        if left:
            what = f"{count_of(left, 'operation')} of an earlier run can't be finished here"
            warn(f"{what}: {error.text}. They are kept in {slot}; delete that file if they are no longer wanted.")
            yield None
            return
        # This is another broker than before, and nothing is left to send to the former one.
        for refusal in refusals:
            _report_refusal(refusal)
        _delete(slot)
        client = _connect(slot, settings)
        internal = outbox_internal_api(client)
        internal.connect()
    except BaseException:
        internal.shut()
        raise
    if left:
        note(f"Finishing an earlier run: {count_of(left, 'operation')} in {slot}.")
    try:
        with client:
            yield client
    finally:
        if internal.session_has_ended:
            _delete(slot)


def _report_refusal(refusal: OutboxRefusal) -> None:
    note(f"An earlier run was refused: {refusal.text} ({refusal.code}).")


def _delete(slot: Path) -> None:
    for suffix in ("", "-wal", "-shm", "-reserve"):
        with suppress(FileNotFoundError):
            os.remove(f"{slot}{suffix}")


def _connect(slot: Path, settings: ClientSettings) -> OutboxClient:
    import oncemq

    return oncemq.connect(settings.url, outbox=slot, **connect_options(settings))


def _finish_earlier_run(client: OutboxClient) -> bool:
    """Send what an earlier run left, and report once what it was refused.

    Returns False if the broker does not accept it yet: this run then needs a slot of its own.
    """
    from oncemq.client.internal import internal_api

    if client.pending:
        api = internal_api(client)
        try:
            client.flush(timeout_s=api.timeout_s)
        except TimeoutError:
            note(f"The earlier run has to wait: {api.obstacle or 'there is no answer yet'}")
            return False
        except errors.Refused:
            pass
    _report_refusals(client)
    return True


def _report_refusals(client: OutboxClient) -> None:
    for refusal in client.refusals():
        _report_refusal(refusal)
        client.seen(refusal)


def keeps_state(client: Client) -> bool:
    """Whether the client writes its operations to this machine's disk before it sends them."""
    from oncemq.client.outbox.sync import OutboxClient

    return isinstance(client, OutboxClient)


def store(client: Client, topic: str, value: bytes, options: dict[str, Any]) -> Receipt:
    """Put one message, through the outbox if the client has one. If it raises BrokerAway, the outbox keeps it."""
    from oncemq.client.internal import internal_api
    from oncemq.client.outbox.sync import OutboxClient

    stored = client.put(topic, value, **options)
    if not isinstance(client, OutboxClient):
        return stored
    ticket = cast("Ticket", stored)
    api = internal_api(client)
    timeout_s = api.total_timeout_s
    try:
        client.flush(timeout_s=timeout_s)
    except TimeoutError:
        kept = "The message is kept on this machine, and the next run sends it. Do not put it again"
        if api.obstacle is not None:
            raise type(api.obstacle)(f"{api.obstacle.text}. {kept}") from None
        raise errors.BrokerAway(f"no answer from {api.address} within {timeout_s:g} s. {kept}") from None
    except errors.Refused:
        for refusal in client.refusals():
            client.seen(refusal)
        raise
    return ticket.receipts[0]


def acknowledge(client: Client, subscription: Subscription | PatternSubscription, messages: list[Message]) -> None:
    """Ack everything up to these messages, one per topic; through the outbox if the client has one."""
    if not messages:
        return
    if keeps_state(client):
        with client.transaction() as transaction:
            for message in messages:
                transaction.ack(subscription, message)
        return
    for message in messages:
        subscription.ack(message)
