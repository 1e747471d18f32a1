"""What Spark says when something fails, a trace of Java of a hundred lines, as one sentence with what to do.

The whole of it stays the cause of the exception: ONCEMQ_TRACEBACK=1 shows it.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from oncemq.protocol import errors

if TYPE_CHECKING:
    from pyspark.errors import PySparkException

#: An offset in the pipeline's SQL → where that stands, as `FILE:LINE:COLUMN: `.
Place = Callable[[int], str]

_OURS = re.compile(r"\boncemq\.(?:\w+\.)*(\w+): ([^\n]+)")
_CONDITION = re.compile(r"\[([A-Z][A-Z0-9_.]+)\] ([^\n]*(?:\n(?!\s+at |Caused by|==|\n)[^\n]*)*)")
_RAISED = re.compile(r"\[USER_RAISED_EXCEPTION\] ([^\n]+?)(?: SQLSTATE: \w+)*(?:\n|$)")
#: The last line of a trace of Python.
_PYTHON = re.compile(r"^((?:\w+\.)*\w*(?:Error|Exception|Exit|Interrupt)\b[^\n]*)$", re.MULTILINE)
_STATE = re.compile(r"\s*SQLSTATE: \w+.*", re.DOTALL)
_LINE_AND_POSITION = re.compile(r"\(line (\d+), pos(?:ition)? (\d+)\)")
#: They say that something failed within, and not what.
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
    "UNRESOLVED_COLUMN": "compare the names with the schema; `columns` of the source adds those of the message",
    "TABLE_OR_VIEW_NOT_FOUND": "the input is the view `messages`",
    "PARSE_SYNTAX_ERROR": "correct the SQL at that place",
    "STREAMING_OUTPUT_MODE": "give the pipeline a `watermark`, and group by a window of its column",
    "UNSUPPORTED_STREAMING_OPERATION": "give the pipeline a `watermark`, and group by a window of its column",
    "DATATYPE_MISMATCH": "cast the columns that don't fit",
    "UNRESOLVED_ROUTINE": "check the function's name",
    "CAST_INVALID_INPUT": "use try_cast where a value may not fit",
    "DIVIDE_BY_ZERO": "use try_divide, or leave such rows out",
}
_NO_WATERMARK = "Append output mode not supported when there are streaming aggregations"


def explained(error: PySparkException, place: Place | None = None, sql: str = "") -> errors.OnceMQError:
    """An error of ours that says it in a sentence; `error` should become its cause."""
    whole = _whole(error)
    ours = _OURS.findall(whole)
    kind = getattr(errors, ours[-1][0], None) if ours else None
    if isinstance(kind, type) and issubclass(kind, errors.OnceMQError):
        return kind(ours[-1][1])
    raised = _RAISED.search(whole)
    if raised is not None:
        is_value = ": the value is not" in raised[1]
        advice = "; `malformed: drop` leaves such values out, `keep` keeps them as rows of nulls" if is_value else ""
        return errors.PipelineFailed(raised[1].strip() + advice)
    return _of_spark(error, whole, place, sql)


def _of_spark(error: PySparkException, whole: str, place: Place | None, sql: str) -> errors.OnceMQError:
    from pyspark.errors import AnalysisException

    is_declared_wrong = isinstance(error, AnalysisException)
    condition, text = _reason(whole)
    where = _where(error, whole, place, sql) if is_declared_wrong else ""
    advice = next((advice for begin, advice in _ADVICE.items() if condition.startswith(begin)), "")
    if _NO_WATERMARK in text:
        advice = _ADVICE["STREAMING_OUTPUT_MODE"]
    kind = errors.PipelineInvalid if is_declared_wrong else errors.PipelineFailed
    return kind(f"{where}{text.rstrip('.;')}" + (f"; {advice}" if advice else ""))


def _whole(error: PySparkException) -> str:
    """All that is known, once: what Spark says, then the trace."""
    described = getattr(error, "_desc", None) or str(error)
    return f"{described}\n{getattr(error, '_stackTrace', None) or ''}"


def _reason(whole: str) -> tuple[str, str]:
    """The innermost condition of Spark, or the last line of a trace of Python, and its sentence."""
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


def _where(error: Any, whole: str, place: Place | None, sql: str) -> str:
    if place is None or not sql:
        return ""
    offset = _offset_by_context(error)
    if offset is None:
        match = _LINE_AND_POSITION.search(whole)
        if match is None:
            return ""
        offset = sum(len(line) + 1 for line in sql.split("\n")[: int(match[1]) - 1]) + int(match[2])
    return place(offset)


def _offset_by_context(error: Any) -> int | None:
    contexts = error.getQueryContext() or []
    for context in contexts:
        if context.contextType().name == "SQL" and context.startIndex() >= 0:
            return int(context.startIndex())
    return None
