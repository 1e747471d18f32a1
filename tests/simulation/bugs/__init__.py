"""Planted bugs, by layer. Importing this package registers all of them."""

from tests.simulation.bugs import (  # noqa: F401
    client,
    deadlines,
    engine,
    leases,
    messages,
    outbox,
    rounds,
    schemas,
    security,
    stages,
    standby,
    storage,
    streams,
)
from tests.simulation.bugs.registry import BUGS as BUGS
from tests.simulation.bugs.registry import SYNC_LABELS as SYNC_LABELS
from tests.simulation.bugs.registry import Bug as Bug
