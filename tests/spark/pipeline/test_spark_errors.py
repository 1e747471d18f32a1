"""What Spark says at length is told in a sentence. No JVM here: its words are written down."""

from __future__ import annotations

import pytest
from pyspark.errors import AnalysisException, PySparkException, StreamingQueryException

from oncemq.protocol import errors
from oncemq.spark.pipeline.spark_errors import explain

TRACE = """
	at org.apache.spark.sql.execution.streaming.runtime.StreamExecution.runStream(StreamExecution.scala:394)
Caused by: java.lang.RuntimeException: """


def failed(text: str, kind: type[PySparkException] = StreamingQueryException) -> PySparkException:
    whole = f"[STREAM_FAILED] Query [id = d8, runId = 57] terminated with exception: {text} SQLSTATE: XXKST"
    return kind(f"{whole}\n=== Streaming Query ===\nIdentifier: totals [id = d8]\n{TRACE}{text}")


SAID = {
    "a value that is malformed": (
        "[USER_RAISED_EXCEPTION] topic 't', offset 5: the value is not JSON of the schema: x SQLSTATE: P0001",
        errors.PipelineFailed,
        "topic 't', offset 5: the value is not JSON of the schema: x; `on_error: dead_letter` moves such "
        "messages to a dead-letter topic, `on_error: drop` drops them",
    ),
    "a value that looks like an error of ours": (
        "[USER_RAISED_EXCEPTION] topic 't', offset 5: the value is not JSON of the schema: it is no JSON object: "
        "oncemq.protocol.errors.client.BrokerAway: x SQLSTATE: P0001",
        errors.PipelineFailed,
        "topic 't', offset 5: the value is not JSON of the schema: it is no JSON object: "
        "oncemq.protocol.errors.client.BrokerAway: x; `on_error: dead_letter` moves such messages to a dead-letter "
        "topic, `on_error: drop` drops them",
    ),
    "what a query raises itself": (
        "[USER_RAISED_EXCEPTION] too many orders SQLSTATE: P0001",
        errors.PipelineFailed,
        "too many orders",
    ),
    "an error of ours": (
        "[PYTHON_EXCEPTION] An exception was thrown from the Python worker: Traceback (most recent call last):\n"
        '  File "sink.py", line 103, in write\n'
        "oncemq.protocol.errors.broker.TopicUnknown: there is no topic 'nowhere'\n",
        errors.TopicUnknown,
        "there is no topic 'nowhere'",
    ),
    "an error of Python": (
        "[PYTHON_EXCEPTION] An exception was thrown from the Python worker: Traceback (most recent call last):\n"
        '  File "cleaning.py", line 3, in clean\n'
        "ZeroDivisionError: division by zero\n",
        errors.PipelineFailed,
        "ZeroDivisionError: division by zero",
    ),
    "an error of Spark": (
        "[DIVIDE_BY_ZERO] Division by zero. Use `try_divide` to tolerate it. SQLSTATE: 22012",
        errors.PipelineFailed,
        "Division by zero. Use `try_divide` to tolerate it; use try_divide, or filter such rows out",
    ),
    "an error of Java": ("java.io.IOException: No space left on device", errors.PipelineFailed, None),
}


@pytest.mark.parametrize("name", list(SAID))
def test_a_failure_is_a_sentence(name: str) -> None:
    text, kind, sentence = SAID[name]
    error = explain(failed(text))
    assert type(error) is kind
    if sentence is None:
        assert error.text.endswith("java.io.IOException: No space left on device")
    else:
        assert error.text == sentence
    assert "\n" not in error.text


def test_an_aggregate_without_a_watermark_is_told_what_it_needs() -> None:
    text = (
        "[STREAMING_OUTPUT_MODE.UNSUPPORTED_OPERATION] Invalid streaming output mode: append. This output mode is not "
        "supported for streaming aggregations without watermark on streaming DataFrames/DataSets. SQLSTATE: 42KDE"
    )
    error = explain(AnalysisException(text))
    assert type(error) is errors.PipelineInvalid
    assert error.text.endswith("; give the pipeline a `watermark`, and group by a window of its column")
    assert "SQLSTATE" not in error.text
