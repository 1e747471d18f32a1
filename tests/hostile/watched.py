"""A process that serves others and whose memory is measured while one peer is hostile."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

from oncemq.client.sync import Client
from tests.acceptance.processes import resident_bytes

MIB = 2**20
#: A peer of a Unix socket sends 1 GB/s. On a busy machine the thread that ends it runs tenths of a second later.
GROWTH_BYTES_MAX = 500 * MIB

Ask = Callable[[], object]


class Watched:
    def __init__(self, pid: int, ask: Ask, growth_bytes_max: int = GROWTH_BYTES_MAX) -> None:
        self._pid = pid
        self._ask = ask
        self._growth_bytes_max = growth_bytes_max
        self.peak = 0

    def attack(self, *attacks: Callable[[], object]) -> None:
        """Run each attack in a thread, ask meanwhile, and check both."""
        self._ask()
        idle = resident_bytes(self._pid)
        with ThreadPoolExecutor(len(attacks)) as executor:
            attacking = [executor.submit(attack) for attack in attacks]
            is_over = False
            while not is_over:
                # An attack may be over before the first answer.
                is_over = all(attack.done() for attack in attacking)
                self._ask()
                self.peak = max(self.peak, resident_bytes(self._pid))
            for attack in attacking:
                attack.result()
        assert self.peak - idle < self._growth_bytes_max


def put(client: Client) -> Ask:
    return lambda: client.put("orders", b"one pizza")
