"""The broker that is attacked, with all gateways, and the messages that attacks ask for."""

from __future__ import annotations

from pathlib import Path

from oncemq.client.sync import Client
from oncemq.testing.broker_process import BrokerProcess, free_port, free_ports, free_url
from oncemq.tools.faults.processes import children_of
from tests.hostile.native_requests import create_topics
from tests.secured_folder import SecuredFolder

#: Two of these messages fit into a response of 8 MiB.
_LARGE_BYTES = 4 * 2**20 - 1024
_LARGE_MESSAGES = 20
_BULKY_BYTES = 1000
_BULKY_MESSAGES = 3000
_BULKY_MS = 3_600_000
_TOPICS = 10_000


class Servers:
    """A broker with all its listeners, and a process with its HTTP, text, push and datagram gateways."""

    def __init__(self, folder: Path) -> None:
        text, push, udp = free_port(), free_ports(3), free_port()
        self.text = f"tcp://127.0.0.1:{text}"
        self.publish, self.feed, self.acks = (f"tcp://127.0.0.1:{push + number}" for number in range(3))
        self.udp = ("127.0.0.1", udp)
        self.stream_unix = f"oncemq+unix://{folder}/stream.sock"
        self.zeromq = free_url("zeromq")
        self.zeromq_ipc = f"ipc://{folder}/zeromq.sock"
        listeners = (f"--listen={url}" for url in (self.stream_unix, self.zeromq, self.zeromq_ipc))
        gateways = (f"--text=127.0.0.1:{text}", f"--push=127.0.0.1:{push}", f"--udp=127.0.0.1:{udp}")
        self.broker = BrokerProcess(folder / "data", *listeners, *gateways, http=True)
        #: A broker with users and TLS.
        self._users = SecuredFolder(folder / "secured")
        self.secured = self._users.broker()
        self.ca = self._users.ca
        self._prepared: set[str] = set()

    def start(self) -> None:
        self.broker.start()
        self.broker.wait_until_http()
        self.secured.start()
        for broker in (self.broker, self.secured):
            with broker.connect() as client:
                client.create_topic("victim")
                client.subscribe("victim", "v")

    def stop(self) -> None:
        self.secured.stop()
        self.broker.stop()

    def pid(self, process: str) -> int:
        """Return the id of a process: "broker", "gateway" or "secured"."""
        if process == "gateway":
            return self.gateway_pid
        return self.secured.pid if process == "secured" else self.broker.pid

    def prepare(self, what: str) -> None:
        """Store what an attack needs: "large" or "bulky" messages, or many "topics"."""
        if not what or what in self._prepared:
            return
        self._prepared.add(what)
        if what == "topics":
            create_topics(self.broker.url, _TOPICS)
            return
        with self.broker.connect(batch_bytes=_LARGE_BYTES) as client:
            _put_large(client) if what == "large" else _put_bulky(client)

    @property
    def stream(self) -> str:
        return self.broker.url

    @property
    def gateway_pid(self) -> int:
        found = children_of(self.broker.pid)
        assert found, "there is no gateway process"
        return found[0]


def _put_large(client: Client) -> None:
    client.create_topic("large")
    client.subscribe("large", "hostile")
    for _ in range(_LARGE_MESSAGES):
        client.put("large", b"x" * _LARGE_BYTES)


def _put_bulky(client: Client) -> None:
    client.create_topic("bulky", retain_ms=_BULKY_MS)
    client.put_many("bulky", [bytes(_BULKY_BYTES)] * _BULKY_MESSAGES)
