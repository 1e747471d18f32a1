"""A process copies messages from topic to topic in transactions, and is killed at every step of them. At the end the
target has each message once and in order.

    python -m tests.acceptance --only copier --kills 500

Each transaction also puts a line into a log. The lines fit together without a gap only if no transaction happened in
part. Sometimes a second copier takes the subscription over while the first one works, which must be fenced. The
campaign `copier-outbox` does the same through an outbox: what a killed copier has left in it happens later, or never.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from random import Random

import oncemq
from oncemq.client.transaction import Transaction
from oncemq.protocol.errors import BrokerAway, Fenced, NotNow
from oncemq.tools.faults.event_log import EventLog, read_events
from tests.acceptance.campaigns.base import FENCED, IMPATIENT, PATIENT, Campaign, Death, Interrupted
from tests.acceptance.faults import system_calls
from tests.acceptance.faults.kill_points import CLIENT, OUTBOX, TRANSACTION, KillPoint

SOURCE, TARGET, LOG = "source", "target", "log"
SUBSCRIBER = "copier"
_TAKEOVER_SHARE = 0.1
_RAISE_SHARE = 0.1
_PATIENT_SHARE = 0.4
#: Share of impatient copiers that connect again after an error.
_RECONNECT_SHARE = 0.2
#: Share of copiers that do not wait for each transaction.
_UNWAITED_SHARE = 0.5


class Copier:
    """One process of a copier."""

    def __init__(
        self, url: str, folder: Path, number: int, point: KillPoint, *, has_outbox: bool, patient: bool = False
    ) -> None:
        self._url = url
        self._outbox = folder / "outbox" if has_outbox else None
        self._point = point
        self._log = EventLog(folder / "copier.events")
        self._random = Random(f"copier/{number}")
        self._options = PATIENT if patient or self._random.random() < _PATIENT_SHARE else IMPATIENT
        self._waits = has_outbox or self._random.random() >= _UNWAITED_SHARE

    def run(self, end: int | None = None) -> int:
        """Copy until it is killed, or until everything below `end` is copied."""
        while True:
            try:
                with self._connect() as client:
                    self._copy_all(client, end)
                    return 0
            except Fenced:
                return FENCED
            except (BrokerAway, NotNow):
                # An impatient client.
                continue

    def _connect(self) -> oncemq.Client:
        client: oncemq.Client
        if self._outbox is not None:
            client = oncemq.connect(self._url, outbox=self._outbox, **self._options)
        else:
            client = oncemq.connect(self._url, **self._options)
        return client

    def _copy_all(self, client: oncemq.Client, end: int | None) -> None:
        with client.subscription(SOURCE, SUBSCRIBER, auto_ack=False) as subscription:
            while end is None or self._acked(client) < end:
                try:
                    self._copy(client, subscription)
                except Interrupted:
                    continue
                except (BrokerAway, NotNow):
                    # It may have happened: the subscription continues at the broker's position.
                    if self._random.random() < _RECONNECT_SHARE:
                        raise

    def _acked(self, client: oncemq.Client) -> int:
        return next(found.acked for found in client.subscriptions(SOURCE) if found.subscriber == SUBSCRIBER)

    def _copy(self, client: oncemq.Client, subscription: oncemq.Subscription) -> None:
        is_filled = False
        try:
            with client.transaction(wait=self._waits) as transaction:
                is_filled = self._fill(transaction, subscription)
                self._point.reach("transaction is filled")
                if self._random.random() < _RAISE_SHARE:
                    raise Interrupted
        except (BrokerAway, NotNow):
            if is_filled:
                self._log.write(("in doubt",))
            raise

    def _fill(self, transaction: Transaction, subscription: oncemq.Subscription) -> bool:
        messages = subscription.get_many(self._random.choice((1, 3, 50)), timeout_s=0.2)
        self._point.reach("messages are read")
        for message in messages:
            transaction.put(TARGET, message.value)
        if messages:
            transaction.put(LOG, f"{messages[0].text} {len(messages)}")
            transaction.ack(subscription)
        return bool(messages)


class CopierCampaign(Campaign):
    """Kills a copier."""

    def __init__(self, folder: Path, seed: int, *, has_outbox: bool = False) -> None:
        super().__init__(
            "copier-outbox" if has_outbox else "copier",
            folder,
            seed,
            steps=(*CLIENT, *TRANSACTION, *(OUTBOX if has_outbox else ())),
            own_points=("messages are read", "transaction is filled"),
            calls=(*system_calls.CLIENT, *(system_calls.OUTBOX if has_outbox else ())),
        )
        self._has_outbox = has_outbox
        self._copiers = 0

    def set_up(self) -> None:
        # The messages of the source are kept, too: one that is read again would be copied again.
        self.make_topics(SOURCE, TARGET, LOG)
        self.subscribe(SOURCE, SUBSCRIBER)
        self.start_publisher(SOURCE, batch=20, pause_s=0.01)

    def kill_once(self) -> None:
        if self.random.random() < _TAKEOVER_SHARE:
            self._kill_during_takeover()
            return
        death = self.choose_death()
        self._start("copier", death)
        self.disturb_broker()
        self.await_death("copier", death)

    def _start(self, name: str, death: Death, *, patient: bool = False) -> None:
        self.start(name, self._copier(death.point, patient=patient).run, death)

    def _copier(self, point: KillPoint, *, patient: bool = False) -> Copier:
        self._copiers += 1
        return Copier(self.urls.next(), self.folder, self._copiers, point, has_outbox=self._has_outbox, patient=patient)

    def _kill_during_takeover(self) -> None:
        """The first one keeps working. The second one may die while it takes over; the third one does not.

        An impatient copier would open the subscription again and so take it over in turn: the first one is patient.
        """
        no_point = Death(KillPoint(), self.random.uniform(0, 0.15))
        self._start("copier", no_point, patient=True)
        self.wait(self.processes["copier"], no_point.limit_s)
        death = self.choose_death()
        self._start("second copier", death)
        self.disturb_broker()
        self.await_death("second copier", death)
        self._start("third copier", no_point)
        self.expect_fenced("copier")
        self.await_death("third copier", no_point)

    def finish(self) -> None:
        count = self.stop_publisher()
        last = self._copier(KillPoint(), patient=True)
        self.complete("last copier", lambda: last.run(count))
        numbers = list(map(str, range(count)))
        self.report.compare(numbers, numbers, self.texts_of(TARGET))
        self._check_log(self.texts_of(LOG), count)

    def _check_log(self, lines: Sequence[str], count: int) -> None:
        done = 0
        for line in lines:
            first, copied = map(int, line.split())
            if first != done:
                self.report.problems.append(f"the log continues at {first} instead of {done}")
            done = first + copied
        self.report.expect("the end of the log", done, count)
        in_doubt = sum(1 for _ in read_events(self.folder / "copier.events"))
        self.report.more = {"transactions": len(lines), "in_doubt": in_doubt}
