"""Builds a Spark session for OnceMQ: finds a Java runtime, limits the log, and leaves SIGINT to the caller.

On a cluster (`spark://…`) every worker needs the same packages as the driver: run `pip install "oncemq[spark]"` there
too, for the same Python path or for the one that PYSPARK_PYTHON names. `--py-files` is not enough, because OnceMQ
depends on packages with compiled parts.
"""

from __future__ import annotations

import importlib.util
import os
import re
import signal
import sys
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from oncemq.config.sources import TRACEBACK_VARIABLE
from oncemq.protocol import errors
from oncemq.spark import java, jvm, startup

if TYPE_CHECKING:
    from pyspark import SparkContext
    from pyspark.sql import SparkSession

_MEMORY_MIB_MIN = 1024
_MEMORY_MIB_MAX = 4096
_JAVA_OPTIONS = "spark.driver.extraJavaOptions"
#: spark-submit sets it for the program that it runs.
_GATEWAY = "PYSPARK_GATEWAY_PORT"

#: Settings that make sense on any master.
_COMMON = {
    "spark.sql.execution.arrow.pyspark.enabled": "true",
    "spark.sql.session.timeZone": "UTC",
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    # With a smaller limit, Spark warns about truncated plans, which nothing prints.
    "spark.sql.debug.maxToStringFields": "1000",
}
_JAVA_SESSION = "org.apache.spark.sql.classic.SparkSession"

#: What is logged of a message and its exception: everything, or all but the frames of Java's stack, which are usually
#: more than a hundred lines.
_WHOLE = "%m%n%ex"
_WITHOUT_FRAMES = r"%replace{%m%n%ex}{\\n\\s+(at |\\.\\.\\. )[^\\n]*}{}"
#: Logs warnings and errors to standard error, without those that every start, query or stop causes.
_LOG4J = """\
rootLogger.level = warn
rootLogger.appenderRef.stderr.ref = stderr
appender.stderr.type = Console
appender.stderr.name = stderr
appender.stderr.target = SYSTEM_ERR
appender.stderr.layout.type = PatternLayout
appender.stderr.layout.pattern = %d{yyyy-MM-dd HH:mm:ss} %p %c{1}: @TEXT@
appender.stderr.filter.routine.type = RegexFilter
appender.stderr.filter.routine.regex = .*(AQE is not supported|Failed to cancel job group).*
appender.stderr.filter.routine.onMatch = DENY
appender.stderr.filter.routine.onMismatch = NEUTRAL
"""
#: Loggers whose warnings are routine: only their errors are logged.
_ERRORS_ONLY = (
    "org.apache.hadoop.util.NativeCodeLoader",
    "org.apache.hadoop.util.Shell",
    "org.apache.spark.sql.catalyst.analysis.ResolveWriteToStream",
    "org.apache.spark.sql.execution.streaming.runtime.ResolveWriteToStream",
    "org.apache.spark.util.Utils",
)

#: The number of runs in each session that was built for them, by its context.
_runs: dict[SparkContext, int] = {}
_runs_lock = threading.Lock()


def build(name: str, *, master: str = "local[*]", conf: Mapping[str, object] | None = None) -> SparkSession:
    """Return a new session, or the existing session of this process on the same master.

    `conf` overrides the settings that are made here. The first session of a process starts its JVM, so it determines
    the Java runtime and the memory for all later ones. Ctrl-C does not reach the JVM or Spark's Python workers and
    stops no job; call `stop()` for that. PySpark's own SIGINT handler, which cancels all jobs, is not installed.

    In a program that spark-submit runs, the master, the Java runtime and the settings are those of spark-submit.

    Raises MissingExtra, and SettingInvalid if this process has a session on another master."""
    if importlib.util.find_spec("pyspark") is None:
        raise errors.MissingExtra('pyspark is not installed: pip install "oncemq[spark]"')
    if is_submitted():
        return _build_submitted(name, conf or {})
    is_local = master.startswith("local")
    runtime = java.find_runtime()
    os.environ["JAVA_HOME"] = java.home_for_spark(runtime)
    _set_python(is_local=is_local)
    settings = _defaults(master, is_local=is_local) | {key: _text(value) for key, value in (conf or {}).items()}
    _set_logging(settings)
    if is_local:
        archive = startup.class_archive_options(runtime.home, settings.get(_JAVA_OPTIONS, ""))
        settings[_JAVA_OPTIONS] = f"{archive} {settings.get(_JAVA_OPTIONS, '')}".strip()
    from pyspark.sql import SparkSession

    builder = SparkSession.builder.appName(name).master(master).config(map=dict(settings))
    with _preserve_sigint_handler():
        spark = builder.getOrCreate()
    other = spark.sparkContext.master
    if other != master:
        raise errors.SettingInvalid(
            f"this process already has a Spark session on '{other}': stop it before you start one on '{master}'"
        )
    return spark


def is_submitted() -> bool:
    """Whether spark-submit runs this program: then Spark's settings and class path are those of spark-submit."""
    return _GATEWAY in os.environ


def session_setting(key: str) -> str:
    """A setting of the session of this process; "" = it is not set, or there is no session."""
    context = _context()
    return str(context.getConf().get(key) or "") if context is not None else ""


