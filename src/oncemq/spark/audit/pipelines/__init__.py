"""The audit of pipelines: compares what a checkpoint covers with what the target contains. See docs/audit.md.

checkpoint   which offsets each micro-batch covered, and which micro-batches are complete
shape        how rows relate to messages: one each, at most one, several, or rows of several messages
identity     the columns that say from which message a row comes
targets      what a target contains; readers/ reads each kind
comparison   rows against offsets, with Spark
batches      micro-batches of the target against those of the checkpoint
positions    the subscription against the checkpoint
auditor      does all of that for one pipeline
report       the report
"""

from __future__ import annotations

from oncemq.spark.audit.pipelines.auditor import audit_pipelines as audit_pipelines
from oncemq.spark.audit.pipelines.identity import Identity as Identity
from oncemq.spark.audit.pipelines.report import PipelineReport as PipelineReport

__all__ = ["Identity", "PipelineReport", "audit_pipelines"]
