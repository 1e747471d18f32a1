"""Numbers that several processes count and one shows: in memory that forked processes share. Each number has one
writer; nobody waits for anybody, so what is shown may be a moment old. Verdicts are not made from these."""

from __future__ import annotations

import mmap
import struct
from collections.abc import Sequence

from oncemq.tools.chaos.plan import Weather

_NUMBER = struct.Struct("<q")
_WEATHER = struct.Struct("<dddd")
_WEATHER_AT = 0
_NUMBERS_AT = 64


class Counters:
    """One number for each (who, what). Made before the processes are forked."""

    def __init__(self, who: Sequence[str], what: Sequence[str]) -> None:
        keys = [(one, each) for one in who for each in what]
        self._places = {key: _NUMBERS_AT + 8 * place for place, key in enumerate(keys)}
        self._memory = mmap.mmap(-1, _NUMBERS_AT + 8 * len(keys))

    def add(self, who: str, what: str, number: int = 1) -> None:
        self.set(who, what, self.get(who, what) + number)

    def set(self, who: str, what: str, number: int) -> None:
        _NUMBER.pack_into(self._memory, self._places[(who, what)], number)

    def get(self, who: str, what: str) -> int:
        number: int = _NUMBER.unpack_from(self._memory, self._places[(who, what)])[0]
        return number

    def sum(self, what: str) -> int:
        return sum(self.get(who, each) for who, each in self._places if each == what)

    # The proxy reads what the schedule says.

    def set_weather(self, weather: Weather) -> None:
        fields = (weather.lost, weather.doubled, weather.delayed, weather.delay_ms_max)
        _WEATHER.pack_into(self._memory, _WEATHER_AT, *fields)

    def weather(self) -> Weather:
        return Weather(*_WEATHER.unpack_from(self._memory, _WEATHER_AT))