def _context() -> SparkContext | None:
    """The context of this process's session. Does not import Spark."""
    module = sys.modules.get("pyspark")
    return module.SparkContext._active_spark_context if module is not None else None


def _build_submitted(name: str, conf: Mapping[str, object]) -> SparkSession:
    """The session of a program that spark-submit runs. Its JVM is running; its master and settings take precedence."""
    from pyspark import SparkConf, SparkContext
    from pyspark.sql import SparkSession

    with _preserve_sigint_handler():
        SparkContext._ensure_initialized()
        given = dict(SparkConf().getAll())
        settings: dict[str, Any] = {key: value for key, value in _COMMON.items() if key not in given}
        settings |= {key: _text(value) for key, value in conf.items()}
        return SparkSession.builder.appName(given.get("spark.app.name", name)).config(map=settings).getOrCreate()


def _set_python(*, is_local: bool) -> None:
    """Make workers run the Python of this process. On a cluster, PYSPARK_PYTHON may name another path."""
    # Java starts the processes that look data sources up with the Python of the driver.
    os.environ["PYSPARK_DRIVER_PYTHON"] = startup.worker_python() if is_local else sys.executable
    if is_local or not os.environ.get("PYSPARK_PYTHON"):
        os.environ["PYSPARK_PYTHON"] = os.environ["PYSPARK_DRIVER_PYTHON"]


def _defaults(master: str, *, is_local: bool) -> dict[str, str]:
    settings = dict(_COMMON)
    if is_local:
        settings |= {
            # Only this machine connects to the driver.
            "spark.driver.bindAddress": "127.0.0.1",
            "spark.driver.host": "127.0.0.1",
            "spark.driver.memory": f"{_memory_mib()}m",
            "spark.sql.shuffle.partitions": str(_core_count(master)),
        }
    return settings


def _core_count(master: str) -> int:
    """The number of cores that a local master uses: `local`, `local[4]`, `local[*]`, `local[4,2]`."""
    named = re.fullmatch(r"local(?:\[\s*(\d+|\*)\s*(?:,\s*\d+\s*)?\])?", master)
    if named is not None and named[1] != "*":
        return int(named[1] or 1)
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _memory_mib() -> int:
    """A quarter of the machine's memory, within bounds: the Python workers need memory too."""
    try:
        machine_mib = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") >> 20
    except (AttributeError, ValueError, OSError):
        return _MEMORY_MIB_MIN
    return min(max(machine_mib // 4, _MEMORY_MIB_MIN), _MEMORY_MIB_MAX)


def _set_logging(settings: dict[str, str]) -> None:
    """Configure Spark's log, unless the user has configured it."""
    options = settings.get(_JAVA_OPTIONS, "")
    folder = os.environ.get("SPARK_CONF_DIR")
    if "log4j" in options or (folder and os.path.exists(os.path.join(folder, "log4j2.properties"))):
        return
    lines = [
        f"logger.{number}.name = {name}\nlogger.{number}.level = error\n" for number, name in enumerate(_ERRORS_ONLY)
    ]
    text = _WHOLE if os.environ.get(TRACEBACK_VARIABLE) else _WITHOUT_FRAMES
    name = "log4j2-whole.properties" if text is _WHOLE else "log4j2.properties"
    path = java.write_once(java.cache_folder() / "spark" / name, _LOG4J.replace("@TEXT@", text) + "".join(lines))
    settings[_JAVA_OPTIONS] = f"-Dlog4j2.configurationFile={path.as_uri()} {options}".strip()


def _text(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


@contextmanager
def _preserve_sigint_handler() -> Iterator[None]:
    """Restore the SIGINT handler at the end. PySpark replaces it if it is called in the main thread."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.getsignal(signal.SIGINT)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


def activate(spark: SparkSession) -> None:
    """Make this the session of the calling thread. Without it, `writeStream.format("oncemq")` fails in all threads but
    the one that built the session: Spark looks for the data sources of Python in the session of the thread."""
    java_session = getattr(spark, "_jsparkSession", None)
    if java_session is not None and spark._jvm is not None:
        getattr(spark._jvm, _JAVA_SESSION).setActiveSession(java_session)


@contextmanager
def session_for(
    session: SparkSession | None, name: str, master: str, conf: Mapping[str, object] | None
) -> Iterator[SparkSession]:
    """The given session; without one, that of the process. If there is none, one is built, and stopped when the last
    run in it has ended. Others may run in it at the same time, in other threads."""
    if session is not None:
        yield session
        return
    built = _begin_run(name, master, conf)
    try:
        with jvm.explained():
            yield built
    finally:
        _end_run(built)


def _begin_run(name: str, master: str, conf: Mapping[str, object] | None) -> SparkSession:
    with _runs_lock:
        has_session = _context() is not None
        built = build(name, master=master, conf=conf)
        context = built.sparkContext
        if not has_session or context in _runs:
            _runs[context] = _runs.get(context, 0) + 1
        return built


def _end_run(built: SparkSession) -> None:
    with _runs_lock:
        context = built.sparkContext
        if context not in _runs:
            # The session was there before its runs.
            return
        _runs[context] -= 1
        if not _runs[context]:
            del _runs[context]
            stop(built)


def stop(spark: SparkSession) -> None:
    """Stop a session, even if its Java process has ended."""
    if jvm.exit_code() is None:
        spark.stop()
    else:
        jvm.forget()
