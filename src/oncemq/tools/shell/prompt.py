"""A shell at a terminal: history, completion, colours, and messages above the prompt.

One event loop runs for the whole session. Everything is shown by the loop, whichever thread it comes from. So a message
never corrupts the prompt, and a feed knows when its message was really printed.
"""

from __future__ import annotations

import asyncio
import os
import signal
import threading
import time
from collections.abc import Callable, Iterable
from concurrent.futures import CancelledError
from contextlib import AbstractContextManager, suppress
from pathlib import Path
from typing import Any

from prompt_toolkit import PromptSession, print_formatted_text
from prompt_toolkit.application import run_in_terminal
from prompt_toolkit.auto_suggest import AutoSuggestFromHistory
from prompt_toolkit.completion import CompleteEvent, Completer, Completion
from prompt_toolkit.document import Document
from prompt_toolkit.formatted_text import ANSI, HTML
from prompt_toolkit.history import FileHistory, History, InMemoryHistory

from oncemq.protocol import errors
from oncemq.protocol.message import Message
from oncemq.terminal import printable, styled
from oncemq.tools.shell.lines import complete
from oncemq.tools.shell.session import Session

#: How long the list of topics is cached for completion.
_TOPICS_CACHE_S = 2.0
#: The exit code after SIGTERM or SIGHUP.
_TERMINATED = 143


class TerminalDisplay:
    """Shows text above the prompt while `loop` runs."""

    def __init__(self, loop: asyncio.AbstractEventLoop, output: Any = None) -> None:
        self._loop = loop
        self._output = output
        self._lock = threading.RLock()

    def say(self, text: str) -> None:
        self._show(printable(text))

    def error(self, text: str, advice: str = "") -> None:
        first = styled("error: ", fg="red", bold=True) + printable(text)
        self._show(first + (f"\n       {printable(advice)}" if advice else ""))

    def messages_held(self) -> AbstractContextManager[object]:
        return self._lock

    def message(self, message: Message) -> None:
        value = message.value.decode("utf-8", "backslashreplace")
        with self._lock:
            self._show(styled(printable(message.topic), fg="green", bold=True) + f": {printable(value)}")

    def _show(self, text: str) -> None:
        """Show a text. Must not be called by the loop's own thread, which it waits for."""
        try:
            asyncio.run_coroutine_threadsafe(self._print(text), self._loop).result()
        except (RuntimeError, CancelledError) as error:
            raise OSError("the shell has ended") from error

    async def _print(self, text: str) -> None:
        await run_in_terminal(lambda: print_formatted_text(ANSI(text), output=self._output))


class ShellCompleter(Completer):
    """Completes commands and topics. It runs in a thread, and caches the list of topics."""

    def __init__(self, topics: Callable[[], list[str]]) -> None:
        self._ask = topics
        self._known: list[str] = []
        self._asked_s = -_TOPICS_CACHE_S

    def get_completions(self, document: Document, complete_event: CompleteEvent) -> Iterable[Completion]:
        del complete_event
        for found in complete(document.text_before_cursor, self._topics):
            yield Completion(found.text, start_position=-found.replaces, display_meta=found.help)

    def _topics(self) -> list[str]:
        if time.monotonic() - self._asked_s > _TOPICS_CACHE_S:
            with suppress(errors.OnceMQError):
                self._known = self._ask()
            self._asked_s = time.monotonic()
        return self._known


def history_in(folder: Path) -> History:
    """Return the history, in a file that only this user can read because it contains messages.

    If the file can't be written, the history is kept for this session only.
    """
    path = folder / "shell-history"
    try:
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        os.close(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600))
    except OSError:
        return InMemoryHistory()
    return FileHistory(str(path))


async def interact(
    make: Callable[[TerminalDisplay], Session], history: History, *, source: Any = None, output: Any = None
) -> int:
    """Run until Ctrl-D or quit. `source`, `output`: another terminal than standard input and output."""
    loop = asyncio.get_running_loop()
    session = await asyncio.to_thread(make, TerminalDisplay(loop, output))
    try:
        await asyncio.to_thread(session.greet)
        await _read(session, prompt_of(session, history, source, output))
    finally:
        await asyncio.to_thread(session.close)
    return 0


def prompt_of(session: Session, history: History, source: Any, output: Any) -> PromptSession[str]:
    return PromptSession(
        HTML("<b>{}</b>").format(session.prompt),
        history=history,
        auto_suggest=AutoSuggestFromHistory(),
        completer=ShellCompleter(session.topics),
        complete_in_thread=True,
        complete_while_typing=False,
        input=source,
        output=output,
    )


async def _read(session: Session, prompting: PromptSession[str]) -> None:
    while True:
        try:
            line = await prompting.prompt_async()
        except KeyboardInterrupt:
            # Ctrl-C only discards the line.
            continue
        except EOFError:
            return
        if not await asyncio.to_thread(session.execute, line):
            return


def run(make: Callable[[TerminalDisplay], Session], folder: Path) -> int:
    """Run a shell at the terminal. `folder` holds the history. Returns the exit code."""
    return asyncio.run(_interact_until_signal(make, history_in(folder)))


async def _interact_until_signal(make: Callable[[TerminalDisplay], Session], history: History) -> int:
    """Run until the user or a signal ends the shell.

    The event loop handles the signals. An exception of a signal handler could be raised inside a callback that
    swallows it, and the shell would continue."""
    loop, shell = asyncio.get_running_loop(), asyncio.current_task()
    assert shell is not None
    for name in ("SIGTERM", "SIGHUP"):
        number = getattr(signal, name, None)
        if number is not None and signal.getsignal(number) is not signal.SIG_IGN:
            # Windows has no such handlers.
            with suppress(NotImplementedError):
                loop.add_signal_handler(number, shell.cancel)
    try:
        return await interact(make, history)
    except asyncio.CancelledError:
        return _TERMINATED
