"""A shell without a terminal: it reads lines from a pipe or a file, and prints plain text."""

from __future__ import annotations

import os
import signal
import sys
import threading
from collections.abc import Callable
from contextlib import AbstractContextManager

from oncemq import terminal
from oncemq.protocol.message import Message
from oncemq.tools.shell.session import Session


class PlainDisplay:
    """Prints lines to standard output, and errors to standard error."""

    def __init__(self) -> None:
        self._lock = threading.RLock()
        #: The reader of the output has exited.
        self.is_reader_gone = False

    def say(self, text: str) -> None:
        self._write(text.encode("utf-8", "surrogateescape"))

    def error(self, text: str, advice: str = "") -> None:
        terminal.error(text, advice)

    def messages_held(self) -> AbstractContextManager[object]:
        return self._lock

    def message(self, message: Message) -> None:
        self._write(message.topic.encode() + b": " + message.value)

    def _write(self, line: bytes) -> None:
        if terminal.is_terminal(sys.stdout):
            line = terminal.printable_bytes(line)
        try:
            with self._lock:
                sys.stdout.buffer.write(line + b"\n")
                sys.stdout.buffer.flush()
        except BrokenPipeError:
            self.is_reader_gone = True
            if threading.current_thread() is not threading.main_thread():
                _interrupt_reading()
            raise


def _interrupt_reading() -> None:
    """Interrupt the main thread, which waits for a line although the output has no reader."""
    if hasattr(signal, "pthread_kill"):
        signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGINT)
    else:
        os._exit(1)


def run(make: Callable[[PlainDisplay], Session]) -> int:
    """Run until the input ends or a line is `quit`. Returns the exit code of the first line that failed."""
    display = PlainDisplay()
    session = make(display)
    try:
        for raw in sys.stdin.buffer:
            is_over = not session.execute(raw.decode("utf-8", "surrogateescape"))
            session.settle()
            if is_over:
                break
    except KeyboardInterrupt:
        if display.is_reader_gone:
            raise BrokenPipeError from None
        raise
    finally:
        session.close()
    return session.exit_code
