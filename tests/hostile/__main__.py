"""`make hostile`: one hostile peer of each kind at each listener, with figures of memory and latency."""

from __future__ import annotations

import argparse
import json
import sys

import click

from tests.hostile.campaign import CRITERION, Figures, Latency, run


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, epilog=CRITERION)
    parser.add_argument(
        "--seconds",
        type=float,
        default=5.0,
        help="How long each case is measured with the attack, and without it: half before, half after.",
    )
    parser.add_argument("--only", default="", help="Only cases whose names start with this.")
    parser.add_argument("--json", action="store_true", help="Print the figures as JSON.")
    options = parser.parse_args()
    found: list[Figures] = []
    if not options.json:
        click.echo(
            f"Criterion: {CRITERION}\nLatencies of another peer: before → during → after the attack, × during / quiet."
        )

    def show(figures: Figures) -> None:
        found.append(figures)
        if not options.json:
            click.echo(_line(figures))

    run(options.seconds, options.only, show)
    if not found:
        parser.error(f"no case's name starts with '{options.only}'")
    failed = [figures.name for figures in found if not figures.is_good]
    click.echo(_json(found) if options.json else f"Failed: {', '.join(failed) or 'none'}.")
    return bool(failed)


def _line(figures: Figures) -> str:
    before, attacked, after = figures.before, figures.attacked, figures.after
    return (
        f"{figures.name:<41} idle {figures.idle_mib:4.0f} MiB, peak {figures.growth_mib:+5.0f} MiB   "
        f"p50 {before.p50_ms:6.2f} → {attacked.p50_ms:6.2f} → {after.p50_ms:6.2f} ms   "
        f"p99 {before.p99_ms:6.2f} → {attacked.p99_ms:6.2f} → {after.p99_ms:6.2f} ms, ×{figures.p99_ratio:.1f}"
        f"{'   ' if figures.failure else ''}{figures.failure}"
    )


def _json(found: list[Figures]) -> str:
    cases = [
        {
            "name": figures.name,
            "idle_mib": round(figures.idle_mib, 1),
            "growth_mib": round(figures.growth_mib, 1),
            "before": _rounded(figures.before),
            "attacked": _rounded(figures.attacked),
            "after": _rounded(figures.after),
            "p99_ratio": round(figures.p99_ratio, 2),
            "is_good": figures.is_good,
            "failure": figures.failure,
        }
        for figures in found
    ]
    return json.dumps({"criterion": CRITERION, "cases": cases}, indent=2)


def _rounded(latency: Latency) -> dict[str, float]:
    return {name: round(value, 3) for name, value in latency._asdict().items()}


if __name__ == "__main__":
    sys.exit(main())
