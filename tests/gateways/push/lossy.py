"""A live feed that forwards another one, and loses, repeats, reorders and damages messages."""

from __future__ import annotations

import random
import threading
from typing import Any

import zmq


class LossyFeed:
    def __init__(self, feed: str, prefix: bytes, seed: int) -> None:
        self._random = random.Random(seed)
        context: Any = zmq.Context.instance()
        self._in = context.socket(zmq.SUB)
        self._in.setsockopt(zmq.SUBSCRIBE, prefix)
        self._in.connect(feed)
        self._out = context.socket(zmq.PUB)
        self._out.setsockopt(zmq.LINGER, 0)
        self.address = f"tcp://127.0.0.1:{self._out.bind_to_random_port('tcp://127.0.0.1')}"
        self._held: list[bytes] | None = None
        self._is_over = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        while not self._is_over.is_set():
            if self._in.poll(20):
                self._pass_on(self._in.recv_multipart())
        self._in.close(0)
        self._out.close()

    def _pass_on(self, frames: list[bytes]) -> None:
        fate = self._random.random()
        if fate < 0.25:
            return
        if fate < 0.35 and self._held is None:
            self._held = frames
            return
        if fate < 0.45 and len(frames) == 3:
            frames = [*frames[:2], frames[2][:-1] + bytes([frames[2][-1] ^ 1])]
        elif fate < 0.50 and len(frames) == 3:
            words = frames[1].split()
            words[4] = b"%d" % (int(words[4]) + 5)
            frames[1] = b" ".join(words)
        elif fate < 0.55:
            frames = [frames[0], b"nonsense 1 2"]
        self._out.send_multipart(frames)
        if fate > 0.90:
            self._out.send_multipart(frames)
        if self._held is not None:
            self._out.send_multipart(self._held)
            self._held = None

    def close(self) -> None:
        self._is_over.set()
        self._thread.join()
