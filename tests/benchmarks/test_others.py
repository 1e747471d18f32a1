"""Statistics, tables and charts of the comparison with other brokers, with made-up results."""

from __future__ import annotations

import itertools
from pathlib import Path
from xml.etree import ElementTree

import msgspec
import pytest
from benchmarks.others import charts, report
from benchmarks.others.candidates import CASES, GET, PUT, ROUND_TRIP, SINGLE, all_candidates, choose
from benchmarks.others.load import Result, merged
from benchmarks.others.results import PINNED, UNPINNED, Bound, Figures, Row, Run, median_figures
from benchmarks.others.run import Plan
from benchmarks.others.svg import axis, spread

_SVG = "{http://www.w3.org/2000/svg}"


def _row(
    broker: str, placement: str, case: str, clients: int, *, is_durable: bool = True, is_unix: bool = False
) -> Row:
    is_batched = case in (PUT, GET)
    figures = Figures(
        rate=1_234_567.0 if is_batched else 2_000.0 * clients,
        server_us=45.6,
        client_us=78.9,
        p50_ms=None if is_batched else 0.5,
        p99_ms=None if is_batched else 1.5,
    )
    transport = "Unix socket" if is_unix else "TCP"
    durability = "fsync" if is_durable else "later & never"
    return Row(
        broker,
        f"{broker} 1.2",
        durability,
        is_durable,
        transport,
        is_unix,
        "lib 3",
        placement,
        case,
        clients,
        figures,
        [1.0],
    )


@pytest.fixture
def run() -> Run:
    rows = [
        row
        for placement in (PINNED, UNPINNED)
        for case, counts in CASES.items()
        for clients in counts
        for row in (
            _row("OnceMQ", placement, case, clients),
            _row("OnceMQ", placement, case, clients, is_unix=True),
            _row("Redis Streams", placement, case, clients, is_durable=False),
        )
    ]
    bounds = [Bound(placement, "TCP", False, 0.2, 0.05, 0.3) for placement in (PINNED, UNPINNED)]
    return Run(rows, bounds, rounds=3, seconds=0.8, message_bytes=100, machine="2 CPUs", date="2026-01-01")


# Statistics.


def test_each_figure_is_the_median_of_its_rounds() -> None:
    rounds = [Figures(10.0, 3.0, 1.0, 0.5), Figures(30.0, 1.0, 2.0, 0.1), Figures(20.0, 2.0, 9.0, 0.3)]
    assert median_figures(rounds) == Figures(20.0, 2.0, 2.0, 0.3, None)


def test_the_rate_of_several_clients_is_that_of_the_time_from_the_first_begin_to_the_last_end() -> None:
    total = merged([Result(100, 1.0, 2.0, 0.5, [0.1]), Result(200, 1.5, 4.0, 0.25, [0.2, 0.3])])
    assert (total.count, total.rate, total.cpu_s, total.times_s) == (300, 100.0, 0.75, [0.1, 0.2, 0.3])


def test_a_client_that_got_nothing_does_not_stretch_the_time() -> None:
    assert merged([]).rate == 0.0
    assert merged([Result(100, 1.0, 2.0), Result()]).rate == 100.0


def test_a_plan_opens_the_connections_once_for_each_number_of_clients() -> None:
    plan = Plan(all_candidates(), [SINGLE, GET], rounds=2, seconds=1.0, placements=[PINNED, UNPINNED])
    assert plan.steps() == [(1, [SINGLE, GET]), (8, [SINGLE, GET]), (64, [SINGLE])]
    assert plan.turns == (2 * 2 + 1) * len(all_candidates())


# Selection.


def test_words_select_candidates_and_cases() -> None:
    candidates, cases = choose(["redis", "always", "single"])
    assert {candidate.broker for candidate in candidates} == {"Redis Streams", "NATS JetStream"}
    assert cases == [SINGLE]
    assert choose([]) == (all_candidates(), list(CASES))


def test_an_unknown_word_lists_what_there_is() -> None:
    with pytest.raises(ValueError, match="nothing is named 'kafka'") as failure:
        choose(["kafka"])
    assert SINGLE in str(failure.value)


def test_every_broker_is_measured_durably() -> None:
    durable = {candidate.broker for candidate in all_candidates() if candidate.is_durable}
    assert durable == {candidate.broker for candidate in all_candidates()}


# Tables.


