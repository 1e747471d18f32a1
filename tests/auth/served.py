"""A broker process with users, certificates and keys, and with all its listeners."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import oncemq
from oncemq.auth import edit
from oncemq.auth.certificates import create_authority, create_server
from oncemq.auth.private_file import make_private_folder
from oncemq.client.sync import Client
from oncemq.net import curve
from oncemq.net.curve import CurveServerKeys
from oncemq.testing.broker_process import free_ports
from tests.auth.walk import ROOT, RULES
from tests.forking import ForkedBroker

SMALL_FILES = ("--segment-bytes=6MiB", "--batch-bytes-max=4MiB")


class Accounts:
    """The users of a data folder, each with a token and a key pair; the certificate and the keys of the broker."""

    def __init__(self, data: Path, rules: Mapping[str, Sequence[str]] = RULES) -> None:
        data.mkdir(parents=True, exist_ok=True)
        self.file = data / "auth.toml"
        self.keys = data / "keys"
        self.tokens: dict[str, str] = {}
        self.pairs: dict[str, CurveServerKeys] = {}
        for name, allow in rules.items():
            edit.add_user(self.file, name, allow)
            self.tokens[name] = edit.add_token(self.file, name)
            self.pairs[name] = curve.generate()
            edit.add_credential(self.file, name, edit.CURVE_KEYS, self.pairs[name].public)
        make_private_folder(self.keys)
        create_authority(self.keys)
        create_server(self.keys, ("localhost", "127.0.0.1"))
        self.server = curve.generate()
        curve.save(self.server, self.keys)

    @property
    def ca(self) -> str:
        return str(self.keys / "ca.pem")


class ServedBroker(ForkedBroker):
    """A broker that is not started yet. Its own clients are those of the administrator."""

    def __init__(
        self, folder: Path, *flags: str, rules: Mapping[str, Sequence[str]] = RULES, module: str = "oncemq"
    ) -> None:
        """The folder must have a short path: Unix sockets are in it."""
        self.accounts = Accounts(folder / "data", rules)
        # None of them may be one of the others.
        stream, zeromq, http, text, udp, push, *_ = itertools.islice(itertools.count(free_ports(8)), 8)
        self.unix = f"oncemq+unix://{folder}/stream.sock"
        self.zeromq = f"tcp://127.0.0.1:{zeromq}"
        self.text = f"tcp://127.0.0.1:{text}"
        self.publish, self.feed, self.acks = (f"tcp://127.0.0.1:{push + number}" for number in range(3))
        self.udp = ("127.0.0.1", udp)
        listeners = (f"--listen={url}" for url in (self.unix, self.zeromq))
        gateways = (f"--text=127.0.0.1:{text}", f"--push=127.0.0.1:{push}", f"--udp=127.0.0.1:{udp}")
        shown = {"token": self.accounts.tokens[ROOT], "tls": self.accounts.ca}
        flags = (*SMALL_FILES, *listeners, *gateways, *flags)
        super().__init__(folder / "data", *flags, module=module, http=True, client_options=shown)
        self.url, self.http_url = f"oncemq://127.0.0.1:{stream}", f"http://127.0.0.1:{http}"

    @property
    def https_url(self) -> str:
        return self.http_url.replace("http:", "https:")

    def connect(self, user: str = ROOT, **options: Any) -> Client:
        return super().connect(**{"token": self.accounts.tokens[user], **options})

    def connect_zeromq(self, user: str, **options: Any) -> Client:
        pair, server = self.accounts.pairs[user], self.accounts.server.public
        keys = {"curve_server": server, "curve_public": pair.public, "curve_secret": pair.secret}
        client: Client = oncemq.connect(self.zeromq, **{"tries": 20, **keys, **options})
        return client
