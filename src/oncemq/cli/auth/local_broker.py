"""The broker that runs on a data folder of this machine: it is told by a signal to read auth.toml again, and its answer
is read from auth.status."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path

from oncemq.auth.status import FILE_NAME, Status, process_space, running
from oncemq.cli.auth.location import reload_command
from oncemq.config.settings import ServeSettings
from oncemq.protocol.errors import BrokerAway, SettingInvalid
from oncemq.terminal import note, warn

#: A broker reads the file between two rounds.
_ANSWER_S = 30.0
_PAUSE_S = 0.01


def activate(settings: ServeSettings, *, no_reload: bool) -> None:
    """After a change: let a local broker use it, and say what the administrator has to do if there is none. Raises
    SettingInvalid if the broker refuses the file."""
    if settings.is_on_database:
        note("Running brokers use it after `oncemq auth reload`.")
        return
    status = running(Path(settings.folder))
    if status is None:
        note(f"No broker runs on {settings.folder}; the next one uses it.")
    elif no_reload:
        note(f"The broker (pid {status.pid}) uses it after `{reload_command(settings)}`.")
    elif not status.has_users:
        # Clients that have no credentials yet would be locked out.
        note(
            f"The broker (pid {status.pid}) has no users yet, so everybody may do everything. When all clients have "
            f"their credentials, run: {reload_command(settings)}"
        )
    elif Path(status.file) != settings.auth_file.absolute():
        warn(f"The broker (pid {status.pid}) uses {status.file}, not {settings.auth_file}.")
    else:
        reload(status, settings)
        note(f"The broker (pid {status.pid}) uses it now.")


def reload(status: Status, settings: ServeSettings) -> Status:
    """Let the broker read its files again, and return its answer. Raises SettingInvalid if it refuses them."""
    if status.space != process_space():
        raise SettingInvalid(
            "the broker runs in another container or on another machine: run the command there, or `oncemq auth "
            "reload` with the address of the broker"
        )
    folder = Path(settings.folder)
    try:
        _check_owner(status.pid, folder)
        os.kill(status.pid, signal.SIGHUP)
    except ProcessLookupError:
        raise BrokerAway(f"there is no process with the pid {status.pid}") from None
    except PermissionError:
        raise SettingInvalid(
            f"the broker (pid {status.pid}) belongs to another user: run the command as that user, or `oncemq auth "
            "reload` with the address of the broker"
        ) from None
    answer = _answer(status, folder)
    if answer.error:
        raise SettingInvalid(f"the broker (pid {status.pid}) keeps the former users: {answer.error}")
    return answer


def _check_owner(pid: int, folder: Path) -> None:
    """Raise PermissionError if the process belongs to somebody else than the file that has its pid: a user must not
    make root signal any process."""
    process = Path(f"/proc/{pid}/status")
    if os.geteuid() == 0 and process.exists():
        uid = next(line.split()[1] for line in process.read_text().splitlines() if line.startswith("Uid:"))
        if int(uid) != (folder / FILE_NAME).stat().st_uid:
            raise PermissionError


def _answer(before: Status, folder: Path) -> Status:
    until_s = time.monotonic() + _ANSWER_S
    while time.monotonic() < until_s:
        status = running(folder)
        if status is None or status.pid != before.pid:
            raise BrokerAway(f"the broker (pid {before.pid}) has ended; it reads the file when it is started again")
        if status.reads > before.reads:
            return status
        time.sleep(_PAUSE_S)
    raise BrokerAway(f"the broker (pid {before.pid}) has not read the file within {_ANSWER_S:g} seconds; see its log")
