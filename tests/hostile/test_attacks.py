"""An attack begins anew when it was cut, and is reported when it does not work."""

from __future__ import annotations

import multiprocessing

import pytest

from tests.acceptance.processes import wait_until
from tests.hostile.attacks import running


def not_answer() -> None:
    raise AssertionError("the listener must answer with READY")


def disconnect() -> None:
    raise ConnectionResetError


def test_an_attack_that_does_not_work_is_reported() -> None:
    before = {*multiprocessing.active_children()}
    with running(disconnect):
        pass
    with pytest.raises(AssertionError, match="the attack has failed"), running(not_answer):
        wait_until(lambda: {*multiprocessing.active_children()} <= before, "the attack ends")
