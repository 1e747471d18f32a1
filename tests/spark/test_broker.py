"""How Spark reaches a broker: by address or context, without a secret in plans, tasks, checkpoints or progress."""

from __future__ import annotations

import os
import pickle
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from oncemq.client.sync import Client
from oncemq.config import contexts, endpoints
from oncemq.protocol.errors import SettingInvalid
from oncemq.spark import connections
from oncemq.spark.broker import Broker, broker_of, find_broker
from oncemq.spark.lake.archiver import archive
from oncemq.spark.lake.restorer import restore
from oncemq.spark.options import sink_options, source_options
from oncemq.spark.pipeline.model import Pipeline, Source, Value
from oncemq.spark.pipeline.runner import run
from oncemq.spark.targets.declarations import TopicTarget
from oncemq.testing.broker_process import BrokerProcess
from tests.secured_folder import SecuredFolder

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

TOKEN = "omq_k3v9x2aa_" + "s" * 43
REMOTE = "oncemq://broker.example:5554"


@pytest.fixture
def file(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The contexts file of the tests, which Spark's workers find too: XDG_CONFIG_HOME was set before they started."""
    for name in ("ONCEMQ_URL", "ONCEMQ_CONTEXT", "ONCEMQ_CONTEXTS"):
        monkeypatch.delenv(name, raising=False)
    path = contexts.path_of()
    yield path
    path.unlink(missing_ok=True)


def store(file: Path, url: str, current: str = "", **settings: Any) -> None:
    """Store one context, `prod`."""
    contexts.change(file, lambda _: contexts.Contexts(current, {"prod": {"url": url, **settings}}))


def test_the_name_of_a_context_is_passed_on_instead_of_what_it_contains(
    file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store(file, REMOTE, token=TOKEN, tls=True)
    assert find_broker() == Broker(url="oncemq://127.0.0.1:5554")
    expected = Broker(context="prod")
    assert find_broker(context="prod") == find_broker(pipeline_context="prod") == expected
    monkeypatch.setenv("ONCEMQ_CONTEXT", "prod")
    assert find_broker() == expected
    monkeypatch.delenv("ONCEMQ_CONTEXT")
    store(file, REMOTE, "prod", token=TOKEN, tls=True)
    assert find_broker() == expected
    assert expected.options == {"context": "prod"}


def test_the_environment_is_stronger_than_the_context_of_a_pipeline(
    file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store(file, REMOTE)
    monkeypatch.setenv("ONCEMQ_URL", "oncemq://other:1")
    assert find_broker(pipeline_context="prod") == Broker(url="oncemq://other:1")
    assert find_broker(context="prod", pipeline_context="gone") == Broker(context="prod")


def test_names_of_files_are_passed_on_and_the_environment_is_not(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ONCEMQ_TOKEN", TOKEN)
    monkeypatch.setenv("ONCEMQ_TLS", "true")
    assert find_broker(url=REMOTE) == Broker(url=REMOTE)
    found = find_broker(url=REMOTE, token_file="a.token", tls="~/ca.pem")
    assert found == Broker(url=REMOTE, token_file=os.path.abspath("a.token"), tls="~/ca.pem")
    assert found.options == {"url": REMOTE, "tokenFile": found.token_file, "tls": "~/ca.pem"}
    assert find_broker(url=REMOTE, tls=True).tls == "true"


def test_credentials_that_workers_would_not_find_are_refused() -> None:
    for name in ("token", "curve_secret", "tls_certificate"):
        value = "s" * 40
        choice = endpoints.choose([endpoints.file("oncemq.toml: client.", {"url": REMOTE, name: value})])
        with pytest.raises(SettingInvalid, match=rf"oncemq.toml: client\.{name} is not passed to Spark's workers") as e:
            broker_of(choice)
        assert "sss" not in e.value.text


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"context": "gone"}, "no context 'gone'"),
        ({"context": "prod", "url": REMOTE}, "url and context are both given"),
        ({"token": TOKEN}, "'token' is not an option here: it would be part of the query's plan: use 'context'"),
        ({"curve_secret": TOKEN}, "ONCEMQ_CURVE_SECRET"),
        ({"curveSecret": TOKEN}, "ONCEMQ_CURVE_SECRET"),
        ({"token_file": "x"}, "use 'tokenFile'"),
        ({"tlsKey": "x"}, "put it into a context"),
    ],
)
def test_a_mistake_is_explained_without_secrets(file: Path, options: dict[str, str], text: str) -> None:
    store(file, REMOTE)
    for parse in (
        lambda: source_options({"topic": "a", **options}, is_stream=False),
        lambda: sink_options({"topic": "a", **options}, is_stream=True),
    ):
        with pytest.raises(SettingInvalid, match=text) as caught:
            parse()
        assert "sss" not in caught.value.text


