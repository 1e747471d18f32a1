"""Planted bugs, by layer. Importing this package registers all of them."""

from tests.simulation.bugs import client, engine, leases, messages, outbox, rounds, stages, standby, storage  # noqa: F401
from tests.simulation.bugs.registry import BUGS as BUGS
from tests.simulation.bugs.registry import SYNC_LABELS as SYNC_LABELS
from tests.simulation.bugs.registry import Bug as Bug
