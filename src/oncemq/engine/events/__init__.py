"""The events that the engine records. An event contains its outcome, so that `apply` decides nothing.

The events of a group have the time of the group. A `Claim` names the session number or key that an event answers. The
verdict that the client gets, also for a retry, is built from the event alone (verdicts.py).
"""

from __future__ import annotations

import msgspec

from oncemq.engine.events.claims import *  # noqa: F403
from oncemq.engine.events.claims import AnyClaim
from oncemq.engine.events.sessions import *  # noqa: F403
from oncemq.engine.events.sessions import SessionEvent
from oncemq.engine.events.shared import *  # noqa: F403
from oncemq.engine.events.shared import Settled, SharedEvent
from oncemq.engine.events.stages import *  # noqa: F403
from oncemq.engine.events.stages import StageEvent
from oncemq.engine.events.subscriptions import *  # noqa: F403
from oncemq.engine.events.subscriptions import Acked, SubscriptionEvent
from oncemq.engine.events.topics import *  # noqa: F403
from oncemq.engine.events.topics import Delayed, Stored, TopicEvent


class Transacted(msgspec.Struct, array_like=True, frozen=True, tag="tx"):
    """A transaction: all parts are applied, or none."""

    claim: AnyClaim
    parts: tuple[Acked | Settled | Stored | Delayed, ...]


Event = SessionEvent | TopicEvent | SubscriptionEvent | SharedEvent | StageEvent | Transacted
