"""The copier's crash campaign: a process moves messages from topic to topic in transactions, and is killed at every
step of them; then the target has each message once and in order.

    python -m tests.acceptance --only copier --kills 500

Each transaction also puts a line into a log: its lines fit together without a gap only if nothing happened by half.
Now and then a second copier takes the subscription over while the first still works, which must be fenced.
"""

from __future__ import annotations

import signal
from collections.abc import Sequence
from pathlib import Path
from random import Random
from typing import ClassVar

import oncemq
from oncemq.client.transaction import Transaction
from oncemq.protocol.errors import BrokerAway, Fenced, NotNow
from tests.acceptance import tracing
from tests.acceptance.campaign import FENCED, IMPATIENT, PATIENT, Campaign, Death, Interrupted, Publisher
from tests.acceptance.evidence import entries
from tests.acceptance.processes import DEADLINE_S
from tests.acceptance.steps import CLIENT, OUTBOX, TRANSACTION, Doom, Step
from tests.acceptance.workers import Diary

SOURCE, TARGET, LOG = "source", "target", "log"
SUBSCRIBER = "copier"
_TWIN_SHARE = 0.1
_RAISE_SHARE = 0.1
_PATIENT_SHARE = 0.4
#: Of those that lost their patience, how many begin with another client.
_RECONNECT_SHARE = 0.2


class Copier:
    """One life of a copier."""

    def __init__(
        self, url: str, folder: Path, life: int, doom: Doom, *, has_outbox: bool, patient: bool = False
    ) -> None:
        self._url = url
        self._outbox = folder / "outbox" if has_outbox else None
        self._doom = doom
        self._diary = Diary(folder / "copier.diary")
        self._random = Random(f"copier/{life}")
        self._patience = PATIENT if patient or self._random.random() < _PATIENT_SHARE else IMPATIENT

    def run(self, end: int | None = None) -> int:
        """Until it is killed; with `end`, until everything below is done."""
        while True:
            try:
                with self._connect() as client:
                    self._copy_on(client, end)
                    return 0
            except Fenced:
                return FENCED
            except (BrokerAway, NotNow):
                # One of little patience.
                continue

    def _connect(self) -> oncemq.Client:
        client: oncemq.Client
        if self._outbox is not None:
            client = oncemq.connect(self._url, outbox=self._outbox, **self._patience)
        else:
            client = oncemq.connect(self._url, **self._patience)
        return client

    def _copy_on(self, client: oncemq.Client, end: int | None) -> None:
        with client.subscription(SOURCE, SUBSCRIBER, auto_ack=False) as subscription:
            while end is None or self._acked(client) < end:
                try:
                    self._copy(client, subscription)
                except Interrupted:
                    continue
                except (BrokerAway, NotNow):
                    # It may have happened: the subscription goes on where the broker says.
                    if self._random.random() < _RECONNECT_SHARE:
                        raise

    def _acked(self, client: oncemq.Client) -> int:
        return next(found.acked for found in client.subscriptions(SOURCE) if found.subscriber == SUBSCRIBER)

    def _copy(self, client: oncemq.Client, subscription: oncemq.Subscription) -> None:
        is_filled = False
        try:
            with client.transaction() as transaction:
                is_filled = self._fill(transaction, subscription)
                self._doom.reach("transaction is filled")
                if self._random.random() < _RAISE_SHARE:
                    raise Interrupted
        except (BrokerAway, NotNow):
            if is_filled:
                self._diary.write("in doubt")
            raise

    def _fill(self, transaction: Transaction, subscription: oncemq.Subscription) -> bool:
        messages = subscription.get_many(self._random.choice((1, 3, 50)), timeout_s=0.2)
        self._doom.reach("messages are read")
        for message in messages:
            transaction.put(TARGET, message.value)
        if messages:
            transaction.put(LOG, f"{messages[0].text} {len(messages)}")
            transaction.ack(subscription)
        return bool(messages)


class CopierCampaign(Campaign):
    name = "copier"
    steps: ClassVar[tuple[Step, ...]] = (*CLIENT, *TRANSACTION)
    own_points: ClassVar[tuple[str, ...]] = ("messages are read", "transaction is filled")
    has_outbox = False

    def set_up(self) -> None:
        self._lives = 0
        # The source's messages stay, too: one that is read again would be copied again.
        self.make_topics(SOURCE, TARGET, LOG)
        self.ask("subscribed", lambda client: void(client.subscribe(SOURCE, SUBSCRIBER)))
        publisher = Publisher(self.url, SOURCE, self.folder / "count", batch=20, pause_s=0.01)
        self.start("publisher", publisher.run)

    def kill_once(self) -> None:
        if self.random.random() < _TWIN_SHARE:
            self._kill_with_twins()
            return
        death = self.choose_death()
        self._start("copier", death)
        self.trouble_broker()
        self.die("copier", death)

    def _start(self, name: str, death: Death, *, patient: bool = False) -> None:
        self.start(name, self._copier(death.doom, patient=patient).run, death)

    def _copier(self, doom: Doom, *, patient: bool = False) -> Copier:
        self._lives += 1
        return Copier(self.url, self.folder, self._lives, doom, has_outbox=self.has_outbox, patient=patient)

    def _kill_with_twins(self) -> None:
        """The first one works on. The second one may die while it takes over; the third one does not.

        Who loses his patience and opens the subscription again takes it over in turn: the first one is patient."""
        immortal = Death(Doom(), self.random.uniform(0, 0.15))
        self._start("copier", immortal, patient=True)
        self.wait(self._children["copier"], immortal.limit_s)
        death = self.choose_death()
        self._start("second copier", death)
        self.trouble_broker()
        self.die("second copier", death)
        self._start("third copier", immortal)
        self.expect_fenced("copier")
        self.die("third copier", immortal)

    def finish(self) -> None:
        publisher = self._children["publisher"]
        publisher.signal(signal.SIGTERM)
        self.account.expect("the publisher's exit code", self.wait(publisher, DEADLINE_S), 0)
        count = int((self.folder / "count").read_text())
        last = self._copier(Doom(), patient=True)
        self.complete("last copier", lambda: last.run(count))
        numbers = list(map(str, range(count)))
        self.account.compare(numbers, numbers, self.texts_of(TARGET))
        self._judge_log(self.texts_of(LOG), count)

    def _judge_log(self, lines: Sequence[str], count: int) -> None:
        done = 0
        for line in lines:
            first, copied = map(int, line.split())
            if first != done:
                self.account.problems.append(f"the log goes on at {first} where {done} was next")
            done = first + copied
        self.account.expect("the log's end", done, count)
        in_doubt = sum(1 for _ in entries(self.folder / "copier.diary"))
        self.account.more = {"transactions": len(lines), "in_doubt": in_doubt}


class OutboxCopierCampaign(CopierCampaign):
    """The same through an outbox: what a killed copier has left in it happens later, or not at all."""

    name = "copier-outbox"
    steps: ClassVar[tuple[Step, ...]] = (*CLIENT, *OUTBOX, *TRANSACTION)
    calls: ClassVar[tuple[str, ...]] = (*tracing.CLIENT, *tracing.OUTBOX)
    has_outbox = True


def void(_value: object) -> None:
    pass
