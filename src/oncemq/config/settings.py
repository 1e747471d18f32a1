"""The settings of a broker and of its clients: what they mean, their bounds and their defaults.

sources.py reads their values; gateways.py has the settings of gateways.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta

from oncemq.config.addresses import DEFAULT_LISTEN, DEFAULT_URL
from oncemq.config.database_url import describe
from oncemq.config.endpoints import CREDENTIALS, SECRETS
from oncemq.config.gateways import HttpOptions, PushOptions, SocketMode, TextOptions, UdpOptions, at_least, described
from oncemq.protocol.limits import Limits


def is_database(journal: str) -> bool:
    """Return whether the URL of a journal is that of a PostgreSQL database."""
    return journal.startswith(("postgresql://", "postgres://"))


class ServeSettings(Limits, frozen=True, kw_only=True):
    """The settings of `oncemq serve`. They include the broker's limits."""

    listen: Annotated[
        tuple[str, ...],
        Meta(
            min_length=1,
            description="Addresses for clients, separated by commas: `oncemq://HOST:PORT` or `oncemq+unix://PATH`; for "
            "clients that use ZeroMQ, `tcp://HOST:PORT` or `ipc://PATH`.",
        ),
    ] = DEFAULT_LISTEN
    socket_mode: SocketMode = "0600"
    data: Annotated[str, Meta(min_length=1, description="Folder in which the broker stores everything.")] = (
        "./oncemq-data"
    )
    journal: Annotated[
        str,
        described(
            "URL of the journal: `file:DIR`, or `postgresql://…` for a database, on which a second broker "
            "can wait as a standby. Empty: the journal is in the data folder."
        ),
    ] = ""
    lease_ms: Annotated[
        int,
        at_least(
            500, "With PostgreSQL: how long the active broker may fail to renew its lease before a standby takes over."
        ),
    ] = 3000
    http: Annotated[
        str,
        described(
            "Address of the HTTP gateway: `HOST:PORT`; `auto` for 127.0.0.1:8002 if the extra `http` is "
            "installed; `none` for no gateway."
        ),
    ] = "auto"
    text: Annotated[
        str,
        described(
            "Address of the text gateway, for plain ZeroMQ sockets: `HOST:PORT`; `auto` for 127.0.0.1:5556; `none`."
        ),
    ] = "none"
    push: Annotated[
        str,
        described(
            "Address of the push gateway, to which publishers send: `HOST:PORT`; `auto` for "
            "127.0.0.1:5557; `none`. The live feed has the next port, and acks the one after it."
        ),
    ] = "none"
    udp: Annotated[str, described("Address of the UDP gateway: `HOST:PORT`; `auto` for 127.0.0.1:5560; `none`.")] = (
        "none"
    )
    auth: Annotated[
        str,
        described(
            "File with the users, their tokens and rules. Without the file, everybody may do everything. Empty: "
            "`auth.toml` in the data folder, or in the current folder if the journal is in a database."
        ),
    ] = ""
    keys: Annotated[
        str,
        described(
            "Folder with the certificate and the keys that `oncemq auth keys` creates. If it has a certificate "
            "(`server.pem`), `oncemq://` and HTTP are encrypted; if it has `curve.secret`, ZeroMQ is. Empty: `keys` in "
            "the folder of `auth`."
        ),
    ] = ""
    audit: Annotated[
        str,
        described(
            "File of the audit log, which exists if there are users: a JSON object per line for logins, refusals and "
            "changes. Empty: `audit.log` in the folder of `auth`."
        ),
    ] = ""
    client_certificates: Annotated[
        bool,
        described(
            "Ask clients of `oncemq://` for a certificate that the authority in `keys` (`ca.pem`) has signed. A client "
            "that has none can log in with a token."
        ),
    ] = False
    insecure: Annotated[bool, described("Allow addresses other than loopback without users or without encryption.")] = (
        False
    )
    connections_max: Annotated[
        int,
        at_least(
            1,
            "Maximum number of connections of clients, except HTTP; stream connections and those of ZeroMQ count "
            "separately. Further ones are refused, and also if the process has too few descriptors left (`ulimit -n`).",
        ),
    ] = 10_000
    peer_bytes_max: Annotated[
        int,
        at_least(
            1,
            "Maximum bytes of replies that one client has not read; further replies to it are dropped. With ZeroMQ, "
            "also the maximum bytes that one client has sent and the broker has not read; a client beyond it is "
            "disconnected, and 8 MiB are added to both for what the network holds. The largest request is always "
            "accepted.",
        ),
    ] = 96 * 2**20
    peers_bytes_max: Annotated[
        int,
        at_least(
            1,
            "Maximum bytes of replies that all clients together have not read, and of their requests that are not "
            "complete. Those that have been stalled longest are disconnected.",
        ),
    ] = 256 * 2**20
    write_timeout_ms: Annotated[
        int,
        at_least(
            1000,
            "How long a client may read nothing of what was sent to it before it is disconnected. On a stream "
            "connection, also how long a request that is not complete may make no progress.",
        ),
    ] = 30_000
    busy_poll_us: Annotated[
        int,
        at_least(
            0,
            "How many microseconds the broker looks for the next request without sleeping. Single puts are answered "
            "sooner, and the broker uses a whole CPU while requests arrive. 0: it sleeps at once.",
        ),
    ] = 0
    trust_clock: Annotated[
        bool,
        described(
            "Accept the system clock at the start, even if it is further ahead of the journal than "
            "`clock_leap_ms_max`. Everything whose time is over by this clock expires: check the clock first."
        ),
    ] = False
    segment_bytes: Annotated[
        int,
        Meta(
            ge=2**20,
            multiple_of=4096,
            description="Size of a segment file of the journal. It is fixed when the journal is created.",
        ),
    ] = 64 * 2**20
    snapshot_bytes: Annotated[
        int, at_least(2**20, "How much journal is written between two snapshots. A restart replays about this much.")
    ] = 256 * 2**20
    snapshot_events: Annotated[int, at_least(1, "Maximum number of events between two snapshots.")] = 200_000
    log_level: Annotated[
        Literal["debug", "info", "warning", "error"], described("Lowest level of the lines that are logged.")
    ] = "info"
    log_format: Annotated[
        Literal["text", "json"], described("Format of the log: `text` (coloured on a terminal) or `json`.")
    ] = "text"
    http_options: HttpOptions = HttpOptions()
    text_options: TextOptions = TextOptions()
    push_options: PushOptions = PushOptions()
    udp_options: UdpOptions = UdpOptions()

    @property
    def limits(self) -> Limits:
        return Limits(**{name: getattr(self, name) for name in Limits.__struct_fields__})

    @property
    def folder(self) -> str:
        """The folder of the file journal."""
        return self.journal.removeprefix("file:") or self.data

    @property
    def auth_file(self) -> Path:
        """The file with the users, which need not exist."""
        return Path(self.auth or Path("" if self.is_on_database else self.folder, "auth.toml"))

    @property
    def keys_folder(self) -> Path:
        """The folder with the certificate and the keys, which need not exist."""
        return Path(self.keys or self.auth_file.parent / "keys")

    @property
    def is_on_database(self) -> bool:
        """Whether the journal is in a database, so that other brokers may serve it."""
        return is_database(self.journal)

    @property
    def store(self) -> str:
        """The location of the journal, for people and without a password."""
        return describe(self.journal) if self.is_on_database else self.folder


