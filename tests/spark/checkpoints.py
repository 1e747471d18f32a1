"""Checkpoints for tests: entries as Spark writes them, and the damage of a power failure or a restored backup."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path


class Checkpoint:
    def __init__(self, folder: Path) -> None:
        self.folder = folder

    @property
    def location(self) -> str:
        return str(self.folder)

    def plan(self, batch: int, end: int) -> None:
        """Write the entry of a micro-batch that ends at this offset."""
        (self.folder / "offsets").mkdir(parents=True, exist_ok=True)
        settings = json.dumps({"batchWatermarkMs": 0, "batchTimestampMs": id(object())})
        (self.folder / "offsets" / str(batch)).write_text("\n".join(["v1", settings, json.dumps({"offset": end})]))

    def numbers(self, kind: str = "offsets") -> list[int]:
        """The numbers of the entries, in order."""
        return sorted(int(name) for name in os.listdir(self.folder / kind) if name.isdecimal())

    def lose_last(self, count: int = 1) -> None:
        """Remove the last micro-batches, as if their entries had never reached the disk."""
        for number in self.numbers()[-count:]:
            for kind in ("offsets", "commits"):
                for name in (str(number), f".{number}.crc"):
                    (self.folder / kind / name).unlink(missing_ok=True)

    @property
    def synced(self) -> Path:
        """Beside the checkpoint: what a power failure leaves of it, if somebody keeps account of that."""
        return self.folder.with_name(f"{self.folder.name}-synced")

    def sync(self) -> None:
        """Make everything durable."""
        shutil.rmtree(self.synced, ignore_errors=True)
        shutil.copytree(self.folder, self.synced)

    def unsynced(self) -> list[Path]:
        """The files that a power failure may take away."""
        files = sorted(path for path in self.folder.rglob("*") if path.is_file())
        kept = {path: self.synced / path.relative_to(self.folder) for path in files}
        return [path for path in files if not kept[path].is_file() or kept[path].read_bytes() != path.read_bytes()]

    def empty(self) -> None:
        """Start with a new checkpoint."""
        shutil.rmtree(self.folder)
        self.folder.mkdir()

    def copy(self, to: Path) -> None:
        shutil.copytree(self.folder, to)

    def restore(self, copy: Path) -> None:
        shutil.rmtree(self.folder)
        shutil.copytree(copy, self.folder)
