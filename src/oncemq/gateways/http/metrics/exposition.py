"""Prometheus' text format, version 0.0.4: families of samples as text. Knows nothing of the broker.

    # HELP oncemq_topic_stored_bytes Bytes of stored messages.
    # TYPE oncemq_topic_stored_bytes gauge
    oncemq_topic_stored_bytes{topic="orders"} 120

All samples of a family are written together, in whatever order they were added.
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
        """Add a sample."""
        pairs = ",".join(f'{name}="{escaped(text)}"' for name, text in (labels or {}).items())
        label_set = f"{{{pairs}}}" if pairs else ""
        self._samples.setdefault(family, []).append(f"{family.name}{label_set} {value}")

    def encode(self) -> bytes:
        """Return all samples as text."""
        lines: list[str] = []
        for family, samples in self._samples.items():
            lines += [f"# HELP {family.name} {family.help}", f"# TYPE {family.name} {family.kind}", *samples]
        return ("\n".join(lines) + "\n").encode()


def escaped(text: str) -> str:
    """Return a text as the value of a label."""
    return text.replace("\\", "\\\\").replace("\n", "\\n").replace('"', '\\"')
