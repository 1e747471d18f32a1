"""A data folder with users, certificates and keys, made by the commands that people use."""

from __future__ import annotations

import re
from pathlib import Path

from click.testing import CliRunner

from oncemq.cli.main import cli
from oncemq.testing.broker_process import BrokerProcess, free_url
from tests.forking import ForkedBroker


class SecuredFolder:
    """Has the user `kitchen`, with a token and ZeroMQ keys, and the user `gate`, a gateway."""

    def __init__(self, folder: Path) -> None:
        self.data = folder / "data"
        self.ca = str(self.data / "keys" / "ca.pem")
        self.kitchen = self._user(folder, "kitchen", "--allow", "all #")
        self.gate = self._user(folder, "gate", "--role", "gateway")
        self._auth("keys", "--host", "localhost")
        self.curve_secret = folder / "kitchen.secret"
        pair = self._auth("keys", "--client", "kitchen", "--out", str(self.curve_secret))
        [self.curve_server] = re.findall(r"public key of the broker, (\S+)", pair)
        [self.curve_public] = re.findall(r"the public key is (\S+)", pair)
        self.zmq_url = free_url("zeromq")

    def _auth(self, *arguments: str) -> str:
        done = CliRunner().invoke(cli, ["auth", *arguments, "--data", str(self.data)])
        assert done.exit_code == 0, done.output
        return done.output

    def _user(self, folder: Path, name: str, *rules: str) -> Path:
        """Returns the file with its token."""
        file = folder / f"{name}.token"
        self._auth("user", "add", name, *rules)
        self._auth("token", name, "--out", str(file))
        return file

    def broker(self) -> BrokerProcess:
        """A broker that is not started yet. It listens at `zmq_url` too. Its clients are the kitchen."""
        options = {"token_file": str(self.kitchen), "tls": self.ca}
        return ForkedBroker(self.data, "--listen", self.zmq_url, client_options=options)
