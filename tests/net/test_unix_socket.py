"""Who may connect to a Unix socket does not depend on the umask of the service."""

from __future__ import annotations

import asyncio
import os
import stat
from collections.abc import Iterator
from pathlib import Path

import pytest

from oncemq.broker.network.listeners import Listeners
from oncemq.config.settings import ServeSettings
from oncemq.config.sources import load_serve
from oncemq.gateways.push.counters import Counters
from oncemq.gateways.push.feed.feed_socket import FeedSocket
from oncemq.gateways.push.settings import PushSettings
from oncemq.protocol.errors import SettingInvalid


@pytest.fixture(params=[0o077, 0o022, 0o000])
def umask(request: pytest.FixtureRequest) -> Iterator[None]:
    former = os.umask(request.param)
    yield
    os.umask(former)


MODES = pytest.mark.parametrize(("options", "mode"), [({}, 0o600), ({"socket_mode": "0660"}, 0o660)])


@pytest.mark.usefixtures("umask")
@MODES
def test_a_unix_socket_has_the_mode_of_the_settings(tmp_path: Path, options: dict[str, str], mode: int) -> None:
    path = tmp_path / "broker.sock"
    network = Listeners(ServeSettings(listen=(f"ipc://{path}", "tcp://127.0.0.1:*"), **options))  # type: ignore[arg-type]
    try:
        assert stat.S_IMODE(path.stat().st_mode) == mode
    finally:
        network.close()


@pytest.mark.usefixtures("umask")
@MODES
def test_the_unix_socket_of_the_push_feed_has_the_mode_of_the_settings(
    tmp_path: Path, options: dict[str, str], mode: int
) -> None:
    path = tmp_path / "feed.sock"
    settings = PushSettings(feed="tcp://127.0.0.1:*", feed_listen=(f"ipc://{path}",), **options)  # type: ignore[arg-type]

    async def listen() -> None:
        feed = FeedSocket(settings, Counters(), lambda *_: None, lambda: None)
        try:
            assert stat.S_IMODE(path.stat().st_mode) == mode
        finally:
            feed.close()

    asyncio.run(listen())


@pytest.mark.parametrize("mode", ["rw-rw----", "0999", "66", ""])
def test_what_is_not_a_mode_is_refused(mode: str) -> None:
    with pytest.raises(SettingInvalid, match=r"it must be text, such as 0660"):
        load_serve({"socket_mode": mode}, {})