class ClientSettings(msgspec.Struct, frozen=True, kw_only=True):
    """How a client reaches a broker."""

    url: Annotated[
        str,
        Meta(
            min_length=1,
            description="Address of the broker. Several addresses, separated by commas, are tried in turn.",
        ),
    ] = DEFAULT_URL
    context: Annotated[
        str,
        described(
            "Name of a context, which has an address and credentials, instead of `url`. `oncemq context` manages them."
        ),
    ] = ""
    token: Annotated[
        str, described("Token of a user. `token_file` keeps it out of the environment and of this file.")
    ] = ""
    token_file: Annotated[str, described("File with the token of a user. It is read for each connection.")] = ""
    tls: Annotated[
        bool | str,
        described(
            "Encrypt connections to `oncemq://` addresses: `true`, or the file with the certificate of the broker's "
            "authority, if it is not one that the system knows."
        ),
    ] = ""
    tls_certificate: Annotated[str, described("File with the certificate of this client, if it has one.")] = ""
    tls_key: Annotated[str, described("File with the key of that certificate, if it is another one.")] = ""
    tls_server_name: Annotated[
        str, described("Name in the certificate of the broker. Empty: the host of the address.")
    ] = ""
    curve_server: Annotated[
        str, described("Public key of the broker, to encrypt connections to `tcp://` addresses (ZeroMQ).")
    ] = ""
    curve_public: Annotated[str, described("Public key of this client, for such connections.")] = ""
    curve_secret: Annotated[str, described("Secret key of this client, for such connections.")] = ""
    timeout_s: Annotated[
        float, Meta(gt=0, description="How long to wait for a reply before the request is sent again.")
    ] = 1.0
    tries: Annotated[int, at_least(1, "Maximum number of attempts before an error is reported.")] = 5
    window: Annotated[int, Meta(ge=1, le=1024, description="Maximum number of commands in flight.")] = 64
    batch_messages: Annotated[int, at_least(1, "Maximum number of messages in a batch.")] = 1000
    batch_bytes: Annotated[int, at_least(1, "Maximum bytes in a batch.")] = 256 * 2**10
    linger_ms: Annotated[int, at_least(0, "How long a batch waits for more messages before it is sent.")] = 5
    state: Annotated[
        str,
        described(
            "Where `put`, `get`, `sub` and `unsub` save what they are about to do, so that the next run "
            "can finish an interrupted one: a folder; `user` for a folder in the user's state folder; `none`."
        ),
    ] = "user"
    record: Annotated[
        str,
        described(
            "Folder in which clients record what they put and consume, for `oncemq pipeline audit`. "
            "Empty: nothing is recorded."
        ),
    ] = ""

    def __repr__(self) -> str:
        """Without secrets: it may be logged."""
        shown = {name: getattr(self, name) for name in self.__struct_fields__}
        shown |= {name: "…" for name in SECRETS if shown[name]}
        return f"ClientSettings({', '.join(f'{name}={value!r}' for name, value in shown.items())})"

    @property
    def credentials(self) -> dict[str, Any]:
        """The options of `connect` that say who connects, as far as they are set."""
        return {name: value for name in CREDENTIALS if (value := getattr(self, name)) != ""}


