"""A shell without a terminal: lines come from a pipe or a file, answers go out as plain text."""

from __future__ import annotations

import os
import signal
import sys
import threading
from collections.abc import Callable
from contextlib import AbstractContextManager

import click

from oncemq.protocol.message import Message
from oncemq.tools.shell.session import Session


class PlainScreen:
    def __init__(self) -> None:
        self._lock = threading.RLock()
        #: Whoever read our output has gone.
        self.is_gone = False

    def say(self, text: str) -> None:
        self._write(text.encode("utf-8", "surrogateescape"))

    def trouble(self, text: str, advice: str = "") -> None:
        more = f"\n       {advice}" if advice else ""
        click.echo(click.style("error: ", fg="red", bold=True) + text + more, err=True)

    def held(self) -> AbstractContextManager[object]:
        return self._lock

    def message(self, message: Message) -> None:
        self._write(message.topic.encode() + b": " + message.value)

    def _write(self, line: bytes) -> None:
        try:
            with self._lock:
                sys.stdout.buffer.write(line + b"\n")
                sys.stdout.buffer.flush()
        except BrokenPipeError:
            self.is_gone = True
            if threading.current_thread() is not threading.main_thread():
                _interrupt_reading()
            raise


def _interrupt_reading() -> None:
    """The main thread waits for a line that nobody needs any more."""
    if hasattr(signal, "pthread_kill"):
        signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGINT)
    else:
        os._exit(1)


def run(make: Callable[[PlainScreen], Session]) -> int:
    """Until the input ends, or a line says quit. The exit code of the first line that went wrong."""
    screen = PlainScreen()
    session = make(screen)
    try:
        for raw in sys.stdin.buffer:
            is_over = not session.execute(raw.decode("utf-8", "surrogateescape"))
            session.settle()
            if is_over:
                break
    except KeyboardInterrupt:
        if screen.is_gone:
            raise BrokenPipeError from None
        raise
    finally:
        session.close()
    return session.exit_code
