"""GET /metrics, parsed as strictly as Prometheus parses it."""

from __future__ import annotations

import re
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import yaml

import oncemq
from oncemq.gateways import tasks
from oncemq.gateways.http.metrics import endpoint
from oncemq.gateways.http.metrics.exposition import Exposition, Family
from oncemq.gateways.http.v1 import events
from oncemq.protocol.replies import HealthReply
from tests.gateways.http.v1 import V1, Visit, v1

__all__ = ["v1"]

GUIDE = Path(__file__).parents[3] / "docs/howto/operate.md"
Labels = frozenset[tuple[str, str]]
Samples = dict[tuple[str, Labels], float]

_HEAD = re.compile(r"# (HELP|TYPE) ([a-z][a-z0-9_]*) (.+)")
_SAMPLE = re.compile(r"([a-z][a-z0-9_]*)(?:\{(.*)\})? (\S+)")
_LABEL = re.compile(r'([a-z][a-z0-9_]*)="((?:[^"\\\n]|\\["\\n])*)"(?:,|$)')


def parsed(text: str) -> Samples:
    """Return every sample. Fails if the format is wrong."""
    assert text.endswith("\n")
    samples: Samples = {}
    families: dict[str, str] = {}
    helped = ""
    for line in text.splitlines():
        if head := _HEAD.fullmatch(line):
            what, name, rest = head.groups()
            if what == "HELP":
                helped = name
                assert name not in families, f"{name} comes twice"
            else:
                assert name == helped
                families[name] = rest
                assert rest == ("counter" if name.endswith("_total") else "gauge")
            continue
        sample = _SAMPLE.fullmatch(line)
        assert sample, line
        name, inside, value = sample.groups()
        assert name == helped, f"{name} stands among the samples of {helped}"
        place = (name, labels_of(inside or ""))
        assert place not in samples, f"{place} comes twice"
        samples[place] = float(value)
    return samples


def labels_of(inside: str) -> Labels:
    assert _LABEL.sub("", inside) == "", inside
    plain = {"\\\\": "\\", "\\n": "\n", '\\"': '"'}
    unescaped = [(name, re.sub(r"\\.", lambda found: plain[found[0]], text)) for name, text in _LABEL.findall(inside)]
    return frozenset(unescaped)


def scraped(v1: V1, **query: Any) -> Samples:
    response = v1.get("/metrics", **query)
    assert response.status_code == 200, response.text
    assert response.headers["content-type"] == "text/plain; version=0.0.4; charset=utf-8"
    return parsed(response.text)


def value_of(samples: Samples, family: Family, **labels: str) -> float | None:
    return samples.get((family.name, frozenset(labels.items())))


def test_topics_and_subscriptions_are_told(v1: V1) -> None:
    v1.subscribe("orders", "kitchen")
    v1.subscribe("orders", "cooks", sharing={})
    v1.subscribe("%2A", "audit", start="earliest")
    v1.store("orders", "a", "b", "c")
    v1.got("orders", "kitchen", ack=2)
    v1.ok("POST", "/topics/orders/subscriptions/cooks/take", {"member": "m", "number": 1, "count_max": 2})
    samples = scraped(v1)
    assert value_of(samples, endpoint.TOPIC_MESSAGES, topic="orders") == 3
    assert value_of(samples, endpoint.TOPIC_STORED, topic="orders") == 3
    assert value_of(samples, endpoint.TOPIC_SUBSCRIPTIONS, topic="orders") == 3
    assert (value_of(samples, endpoint.TOPIC_BYTES, topic="orders") or 0) > 0
    assert value_of(samples, endpoint.TOPIC_QUOTA, topic="orders") is None
    assert value_of(samples, endpoint.LAG, topic="orders", subscriber="kitchen") == 1
    assert value_of(samples, endpoint.ACKED, topic="orders", subscriber="kitchen") == 2
    assert value_of(samples, endpoint.LEASED, topic="orders", subscriber="kitchen") is None
    assert value_of(samples, endpoint.LEASED, topic="orders", subscriber="cooks") == 2
    assert value_of(samples, endpoint.MEMBERS, topic="orders", subscriber="cooks") == 1
    assert value_of(samples, endpoint.LAG, topic="orders", subscriber="audit", pattern="*") == 3
    assert value_of(samples, endpoint.PATTERN_LAG, pattern="*", subscriber="audit") == 3


def test_the_broker_is_told_and_its_counters_rise(v1: V1) -> None:
    before = scraped(v1)
    v1.subscribe("orders", "kitchen")
    v1.store("orders", "a")
    after = scraped(v1)
    for name in endpoint.COUNTERS:
        assert (f"oncemq_{name}_total", frozenset()) in before, "a counter is there from the first scrape on"
    groups: tuple[str, Labels] = ("oncemq_groups_total", frozenset())
    assert after[groups] > before[groups]
    assert value_of(after, endpoint.TOPICS) == 1
    [build] = [labels for name, labels in after if name == endpoint.BUILD.name]
    assert ("version", oncemq.__version__) in build


def test_a_clock_that_is_behind_is_a_gauge_and_no_counter() -> None:
    shown = Exposition()
    endpoint._add_health(shown, HealthReply("1", "b", "j", 0, 0, 0, 0, -1, {"clock_behind_ms": 5_000}))
    text = shown.encode().decode()
    assert "# TYPE oncemq_clock_behind_seconds gauge\noncemq_clock_behind_seconds 5.0\n" in text
    assert "oncemq_clock_behind_ms" not in text


