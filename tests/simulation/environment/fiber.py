"""Runs blocking code in the simulation: a thread that runs only while the simulator waits for it.

Exactly one of the two threads runs at any time, so that a run with fibers is deterministic.
"""

from __future__ import annotations

import threading
from collections.abc import Callable


class Ended(BaseException):
    """The process of the fiber has ended. This is not an Exception, so that the process cannot catch it."""


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
        """Called by the simulator: run the fiber until it pauses or ends. Raises what the fiber raised."""
        if self.is_over:
            return
        self._its_turn.release()
        self._worlds_turn.acquire()
        if self._failure is not None:
            failure, self._failure = self._failure, None
            raise failure

    def pause(self) -> None:
        """Called by the fiber: wait until the simulator resumes it."""
        if self._is_ended:
            raise Ended
        self._worlds_turn.release()
        self._its_turn.acquire()
        if self._is_ended:
            raise Ended

    def end(self) -> None:
        """Called by the simulator: end the fiber."""
        self._is_ended = True
        self.resume()
