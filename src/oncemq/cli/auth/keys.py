"""`oncemq auth keys`: the certificate and the keys of a broker, and those of its clients."""

from __future__ import annotations

import socket
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from oncemq.cli.auth.local_broker import activate
from oncemq.cli.auth.location import ADVICE, find_user, locates_users, reload_option
from oncemq.cli.support.command import Documented
from oncemq.cli.support.options import json_option
from oncemq.protocol.errors import OnceMQError, SettingInvalid
from oncemq.terminal import json_line, note

if TYPE_CHECKING:
    from oncemq.config.settings import ServeSettings

#: Commands on the machine of the broker, and its gateways, use these.
_LOOPBACK = ("localhost", "127.0.0.1", "::1")


@click.command(
    cls=Documented,
    exits=(0, 2),
    advice=ADVICE,
    examples="""
        oncemq auth keys --host broker.example
        oncemq auth keys --host broker.example --host 192.0.2.1 --replace
        oncemq auth keys --client kitchen --out kitchen.secret
        oncemq auth keys --client kitchen --certificate
    """,
)
@click.option(
    "--host",
    "hosts",
    multiple=True,
    metavar="NAME|IP",
    help="Name or address by which clients reach the broker. May be repeated. localhost, 127.0.0.1 and ::1 are always "
    "included. [default: the names in the certificate that is replaced, or the name of this machine]",
)
@click.option(
    "--replace",
    is_flag=True,
    help="Replace the certificate, for other hosts or before it expires. The authority and the keys of ZeroMQ stay, so "
    "clients need no change.",
)
@click.option(
    "--client",
    "user",
    metavar="USER",
    help="Create a key pair for a client of ZeroMQ instead. The public key is added to the user in auth.toml; the "
    "secret key is printed once, alone on standard output.",
)
@click.option(
    "--certificate",
    "is_certificate",
    is_flag=True,
    help="With --client: create a certificate of the client instead, whose common name is USER. It needs the setting "
    "client_certificates.",
)
@click.option(
    "--rm",
    "removed",
    metavar="KEY",
    help="With --client: remove this public key from the user, or with --certificate this common name.",
)
@click.option(
    "--out",
    metavar="FILE",
    type=click.Path(dir_okay=False, path_type=Path),
    help="With --client: write the secret key to a file with mode 0600.",
)
@json_option
@reload_option
@locates_users("keys")
def keys(
    hosts: tuple[str, ...],
    replace: bool,
    user: str | None,
    is_certificate: bool,
    removed: str | None,
    out: Path | None,
    as_json: bool,
    no_reload: bool,
    settings: ServeSettings,
) -> None:
    """Create the certificate and the keys of a broker or a client.

    For a broker, it creates what does not exist yet: an authority, the certificate of the broker for its hosts, and a
    key pair for ZeroMQ. If these files are in the folder `keys` at the start of a broker, its listeners on TCP are
    encrypted. To replace the key pair, or with --replace the authority, delete its files first: then all clients need
    the new ones.
    """
    if user is None and (is_certificate or out is not None or removed is not None):
        raise click.UsageError("--certificate, --rm and --out need --client.")
    if user is not None and (hosts or (replace and not is_certificate) or (is_certificate and out is not None)):
        raise click.UsageError("--client can't be combined with these options.")
    if user is not None and removed is not None:
        _remove(user, removed, is_certificate, no_reload, settings)
    elif user is None:
        _create_for_broker(hosts, replace, as_json, no_reload, settings)
    elif is_certificate:
        _create_certificate(user, replace, as_json, no_reload, settings)
    else:
        _create_key_pair(user, out, as_json, no_reload, settings)


def _remove(user: str, removed: str, is_certificate: bool, no_reload: bool, settings: ServeSettings) -> None:
    from oncemq.auth import edit

    kind = edit.CERTIFICATES if is_certificate else edit.CURVE_KEYS
    edit.remove_credential(settings.auth_file, user, kind, removed)
    click.echo(f"Removed {removed} from {user}.")
    activate(settings, no_reload=no_reload)


