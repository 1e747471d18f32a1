"""Prometheus' text format, version 0.0.4: families of samples as text. Knows no broker.

    # HELP oncemq_topic_stored_bytes Bytes of the messages that are stored.
    # TYPE oncemq_topic_stored_bytes gauge
    oncemq_topic_stored_bytes{topic="orders"} 120

All samples of a family stand together, whatever the order in which they were added.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

import msgspec

MEDIA = "text/plain; version=0.0.4; charset=utf-8"


class Family(msgspec.Struct, frozen=True):
    name: str
    kind: Literal["counter", "gauge"]
    help: str


class Exposition:
    def __init__(self) -> None:
        self._samples: dict[Family, list[str]] = {}

    def add(self, family: Family, value: float, labels: Mapping[str, str] | None = None) -> None:
        pairs = ",".join(f'{name}="{escaped(text)}"' for name, text in (labels or {}).items())
        place = f"{{{pairs}}}" if pairs else ""
        self._samples.setdefault(family, []).append(f"{family.name}{place} {value}")

    def encode(self) -> bytes:
        lines: list[str] = []
        for family, samples in self._samples.items():
            lines += [f"# HELP {family.name} {family.help}", f"# TYPE {family.name} {family.kind}", *samples]
        return ("\n".join(lines) + "\n").encode()


def escaped(text: str) -> str:
    """As the value of a label."""
    return text.replace("\\", "\\\\").replace("\n", "\\n").replace('"', '\\"')
