"""The report of an audit of pipelines, as data and as text. Does not import Spark."""

from __future__ import annotations

import msgspec

from oncemq.terminal import count_of

#: The faults of a pipeline, as text. The first three count rows, the others count micro-batches, topics or entries.
_FAULTS = {
    "lost": "lost",
    "duplicated": "duplicated",
    "unexpected": "unexpected",
    "missing_batch": "micro-batches missing in the target",
    "wrong_count": "micro-batches with another number of rows",
    "changed_batch": "micro-batches with other content in the target",
    "extra_batch": "micro-batches in the target and not in the checkpoint",
    "missing_file": "files missing in the target",
    "checkpoint_gap": "entries missing in the checkpoint",
    "checkpoint_overlap": "entries of the checkpoint that overlap",
    "checkpoint_unreadable": "unreadable entries of the checkpoint",
    "acked_ahead": "subscriptions acked beyond the checkpoint",
    "topic_changed": "topics deleted, created again or restored from an older copy",
}
#: What the rows were compared by, as text.
BY_OFFSET = "by offset"
BY_BATCH = "by number of rows in each micro-batch"
BY_TOTAL = "by number of rows"
NOT_JUDGED = ""


class PipelineFinding(msgspec.Struct, frozen=True, kw_only=True):
    """One fault. Fields that it does not have are -1 or empty."""

    kind: str
    pipeline: str
    topic: str = ""
    offset: int = -1
    batch: int = -1
    detail: str = ""


class PipelineResult(msgspec.Struct, frozen=True, kw_only=True):
    """What one pipeline wrote to its target."""

    pipeline: str
    target: str
    query_id: str
    #: The micro-batches in the checkpoint: the first that is kept, the last one, and the last that is complete.
    first_batch: int
    last_planned: int
    last_committed: int
    #: The messages of the complete micro-batches, as far as the checkpoint keeps them.
    messages: int
    #: The rows of the pipeline in its target; None if they are not counted.
    rows: int | None
    #: `each`: a row for each message. `some`: at most one. `several`: any number. `other`: rows of several messages.
    shape: str
    #: One of the constants above.
    judged_by: str
    #: `lost`, `duplicated`: such rows could not be found, or not all of them, although others were judged.
    unjudged: tuple[str, ...] = ()
    #: Why nothing or not everything could be judged, and what is not a fault.
    remarks: tuple[str, ...] = ()
    counts: dict[str, int] = {}

    @property
    def faults(self) -> dict[str, int]:
        return {name: count for name in _FAULTS if (count := self.counts.get(name))}

    @property
    def summary(self) -> str:
        faults = [f"{count:,} {_FAULTS[name].upper()}" for name, count in self.faults.items()]
        rows = [] if self.rows is None else [count_of(self.rows, "row")]
        messages = f"{count_of(self.messages, 'message')} in complete micro-batches"
        parts = [messages, *rows, *faults, *self._verdict()]
        text = f"{self.pipeline} → {self.target}: " + ", ".join(parts)
        return f"{text} ({'; '.join(self.remarks)})" if self.remarks else text

    def _verdict(self) -> list[str]:
        if self.judged_by == NOT_JUDGED:
            return ["rows not judged"]
        if self.faults:
            return [f"compared {self.judged_by}"]
        return [f"{self._how_often}, {self.judged_by}"]

    @property
    def _how_often(self) -> str:
        if self.shape == "several":
            return "no unexpected ones" if self.unjudged else "as many of each message as the transform makes"
        return "each at most once" if self.shape == "some" or self.unjudged else "each once"


class PipelineReport(msgspec.Struct, frozen=True, kw_only=True):
    pipelines: list[PipelineResult]
    #: At most the limit of each kind. The counts are exact.
    findings: list[PipelineFinding]

    @property
    def is_good(self) -> bool:
        """There are no faults. The rows of some pipelines may not have been judged."""
        return not any(each.faults for each in self.pipelines)

    @property
    def is_proved(self) -> bool:
        """There are no faults, and the rows of all pipelines were judged, as far as their checkpoints reach."""
        return self.is_good and not self._not_judged and not self._partly_judged

    @property
    def _not_judged(self) -> list[str]:
        return [each.pipeline for each in self.pipelines if each.judged_by == NOT_JUDGED]

    @property
    def _partly_judged(self) -> list[str]:
        return [each.pipeline for each in self.pipelines if each.judged_by != NOT_JUDGED and each.unjudged]

    @property
    def verdict(self) -> str:
        if not self.is_good:
            return "NOT PROVED."
        if not self.is_proved:
            sentences = ["No fault was found."]
            if self._not_judged:
                sentences.append(f"The rows of {', '.join(self._not_judged)} could not be judged.")
            if self._partly_judged:
                sentences.append(f"Not all rows of {', '.join(self._partly_judged)} could be judged.")
            return " ".join(sentences)
        if any(each.first_batch > 0 for each in self.pipelines):
            return "Nothing was lost or duplicated in the micro-batches that the checkpoints still have."
        return "Nothing was lost or duplicated."
