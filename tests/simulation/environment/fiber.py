"""Code that blocks, inside a simulation that does not: a thread that runs only while the world waits for it.

One of the two runs at any time, and hands over by itself: so a run with fibers repeats itself exactly.
"""

from __future__ import annotations

import threading
from collections.abc import Callable


class Ended(BaseException):
    """The fiber's process was ended. Not an Exception: nothing in it may catch this and go on."""


class Fiber:
    def __init__(self, live: Callable[[], None]) -> None:
        self._live = live
        self._its_turn = threading.Lock()
        self._worlds_turn = threading.Lock()
        self._its_turn.acquire()
        self._worlds_turn.acquire()
        self._failure: BaseException | None = None
        self._is_ended = False
        self.is_over = False
        threading.Thread(target=self._run, name="fiber", daemon=True).start()

    def _run(self) -> None:
        self._its_turn.acquire()
        try:
            if not self._is_ended:
                self._live()
        except Ended:
            pass
        except BaseException as failure:
            self._failure = failure
        self.is_over = True
        self._worlds_turn.release()

    def resume(self) -> None:
        """By the world: let it run until it pauses or is over. Raises what it raised."""
        if self.is_over:
            return
        self._its_turn.release()
        self._worlds_turn.acquire()
        if self._failure is not None:
            failure, self._failure = self._failure, None
            raise failure

    def pause(self) -> None:
        """By the fiber: until the world resumes it."""
        if self._is_ended:
            raise Ended
        self._worlds_turn.release()
        self._its_turn.acquire()
        if self._is_ended:
            raise Ended

    def end(self) -> None:
        """By the world."""
        self._is_ended = True
        self.resume()
