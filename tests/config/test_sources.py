"""Settings: which source wins, and which values are refused with which error."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import msgspec
import pytest

from oncemq.config import sources
from oncemq.config.addresses import check_address
from oncemq.config.exposure import check_exposure, exposures
from oncemq.config.gateways import PushOptions, UdpOptions
from oncemq.config.ports import check_ports
from oncemq.config.settings import ClientSettings, ServeSettings
from oncemq.protocol.errors import SettingInvalid
from oncemq.protocol.limits import Limits


@pytest.fixture(autouse=True)
def _empty_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def write_file(text: str, name: str = "oncemq.toml") -> str:
    Path(name).write_text(text, encoding="utf-8")
    return name


def test_without_values_the_defaults_apply() -> None:
    assert sources.load_serve({}, {}) == ServeSettings()
    assert sources.load_client({}, {}) == ClientSettings()


def test_a_flag_beats_the_environment_which_beats_the_file() -> None:
    write_file('[serve]\ndata = "of-file"\n')
    environment = {"ONCEMQ_DATA": "of-environment"}
    assert sources.load_serve({}, {}).data == "of-file"
    assert sources.load_serve({}, environment).data == "of-environment"
    assert sources.load_serve({"data": "of-flag"}, environment).data == "of-flag"
    assert sources.load_serve({"data": None}, environment).data == "of-environment"


def test_the_file_can_be_chosen_by_flag_or_environment() -> None:
    write_file("[client]\ntries = 1\n")
    write_file("[client]\ntries = 2\n", "two.toml")
    write_file("[client]\ntries = 3\n", "three.toml")
    assert sources.load_client({}, {}).tries == 1
    assert sources.load_client({}, {"ONCEMQ_CONFIG": "two.toml"}).tries == 2
    assert sources.load_client({"config": "three.toml"}, {"ONCEMQ_CONFIG": "two.toml"}).tries == 3


def test_all_sections_of_the_file_reach_the_broker() -> None:
    write_file(
        '[serve]\nlisten = ["tcp://127.0.0.1:1", "ipc:///tmp/x"]\nsegment_bytes = "128MiB"\n'
        "[limits]\ntopics_max = 7\n"
        '[log]\nlevel = "debug"\nformat = "json"\n'
    )
    settings = sources.load_serve({}, {})
    assert settings.listen == ("tcp://127.0.0.1:1", "ipc:///tmp/x")
    assert settings.segment_bytes == 128 * 2**20
    assert settings.limits == Limits(topics_max=7)
    assert (settings.log_level, settings.log_format) == ("debug", "json")


def test_text_of_the_environment_becomes_the_settings_type() -> None:
    environment = {
        "ONCEMQ_LISTEN": "tcp://127.0.0.1:1, tcp://localhost:2",
        "ONCEMQ_INSECURE": "true",
        "ONCEMQ_KEY_MS": "1.5h",
        "ONCEMQ_SNAPSHOT_EVENTS": "1_000",
    }
    settings = sources.load_serve({}, environment)
    assert settings.listen == ("tcp://127.0.0.1:1", "tcp://localhost:2")
    assert settings.insecure is True
    assert settings.key_ms == 5_400_000
    assert settings.snapshot_events == 1000


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("[serve]\ndaat = 'x'\n", ["oncemq.toml", "serve.daat", "data"]),
        ("[serve]\nqqq = 1\n", ["serve.qqq", "listen"]),
        ("[server]\ndata = 'x'\n", ["[server]", "client, http, limits, log, push, serve, text, udp"]),
        ("data = 'x'\n", ["[data]", "serve"]),
        ("[serve]\ndata = 5\n", ["serve.data = 5", "text"]),
        ("[serve]\nlisten = [1]\n", ["serve.listen", "a list of texts"]),
        ("[limits]\ntopics_max = 0\n", ["limits.topics_max = 0", "at least 1"]),
        ("[limits]\ntopics_max = true\n", ["limits.topics_max", "a whole number"]),
        ("[log]\nlevel = 'loud'\n", ["log.level = 'loud'", "debug or info or warning or error"]),
        ("[serve]\ninsecure = 'maybe'\n", ["serve.insecure", "true or false"]),
        ("[serve]\nsegment_bytes = '64 pounds'\n", ["serve.segment_bytes", "64MiB"]),
        ("[serve\n", ["oncemq.toml is not valid TOML"]),
        ("[client]\ntries = 0\n", ["client.tries = 0", "at least 1"]),
    ],
)
def test_an_invalid_value_in_the_file_is_reported_with_its_key_and_allowed_values(
    text: str, expected: list[str]
) -> None:
    write_file(text)
    with pytest.raises(SettingInvalid) as caught:
        sources.load_serve({}, {})
    for part in expected:
        assert part in caught.value.text
    assert caught.value.exit_code == 2


def test_a_named_file_must_exist() -> None:
    with pytest.raises(SettingInvalid, match=r"none\.toml can't be read"):
        sources.load_serve({"config": "none.toml"}, {})


def test_an_invalid_variable_is_reported_by_name() -> None:
    with pytest.raises(SettingInvalid, match="ONCEMQ_TRIES = 'many'"):
        sources.load_client({}, {"ONCEMQ_TRIES": "many"})


@pytest.mark.parametrize(
    "address",
    [
        "tcp://127.0.0.1:5555",
        "tcp://127.8.9.1:1",
        "tcp://localhost:0",
        "tcp://[::1]:5555",
        "ipc:///tmp/x",
        "tcp://127.0.0.1:*",
        "oncemq://127.0.0.1:5554",
        "oncemq://localhost:0",
        "oncemq://[::1]:*",
        "oncemq+unix:///tmp/x",
        "oncemq+unix://@x",
    ],
)
def test_loopback_addresses_are_allowed(address: str) -> None:
    check_address(address)
    assert exposures(ServeSettings(listen=(address,))) == []


@pytest.mark.parametrize(
    "address",
    [
        "tcp://0.0.0.0:5555",
        "tcp://*:5555",
        "tcp://192.168.0.7:5555",
        "tcp://[::]:5555",
        "tcp://localhost.evil.org:1",
        "tcp://127.0.0.1.evil.org:1",
        "oncemq://0.0.0.0:5554",
        "oncemq://*:5554",
        "oncemq://192.168.0.7:5554",
    ],
)
def test_other_addresses_need_users_or_insecure(address: str) -> None:
    check_address(address)
    settings = ServeSettings(listen=("ipc://x", address))
    with pytest.raises(SettingInvalid, match="insecure"):
        check_exposure(settings)
    assert [exposure.address for exposure in exposures(settings)] == [address]
    check_exposure(msgspec.structs.replace(settings, insecure=True))


@pytest.mark.parametrize(
    "address", ["127.0.0.1:5555", "tcp://127.0.0.1", "tcp://127.0.0.1:70000", "http://x:1", "ipc://", "tcp://:1"]
)
def test_what_is_not_an_address_is_refused(address: str) -> None:
    with pytest.raises(SettingInvalid, match="is not an address"):
        check_address(address)


@pytest.mark.parametrize(
    ("flags", "folder"), [({}, "./oncemq-data"), ({"data": "d"}, "d"), ({"data": "d", "journal": "file:j"}, "j")]
)
def test_the_journal_is_in_the_data_folder_unless_it_has_a_url(flags: dict[str, Any], folder: str) -> None:
    assert sources.load_serve(flags, {}).folder == folder


@pytest.mark.parametrize("url", ["postgresql:x", "mysql://me:secret@db/x", "file:", "elsewhere"])
def test_other_journals_are_refused(url: str) -> None:
    with pytest.raises(SettingInvalid, match="journal: ") as refused:
        sources.load_serve({"journal": url}, {})
    assert "secret" not in refused.value.text


def test_for_a_folder_given_as_a_journal_the_error_shows_the_flag() -> None:
    with pytest.raises(SettingInvalid) as refused:
        sources.load_serve({"journal": "/srv/queue"}, {})
    assert "`--data /srv/queue`" in refused.value.advice


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("postgresql://me:secret@db.example:5433/orders", "postgresql://me@db.example:5433/orders"),
        ("postgres://me:secret@db/orders?sslmode=require", "postgresql://me@db/orders"),
        ("postgresql://me:1se@cret@db/orders", "postgresql://…"),
        ("postgresql://me:sec/ret@db/orders", "postgresql://…"),
        ("postgresql://me:1/sec/ret@db/orders", "postgresql://…"),
        ("postgresql://me:sec?ret@db/orders", "postgresql://me@db/orders"),
        ("postgresql://db/orders?sslpassword=secret&%70assword=secret", "postgresql://db/orders"),
        ("postgresql://db/orders?Password=secret", "postgresql://…"),
        ("postgresql:///orders?host=/run/pg&password=secret", "postgresql:///orders?host=/run/pg"),
        ("postgresql://db/orders", "postgresql://db/orders"),
    ],
)
def test_the_password_of_a_database_is_not_shown(url: str, shown: str) -> None:
    settings = sources.load_serve({"journal": url}, {})
    assert settings.is_on_database
    assert settings.store == shown


@pytest.mark.parametrize("address", ["8002", "localhost", "127.0.0.1:0", "127.0.0.1:70000", "http://127.0.0.1:1", ""])
def test_what_is_not_an_address_for_http_is_refused(address: str) -> None:
    with pytest.raises(SettingInvalid, match=r"http: .* is not an address"):
        sources.load_serve({"http": address, "insecure": True}, {})


def test_http_is_only_for_this_machine_unless_insecure_is_set() -> None:
    for address in ("auto", "none", "127.0.0.1:80", "localhost:80", "[::1]:80"):
        assert sources.load_serve({"http": address}, {}).http == address
    with pytest.raises(SettingInvalid, match="other machines"):
        check_exposure(sources.load_serve({"http": "0.0.0.0:80"}, {}))
    settings = sources.load_serve({"http": "0.0.0.0:80", "insecure": True}, {})
    check_exposure(settings)
    assert [exposure.warning for exposure in exposures(settings)] == [
        "http at 0.0.0.0:80 can be reached from other machines: everybody there can read and write."
    ]


def test_a_gateway_has_a_section_of_its_own() -> None:
    write_file('[push]\nname = "second"\nretransmit_ms = "5s"\nfeed_listen = ["ipc:///f"]\n[udp]\npeers_max = 7\n')
    settings = sources.load_serve({"push_any_address": True}, {"ONCEMQ_UDP_PACKETS_PER_S": "9"})
    expected = PushOptions(name="second", retransmit_ms=5000, feed_listen=("ipc:///f",), any_address=True)
    assert settings.push_options == expected
    assert settings.udp_options == UdpOptions(peers_max=7, packets_per_s=9)
    assert next(each.flag for each in sources.GATEWAY_SETTINGS["udp"] if each.key == "packets_per_s") == (
        "--udp-packets-per-s"
    )


@pytest.mark.parametrize(
    ("line", "variable", "value"),
    [
        ("plain = true", "", "true"),
        ('plain = "auto"', "", "auto"),
        ("plain = true", "false", "false"),
        ("", "", "auto"),
    ],
)
def test_a_setting_may_be_automatic_true_or_false(line: str, variable: str, value: str) -> None:
    write_file(f"[udp]\n{line}\n")
    settings = sources.load_serve({}, {"ONCEMQ_UDP_PLAIN": variable} if variable else {})
    assert settings.udp_options.plain == value
    with pytest.raises(SettingInvalid, match="must be auto or true or false"):
        sources.load_serve({"udp_plain": "perhaps"}, {})


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        ({"push_name": "a/b"}, "no '/'"),
        ({"push_name": "ä" * 33}, "64 bytes"),
        ({"udp_name": ""}, "not empty"),
        ({"push_feed_listen": ("here",)}, "not an address"),
        ({"push_answer_ms": "0"}, "at least 1"),
    ],
)
def test_invalid_settings_of_gateways_are_refused(flags: dict[str, Any], words: str) -> None:
    with pytest.raises(SettingInvalid, match=words):
        sources.load_serve(flags, {})


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        ({"push": "127.0.0.1:7157", "text": "127.0.0.1:7158"}, "text and push both need port 7158 of 127.0.0.1 (push"),
        ({"push": "localhost:5552"}, "listen and push both need port 5554 of localhost"),
        ({"text": "127.0.0.1:5557", "push": "auto"}, "text and push both need port 5557"),
        ({"http": "0.0.0.0:5556", "text": "auto", "insecure": True}, "http and text both need port 5556"),
        ({"push": "auto", "push_feed_listen": ("tcp://127.0.0.1:5559",)}, "push and push.feed_listen both need"),
        ({"push": "127.0.0.1:65534"}, "push needs three consecutive ports"),
    ],
)
def test_a_port_conflict_is_reported_before_anything_is_served(flags: dict[str, Any], said: str) -> None:
    with pytest.raises(SettingInvalid) as refused:
        check_ports(sources.load_serve(flags, {}))
    assert said in refused.value.text


def test_ports_of_other_protocols_and_hosts_do_not_conflict() -> None:
    flags = {"text": "[::1]:5555", "push": "127.0.0.1:7157", "udp": "127.0.0.1:7158", "http": "127.0.0.1:65535"}
    check_ports(sources.load_serve({**flags, "listen": ("tcp://127.0.0.1:5555", "tcp://127.0.0.1:*", "ipc://x")}, {}))
    check_ports(sources.load_serve({"push_feed_listen": ("tcp://127.0.0.1:5555",), "text": "127.0.0.1:8002"}, {}))


def test_a_batch_must_fit_into_a_segment() -> None:
    with pytest.raises(SettingInvalid, match=r"limits\.batch_bytes_max.*serve\.segment_bytes"):
        sources.load_serve({"segment_bytes": "4MiB"}, {})
    sources.load_serve({"segment_bytes": "4MiB", "batch_bytes_max": "1MiB"}, {})


def test_every_setting_has_a_description_and_unique_names() -> None:
    assert all(setting.description for setting in sources.SETTINGS)
    assert len({setting.variable for setting in sources.SETTINGS}) == len(sources.SETTINGS)
    assert len({(setting.section, setting.key) for setting in sources.SETTINGS}) == len(sources.SETTINGS)
    assert {setting.field for setting in sources.SETTINGS if setting.section == "limits"} == {*Limits.__struct_fields__}


@pytest.mark.parametrize(
    ("text", "unit", "number"),
    [
        ("64MiB", "bytes", 2**26),
        ("10 kb", "bytes", 10_000),
        ("7d", "milliseconds", 604_800_000),
        ("250", "milliseconds", 250),
        ("250ms", "seconds", 0.25),
        ("2.5", "seconds", 2.5),
        ("1_200", "", 1200),
    ],
)
def test_quantities_have_units(text: str, unit: str, number: float) -> None:
    assert sources.parse_quantity(text, unit) == number


@pytest.mark.parametrize(("text", "unit"), [("2d", "bytes"), ("-1", ""), ("1MiB", "milliseconds"), ("7d", "")])
def test_a_quantity_of_another_unit_is_refused(text: str, unit: str) -> None:
    with pytest.raises(ValueError, match="is not a "):
        sources.parse_quantity(text, unit)


def test_a_quantity_written_out_reads_back() -> None:
    for setting in sources.SETTINGS:
        if type(setting.default) is int:
            text = sources.format_quantity(setting.default, setting.unit)
            assert sources.parse_quantity(text, setting.unit) == setting.default


@pytest.mark.parametrize("given", ["file", "file list", "file list with commas", "variable", "flag", "flags"])
def test_several_addresses_can_be_separated_by_commas_in_every_source(given: str) -> None:
    one, two = "tcp://127.0.0.1:1", "ipc:///tmp/x"
    both = {"file": f'"{one}, {two}"', "file list": f'["{one}", "{two}"]', "file list with commas": f'["{one},{two}"]'}
    if given in both:
        write_file(f"[serve]\nlisten = {both[given]}\n")
    environment = {"ONCEMQ_LISTEN": f"{one},{two}"} if given == "variable" else {}
    listen = {"flag": (f"{one},{two}",), "flags": (one, two)}.get(given)
    assert sources.load_serve({"listen": listen}, environment).listen == (one, two)


def test_no_address_at_all_is_refused() -> None:
    with pytest.raises(SettingInvalid, match=r"ONCEMQ_LISTEN = ' , ' is not valid: it must be .*not empty"):
        sources.load_serve({}, {"ONCEMQ_LISTEN": " , "})


def test_a_setting_in_milliseconds_takes_a_bare_number_or_a_unit() -> None:
    write_file('[serve]\nlease_ms = "4s"\n[client]\ntimeout_s = "1500ms"\n')
    assert sources.load_serve({}, {}).lease_ms == 4000
    assert sources.load_serve({"lease_ms": "900"}, {}).lease_ms == 900
    assert sources.load_client({}, {}).timeout_s == 1.5
    with pytest.raises(SettingInvalid, match=r"ONCEMQ_LEASE_MS = 'soon' is not valid: .*whole number of milliseconds"):
        sources.load_serve({}, {"ONCEMQ_LEASE_MS": "soon"})


@pytest.mark.parametrize(
    "journal", ['["postgresql://me:secret@db/orders"]', '{ url = "postgresql://me:secret@db/orders" }']
)
def test_an_invalid_journal_in_the_file_is_refused_without_its_password(tmp_path: Path, journal: str) -> None:
    (tmp_path / "oncemq.toml").write_text(f"[serve]\njournal = {journal}\n")
    with pytest.raises(SettingInvalid, match=r"serve.journal = … is not valid") as refused:
        sources.load_serve({}, {})
    assert "secret" not in str(refused.value)


def test_an_invalid_journal_without_a_password_is_shown(tmp_path: Path) -> None:
    (tmp_path / "oncemq.toml").write_text("[serve]\njournal = 7\n")
    with pytest.raises(SettingInvalid, match=r"serve.journal = 7 is not valid"):
        sources.load_serve({}, {})


def test_the_credentials_of_a_client_come_from_flags_environment_and_file() -> None:
    Path(write_file('[client]\nurl = "oncemq://a:1"\ntoken = "of-file"\ntls = true\n')).chmod(0o600)
    settings = sources.load_client({}, {})
    assert settings.credentials == {"token": "of-file", "tls": True}
    settings = sources.load_client({"tls": "ca.pem"}, {"ONCEMQ_TOKEN": "of-environment"})
    assert settings.credentials == {"token": "of-environment", "tls": "ca.pem"}
    settings = sources.load_client({"url": "oncemq://b:2", "token_file": "t"}, {})
    assert (settings.url, settings.credentials) == ("oncemq://b:2", {"token_file": "t"})


def test_a_context_replaces_the_address_of_the_file() -> None:
    write_file('[context.prod]\nurl = "oncemq://prod:1"\ntls = "ca.pem"\n', "contexts.toml")
    write_file('[client]\nurl = "oncemq://a:1"\ntoken_file = "t"\ntries = 7\n')
    environment = {"ONCEMQ_CONTEXTS": "contexts.toml"}
    settings = sources.load_client({"context": "prod"}, environment)
    assert (settings.url, settings.context, settings.tries) == ("oncemq://prod:1", "prod", 7)
    assert settings.credentials == {"tls": os.path.abspath("ca.pem")}
    assert sources.load_client({}, environment).context == ""


def test_a_file_with_a_secret_that_others_can_read_is_refused() -> None:
    file = Path(write_file('[client]\ntoken = "sss"\n'))
    file.chmod(0o644)
    for load in (sources.load_client, sources.load_serve):
        with pytest.raises(SettingInvalid, match=r"chmod 600 oncemq\.toml"):
            load({}, {})
    file.chmod(0o600)
    assert sources.load_client({}, {}).token == "sss"


def test_secrets_are_in_no_error_and_no_description() -> None:
    Path(write_file("[client]\ntoken = 77777\n")).chmod(0o600)
    with pytest.raises(SettingInvalid, match=r"client\.token = … is not valid"):
        sources.load_client({}, {})
    settings = ClientSettings(token="sss", curve_secret="sss", url="oncemq://a:1")
    assert "sss" not in repr(settings)
    assert "oncemq://a:1" in repr(settings)


def test_the_variable_of_the_contexts_file_is_known() -> None:
    assert sources.unknown_variables({"ONCEMQ_CONTEXTS": "x", "ONCEMQ_CONTEXT": "x", "ONCEMQ_TOKEN_FILE": "x"}) == []