def test_dead_letters_are_counted(v1: V1) -> None:
    with oncemq.connect(v1.broker) as client:
        workers = client.subscribe_shared("orders", "cooks", tries_max=1, dead_topic="orders.dead")
        client.put("orders", "burnt")
        task = workers.take(timeout_s=30)
        assert task is not None
        task.reject("burnt")
    assert value_of(scraped(v1), endpoint.DEAD, topic="orders.dead") == 1


def test_names_are_escaped(v1: V1) -> None:
    name = 'a "quoted" \\ back\\nslash, {brace} = ä'
    with oncemq.connect(v1.broker) as client:
        client.subscribe(name, name)
        client.put(name, "x")
    assert value_of(scraped(v1), endpoint.LAG, topic=name, subscriber=name) == 1


def test_a_line_break_can_not_end_a_label() -> None:
    family = Family("oncemq_x", "gauge", "A figure.")
    shown = Exposition()
    shown.add(family, 1, {"topic": 'a\noncemq_x 2\n"'})
    assert shown.encode() == (
        b"# HELP oncemq_x A figure.\n# TYPE oncemq_x gauge\n" rb'oncemq_x{topic="a\noncemq_x 2\n\""} 1' b"\n"
    )
    assert value_of(parsed(shown.encode().decode()), family, topic='a\noncemq_x 2\n"') == 1


def test_more_than_the_limit_is_counted_and_left_out(v1: V1) -> None:
    with oncemq.connect(v1.broker) as client:
        for number in range(5):
            client.create_topic(f"t{number}")
        for topic in ("t0", "t1"):
            for number in range(3):
                client.subscribe(topic, f"s{number}")
        client.subscribe_pattern("x.*", "p")
        client.subscribe_pattern("y.*", "p")
    samples = scraped(v1, limit=1)
    kinds = ("topics", "subscriptions", "patterns")
    left_out = {kind: value_of(samples, endpoint.LEFT_OUT, kind=kind) for kind in kinds}
    assert left_out == {"topics": 4, "subscriptions": 2, "patterns": 1}
    samples = scraped(v1, limit=4)
    topics = [dict(labels)["topic"] for name, labels in samples if name == endpoint.TOPIC_BYTES.name]
    assert topics == ["t0", "t1", "t2", "t3"]
    assert value_of(samples, endpoint.LEFT_OUT, kind="subscriptions") == 2
    assert value_of(samples, endpoint.LAG, topic="t1", subscriber="s0") == 0
    assert value_of(scraped(v1), endpoint.LEFT_OUT, kind="topics") == 0


def test_a_prefix_selects_topics(v1: V1) -> None:
    for name in ("a.1", "b", "b.1", "b.2", "bb", "c"):
        v1.ok("PUT", f"/topics/{name}", status=201)
    samples = scraped(v1, prefix="b.")
    assert [dict(labels)["topic"] for name, labels in samples if name == endpoint.TOPIC_BYTES.name] == ["b.1", "b.2"]
    assert value_of(samples, endpoint.LEFT_OUT, kind="topics") == 4
    assert v1.get("/metrics", limit=0).json()["code"] == "MALFORMED"


def test_long_lists_are_paged_through(v1: V1) -> None:
    with oncemq.connect(v1.broker) as client:
        for number in range(1001):
            client.create_topic(f"t{number}")
    samples = scraped(v1, limit=2000)
    assert len([1 for name, _ in samples if name == endpoint.TOPIC_BYTES.name]) == 1001
    assert value_of(samples, endpoint.LEFT_OUT, kind="topics") == 0


def names() -> list[str]:
    families = [value.name for value in vars(endpoint).values() if isinstance(value, Family)]
    return [*families, *(f"oncemq_{name}_total" for name in endpoint.COUNTERS)]


def test_the_guide_names_every_metric() -> None:
    text = GUIDE.read_text(encoding="utf-8")
    assert [name for name in names() if f"`{name}`" not in text] == []


def test_the_guides_rules_are_yaml_and_ask_for_metrics_that_there_are() -> None:
    blocks = re.findall(r"```yaml\n(.*?)```", GUIDE.read_text(encoding="utf-8"), re.DOTALL)
    groups = [group for block in map(yaml.safe_load, blocks) for group in block.get("groups", ())]
    rules = [rule for group in groups for rule in group["rules"]]
    assert len(rules) >= 3
    asked = {name for rule in rules for name in re.findall(r"oncemq_\w+", rule["expr"])}
    assert asked
    assert asked <= set(names())


def test_failed_requests_and_streams_are_counted(v1: V1, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> None:
        raise ZeroDivisionError

    async def read_stream() -> None:
        async with Visit(v1, "/v1/topics/orders/subscriptions/kitchen/events", headers={"host": "localhost"}) as visit:
            await visit.serving

    monkeypatch.setattr(tasks, "failures", Counter())
    monkeypatch.setattr(endpoint, "failures", tasks.failures)
    v1.subscribe("orders", "kitchen")
    monkeypatch.setattr("oncemq.gateways.http.v1.topics.answer", fail)
    monkeypatch.setattr(events._EventStream, "_events", fail)
    assert v1.get("/v1/topics").status_code == 500
    v1.run(read_stream())
    samples = scraped(v1)
    assert value_of(samples, endpoint.FAILURES, what="an HTTP request") == 1
    assert value_of(samples, endpoint.FAILURES, what="an HTTP stream") == 1
