"""What the processes of a round have logged, completed by what their guarantees say, for the checker.

producers                    their topic has each acknowledged message once, in the order of each stream
consumers                    each message of their topic once and in order; after a kill again from the last ack on
copier                       the target has the messages of the source, once and in order
workers                      each task has one result, or is one dead letter
delayed messages             once; their order is that of their due times
messages with a time to live at most once and in order; the others once
"""

from __future__ import annotations

from oncemq.tools.faults.checker import Evidence
from oncemq.tools.faults.evidence import read_log
from tests.soak.clients.client import RoundContext
from tests.soak.clients.workers import is_poisoned
from tests.soak.plan import BRIEF, CLIENTS, COPIED, DEAD, LATER, NATIVE, RESULTS, TASKS

AUDITOR = "auditor"
_OUTCOMES = "outcomes"


def gather(context: RoundContext) -> Evidence:
    """Read all logs of a round."""
    evidence = Evidence(stream_of=stream_of)
    read_log(evidence, AUDITOR, context.log_path(AUDITOR))
    for client in CLIENTS:
        subscribed = {context.topic(client.topic): 0} if client.stage == "consumer" else {}
        read_log(evidence, client.name, context.log_path(client.name), subscribed)
    _add_copies(evidence, context)
    _add_outcomes(evidence, context)
    _add_brief(evidence, context)
    return evidence


def stream_of(message: str) -> str:
    """Return the stream in which a message has its order."""
    if message.startswith((f"put-{LATER}.", "put-tasks.")):
        return message
    # The messages of an outbox have one order over all processes, and so do those of a numbered publisher.
    return message.partition(".")[0] if message.startswith(("outbox-", "udp-")) else message.rpartition(".")[0]


def _add_copies(evidence: Evidence, context: RoundContext) -> None:
    source, target = evidence.stored.get(context.topic(NATIVE), []), context.topic(COPIED)
    evidence.attempted[target] = source
    evidence.acknowledged[target] = {message: offset for offset, message in enumerate(source)}


def _add_outcomes(evidence: Evidence, context: RoundContext) -> None:
    """Results and dead letters together are the tasks."""
    tasks = evidence.stored.get(context.topic(TASKS), [])
    results = evidence.stored.pop(context.topic(RESULTS), [])
    dead = evidence.stored.pop(context.topic(DEAD), [])
    evidence.errors += [f"{message} is poisoned, and has a result" for message in results if is_poisoned(message)]
    evidence.errors += [f"{message} is a dead letter" for message in dead if not is_poisoned(message)]
    evidence.attempted[_OUTCOMES], evidence.stored[_OUTCOMES] = tasks, results + dead
    evidence.acknowledged[_OUTCOMES] = dict.fromkeys(tasks, -1)


def _add_brief(evidence: Evidence, context: RoundContext) -> None:
    """What the only consumer got is judged like what a broker has stored."""
    topic = context.topic(BRIEF)
    got = [each for delivery in evidence.deliveries if delivery.topic == topic for each in delivery.got]
    evidence.deliveries = [delivery for delivery in evidence.deliveries if delivery.topic != topic]
    evidence.stored[topic] = [message for _, message in got]
