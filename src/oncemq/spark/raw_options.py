"""Spark's options as they were written: strings by name, where case does not matter."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from oncemq.config.durations import parse_duration_ms
from oncemq.protocol import errors
from oncemq.spark.option_names import refusal_of
from oncemq.spark.source.offset_spec import parse_json

_UNITS = {"b": 1, "k": 1024, "m": 1024**2, "g": 1024**3}


class RawOptions:
    """Options by name. Every accessor raises SettingInvalid for a value that it can't parse."""

    def __init__(
        self,
        raw: Mapping[str, str],
        known: Sequence[str],
        *,
        sparks: Sequence[str] = (),
        kafka: dict[str, str] | None = None,
    ) -> None:
        """`known` are the names of our options, `sparks` those that Spark adds. Raises SettingInvalid for others."""
        self._raw = {name.lower(): value for name, value in raw.items()}
        allowed = {name.lower() for name in (*known, *sparks)}
        # The names that Spark adds for a table of its catalog explain the others.
        for name in sorted(self._raw.keys() - allowed, key=lambda name: ("." in name, name)):
            raise errors.SettingInvalid(refusal_of(name, known, kafka or {}))

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

    def byte_count(self, name: str) -> int:
        """A number of bytes, or of KiB, MiB or GiB as in `64m`; 0 if it is not given."""
        text = self.text(name).strip().lower()
        digits = text[:-1] if text[-1:] in _UNITS else text
        if text and not digits.isdecimal():
            raise errors.SettingInvalid(
                f"'{name}' must be a number of bytes, as in 1048576, 512k, 64m or 1g, not {text!r}"
            )
        return int(digits or 0) * _UNITS.get(text[-1:], 1)

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

    def choice(self, name: str, choices: Sequence[str]) -> str:
        """One of the choices, of which the first is the default."""
        text = self.text(name) or choices[0]
        if text not in choices:
            raise errors.SettingInvalid(f"'{name}' must be {' or '.join(map(repr, choices))}, not {text!r}")
        return text

    def names(self, name: str) -> list[str]:
        """A JSON list, or names separated by commas."""
        text = self.text(name)
        names = parse_json(text, name) if text.lstrip().startswith("[") else text.split(",")
        if not isinstance(names, list) or not all(isinstance(each, str) and each.strip() for each in names):
            raise errors.SettingInvalid(
                f"'{name}' must be a list of names, as in 'a,b' or [\"a\", \"b\"], not {text!r}"
            )
        return [each.strip() for each in names]
