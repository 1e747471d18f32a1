"""What happens to a checkpoint: files vanish, are cut off or overwritten with zeros, or come back from an older copy.

Hadoop keeps a checksum beside each file. Half of the time it is damaged too, so that it does not give the damage away.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Sequence
from pathlib import Path
from random import Random

from tests.spark.checkpoints import Checkpoint

#: Returns what was done; "" = there was nothing to damage.
Damage = Callable[[Random, Checkpoint, Sequence[Path]], str]

_KINDS = ("offsets", "commits")


def lose_last(random: Random, checkpoint: Checkpoint, _copies: Sequence[Path]) -> str:
    """The last micro-batches vanish."""
    count = random.choice((1, 1, 1, 2, 3))
    checkpoint.lose_last(count)
    return f"lose the last {count} micro-batches"


def lose_entry(random: Random, checkpoint: Checkpoint, _copies: Sequence[Path]) -> str:
    """One of the last entries vanishes."""
    kind = random.choice(_KINDS)
    numbers = checkpoint.numbers(kind)[-3:]
    if not numbers:
        return ""
    number = random.choice(numbers)
    for name in (str(number), f".{number}.crc"):
        (checkpoint.folder / kind / name).unlink(missing_ok=True)
    return f"lose {kind}/{number}"


def lose_all_entries(random: Random, checkpoint: Checkpoint, _copies: Sequence[Path]) -> str:
    kinds = random.choice((("offsets",), ("commits",), _KINDS))
    for kind in kinds:
        shutil.rmtree(checkpoint.folder / kind, ignore_errors=True)
    return f"lose all of {' and '.join(kinds)}"


def lose_metadata(_random: Random, checkpoint: Checkpoint, _copies: Sequence[Path]) -> str:
    for name in ("metadata", ".metadata.crc"):
        (checkpoint.folder / name).unlink(missing_ok=True)
    return "lose metadata"


def lose_power(random: Random, checkpoint: Checkpoint, _copies: Sequence[Path]) -> str:
    """All files that were not synced vanish, or some of them. Only the model says what was synced."""
    if not checkpoint.synced.exists():
        return ""
    is_all = random.random() < 0.5
    lost = [path for path in checkpoint.unsynced() if is_all or random.random() < 0.5]
    for path in lost:
        path.unlink()
    return f"lose power, and {', '.join(str(path.relative_to(checkpoint.folder)) for path in lost)}" if lost else ""


def overwrite(random: Random, checkpoint: Checkpoint, _copies: Sequence[Path]) -> str:
    """A file is cut off, or contains zeros, as if its blocks had not been written."""
    paths = [
        checkpoint.folder / "metadata",
        *(checkpoint.folder / kind / str(number) for kind in _KINDS for number in checkpoint.numbers(kind)[-2:]),
        *_newest(checkpoint.folder / "state"),
    ]
    path = random.choice([path for path in paths if path.exists()])
    data = path.read_bytes()
    how, changed = random.choice(
        (
            ("cut off", data[: random.randrange(len(data) + 1)]),
            ("empty", b""),
            ("zeros", bytes(len(data))),
        )
    )
    path.write_bytes(changed)
    checksum = path.with_name(f".{path.name}.crc")
    if random.random() < 0.5:
        checksum.unlink(missing_ok=True)
    return f"{how}: {path.relative_to(checkpoint.folder)}{'' if checksum.exists() else ' without its checksum'}"


def lose_state(random: Random, checkpoint: Checkpoint, _copies: Sequence[Path]) -> str:
    found = _newest(checkpoint.folder / "state")
    if not found:
        return ""
    path = random.choice(found)
    path.unlink()
    path.with_name(f".{path.name}.crc").unlink(missing_ok=True)
    return f"lose {path.relative_to(checkpoint.folder)}"


def restore(random: Random, checkpoint: Checkpoint, copies: Sequence[Path]) -> str:
    """An older copy comes back."""
    if not copies:
        return ""
    copy = random.choice(copies)
    checkpoint.restore(copy)
    return f"restore the copy {copy.name}"


def restore_part(random: Random, checkpoint: Checkpoint, copies: Sequence[Path]) -> str:
    """A part of an older copy comes back."""
    if not copies:
        return ""
    copy = random.choice(copies)
    part = random.choice([name for name in (*_KINDS, "state") if (copy / name).is_dir()] or ["offsets"])
    shutil.rmtree(checkpoint.folder / part, ignore_errors=True)
    if (copy / part).is_dir():
        shutil.copytree(copy / part, checkpoint.folder / part)
    return f"restore {part} of the copy {copy.name}"


def _newest(folder: Path) -> list[Path]:
    """The newest files of the state."""
    files = [path for path in folder.rglob("*") if path.is_file() and not path.name.startswith(".")]
    return sorted(files, key=lambda path: path.stat().st_mtime_ns)[-4:]


#: With their weights.
DAMAGES: dict[Damage, int] = {
    lose_last: 6,
    lose_entry: 4,
    lose_all_entries: 2,
    lose_metadata: 1,
    lose_power: 5,
    overwrite: 5,
    lose_state: 1,
    restore: 5,
    restore_part: 3,
}