def test_a_context_with_an_embedded_broker_is_refused(file: Path) -> None:
    store(file, "file:data")
    with pytest.raises(SettingInvalid, match="oncemq serve"):
        find_broker(context="prod")


def test_a_worker_without_the_context_says_so(file: Path) -> None:
    with pytest.raises(SettingInvalid, match="no context 'prod' in"):
        Broker(context="prod").connect()
    assert not file.exists()


def test_a_stream_with_a_context_has_no_secret_anywhere(
    spark: SparkSession, broker: BrokerProcess, client: Client, file: Path, tmp_path: Path
) -> None:
    store(file, broker.url, token=TOKEN)
    client.create_topic("copies", retain_ms=3_600_000)
    client.create_topic("orders", retain_ms=3_600_000)
    client.put_many("orders", [b"one", b"two"])
    stream = spark.readStream.format("oncemq").options(context="prod", topic="orders", subscription="s")
    rows = stream.option("startingOffsets", "earliest").load().select("value")
    sink = rows.writeStream.format("oncemq").options(context="prod", topic="copies")
    query = sink.option("checkpointLocation", str(tmp_path / "checkpoint")).trigger(availableNow=True).start()
    query.awaitTermination()
    batch = spark.read.format("oncemq").options(context="prod", topic="copies").load()
    assert [bytes(row.value) for row in batch.collect()] == [b"one", b"two"]

    plan = batch._jdf.queryExecution()
    texts = [plan.toString(), str(query.lastProgress), str(query.recentProgress), str(query.status)]
    assert not any(TOKEN in text for text in texts)
    written = [path for path in (tmp_path / "checkpoint").rglob("*") if path.is_file()]
    assert written
    assert not any(TOKEN.encode() in path.read_bytes() for path in written)
    options = source_options({"context": "prod", "topic": "orders"}, is_stream=False)
    assert TOKEN.encode() not in pickle.dumps(options)
    assert pickle.loads(pickle.dumps(options)) == options


def test_workers_reach_a_broker_with_users_over_tls(spark: SparkSession, file: Path, tmp_path: Path) -> None:
    secrets = SecuredFolder(tmp_path)
    with secrets.broker() as broker:
        with broker.connect() as client:
            client.create_topic("orders", retain_ms=3_600_000)
            client.put_many("orders", [b"one", b"two"])
        store(file, broker.url, token=secrets.kitchen.read_text().strip(), tls=secrets.ca)
        files = {"url": broker.url, "tokenFile": str(secrets.kitchen), "tls": secrets.ca}
        for options in ({"context": "prod"}, files):
            rows = spark.read.format("oncemq").options(**options, topic="orders").load()
            assert [bytes(row.value) for row in rows.collect()] == [b"one", b"two"]
        with pytest.raises(Exception, match="no credentials"):
            spark.read.format("oncemq").options(url=broker.url, tls=secrets.ca, topic="orders").load().collect()
        connections.close_all()


def test_an_unknown_context_is_reported_by_spark_without_the_token(spark: SparkSession, file: Path) -> None:
    store(file, REMOTE, token=TOKEN, tls=True)
    with pytest.raises(Exception, match="no context 'gone'") as caught:
        spark.read.format("oncemq").options(context="gone", topic="orders").load()
    assert TOKEN not in str(caught.value)


def test_pipelines_archives_and_restores_accept_a_context(
    spark: SparkSession, broker: BrokerProcess, client: Client, file: Path, tmp_path: Path
) -> None:
    store(file, broker.url, token=TOKEN)
    client.create_topic("orders", retain_ms=3_600_000)
    client.put_many("orders", [b"one", b'{"id": 2}'])
    pipeline = Pipeline(
        name="copies",
        source=Source(topic="orders"),
        # The sink with dead letters has options of its own.
        value=Value(format="json", schema="id bigint", on_error="dead_letter"),
        target=TopicTarget(topic="copies", create=True),
        checkpoint=str(tmp_path / "checkpoint"),
        context="prod",
    )
    assert run(pipeline, session=spark).rows == 2
    assert [message.value for message in client.read("copies.dead")] == [b"one"]
    lake = str(tmp_path / "lake")
    assert archive(lake, topic="orders", context="prod", session=spark).rows == 2
    [restored] = restore(lake, to="again", create=True, context="prod", session=spark)
    assert restored.messages == 2
    assert [message.value for message in client.read("again")] == [b"one", b'{"id": 2}']
    for path in tmp_path.rglob("*"):
        assert not path.is_file() or TOKEN.encode() not in path.read_bytes()