def test_rows_name_durability_transport_and_versions(run: Run) -> None:
    first = next(line for line in report.as_text(run).splitlines() if line.startswith("OnceMQ"))
    for text in ("OnceMQ 1.2", "fsync", "yes", "TCP", "lib 3", "0.50", "1.50", "1,230,000", "46", "79"):
        assert text in first


def test_a_single_put_is_compared_with_sync_and_echo(run: Run) -> None:
    [bounds] = [table for table in report.tables(run) if table.title.startswith("Lower bounds")]
    assert bounds.rows[0] == ["TCP", PINNED, "0.200", "0.050", "0.250", "0.300", "0.500", "2.00 ×", "1.67 ×"]


def test_columns_of_cases_that_were_not_measured_are_absent(run: Run) -> None:
    only = msgspec.structs.replace(run, rows=[row for row in run.rows if row.case == ROUND_TRIP])
    heads = [head for table in report.tables(only) for head in table.heads]
    assert "round trip, ms" in heads
    assert "batched put/s" not in heads


def test_markdown_has_a_cell_for_each_head(run: Run) -> None:
    for block in report.as_markdown(run).split("\n\n"):
        lines = [line for line in block.splitlines() if line.startswith("|")]
        assert len({line.count("|") for line in lines}) <= 1


def test_a_run_can_be_stored_and_read(run: Run) -> None:
    assert msgspec.json.decode(msgspec.json.encode(run), type=Run) == run


# Charts.


def test_each_chart_is_written_for_light_and_dark_pages(run: Run, tmp_path: Path) -> None:
    written = charts.write_charts(run, tmp_path / "charts")
    assert {path.name for path in written} == {
        f"{name}-{theme}.svg" for name in charts.CHARTS for theme in ("light", "dark")
    }
    for path in written:
        root = ElementTree.parse(path).getroot()
        theme = charts.LIGHT if "light" in path.name else charts.DARK
        assert theme.background in {rect.get("fill") for rect in root.iter(f"{_SVG}rect")}
        assert any(text.text and "OnceMQ" in text.text for text in root.iter(f"{_SVG}text"))


def test_a_chart_stays_inside_its_picture(run: Run) -> None:
    for draw in charts.CHARTS.values():
        root = ElementTree.fromstring(draw(run, charts.LIGHT))
        width, height = float(root.get("width", 0)), float(root.get("height", 0))
        for text in root.iter(f"{_SVG}text"):
            assert 0 <= float(text.get("x", -1)) <= width
            assert 0 <= float(text.get("y", -1)) <= height
        for rect in root.findall(f"{_SVG}rect"):
            assert float(rect.get("x", 0)) + float(rect.get("width", 0)) <= width


def test_bars_of_brokers_that_are_not_durable_are_striped(run: Run) -> None:
    root = ElementTree.fromstring(charts.cpu(run, charts.DARK))
    stripes = {pattern.get("id") for pattern in root.iter(f"{_SVG}pattern")}
    fills = [rect.get("fill", "") for rect in root.iter(f"{_SVG}rect")]
    used = [fill.removeprefix("url(#").removesuffix(")") for fill in fills if fill.startswith("url")]
    assert used
    assert set(used) <= stripes


def test_a_run_of_one_placement_and_one_case_has_only_its_charts(run: Run, tmp_path: Path) -> None:
    rows = [row for row in run.rows if row.case == PUT and row.placement == UNPINNED]
    written = charts.write_charts(msgspec.structs.replace(run, rows=rows), tmp_path)
    assert [path.name for path in written] == ["throughput-light.svg", "throughput-dark.svg"]


@pytest.mark.parametrize("value", [0.013, 0.9, 1.0, 7.3, 99.0, 20_500.0, 3_000_001.0])
def test_an_axis_reaches_just_above_its_values(value: float) -> None:
    top, step = axis(value)
    assert value <= top < 2 * value
    assert 2 <= round(top / step) <= 5


def test_labels_that_crowd_keep_their_order_and_distance() -> None:
    wanted = [300.0, 10.0, 12.0, 14.0, 301.0]
    found = spread(wanted, 20, 0, 310)
    order = sorted(range(len(wanted)), key=lambda number: wanted[number])
    assert order == sorted(range(len(found)), key=lambda number: found[number])
    ordered = sorted(found)
    assert all(after - before >= 20 - 1e-9 for before, after in itertools.pairwise(ordered))
    assert min(found) >= 0
    assert max(found) <= 310
