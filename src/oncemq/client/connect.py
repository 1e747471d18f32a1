"""`oncemq.connect`: opens a blocking client."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any, Unpack, overload

from oncemq.client.options import ConnectOptions, ConnectSettings, OutboxOptions, settings_of
from oncemq.client.outbox.connection import OutboxConnection, open_outbox
from oncemq.client.outbox.producer import OutboxProducer
from oncemq.client.outbox.sync import OutboxClient
from oncemq.client.runtime.background import BackgroundThread
from oncemq.client.runtime.threads import ThreadDriver
from oncemq.client.runtime.transport import Transport, open_transport
from oncemq.client.sync import Client, Handle, make_client


@overload
def connect(
    url: str | Sequence[str] | None = None, *, outbox: None = None, **options: Unpack[ConnectOptions]
) -> Client: ...
@overload
def connect(
    url: str | Sequence[str] | None = None, *, outbox: str | os.PathLike[str], **options: Unpack[OutboxOptions]
) -> OutboxClient: ...
def connect(
    url: str | Sequence[str] | None = None, *, outbox: str | os.PathLike[str] | None = None, **options: Any
) -> Client:
    """Connect to a broker.

    `url`: `oncemq://HOST:PORT` or `oncemq+unix://PATH`; `file:FOLDER` or `memory:` for a broker inside this process;
    for ZeroMQ, `tcp://HOST:PORT` or `ipc://PATH`. With several addresses, as a sequence or separated by commas, the
    next one is tried when one does not answer. Default: the environment's ONCEMQ_URL, the current context
    (`oncemq context`), or oncemq://127.0.0.1:5554.

    `outbox`: a file on this machine. What is put is written there first, and reaches the broker automatically, once
    and in order, even if this process dies. The broker need not be reachable.

    Options that say who connects, all by name:

    - `context`: the name of a context, which has an address and credentials, instead of `url` (`oncemq context`).
    - `token`, or `token_file`: the token of a user, or a file with it, which is read again for each connection.
    - `tls`: True to encrypt the connection and check the broker's certificate; the file with the certificate of its
      authority, if that is your own; or an `ssl.SSLContext`. For `oncemq://`.
    - `tls_certificate`, `tls_key`: files with a certificate of this client. `tls_server_name`: the name in the broker's
      certificate, if it is not the host of the address.
    - `curve_server`, `curve_public`, `curve_secret`: the public key of the broker and the keys of this client, which
      encrypt connections of ZeroMQ (`tcp://`).

    Each of them can be in the environment: ONCEMQ_CONTEXT, ONCEMQ_TOKEN and so on. An empty text, or `tls=False`, says
    that there is none, whatever the environment says. Credentials of a context are never used for another address.

    Other options:

    - `name`: makes the session durable. It continues where an earlier process of that name ended, and fences off one
      that still runs. Default: the session belongs to this client alone.
    - `label`: the beginning of the session's name if `name` is not given. Default: `"anonymous"`.
    - `timeout_s`, `tries`: timeout per attempt (1.0), and number of attempts (5), before BrokerAway is raised.
    - `window`: how many numbered commands may be in flight (64).
    - `batch_messages`, `batch_bytes`: `put_nowait` sends a batch when it has this many messages (1000) or bytes
      (256 KiB).
    - `linger_ms`: `put_nowait` sends a batch that is not full after this time (5.0).
    - `buffer_bytes`: `put_nowait` waits while this many bytes are unanswered (64 MiB).
    - `busy_poll_us`: how many microseconds a call looks for its reply without sleeping (0). A single put returns
      sooner, and its thread uses a whole CPU meanwhile. Only for `oncemq://` and `oncemq+unix://`.
    - `record`: a folder. What this client puts and consumes is recorded there, for `oncemq pipeline audit`. Default:
      the environment's ONCEMQ_RECORD; `""` for none.

    Raises BrokerAway if no broker answers, and SettingInvalid, NameInvalid or TypeError for a wrong option.

    >>> with oncemq.connect() as client:
    ...     client.put("orders", "one pizza", create=True)
    """
    settings = settings_of(url, outbox, options)
    transport = open_transport(settings.urls, settings.busy_poll_us, settings.credentials)
    if outbox is not None:
        return _connect_outbox(settings, transport)
    client = make_client(ThreadDriver(settings.make_core(), transport), settings)
    client._driver.run(client._connection.greet())
    return client


def _connect_outbox(settings: ConnectSettings, transport: Transport) -> OutboxClient:
    """Does not wait for the broker, which may be unreachable."""
    outbox, driver = open_outbox(settings, transport, lambda core: ThreadDriver(core, transport))
    background = BackgroundThread(driver)
    producer = OutboxProducer(driver, background, settings, Handle, outbox)
    return OutboxClient(driver, OutboxConnection(producer, background))
