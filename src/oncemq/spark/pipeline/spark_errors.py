"""Converts an error of Spark, which is a Java stack trace of a hundred lines, to one sentence with advice.

The original error becomes the cause of the exception. ONCEMQ_TRACEBACK=1 shows it.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from oncemq.protocol import errors

if TYPE_CHECKING:
    from pyspark.errors import PySparkException

#: Converts an offset in the pipeline's SQL to its position, `FILE:LINE:COLUMN: `.
SqlLocator = Callable[[int], str]

_OURS = re.compile(r"\boncemq\.(?:\w+\.)*(\w+): ([^\n]+)")
_CONDITION = re.compile(r"\[([A-Z][A-Z0-9_.]+)\] ([^\n]*(?:\n(?!\s+at |Caused by|==|\n)[^\n]*)*)")
_RAISED = re.compile(r"\[USER_RAISED_EXCEPTION\] ([^\n]+?)(?: SQLSTATE: \w+)*(?:\n|$)")
#: The last line of a Python traceback.
_PYTHON = re.compile(r"^((?:\w+\.)*\w*(?:Error|Exception|Exit|Interrupt)\b[^\n]*)$", re.MULTILINE)
_STATE = re.compile(r"\s*SQLSTATE: \w+.*", re.DOTALL)
_LINE_AND_POSITION = re.compile(r"\(line (\d+), pos(?:ition)? (\d+)\)")
#: These conditions only say that something inside them failed.
_WRAPPERS = {
    "STREAM_FAILED",
    "TASK_WRITE_FAILED",
    "FAILED_EXECUTE_UDF",
    "WRITING_JOB_FAILED",
    "PYTHON_DATA_SOURCE_ERROR",
    "PYTHON_STREAMING_DATA_SOURCE_RUNTIME_ERROR",
    "CANNOT_LOAD_STATE_STORE",
    "INTERNAL_ERROR",
}
_ADVICE = {
    "UNRESOLVED_COLUMN": "compare the names with the schema; `columns` of the source adds columns of the message",
    "TABLE_OR_VIEW_NOT_FOUND": "the input is the view `messages`, or the views that `sources` and `tables` name",
    "PARSE_SYNTAX_ERROR": "correct the SQL at that position",
    "STREAMING_OUTPUT_MODE": "give the pipeline a `watermark`, and group by a window of its column",
    "UNSUPPORTED_STREAMING_OPERATION": "give the pipeline a `watermark`, and group by a window of its column",
    "DATATYPE_MISMATCH": "cast the columns to matching types",
    "UNRESOLVED_ROUTINE": "check the function's name",
    "CAST_INVALID_INPUT": "use try_cast for values that may be invalid",
    "DIVIDE_BY_ZERO": "use try_divide, or filter such rows out",
}
_VALUE_ADVICE = "`on_error: dead_letter` moves such messages to a dead-letter topic, `on_error: drop` drops them"
#: A query with dead letters reads its messages twice, so its checkpoint has each source twice.
_SOURCES = re.compile(r"There are \[(\d+)\] sources in the checkpoint offsets and now there are \[(\d+)\] sources")
_SOURCES_TEXT = (
    "the checkpoint was made for {} sources, and the pipeline now reads {}, because its sources or `on_error: "
    "dead_letter` changed, and Spark can't continue it: run the pipeline once more as it was, with `ack_last: true`, "
    "then delete the checkpoint; the subscription knows where to continue"
)
_NO_WATERMARK = "Append output mode not supported when there are streaming aggregations"


def explain(error: PySparkException, locate_sql: SqlLocator | None = None, sql: str = "") -> errors.OnceMQError:
    """Return an OnceMQError that explains the error in one sentence. The caller raises it from `error`."""
    whole = _full_text(error)
    # Before all others: it may contain the value of a message, which can have any text.
    raised = _RAISED.search(whole)
    if raised is not None:
        is_value = ": the value is not" in raised[1]
        advice = f"; {_VALUE_ADVICE}" if is_value else ""
        return errors.PipelineFailed(raised[1].strip() + advice)
    ours = _OURS.findall(whole)
    kind = getattr(errors, ours[-1][0], None) if ours else None
    if isinstance(kind, type) and issubclass(kind, errors.OnceMQError):
        return kind(ours[-1][1])
    sources = _SOURCES.search(whole)
    if sources is not None:
        return errors.PipelineInvalid(_SOURCES_TEXT.format(*sources.groups()))
    return _explain_condition(error, whole, locate_sql, sql)


def _explain_condition(
    error: PySparkException, whole: str, locate_sql: SqlLocator | None, sql: str
) -> errors.OnceMQError:
    from pyspark.errors import AnalysisException

    is_invalid = isinstance(error, AnalysisException)
    condition, text = _reason(whole)
    where = _location(error, whole, locate_sql, sql) if is_invalid else ""
    advice = next((advice for begin, advice in _ADVICE.items() if condition.startswith(begin)), "")
    if _NO_WATERMARK in text:
        advice = _ADVICE["STREAMING_OUTPUT_MODE"]
    kind = errors.PipelineInvalid if is_invalid else errors.PipelineFailed
    return kind(f"{where}{text.rstrip('.;')}" + (f"; {advice}" if advice else ""))


def _full_text(error: PySparkException) -> str:
    """Spark's description, then the stack trace."""
    described = getattr(error, "_desc", None) or str(error)
    return f"{described}\n{getattr(error, '_stackTrace', None) or ''}"


def _reason(whole: str) -> tuple[str, str]:
    """The innermost error condition of Spark ("" = none), and its sentence or the last line of a Python traceback."""
    python = _PYTHON.findall(whole)
    if "Traceback (most recent call last)" in whole and python:
        return "", _sentence(python[-1])
    found = [(name, text) for name, text in _CONDITION.findall(whole) if name.partition(".")[0] not in _WRAPPERS]
    if found:
        name, text = found[-1]
        return name, _sentence(text)
    causes = re.findall(r"^Caused by: (.+)$", whole, re.MULTILINE)
    return "", _sentence(causes[-1] if causes else whole.strip().split("\n")[0])


def _sentence(text: str) -> str:
    text = _LINE_AND_POSITION.sub("", _STATE.sub("", text))
    text = " ".join(text.split())
    return text if len(text) <= 500 else text[:497] + "…"


def _location(error: Any, whole: str, locate_sql: SqlLocator | None, sql: str) -> str:
    if locate_sql is None or not sql:
        return ""
    offset = _context_offset(error)
    if offset is None:
        match = _LINE_AND_POSITION.search(whole)
        if match is None:
            return ""
        offset = sum(len(line) + 1 for line in sql.split("\n")[: int(match[1]) - 1]) + int(match[2])
    return locate_sql(offset)


def _context_offset(error: Any) -> int | None:
    contexts = error.getQueryContext() or []
    for context in contexts:
        if context.contextType().name == "SQL" and context.startIndex() >= 0:
            return int(context.startIndex())
    return None
