"""Planted bugs in the schemas of topics."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from oncemq.engine.decide import stages
from oncemq.engine.snapshot import capture
from oncemq.engine.state.state import State
from tests.simulation.bugs.registry import Patch, bug


@bug("a batch that names no version of the schema is accepted")
def unchecked_messages_are_accepted() -> Sequence[Patch]:
    return [(stages, "refuse_unchecked", lambda *_: None)]


@bug("a snapshot has no schemas: their version numbers are assigned again")
def schemas_are_missing_in_snapshots() -> Sequence[Patch]:
    real: Any = capture._restore_topic_extras

    def restore(state: State, topic: Any, image: capture.TopicImage) -> None:
        real(state, topic, image)
        topic.schema = None

    return [(capture, "_restore_topic_extras", restore)]
