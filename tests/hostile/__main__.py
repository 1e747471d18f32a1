"""`make hostile`: one hostile peer of each kind at each ZeroMQ listener, with figures of memory and latency."""

from __future__ import annotations

import argparse
import sys

import click

from tests.hostile.campaign import Figures, run

_GROWTH_MIB_MAX = 200


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=5.0, help="How long each case is measured, without and with.")
    parser.add_argument("--only", default="", help="Only cases whose names start with this.")
    options = parser.parse_args()
    too_large: list[str] = []

    def show(found: Figures) -> None:
        growth = found.peak_mib - found.idle_mib
        if growth > _GROWTH_MIB_MAX:
            too_large.append(found.name)
        click.echo(
            f"{found.name:<32} idle {found.idle_mib:5.0f} MiB, peak +{growth:5.0f} MiB   "
            f"p50 {found.p50_ms:6.2f} → {found.attacked_p50_ms:6.2f} ms   "
            f"p99 {found.p99_ms:6.2f} → {found.attacked_p99_ms:6.2f} ms"
        )

    run(options.seconds, options.only, show)
    if too_large:
        click.echo(f"more than {_GROWTH_MIB_MAX} MiB above the idle size: {', '.join(too_large)}")
    return bool(too_large)


if __name__ == "__main__":
    sys.exit(main())
