"""Two brokers on one journal: one is active, the other is the standby. They are killed and paused, and take over.

A paused broker does not know that it was paused. When it continues, with old requests and an outdated state, its
journal must prevent it from writing and from answering. A take-over can also happen in the middle of a round: between
the append and the sync, and between the sync and the replies.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, cast

from oncemq.broker.loop import Broker
from oncemq.broker.security.security import Security
from oncemq.engine.engine import ApplyFailed
from oncemq.journal.contract import Group, Journal
from oncemq.journal.memory import MemoryJournal
from oncemq.protocol import errors
from oncemq.protocol.frames import encode_not_now
from tests.simulation.environment.listener import Listener
from tests.simulation.environment.state_check import StateCheck
from tests.simulation.environment.users import SimUsers
from tests.simulation.environment.world import Violation, World

JOURNAL_ID = bytes(range(1, 17))
#: Moments of a round at which the other broker can take over.
MOMENTS = ("append", "sync", "answers", "hold")
RETRY_MS = 20
#: A pause delays requests by this time. They must not arrive after their keys have expired.
STOP_MS_MAX = 180


class WatchedJournal:
    """The view of one broker of the shared journal. Reports each call to the pair before it is executed."""

    def __init__(self, pair: StandbyPair, member: PairMember, journal: MemoryJournal) -> None:
        self._pair = pair
        self._member = member
        self._journal = journal

    def __getattr__(self, name: str) -> Any:
        return getattr(self._journal, name)

    def append(self, group: Group) -> None:
        self._pair.reached("append", self._member)
        self._journal.append(group)
        self._pair.appended = (group.time_ms, group.events)

    def sync(self) -> None:
        self._pair.reached("sync", self._member)
        if self._pair.fails_commit(self._member):
            if self._pair.flip():
                self._journal.sync()
            raise errors.JournalFailed("the connection was lost, and with it the answer to a commit")
        self._journal.sync()
        self._pair.group_synced()
        self._pair.reached("answers", self._member)

    def ensure_not_fenced(self) -> None:
        self._pair.reached("hold", self._member)
        self._journal.ensure_not_fenced()


class PairMember:
    """A process at an address. It has a broker while it is active, or believes that it is."""

    def __init__(self, pair: StandbyPair, name: str, end: Listener) -> None:
        self.name = name
        self.end = end
        self.broker: Broker | None = None
        self.security: Security | None = None
        self.is_up = True
        self.is_stopped = False
        self._pair = pair
        self._world = pair.world
        self._round_ms = 0
        self._rounds = 0
        end.arrived = self._arrived
        end.sending = self._sending

    @property
    def waits(self) -> bool:
        return self.is_up and not self.is_stopped and self.broker is None

    def _arrived(self) -> bool:
        if self.is_up and not self.is_stopped:
            self.schedule(self._world.now_ms + 2)
        return self.is_up

    def _sending(self) -> None:
        if self.broker is not None and self._pair.active is not self:
            raise Violation(f"broker {self.name} answers, and another one has taken its place")

    def schedule(self, time_ms: int) -> None:
        if self._round_ms and self._round_ms <= time_ms:
            return
        self._round_ms = time_ms
        self._rounds += 1
        number = self._rounds
        self._world.at(time_ms, lambda: self._round(number))

    def _round(self, number: int) -> None:
        if number != self._rounds:
            return
        self._round_ms = 0
        if not self.is_up or self.is_stopped:
            return
        if self.broker is None:
            self._turn_away()
        else:
            self._pair.guarded(self, self._run_once)

    def _turn_away(self) -> None:
        for peer, frames in self.end.take(0):
            self.end.send(peer, encode_not_now(frames, errors.Standby("it waits")))

    def _run_once(self) -> None:
        broker = self.broker
        assert broker is not None
        broker.run_once(0)
        self._pair.check(self, broker)
        self.schedule(self._world.now_ms + max(1, broker.wait_ms()))

    def stop(self) -> None:
        """Pause the process. Requests that arrive are processed later."""
        self.is_stopped = True

    def resume(self) -> None:
        self.is_stopped = False
        if self.is_up:
            self.schedule(self._world.now_ms + 1)

    def drop_all(self) -> None:
        """Drop all requests without an answer."""
        self.broker = None
        self.end.reset()

    def start(self) -> None:
        """Listen."""
        self.is_up = True
        self.security = self._pair.users.security(self._pair.now_ms)
        self.end.start(self.security)


class StandbyPair(StateCheck):
    def __init__(self, world: World, ends: list[Listener], users: SimUsers) -> None:
        super().__init__(world)
        self.world = world
        self.users = users
        self._random = world.random("pair")
        self.journal = MemoryJournal(extent_bytes=world.faults.segment_bytes, journal_id=JOURNAL_ID)
        self.members = [PairMember(self, name, end) for name, end in zip("AB", ends, strict=True)]
        self.active: PairMember | None = None
        self._moment = ""
        self._must_fail = False
        self._away_ms = 0
        #: Called after a take-over with the time since when no broker was active, and the current time.
        self.recovered: Callable[[int, int], None] = lambda _died_ms, _now_ms: None

    @property
    def broker(self) -> Broker | None:
        active = self.active
        return None if active is None or active.is_stopped else active.broker

    def start(self) -> None:
        for member in self.members:
            member.start()
        self._take_over(self.members[0])

    # Take-overs.

    def _take_over(self, member: PairMember) -> None:
        world = self.world
        if self.active is not None:
            self._gone()
        self._maybe_leap()
        self.journal = self.journal.take_over()
        journal = cast("Journal", WatchedJournal(self, member, self.journal))
        member.broker = Broker(
            journal, member.end, self, world.faults.limits, world.faults.policy, security=member.security
        )
        self.active = member
        self._moment, self._must_fail = "", False
        world.tally["broker: take-over"] += 1
        world.note(f"BROKER {member.name} takes over, term {self.journal.term}")
        world.set_available(True)
        self.recovered(self._away_ms or world.now_ms, world.now_ms)
        self._away_ms = 0
        self._compare_with_reference(member.broker, journal)
        member.schedule(world.now_ms + 1)

    def _gone(self) -> None:
        """The active broker stops answering."""
        if self.active is not None:
            self.count()
        self.world.set_available(False)
        self._away_ms = self._away_ms or self.world.now_ms

    def _expire(self, term: int) -> None:
        """The lease has ended: if no broker is active, the standby takes over."""
        if term != self.journal.term or self.broker is not None:
            return
        waiting = [member for member in self.members if member.waits]
        if waiting:
            self._take_over(waiting[int(self._random.random() * len(waiting))])
        else:
            self.world.after(RETRY_MS, lambda: self._expire(term))

    def _expire_later(self) -> None:
        term = self.journal.term
        self.world.after(10 + int(self._random.random() ** 2 * 150), lambda: self._expire(term))

    # Crashes and pauses.

    def inject_crash(self) -> None:
        active = self.active
        if active is None or active.is_stopped:
            return
        self.world.tally["crashes"] += 1
        chance = self._random.random()
        if chance < 0.25:
            self._kill(active)
        elif chance < 0.55:
            self._stop(active)
        elif chance < 0.85:
            self._moment = MOMENTS[int(self._random.random() * len(MOMENTS))]
        else:
            self._must_fail = True

    def _kill(self, member: PairMember) -> None:
        self.world.note(f"BROKER {member.name} is killed")
        self.world.tally["broker: kill of the active one"] += 1
        self._gone()
        self.active = None
        member.drop_all()
        member.is_up = False
        self.world.after(20 + int(self._random.random() * 300), member.start)
        self._expire_later()

    def _stop(self, member: PairMember) -> None:
        self.world.note(f"BROKER {member.name} is stopped")
        self.world.tally["broker: stop of the active one"] += 1
        self._gone()
        member.stop()
        self.world.after(5 + int(self._random.random() * STOP_MS_MAX), lambda: self._resume(member))
        self._expire_later()

    def _resume(self, member: PairMember) -> None:
        self.world.note(f"BROKER {member.name} continues")
        member.resume()
        if self.active is member:
            # No other broker has taken over: it was never inactive.
            self._away_ms = 0
            self.world.set_available(True)

    # Called by journals.

    def reached(self, moment: str, member: PairMember) -> None:
        """Let the other broker take over at this moment, before this one continues."""
        if moment != self._moment or member is not self.active:
            return
        self._moment = ""
        other = next((other for other in self.members if other is not member and other.waits), None)
        if other is not None:
            self.world.tally[f"broker: replaced before its {moment}"] += 1
            self._take_over(other)

    def fails_commit(self, member: PairMember) -> bool:
        fails, self._must_fail = self._must_fail and member is self.active, False
        return fails

    def flip(self) -> bool:
        return self._random.random() < 0.5

    def guarded(self, member: PairMember, action: Callable[[], None]) -> None:
        try:
            action()
        except errors.JournalFenced:
            if member is self.active:
                raise Violation(f"broker {member.name} is fenced, but no other broker took over") from None
            self.world.tally["broker: fenced"] += 1
            self.world.note(f"BROKER {member.name} is fenced, and waits")
            member.drop_all()
            member.start()
        except errors.JournalFailed:
            self.world.tally["broker: commit of unknown outcome"] += 1
            self.world.note(f"BROKER {member.name} has lost the journal, and waits")
            self._gone()
            self.active = None
            member.drop_all()
            member.start()
            self._expire_later()
        except errors.JournalCorrupt as error:
            raise Violation(f"lost: {error}") from error
        except ApplyFailed as error:
            raise Violation(f"an event could not be applied: {error}") from error

    def check(self, member: PairMember, broker: Broker) -> None:
        if member is not self.active:
            return
        self._check_quotas(broker)
        self._check_security(broker)
        if broker.housekeeping._damaged:
            raise Violation("lost: a stored batch can't be read and moved")

    # The rest of the interface of a host.

    def reload_users(self) -> None:
        for member in self.members:
            if member.security is not None:
                member.security.reload()

    def count(self) -> None:
        self.count_broker(self.active.broker if self.active is not None else None)

    def count_faults(self) -> None:
        """There is no disk."""

    def fill_disk(self, _duration_ms: int) -> None:
        """There is no disk."""

    def heal(self) -> None:
        self._moment, self._must_fail = "", False
