"""The plug-in's broker, as users get it: a process that is started as usual."""

from __future__ import annotations

from oncemq.client.sync import Client
from oncemq.testing import plugin
from oncemq.testing.broker_process import BrokerProcess

# Before the quicker one of all other tests.
oncemq_broker = plugin.oncemq_broker


def test_what_a_killed_broker_has_stored_is_there_when_it_is_back(
    oncemq_broker: BrokerProcess, oncemq_client: Client
) -> None:
    assert type(oncemq_broker) is BrokerProcess
    kitchen = oncemq_client.subscribe("orders", "kitchen")
    oncemq_client.put("orders", "one pizza")
    oncemq_broker.restart()
    message = kitchen.get(timeout_s=10)
    assert message is not None
    assert message.text == "one pizza"
