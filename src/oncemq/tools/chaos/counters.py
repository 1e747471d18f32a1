"""Numbers that several processes count and one displays, in memory that forked processes share.

Each number has one writer, and there are no locks, so what is displayed may be slightly out of date. Verdicts do not
use these numbers.
"""

from __future__ import annotations

import mmap
import struct
from collections.abc import Sequence

from oncemq.tools.chaos.plan import NetworkFaults

_NUMBER = struct.Struct("<q")
_FAULTS = struct.Struct("<dddd")
_FAULTS_AT = 0
_NUMBERS_AT = 64


class Counters:
    """One number for each (process, kind). Must be created before the processes are forked."""

    def __init__(self, processes: Sequence[str], kinds: Sequence[str]) -> None:
        keys = [(process, kind) for process in processes for kind in kinds]
        self._positions = {key: _NUMBERS_AT + 8 * index for index, key in enumerate(keys)}
        self._memory = mmap.mmap(-1, _NUMBERS_AT + 8 * len(keys))

    def add(self, process: str, kind: str, number: int = 1) -> None:
        position = self._positions[(process, kind)]
        _NUMBER.pack_into(self._memory, position, self.get(process, kind) + number)

    def get(self, process: str, kind: str) -> int:
        number: int = _NUMBER.unpack_from(self._memory, self._positions[(process, kind)])[0]
        return number

    def sum(self, kind: str) -> int:
        return sum(self.get(*key) for key in self._positions if key[1] == kind)

    # The proxy reads the current faults of the network.

    def set_network_faults(self, faults: NetworkFaults) -> None:
        fields = (faults.lost, faults.duplicated, faults.delayed, faults.delay_ms_max)
        _FAULTS.pack_into(self._memory, _FAULTS_AT, *fields)

    def network_faults(self) -> NetworkFaults:
        return NetworkFaults(*_FAULTS.unpack_from(self._memory, _FAULTS_AT))
