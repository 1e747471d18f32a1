"""What a listener needs that other machines can reach."""

from __future__ import annotations

import socket
from pathlib import Path
from typing import Any

import pytest

from oncemq.config import sources
from oncemq.config.exposure import CURVE_FILES, TLS_FILES, check_exposure, exposures
from oncemq.config.settings import ServeSettings
from oncemq.protocol.errors import SettingInvalid

DATABASE = "postgresql://db/orders"


@pytest.fixture(autouse=True)
def _empty_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def load(**flags: Any) -> ServeSettings:
    return sources.load_serve(flags, {})


def make(path: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.touch()


def refusal(settings: ServeSettings) -> str:
    with pytest.raises(SettingInvalid) as refused:
        check_exposure(settings)
    return refused.value.text


@pytest.mark.parametrize(
    ("flags", "auth", "keys"),
    [
        ({}, "oncemq-data/auth.toml", "oncemq-data/keys"),
        ({"data": "d"}, "d/auth.toml", "d/keys"),
        ({"data": "d", "journal": "file:j"}, "j/auth.toml", "j/keys"),
        ({"data": "d", "journal": DATABASE}, "auth.toml", "keys"),
        ({"data": "d", "auth": "etc/users.toml"}, "etc/users.toml", "etc/keys"),
        ({"data": "d", "keys": "k"}, "d/auth.toml", "k"),
    ],
)
def test_users_and_keys_are_in_the_data_folder_unless_they_are_named(
    flags: dict[str, Any], auth: str, keys: str
) -> None:
    settings = load(**flags)
    assert settings.auth_file == Path(auth)
    assert settings.keys_folder == Path(keys)


LISTENERS: list[tuple[dict[str, Any], tuple[str, ...]]] = [
    ({"listen": "oncemq://0.0.0.0:5554"}, TLS_FILES),
    ({"listen": "oncemq://[::]:*"}, TLS_FILES),
    ({"listen": "tcp://*:5555"}, CURVE_FILES),
    ({"http": "192.0.2.1:8002"}, TLS_FILES),
    ({"text": "0.0.0.0:5556"}, CURVE_FILES),
    ({"push": "0.0.0.0:5557"}, CURVE_FILES),
    ({"push": "auto", "push_feed_listen": "tcp://0.0.0.0:7000"}, CURVE_FILES),
    ({"udp": "0.0.0.0:5560"}, ()),
]


@pytest.mark.parametrize(("flags", "files"), LISTENERS)
def test_a_listener_beyond_loopback_needs_users_and_its_encryption(
    flags: dict[str, Any], files: tuple[str, ...]
) -> None:
    settings = load(**flags)
    assert "there are no users yet" in refusal(settings)
    make(settings.auth_file)
    for name in files:
        assert f"{settings.keys_folder / name} does not exist" in refusal(settings)
        make(settings.keys_folder / name)
    check_exposure(settings)
    assert exposures(settings) == []


def test_encryption_alone_is_not_enough() -> None:
    settings = load(listen="tcp://0.0.0.0:5555")
    make(settings.keys_folder / "curve.secret")
    text = refusal(settings)
    assert "there are no users yet" in text
    assert "auth keys" not in text


def test_a_feed_of_a_gateway_that_is_off_needs_nothing() -> None:
    check_exposure(load(push_feed_listen="tcp://0.0.0.0:7000"))


def test_the_error_shows_the_commands_to_run() -> None:
    text = refusal(load(listen="oncemq://192.0.2.1:5554", data="my data"))
    assert text.splitlines() == [
        "listen: oncemq://192.0.2.1:5554 can be reached from other machines, and there are no users yet. Set them up:",
        "  oncemq auth user add alice --role admin --data 'my data'",
        "  oncemq auth token alice --data 'my data'",
        "  oncemq auth keys --host 192.0.2.1 --data 'my data'",
        "or add --insecure if everybody on the network may do everything.",
    ]


def test_the_commands_find_the_same_files() -> None:
    assert f"--host {socket.gethostname()} --auth auth.toml" in refusal(load(http="0.0.0.0:80", journal=DATABASE))
    make(Path("users.toml"))
    assert refusal(load(listen="tcp://[::]:1", auth="users.toml", keys="k")).splitlines()[1] == (
        f"  oncemq auth keys --host {socket.gethostname()} --auth users.toml --keys k"
    )


def test_insecure_is_a_warning_that_says_what_is_missing() -> None:
    settings = load(listen="oncemq://0.0.0.0:5554", udp="0.0.0.0:5560", insecure=True)
    check_exposure(settings)
    assert [exposure.warning for exposure in exposures(settings)] == [
        "oncemq://0.0.0.0:5554 can be reached from other machines: everybody there can read and write.",
        "udp at 0.0.0.0:5560 can be reached from other machines: everybody there can read and write.",
    ]
    make(settings.auth_file)
    assert [exposure.warning for exposure in exposures(settings)] == [
        "oncemq://0.0.0.0:5554 can be reached from other machines, and is not encrypted: others can read tokens."
    ]


@pytest.mark.parametrize("name", ["text", "push"])
@pytest.mark.parametrize("insecure", [True, False])
def test_a_gateway_that_nobody_could_log_in_to_is_not_started(name: str, insecure: bool) -> None:
    settings = load(**{name: "auto", "insecure": insecure})
    check_exposure(settings)
    make(settings.auth_file)
    assert refusal(settings).splitlines() == [
        f"{name}: the broker has users, and nobody can log in to ZeroMQ without its keys: "
        "oncemq-data/keys/curve.secret does not exist. Create it:",
        "  oncemq auth keys --host 127.0.0.1 --data ./oncemq-data",
    ]
    make(settings.keys_folder / "curve.secret")
    check_exposure(settings)


def test_a_gateway_with_a_token_belongs_to_a_broker_with_users() -> None:
    settings = load(text="auto")
    with pytest.raises(SettingInvalid, match="nobody can log in"):
        check_exposure(settings, has_users=True)
