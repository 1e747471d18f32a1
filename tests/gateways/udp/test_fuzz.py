"""A few thousand invalid packets. `python -m tests.gateways.udp.fuzz` and `mac_fuzz` send a million."""

from __future__ import annotations

from pathlib import Path

from oncemq.testing.broker_process import BrokerProcess
from tests.gateways.udp.fuzz import SMALL, Fuzz
from tests.gateways.udp.mac_fuzz import MacFuzz
from tests.gateways.udp.rig import GatewayProcess
from tests.gateways.udp.users import BrokerWithUsers


def test_whatever_is_sent_the_gateway_answers_on_and_stays_small(oncemq_broker: BrokerProcess) -> None:
    gateway = GatewayProcess([oncemq_broker.url], **SMALL)
    gateway.start()
    fuzz = Fuzz(gateway, seed=7)
    try:
        fuzz.run(2000)
        before = gateway.memory_bytes
        fuzz.run(2000)
        assert gateway.memory_bytes < before + 32 * 2**20
    finally:
        fuzz.close()
        gateway.kill()


def test_whatever_is_sent_with_a_mac_belongs_to_its_sender(tmp_path: Path) -> None:
    users = BrokerWithUsers(tmp_path)
    gateway = GatewayProcess([users.url], **SMALL)
    gateway.start()
    fuzz = MacFuzz(gateway, users, seed=7)
    try:
        fuzz.run(2000)
        before = gateway.memory_bytes
        fuzz.run(2000)
        assert gateway.memory_bytes < before + 32 * 2**20
    finally:
        fuzz.close()
        gateway.kill()
        users.stop()
