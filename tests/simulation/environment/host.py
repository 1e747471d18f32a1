"""The machine of a broker: a disk, a process that runs the real broker, and crashes of that process."""

from __future__ import annotations

from collections.abc import Callable
from random import Random

from oncemq.broker.loop import Broker
from oncemq.engine.engine import ApplyFailed
from oncemq.journal.contract import Group
from oncemq.journal.files.journal import FileJournal
from oncemq.journal.files.record_reader import READ_TRIES
from oncemq.journal.worker import StepWorker
from oncemq.protocol import errors
from tests.simulation.environment.disk import SimCrash, SimDisk
from tests.simulation.environment.listener import Listener
from tests.simulation.environment.segment_loss import is_loss_detected, wrong_check
from tests.simulation.environment.state_check import StateCheck
from tests.simulation.environment.users import SimUsers
from tests.simulation.environment.world import Violation, World

BLOCK_BYTES = 512
JOURNAL_ID = bytes(range(1, 17))
#: Capacity of the disk while it is not full. A full disk has less than two segments of free space.
ROOMY_BYTES = 1 << 30
#: Probability of a read error per round.
READ_ERRORS = 0.01

#: Syncs at which crashes are injected, in normal operation and in recovery.
RUNNING = ("group", "segment name", "segment head", "begun segment", "snapshot", "snapshot name")
RECOVERING = (
    "last group again",
    "segment head again",
    "copy of the last group",
    "name of the last group's copy",
    "cut bytes",
    "cut name",
    "last group again",
    "last group again",
    "last group again",
    "segment head again",
)


class AimedDisk(SimDisk):
    """Ends the process just before or after the next sync with a certain label, or makes that sync fail."""

    def __init__(self, random: Random, capacity_bytes: int) -> None:
        super().__init__(random, capacity_bytes)
        self._aim = ""
        self._how = ""

    def aim(self, label: str, how: str) -> None:
        self._aim, self._how = label, how

    def skips(self, label: str) -> bool:
        if label == self._aim:
            self._aim = ""
            self.faults[f"aimed {self._how} '{label}'"] += 1
            if self._how == "before":
                raise SimCrash
            if self._how == "after":
                self.crash_after(self.random.randrange(2))
            else:
                self.fail_sync(1)
        return super().skips(label)

    def kill(self) -> None:
        self._aim = ""
        super().kill()

    def power_loss(self) -> None:
        self._aim = ""
        super().power_loss()


class WatchedJournal(FileJournal):
    """Reports appends and syncs to the host."""

    def __init__(self, host: Host, disk: SimDisk, worker: StepWorker, segment_bytes: int) -> None:
        self._host = host
        super().__init__(disk, worker, segment_bytes=segment_bytes, block_bytes=BLOCK_BYTES, journal_id=JOURNAL_ID)

    def append(self, group: Group) -> None:
        super().append(group)
        self._host.appended = (group.time_ms, group.events)

    def sync(self) -> None:
        super().sync()
        self._host.synced_segment = self._segments.active
        self._host.group_synced()


