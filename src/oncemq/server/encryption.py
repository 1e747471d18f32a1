"""The certificate and the keys of a broker's listeners, from its folder of keys."""

from __future__ import annotations

import shutil
import ssl
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path

from oncemq.broker.network.listeners import Listeners
from oncemq.config.addresses import DEFAULT_LISTEN, STREAM_UNIX, is_stream
from oncemq.config.settings import ServeSettings
from oncemq.net.curve import CurveServerKeys
from oncemq.net.curve import load as load_curve
from oncemq.net.gate import Gate
from oncemq.net.tls import has_server_certificate, server_context


class Encryption:
    """Opens the listeners of a broker. Whether they are encrypted is decided at the start. A certificate can be
    replaced later."""

    def __init__(self, settings: ServeSettings) -> None:
        """Raises SettingInvalid."""
        self._settings = settings
        self._tls: ssl.SSLContext | None = None
        self._curve: CurveServerKeys | None = load_curve(settings.keys_folder)
        self._network: Listeners | None = None
        if has_server_certificate(settings.keys_folder):
            self._tls = self._load_tls()
        #: Where the broker's own gateways connect, if its first address is encrypted, whose certificate may have any
        #: name, or one of ZeroMQ, which knows no tokens.
        self._folder = ""
        if self._tls is not None or not is_stream(settings.listen[0]):
            self._folder = tempfile.mkdtemp(prefix="oncemq-")

    def _load_tls(self) -> ssl.SSLContext:
        return server_context(self._settings.keys_folder, client_certificates=self._settings.client_certificates)

    def read(self) -> None:
        """Read the certificate again, for `use`. Raises SettingInvalid; then the former one stays in use."""
        if self._tls is not None:
            self._tls = self._load_tls()

    def use(self) -> None:
        """Use the certificate for new connections."""
        if self._tls is not None and self._network is not None:
            self._network.use_tls(self._tls)

    def open(self, gate: Gate, say: Callable[[str], None], addresses: Sequence[str] = ()) -> Listeners:
        """Listen at the addresses of the settings, or at those that were used before. Raises ListenFailed and
        SettingInvalid."""
        chosen = list(addresses or self._settings.listen)
        has_users = not gate.is_valid("")
        if has_users and self._curve is None and self._settings.listen == DEFAULT_LISTEN:
            # Nobody has asked for ZeroMQ.
            chosen = [address for address in chosen if is_stream(address)]
            say("ZeroMQ is off: the broker has users, and `oncemq auth keys` has not created its keys yet.")
        if self._folder:
            chosen.append(self.gateway_url)
        network = Listeners(self._settings, chosen, gate=gate, tls=self._tls, curve=self._curve)
        if self._folder:
            network.addresses.pop()
        self._network = network
        return network

    @property
    def gateway_url(self) -> str:
        """Where the broker's own gateways connect; empty: at its first address."""
        return f"{STREAM_UNIX}{Path(self._folder, 'gateway.sock')}" if self._folder else ""

    def close(self) -> None:
        if self._folder:
            shutil.rmtree(self._folder, ignore_errors=True)
