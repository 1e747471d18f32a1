"""The broker of the plug-in, as users get it: a process that is started normally."""

from __future__ import annotations

from oncemq.client.sync import Client
from oncemq.testing import plugin
from oncemq.testing.broker_process import BrokerProcess

# It takes precedence over the faster fixture of the other tests.
oncemq_broker = plugin.oncemq_broker


def test_messages_of_a_killed_broker_are_there_after_a_restart(
    oncemq_broker: BrokerProcess, oncemq_client: Client
) -> None:
    assert type(oncemq_broker) is BrokerProcess
    kitchen = oncemq_client.subscribe("orders", "kitchen")
    oncemq_client.put("orders", "one pizza")
    oncemq_broker.restart()
    message = kitchen.get(timeout_s=10)
    assert message is not None
    assert message.text == "one pizza"