LIMIT_DESCRIPTIONS = {
    "batch_bytes_max": "Maximum size of a batch, as it is transferred.",
    "get_bytes_max": "Maximum size of the reply to a `get` or `read`. The first batch is always returned.",
    "group_bytes_max": "Maximum payload per sync. The first batch is always accepted.",
    "topics_max": "Maximum number of topics.",
    "subscriptions_max": "Maximum number of subscriptions, of all topics together.",
    "sessions_max": "Maximum number of sessions, named and anonymous.",
    "session_idle_ms": "How long an anonymous session is kept after its last command.",
    "keys_max": "Maximum number of idempotency keys. At the limit new keys are refused; none is deleted early.",
    "keys_per_principal_max": "Maximum number of idempotency keys of one principal.",
    "key_ms": "How long an idempotency key is kept.",
    "registry_entries_max": "Maximum number of entries that gateways keep in the broker.",
    "registry_entries_per_namespace_max": "Maximum number of these entries of one gateway's namespace.",
    "stages_max": "Maximum number of uncommitted stages.",
    "stage_ms": "How long a stage is kept that is not committed.",
    "writers_max": "Maximum number of stage writers whose last batch is remembered.",
    "patterns_max": "Maximum number of subscriptions by pattern.",
    "delayed_max": "Maximum number of delayed batches that are not due yet, of all topics together.",
    "members_max": "Maximum number of consumers of one shared subscription.",
    "leased_max": "Maximum number of messages that are leased to the consumers of one shared subscription.",
    "clock_leap_ms_max": "How far the system clock may be ahead of the end of the journal at a start. If it is further "
    "ahead, the broker continues from the recorded time, until `--trust-clock` confirms the clock.",
}
