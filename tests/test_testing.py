"""The plug-in's broker, as users get it: a process that is started as usual."""

from __future__ import annotations

from oncemq import testing
from oncemq.broker.process import BrokerProcess
from oncemq.client.blocking import Client

# Before the quicker one of all other tests.
oncemq_broker = testing.oncemq_broker


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