def _create_for_broker(
    hosts: tuple[str, ...], replace: bool, as_json: bool, no_reload: bool, settings: ServeSettings
) -> None:
    from oncemq.auth import certificates
    from oncemq.auth.certificate_names import certificate_names
    from oncemq.auth.private_file import give_to_owner, make_private_folder
    from oncemq.net import curve

    folder = settings.keys_folder
    has_certificate = (folder / "server.pem").exists()
    if has_certificate and hosts and not replace:
        raise SettingInvalid(f"{folder / 'server.pem'} exists; `--replace` creates another one")
    former = certificate_names(folder / "server.pem") if has_certificate else []
    names = list(dict.fromkeys((*(hosts or former or (socket.gethostname(),)), *_LOOPBACK)))
    created: dict[str, tuple[Path, ...]] = {}
    make_private_folder(folder)
    if replace or not has_certificate:
        # A certificate that somebody else has signed needs no authority here.
        if not (folder / "ca.pem").exists():
            created["the authority, which has signed the certificate"] = certificates.create_authority(folder)
        files = certificates.create_server(folder, names, replace=replace)
        created[f"the certificate of the broker, for {', '.join(names)}"] = files
    pair = curve.load(folder)
    if pair is None:
        pair = curve.generate()
        curve.save(pair, folder)
        created["the key pair for ZeroMQ"] = (folder / curve.PUBLIC_FILE, folder / curve.SECRET_FILE)
    paths = [path for files in created.values() for path in files]
    for path in (folder, *paths):
        give_to_owner(path)
    if as_json:
        lines = {"created": [str(path) for path in paths], "hosts": names, "ca": str(folder / "ca.pem")}
        click.echo(json_line({**lines, "curve_public": pair.public}))
    else:
        for what, both in created.items():
            click.echo(f"Created {' and '.join(map(str, both))}: {what}.")
    _explain(folder, pair.public)
    if has_certificate and replace:
        activate(settings, no_reload=no_reload)
    elif created:
        note("A broker uses them from its next start on.")
    else:
        note("Everything exists already. `--replace` creates another certificate.")


def _explain(folder: Path, curve_public: str) -> None:
    if (folder / "ca.pem").exists():
        note(f"Clients need {folder / 'ca.pem'}, which is not secret: `connect(url, tls='ca.pem', token=…)`.")
    note(f"Clients of ZeroMQ need the public key of the broker: {curve_public}")
    note("The other files stay here. Whoever has one of *-key.pem and curve.secret can pose as the broker.")


def _create_certificate(user: str, replace: bool, as_json: bool, no_reload: bool, settings: ServeSettings) -> None:
    from oncemq.auth import certificates, edit
    from oncemq.auth.private_file import give_to_owner

    find_user(user, settings)
    files = certificates.create_client(settings.keys_folder, user, replace=replace)
    for path in files:
        give_to_owner(path)
    edit.add_credential(settings.auth_file, user, edit.CERTIFICATES, user)
    if as_json:
        click.echo(json_line({"user": user, "certificate": str(files.certificate), "key": str(files.key)}))
    else:
        click.echo(f"Created {files.certificate} and {files.key}: a certificate of {user}.")
    note("Move both files to the client: `connect(url, tls=…, tls_certificate=…, tls_key=…)`. The key is secret.")
    activate(settings, no_reload=no_reload)


def _create_key_pair(user: str, out: Path | None, as_json: bool, no_reload: bool, settings: ServeSettings) -> None:
    from oncemq.auth import edit
    from oncemq.auth.private_file import write_private
    from oncemq.net import curve

    broker = curve.load(settings.keys_folder)
    if broker is None:
        raise SettingInvalid(f"{settings.keys_folder} has no keys of the broker yet; `oncemq auth keys` creates them")
    if out is not None and out.exists():
        raise SettingInvalid(f"{out} exists; it is not replaced")
    pair = curve.generate()
    edit.add_credential(settings.auth_file, user, edit.CURVE_KEYS, pair.public)
    try:
        activate(settings, no_reload=no_reload)
        if out is not None:
            write_private(out, f"{pair.secret}\n")
    except (OnceMQError, OSError):
        edit.remove_credential(settings.auth_file, user, edit.CURVE_KEYS, pair.public)
        raise
    public: dict[str, Any] = {"user": user, "curve_server": broker.public, "curve_public": pair.public}
    if as_json:
        click.echo(json_line(public if out is not None else {**public, "curve_secret": pair.secret}))
        return
    note(f"The client needs the public key of the broker, {broker.public}")
    note(f"and its own key pair, of which the public key is {pair.public}")
    if out is None:
        note("and the secret key is the following. It is not displayed again.")
        click.echo(pair.secret)
    else:
        note(f"and the secret key is in {out}.")
