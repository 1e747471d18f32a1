"""Spark's options as they were written: strings by name, where case does not matter."""

from __future__ import annotations

import difflib
from collections.abc import Mapping

from oncemq.config.durations import parse_duration_ms
from oncemq.protocol import errors
from oncemq.spark.source.offset_spec import parse_json


class RawOptions:
    """Options by name. Every accessor raises SettingInvalid for a value that it can't parse."""

    def __init__(self, raw: Mapping[str, str], known: tuple[str, ...]) -> None:
        self._raw = {name.lower(): value for name, value in raw.items()}
        self._refuse_typos(known)
        #: Options of Spark itself, or mistakes.
        self.unknown = sorted(self._raw.keys() - {name.lower() for name in known})

    def _refuse_typos(self, known: tuple[str, ...]) -> None:
        """Refuse a name that is similar to one of ours. Other unknown names may be options of Spark itself."""
        by_lower = {name.lower(): name for name in known}
        for name in self._raw:
            if name not in by_lower:
                close = difflib.get_close_matches(name, by_lower, n=1, cutoff=0.85)
                if close:
                    raise errors.SettingInvalid(f"there is no option '{name}'; did you mean '{by_lower[close[0]]}'?")

    def __contains__(self, name: str) -> bool:
        return name.lower() in self._raw

    def text(self, name: str) -> str:
        return self._raw.get(name.lower(), "")

    def number(self, name: str) -> int:
        text = self.text(name) or "0"
        try:
            number = int(text)
        except ValueError:
            number = -1
        if number < 0:
            raise errors.SettingInvalid(f"'{name}' must be a whole number of at least 0, not {text!r}")
        return number

    def duration_ms(self, name: str, default: str) -> int:
        text = self.text(name) or default
        try:
            duration_ms = parse_duration_ms(text)
        except ValueError as error:
            raise errors.SettingInvalid(f"'{name}': {error}") from None
        if not duration_ms:
            raise errors.SettingInvalid(f"'{name}' must be a duration above 0, not {text!r}")
        return duration_ms

    def flag(self, name: str, default: bool) -> bool:
        text = self.text(name).lower()
        if text not in ("", "true", "false"):
            raise errors.SettingInvalid(f"'{name}' must be true or false, not {text!r}")
        return default if not text else text == "true"

    def names(self, name: str) -> list[str]:
        """A JSON list, or names separated by commas."""
        text = self.text(name)
        names = parse_json(text, name) if text.lstrip().startswith("[") else text.split(",")
        if not isinstance(names, list) or not all(isinstance(each, str) and each.strip() for each in names):
            raise errors.SettingInvalid(
                f"'{name}' must be a list of names, as in 'a,b' or [\"a\", \"b\"], not {text!r}"
            )
        return [each.strip() for each in names]
