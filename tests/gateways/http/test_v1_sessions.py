"""Sessions over HTTP: epochs, numbers that continue, and outcomes that were not confirmed."""

from __future__ import annotations

from typing import Any

from tests.gateways.http.v1 import V1, v1

__all__ = ["v1"]


def headers(epoch: int, number: int, **more: int) -> dict[str, str]:
    found = {"oncemq-session": "shop", "oncemq-epoch": str(epoch), "oncemq-number": str(number)}
    return found | {f"oncemq-{name.replace('_', '-')}": str(value) for name, value in more.items()}


def test_a_session_begins_is_resumed_and_taken_over(v1: V1) -> None:
    begun = v1.ok("POST", "/sessions", {"session": "shop", "nonce": 5})
    assert (begun["last_number"], begun["verdicts"]) == (0, [])
    assert v1.ok("POST", "/sessions", {"session": "shop", "nonce": 5}) == begun
    v1.ok("PUT", "/topics/a", status=201, headers=headers(begun["epoch"], 1))
    resumed = v1.ok("POST", "/sessions", {"session": "shop", "epoch": begun["epoch"]})
    assert (resumed["epoch"], resumed["last_number"]) == (begun["epoch"], 1)
    topic_id = v1.ok("GET", "/topics/a")["topic_id"]
    assert resumed["verdicts"] == [{"number": 1, "kind": "topic", "reply": {"topic_id": topic_id, "created": True}}]
    taken = v1.ok("POST", "/sessions", {"session": "shop"})
    assert (taken["epoch"] > begun["epoch"], taken["last_number"]) == (True, 1)
    assert v1.refused("PUT", "/topics/b", headers=headers(begun["epoch"], 2)) == "FENCED"
    assert v1.refused("POST", "/sessions", {"session": "shop", "epoch": begun["epoch"]}) == "FENCED"
    v1.ok("PUT", "/topics/b", status=201, headers=headers(taken["epoch"], 2))


def test_a_repeated_request_has_the_same_status(v1: V1) -> None:
    epoch = v1.ok("POST", "/sessions", {"session": "shop"})["epoch"]
    for number, (method, path, status) in enumerate(
        [
            ("PUT", "/topics/a", 201),
            ("PUT", "/topics/a/subscriptions/s", 201),
            ("DELETE", "/topics/a/subscriptions/s", 204),
            ("DELETE", "/topics/a", 204),
            ("DELETE", "/topics/a", 404),
        ],
        1,
    ):
        for _ in range(2):
            assert v1.ask(method, path, headers=headers(epoch, number)).status_code == status


def test_answers_that_were_not_seen_are_kept(v1: V1) -> None:
    epoch = v1.ok("POST", "/sessions", {"session": "shop", "window": 4})["epoch"]
    for number in (1, 2, 3):
        v1.ok("PUT", f"/topics/t{number}", status=201, headers=headers(epoch, number, seen_below=1))
    v1.ok("PUT", "/topics/t1", status=201, headers=headers(epoch, 1, seen_below=1))
    resumed = v1.ok("POST", "/sessions", {"session": "shop", "epoch": epoch})
    assert [verdict["number"] for verdict in resumed["verdicts"]] == [1, 2, 3]


def test_sessions_are_listed_and_removed(v1: V1) -> None:
    epoch = v1.ok("POST", "/sessions", {"session": "shop"})["epoch"]
    page = v1.ok("GET", "/sessions", params={"after": "shoo", "limit": 1})
    assert (page["sessions"][0]["session"], page["sessions"][0]["epoch"]) == ("shop", epoch)
    v1.ok("DELETE", "/sessions/shop", status=204)
    assert v1.refused("DELETE", "/sessions/shop") == "SESSION_UNKNOWN"
    assert v1.refused("PUT", "/topics/a", headers=headers(epoch, 1)) == "SESSION_UNKNOWN"
    assert v1.refused("POST", "/sessions", {"session": "shop", "epoch": epoch}) == "SESSION_UNKNOWN"


def test_the_gateway_goes_on_when_its_own_session_is_removed(v1: V1) -> None:
    v1.ok("PUT", "/topics/a", status=201)
    [own] = v1.ok("GET", "/sessions")["sessions"]
    v1.refused("DELETE", f"/sessions/{own['session']}")
    v1.ok("DELETE", f"/sessions/{own['session']}", status=204, headers={"idempotency-key": "k"})
    v1.ok("PUT", "/topics/b", status=201)


def test_callers_are_not_blamed_when_somebody_takes_over_the_gateways_own_session(v1: V1) -> None:
    for change in ("PUT /topics/b", "POST /topics/a/messages"):
        v1.ok("PUT", "/topics/a", status=201 if change.startswith("PUT") else 200)
        own = [each["session"] for each in v1.ok("GET", "/sessions")["sessions"] if each["session"].startswith("http")]
        for session in own:
            v1.ok("POST", "/sessions", {"session": session})
        given: dict[str, Any] = {"json": {"value": "x"}} if change.startswith("POST") else {}
        assert v1.refused(*change.split(), **given) == "BROKER_AWAY"
        v1.ask(*change.split(), **given).raise_for_status()
