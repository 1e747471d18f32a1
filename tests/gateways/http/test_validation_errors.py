"""Errors explain what is wrong with a request, and what would be valid."""

from __future__ import annotations

from typing import Any

import pytest

from tests.gateways.http.v1 import V1, v1

__all__ = ["v1"]


@pytest.mark.parametrize(
    ("method", "path", "given", "detail"),
    [
        ("POST", "/topics/o/messages?create=maybe", {"json": {}}, "create: it must be true or false"),
        ("GET", "/topics?limit=0", {}, "limit: it must be a whole number, at least 1"),
        (
            "GET",
            "/topics?lmit=1",
            {},
            "'lmit' is not a parameter of this endpoint; its parameters: after and limit",
        ),
        (
            "GET",
            "/topics/o/messages?position=first",
            {},
            "position: 'first' is not allowed; it must be 'earliest' or 'new'",
        ),
        (
            "PUT",
            "/topics/o",
            {"json": {"overflow": "stop"}},
            "the body: overflow: 'stop' is not allowed; it must be 'drop', 'expire' or 'refuse'",
        ),
        ("POST", "/sessions", {"json": {}}, "the body: `session` is missing"),
        ("POST", "/sessions", {"json": {"session": "s", "once": 1}}, "the body: `once` is not a known field"),
        ("POST", "/sessions", {}, "the body is empty; it must be JSON"),
        (
            "POST",
            "/sessions",
            {"content": b"x", "headers": {"content-type": "text/plain"}},
            "'text/plain' is not accepted; use application/json",
        ),
        ("POST", "/topics/o/messages", {"json": {"values": "x"}}, "the body: `values` is not a known field"),
        ("POST", "/transactions", {"json": {"puts": [{"value": "x"}]}}, "the body: `puts[0].topic` is missing"),
    ],
)
def test_the_detail_says_what_would_be_right(
    v1: V1, method: str, path: str, given: dict[str, Any], detail: str
) -> None:
    assert v1.ask(method, path, **given).json()["detail"] == detail


def test_the_advice_is_for_those_who_call_over_http(v1: V1) -> None:
    assert "?create=true" in v1.ask("POST", "/topics/nothing/messages", content=b"x").json()["advice"]
