"""What a broker and its clients can be told: the settings, what they mean, and their bounds.

Where their values come from is sources.py's business.
"""

from __future__ import annotations

from typing import Annotated, Literal

import msgspec
from msgspec import Meta

from oncemq.config.addresses import DEFAULT_URL
from oncemq.config.database_url import describe
from oncemq.config.gateways import HttpOptions, PushOptions, TextOptions, UdpOptions
from oncemq.protocol.limits import Limits


def is_database(journal: str) -> bool:
    """A journal's URL leads to PostgreSQL."""
    return journal.startswith(("postgresql://", "postgres://"))


class ServeSettings(Limits, frozen=True, kw_only=True):
    """What `oncemq serve` needs to know. It is a Limits, so that it can be handed on as one."""

    listen: Annotated[
        tuple[str, ...],
        Meta(min_length=1, description="Addresses for clients: `tcp://HOST:PORT` or `ipc://PATH`, one or several."),
    ] = (DEFAULT_URL,)
    data: Annotated[str, Meta(min_length=1, description="The folder for everything that the broker stores.")] = (
        "./oncemq-data"
    )
    journal: Annotated[
        str,
        Meta(
            description="Where the journal lies instead, as a URL: `file:DIR`, or `postgresql://…` for a database, on "
            "which a second broker waits as a standby. Empty: in the data folder."
        ),
    ] = ""
    lease_ms: Annotated[
        int,
        Meta(
            ge=500,
            description="On PostgreSQL: a standby takes over when the active broker has not renewed its lease so long.",
        ),
    ] = 3000
    http: Annotated[
        str,
        Meta(
            description="Where the HTTP gateway listens: `HOST:PORT`; `none` for no gateway; `auto` for "
            "127.0.0.1:8002 if the extra `http` is installed."
        ),
    ] = "auto"
    text: Annotated[
        str,
        Meta(description="Where plain ZeroMQ sockets send text: `HOST:PORT`; `auto` for 127.0.0.1:5556; `none`."),
    ] = "none"
    push: Annotated[
        str,
        Meta(
            description="Where publishers push: `HOST:PORT`; the live feed is at the next port, acknowledgements at "
            "the one after it. `auto` for 127.0.0.1:5557; `none`."
        ),
    ] = "none"
    udp: Annotated[
        str, Meta(description="Where datagrams are taken: `HOST:PORT`; `auto` for 127.0.0.1:5560; `none`.")
    ] = "none"
    insecure: Annotated[
        bool,
        Meta(description="Allow addresses other than loopback, although nobody is asked for a password."),
    ] = False
    segment_bytes: Annotated[
        int, Meta(ge=2**20, multiple_of=4096, description="Size of the journal's files. Fixed with the first start.")
    ] = 64 * 2**20
    snapshot_bytes: Annotated[
        int, Meta(ge=2**20, description="Take a snapshot after so much journal: a restart replays no more.")
    ] = 256 * 2**20
    snapshot_events: Annotated[int, Meta(ge=1, description="Take a snapshot after so many events.")] = 200_000
    log_level: Annotated[
        Literal["debug", "info", "warning", "error"], Meta(description="The least important lines that are logged.")
    ] = "info"
    log_format: Annotated[
        Literal["text", "json"],
        Meta(description="`text` for people (coloured on a terminal), `json` for machines."),
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
        """Where the file journal lies."""
        return self.journal.removeprefix("file:") or self.data

    @property
    def is_on_database(self) -> bool:
        """Others may serve the same journal."""
        return is_database(self.journal)

    @property
    def store(self) -> str:
        """For people: where everything is stored."""
        if not self.is_on_database:
            return self.folder
        return describe(self.journal)


class ClientSettings(msgspec.Struct, frozen=True, kw_only=True):
    """How commands reach a broker."""

    url: Annotated[
        str,
        Meta(min_length=1, description="The broker's address. Several, with commas between them, are tried in turn."),
    ] = DEFAULT_URL
    timeout_s: Annotated[float, Meta(gt=0, description="Wait so long for an answer before asking again.")] = 1.0
    tries: Annotated[int, Meta(ge=1, description="Ask so many times before giving up.")] = 5
    window: Annotated[int, Meta(ge=1, le=1024, description="Commands in flight at the most.")] = 64
    batch_messages: Annotated[int, Meta(ge=1, description="Messages that one batch collects at the most.")] = 1000
    batch_bytes: Annotated[int, Meta(ge=1, description="Bytes that one batch collects at the most.")] = 256 * 2**10
    linger_ms: Annotated[int, Meta(ge=0, description="A batch waits so long for more messages before it is sent.")] = 5
    state: Annotated[
        str,
        Meta(
            description="Where `put`, `get`, `sub` and `unsub` keep what they are about to do, so that the next run "
            "finishes it if one is cut off: a folder; `user` for one in the user's state folder; `none`."
        ),
    ] = "user"
    record: Annotated[
        str,
        Meta(
            description="A folder: clients write down there what they put and consume, for `oncemq pipeline audit`. "
            "Empty: they don't."
        ),
    ] = ""


LIMIT_DESCRIPTIONS = {
    "batch_bytes_max": "One batch, as it travels.",
    "get_bytes_max": "What one `get` or `read` returns at the most, beyond its first batch.",
    "group_bytes_max": "Payload that one sync covers at the most, beyond its first batch.",
    "topics_max": "Topics.",
    "subscriptions_max": "Subscriptions of all topics together.",
    "sessions_max": "Sessions, named and anonymous.",
    "session_idle_ms": "An anonymous session goes this long after its last command.",
    "keys_max": "Idempotency keys that are remembered. At the limit new ones are refused; none is forgotten early.",
    "key_ms": "An idempotency key is remembered this long.",
    "registry_entries_max": "Entries that gateways keep in the broker.",
    "stages_max": "Stages that are not yet committed.",
    "stage_ms": "A stage that is not committed goes after this time.",
    "writers_max": "Writers of stages whose last batch is remembered.",
    "patterns_max": "Subscriptions by pattern.",
    "delayed_max": "Batches that are not due yet, on all topics.",
    "members_max": "Consumers of one shared subscription.",
    "leased_max": "Messages that the consumers of one shared subscription may have out together.",
}
