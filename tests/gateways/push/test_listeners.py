"""Counting the listeners of frames."""

from __future__ import annotations

import random

from oncemq.gateways.push.feed.listeners import FrameListeners, ListenerTable


def test_a_frame_is_for_those_who_listen_to_its_beginning() -> None:
    random_ = random.Random(1)
    listening = ListenerTable(1000)
    prefixes: set[bytes] = set()
    frames: dict[bytes, FrameListeners] = {}
    for _ in range(400):
        word = bytes(random_.choices(b"ab\0", k=random_.randrange(5)))
        if random_.random() < 0.5:
            if word in prefixes:
                prefixes.discard(word)
                listening.discard(word)
            else:
                prefixes.add(word)
                assert listening.add(word)
                assert listening.add(word)
        elif word in frames:
            listening.close(frames.pop(word))
        else:
            frames[word] = listening.open(word)
        for frame, listeners in frames.items():
            assert listeners.count == sum(frame.startswith(prefix) for prefix in prefixes)


def test_a_subscription_too_many_is_not_known() -> None:
    listening = ListenerTable(2)
    listeners = listening.open(b"orders\0")
    assert [listening.add(prefix) for prefix in (b"a", b"b", b"orders\0", b"a")] == [True, True, False, True]
    listening.discard(b"orders\0")
    assert listeners.count == 0
    listening.discard(b"a")
    assert listening.add(b"orders\0")
    assert listeners.count == 1