class Host(StateCheck):
    def __init__(self, world: World, network: Listener, users: SimUsers) -> None:
        super().__init__(world)
        self._network = network
        self._users = users
        self._random = world.random("host")
        self._read_random = world.random("reads")
        self.disk = AimedDisk(world.random("disk"), ROOMY_BYTES)
        self.disk.fates = world.faults.fates
        self.broker: Broker | None = None
        self.worker = StepWorker()
        self._round_ms = 0
        self._rounds = 0
        #: The last segment that contains a synced group.
        self.synced_segment = 0
        self._cuts: dict[str, bytes] = {}
        self._crash_kind = "kill"
        self._restarting = False
        self._is_full = False
        self._died_ms = 0
        #: Called after a recovery with the time of the crash and the current time.
        self.recovered: Callable[[int, int], None] = lambda _died_ms, _now_ms: None
        network.arrived = self._wake

    # The process.

    def start(self) -> None:
        world = self._world
        self._restarting = False
        if self.broker is not None:
            return
        if not world.healed and self._random.random() < world.faults.during_recovery:
            self._crash_kind = "kill" if self._random.random() < 0.2 else "power loss"
            self._aim_at(RECOVERING, 0.2)
            world.tally["broker: crash aimed at recovery"] += 1
        try:
            self._start()
        except SimCrash:
            self._die(f"{self._crash_kind} during recovery")
        except errors.JournalCorrupt as error:
            raise Violation(f"refused to start: {error}") from error
        except errors.JournalError as error:
            # There is no space for a new journal, or a sync failed on request.
            self._die(f"kill after {type(error).__name__} at the start: {error}")

    def _start(self) -> None:
        world = self._world
        self.worker = StepWorker()
        self._maybe_leap()
        journal = WatchedJournal(self, self.disk, self.worker, world.faults.segment_bytes)
        security = self._users.security(self.now_ms)
        broker = Broker(journal, self._network, self, world.faults.limits, world.faults.policy, security=security)
        self.disk.crash_after(-1)
        self.disk.aim("", "")
        self.broker = broker
        self._network.start(security)
        for warning in journal.warnings:
            world.tally["recovery: " + ("torn group cut off" if "not finished" in warning else "other warning")] += 1
            if "damaged" in warning:
                raise Violation(f"a finished snapshot is damaged, though no synced byte ever was: {warning}")
        if broker.counters["extents_missing"]:
            raise Violation("lost: segments with needed messages, though no file was ever lost")
        world.tally["broker: recoveries"] += 1
        world.set_available(not self._is_full)
        self.recovered(self._died_ms, world.now_ms)
        world.tally["broker: groups replayed"] += broker.counters["groups_replayed"]
        world.note(f"BROKER started, {broker.counters['groups_replayed']} groups replayed {journal.warnings}")
        self._compare_with_reference(broker, journal)
        self._check_cuts(journal.warnings)
        if not world.healed:
            self._crash_soon(journal)
        self._wake()

    def _crash_soon(self, journal: FileJournal) -> None:
        """Sometimes crash soon after a start, above all if a segment has a rewritten head and no group yet."""
        random = self._random.random
        is_bare = journal._position == journal._layout.first_position(journal._segments.active)
        if is_bare and random() < 0.4:
            self._crash_kind = "power loss"
            self.disk.aim("group", "before")
        elif random() < self._world.faults.soon_again:
            self._crash_kind = self._choose_kind()
            self.disk.crash_after(int(random() * 6))

    def _check_cuts(self, warnings: list[str]) -> None:
        """Check that the files with cut-off bytes, which recovery writes for people, still exist."""
        for path, content in self._cuts.items():
            if not self.disk.exists(path) or self.disk.open(path).read(0, len(content) + 1) != content:
                raise Violation(f"lost: the bytes that recovery cut off and kept in {path}")
        for warning in warnings:
            _, found, path = warning.partition("its bytes are kept in ")
            if found:
                self._cuts[path] = self.disk.open(path).read(0, 1 << 30)

    # Rounds.

    def _wake(self) -> bool:
        if self.broker is None:
            return False
        self._schedule(self._world.now_ms + 2)
        return True

    def _schedule(self, time_ms: int) -> None:
        if self._round_ms and self._round_ms <= time_ms:
            return
        self._round_ms = time_ms
        self._rounds += 1
        number = self._rounds
        self._world.at(time_ms, lambda: self._round(number))

    def _round(self, number: int) -> None:
        if number != self._rounds or self.broker is None:
            return
        self._round_ms = 0
        self._guarded(self._run_once)

    def _run_once(self) -> None:
        broker = self.broker
        assert broker is not None
        if not self._world.healed and self._read_random.random() < READ_ERRORS:
            # Fewer than the attempts that the journal makes.
            self.disk.fail_reads(self._read_random.randrange(1, READ_TRIES))
        broker.run_once(0)
        for _ in range(int(self._random.random() * 3)):
            self.worker.advance()
        self._check_quotas(broker)
        self._check_security(broker)
        if broker.housekeeping._damaged:
            raise Violation("lost: a stored batch can't be read and moved")
        self._schedule(self._world.now_ms + max(1, broker.wait_ms()))

    def _guarded(self, action: Callable[[], None]) -> None:
        """Run an action of the broker that may end its process."""
        try:
            action()
        except SimCrash:
            self._die(f"{self._crash_kind} at a disk operation")
        except errors.JournalCorrupt as error:
            raise Violation(f"lost: {error}") from error
        except errors.JournalFailed as error:
            if not self.disk.faults["sync failed"] and not self.disk.faults["write failed"]:
                raise Violation(f"the journal failed without a reason: {error}") from error
            self._die("kill after a failed sync or write")
        except ApplyFailed as error:
            raise Violation(f"an event could not be applied: {error}") from error

    # Crashes.

    def _choose_kind(self) -> str:
        return "power loss" if self._random.random() < self._world.faults.power_loss else "kill"

    def inject_crash(self) -> None:
        """End the process in a random way, now or at one of its next disk operations."""
        if self.broker is None:
            return
        faults = self._world.faults
        chance = self._random.random()
        self._crash_kind = self._choose_kind()
        if chance < faults.clean_stop:
            self._guarded(self._stop)
        elif chance < faults.clean_stop + faults.failed_sync:
            self.disk.fail_sync(1 + int(self._random.random() * 4))
        elif chance < faults.clean_stop + faults.failed_sync + 0.2:
            self._die(self._crash_kind)
        else:
            self._aim_at(RUNNING, 0.5)

    def _aim_at(self, labels: tuple[str, ...], anywhere: float) -> None:
        """Crash at a sync with one of these labels or, with probability `anywhere`, at any operation."""
        random = self._random.random
        if random() < anywhere:
            self.disk.crash_after(int(random() ** 2 * 12))
        else:
            how = ("before", "after", "failing")[int(random() ** (2 if labels is RECOVERING else 1) * 2.3)]
            self.disk.aim(labels[int(random() * len(labels))], how)

    def _stop(self) -> None:
        assert self.broker is not None
        self.broker.stop()
        self._die("clean stop")

    def _die(self, how: str) -> None:
        world = self._world
        world.tally["broker: " + how.split(" after ")[0].split(" at the start")[0]] += 1
        world.tally["crashes"] += how != "clean stop"
        world.note(f"BROKER ends: {how}")
        self.count()
        if self.broker is not None:
            # A failed start has not restarted any leases.
            self._died_ms = world.now_ms
        world.set_available(False)
        self.broker = None
        self._round_ms = 0
        self._rounds += 1
        self._network.reset(is_silent=how.startswith("power loss"))
        self.worker = StepWorker()
        if how.startswith("power loss"):
            self.disk.power_loss()
            self._lose_a_segment()
        else:
            self.disk.kill()
        if not self._restarting:
            self._restarting = True
            world.after(10 + int(self._random.random() ** 3 * 250), self.start)

    def _lose_a_segment(self) -> None:
        if self.disk.faults["power loss"] % 3 == 0:
            if not is_loss_detected(self.disk, self.synced_segment):
                raise Violation(f"lost: segment {self.synced_segment} was removed, and recovery did not detect it")
            self._world.tally["disk: segment taken away for a start"] += 1
            wrong = wrong_check(self.disk, self.disk.faults["power loss"] // 3)
            if wrong:
                raise Violation(wrong)

    def reload_users(self) -> None:
        if self.broker is not None and self.broker.security is not None:
            self.broker.security.reload()

    def count(self) -> None:
        """Add the counters of the process that ends."""
        self.count_broker(self.broker)

    def count_faults(self) -> None:
        for kind, count in self.disk.faults.items():
            self._world.tally["disk: " + kind] += count
        for label, count in self.disk.labels.items():
            self._world.tally["sync: " + label] += count

    def heal(self) -> None:
        self._has_room()
        self.disk.fail_sync(0)
        self.disk.crash_after(-1)
        self.disk.aim("", "")

    # Space.

    def fill_disk(self, duration_ms: int) -> None:
        """Fill the disk for a while."""
        room = int(self._random.random() * 2 * self._world.faults.segment_bytes)
        self.disk.capacity_bytes = self.disk.used_bytes + room
        self._is_full = True
        self._world.set_available(False)
        self._world.tally["disk: full for a while"] += 1
        self._world.note("DISK full")
        self._world.after(duration_ms, self._empty_disk)

    def _empty_disk(self) -> None:
        self._world.note("DISK has free space again")
        self._has_room()

    def _has_room(self) -> None:
        self.disk.capacity_bytes = ROOMY_BYTES
        self._is_full = False
        self._world.set_available(self.broker is not None)
