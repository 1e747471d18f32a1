"""Every problem in a pipeline's file is reported with its position, and all of them at once. Spark is not started."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
from pathlib import Path

import pytest

from oncemq.protocol.errors import PipelineInvalid
from oncemq.spark.pipeline import Pipeline, Source, Transform, Trigger, Value
from oncemq.spark.pipeline.pipeline_file import ensure_valid, load, validate
from oncemq.spark.targets.declarations import ConsoleTarget, DeltaTarget, ParquetTarget, PostgresTarget, TopicTarget
from tests.spark.pipeline.files import GOOD, changed, problems_in

EXAMPLES = Path(__file__).parents[3] / "examples/pipelines"

#: What is changed in the good file → the place and the words of the one problem that it is.
PROBLEMS = {
    "no YAML": ([("source:\n", "source: {\n")], "4:6", "this is not YAML"),
    "a tab": ([("  topic: orders", "\ttopic: orders")], "3:1", "this is not YAML"),
    "an unknown key": (
        [("source:", "sorce: {}\nsource:")],
        "2:1",
        "a pipeline has no key 'sorce'; did you mean source?",
    ),
    "an unknown key of the source": (
        [("  topic: orders", "  topic: orders\n  subscribtion: x")],
        "4:3",
        "source has no key 'subscribtion'; did you mean subscription?",
    ),
    "a key twice": (
        [("source:", "name: again\nsource:")],
        "2:1",
        "'name' is given twice; keep one of them (the other is in line 1)",
    ),
    "no name": ([("name: totals\n", "")], "1:1", "'name' is missing"),
    "no target": ([("target:\n  topic: totals\n", "")], "1:1", "'target' is missing"),
    "a source that is text": (
        [("source:\n  topic: orders", "source: orders")],
        "2:9",
        "source is text, but must be a mapping",
    ),
    "a topic that is a number": (
        [("orders", "5")],
        "3:10",
        "source.topic is '5', but must be text; put it in quotes: \"5\"",
    ),
    "a number that is text": (
        [("topic: orders", "topic: orders\n  partitions: many")],
        "4:15",
        "source.partitions is 'many', but must be a whole number above 0",
    ),
    "a number of none": ([("topic: orders", "topic: orders\n  max_per_trigger: 0")], "4:20", "a whole number above 0"),
    "an empty value": ([("topic: orders", "topic:")], "3:9", "source.topic is empty, but must be text"),
    "no topic": ([("  topic: orders", "  start: latest")], "3:3", "the source names no topic; give it exactly one of"),
    "topic and pattern": (
        [("topic: orders", "topic: orders\n  pattern: bills.*")],
        "3:3",
        "the source has topic and pattern",
    ),
    "a pattern as a topic": ([("topic: orders", "topic: orders.*")], "3:10", "reserved for patterns"),
    "a bad topic of several": ([("topic: orders", "topics: [a, 'b#']")], "3:15", "reserved for patterns"),
    "a topic twice": ([("topic: orders", "topics: [a, b, a]")], "3:18", "the topic 'a' is listed twice"),
    "a bad pattern": (
        [("topic: orders", "pattern: ord*")],
        "3:12",
        "'ord*' in 'ord*' is not valid: '*' and '#' must be whole levels",
    ),
    "a bad start": (
        [("topic: orders", "topic: orders\n  start: yesterday")],
        "4:10",
        "'yesterday' is not a valid start",
    ),
    "a start without a zone": (
        [("topic: orders", "topic: orders\n  start: 2026-01-31T12:00:00")],
        "4:10",
        "the time 2026-01-31T12:00:00 has no zone; add one: 2026-01-31T12:00:00Z",
    ),
    "a start on another topic": (
        [("topic: orders", "topic: orders\n  start: {order: 5}")],
        "4:11",
        "the source has no topic 'order'; did you mean orders?",
    ),
    "a start by topic with a pattern": (
        [("topic: orders", "pattern: orders.*\n  start: {orders.eu: 5}")],
        "4:10",
        "with a pattern, a pipeline starts at `earliest` or `latest`",
    ),
    "an unknown message column": (
        [("topic: orders", "topic: orders\n  columns: [offset, timestmp]")],
        "4:21",
        "source.columns[1] can't be 'timestmp'; did you mean timestamp?",
    ),
    "an unknown format": ([("format: json", "format: jsn")], "5:11", "value.format can't be 'jsn'; did you mean json?"),
    "no format": ([("  format: json\n", "")], "5:3", "value has no 'format'"),
    "json without a schema": ([("  schema: id bigint, price double\n", "")], "5:3", "json needs a schema"),
    "text with a schema": (
        [("format: json", "format: text")],
        "6:11",
        "text has no schema; remove it, or choose json or csv",
    ),
    "a delimiter of json": ([("format: json", "format: json\n  delimiter: ';'")], "6:14", "json has no delimiter"),
    "a long delimiter": ([("format: json", "format: csv\n  delimiter: ';;'")], "6:14", "';;' can't separate columns"),
    "an unknown type": (
        [("price double", "price duble")],
        "6:28",
        "'duble' is not a supported type; did you mean double?",
    ),
    "a type of another language": ([("price double", "price varchar(3)")], "6:28", "use string"),
    "a decimal that can't be": (
        [("price double", "price decimal(5,7)")],
        "6:39",
        "5 digits can't have 7",
    ),
    "an array of nothing": (
        [("price double", "tags array")],
        "6:27",
        "array needs the types of its elements; write it as array<string>",
    ),
    "a struct that is not closed": ([("price double", "at struct<x:int")], "6:37", "'>' is missing"),
    "a column without a type": ([("price double", "price")], "6:27", "the type of column 'price' is missing"),
    "a column twice": ([("price double", "ID int")], "6:22", "there are two columns 'ID'"),
    "a column that is never null": ([("price double", "price double NOT NULL")], "6:35", "NOT NULL is not checked"),
    "a name that needs quotes": (
        [("price double", "unit-price double")],
        "6:26",
        "'-' is not expected here; put a name",
    ),
    "an unknown type of a mapping": (
        [("schema: id bigint, price double", "schema:\n    id: bigint\n    price: duble")],
        "8:12",
        "did you mean double?",
    ),
    "an array of csv": (
        [("format: json", "format: csv"), ("price double", "tags array<int>")],
        "6:22",
        "csv has no array",
    ),
    "a column of a reserved name": (
        [("format: json", "format: json\n  malformed: keep"), ("price double", "malformed string")],
        "7:22",
        "column 'malformed' has the same name as the column that `malformed: keep` adds",
    ),
    "an unknown way with malformed values": (
        [("format: json", "format: json\n  malformed: skip")],
        "6:14",
        "fail or drop or keep",
    ),
    "sql and python": ([("  sql:", "  python: json:loads\n  sql:")], "8:3", "the transform has sql and python"),
    "no transform": ([("  sql: SELECT id, price FROM messages", "  {}")], "8:3", "the transform is empty"),
    "empty sql": ([("SELECT id, price FROM messages", "'-- later'")], "8:8", "the query is empty"),
    "sql without the view": (
        [("FROM messages", "FROM message")],
        "8:8",
        "the query does not read the view messages; write FROM messages",
    ),
    "the view in a text only": (
        [("FROM messages", "'messages' FROM x")],
        "8:8",
        "the query does not read the view messages",
    ),
    "two statements": (
        [("FROM messages", "FROM messages; SELECT 2")],
        "8:38",
        "there is more than one statement; keep one query",
    ),
    "a bracket that is not closed": (
        [("FROM messages", "FROM messages WHERE (id > 5")],
        "8:45",
        "'(' has no matching bracket; check the brackets",
    ),
    "a bracket that was not opened": ([("id, price", "id), price")], "8:17", "')' has no matching bracket"),
    "groups without a watermark": (
        [("SELECT id, price FROM messages", "SELECT id, sum(price) AS s FROM messages group  by id")],
        "8:49",
        "without a watermark, a group of a stream is never complete; give the pipeline a `watermark:",
    ),
    "sql that is no query": (
        [("sql: SELECT id, price FROM messages", "sql: |\n    -- all\n    INSERT INTO x SELECT * FROM messages")],
        "10:5",
        "'INSERT' is not a query; begin with SELECT or WITH",
    ),
    "a function without a module": (
        [("sql: SELECT id, price FROM messages", "python: clean")],
        "8:11",
        "write it as module:function",
    ),
    "a module that is not there": (
        [("sql: SELECT id, price FROM messages", "python: nowhere:f")],
        "8:11",
        "there is no module 'nowhere'",
    ),
    "a function that is not there": (
        [("sql: SELECT id, price FROM messages", "python: json:lods")],
        "8:11",
        "the module json has no 'lods'",
    ),
    "something that is no function": (
        [("sql: SELECT id, price FROM messages", "python: sys:path")],
        "8:11",
        "sys:path is not a function",
    ),
    "a function of two": (
        [("sql: SELECT id, price FROM messages", "python: re:match")],
        "8:11",
        "can't be called with one argument",
    ),
    "a watermark on nothing": (
        [("transform:", "watermark: {column: at, delay: 5m}\ntransform:")],
        "7:21",
        "there is no column 'at'",
    ),
    "a watermark on a number": (
        [("transform:", "watermark: {column: price, delay: 5m}\ntransform:")],
        "7:21",
        "column 'price' is a double; read it as timestamp",
    ),
    "a watermark of no time": (
        [("price double", "at timestamp"), ("transform:", "watermark: {column: at, delay: late}\ntransform:")],
        "7:32",
        "'late' is not a duration",
    ),
    "two targets": (
        [("  topic: totals", "  topic: totals\n  parquet: ./out")],
        "11:3",
        "there are 2 targets: topic, parquet; keep one",
    ),
    "no kind of target": (
        [("  topic: totals", "  create: true")],
        "9:1",
        "the target is missing; choose one of topic, topics, parquet",
    ),
    "a key of another target": (
        [("  topic: totals", "  topic: totals\n  partition_by: [id]")],
        "11:3",
        "a topic target has no 'partition_by'; remove it; it belongs to parquet and delta",
    ),
    "an unknown key of a target": (
        [("  topic: totals", "  topic: totals\n  kee: id")],
        "11:3",
        "target has no key 'kee'; did you mean key?",
    ),
    "a target of a bad name": ([("  topic: totals", "  topic: a.*")], "10:10", "reserved for patterns"),
    "a loop": (
        [("  topic: totals", "  topic: orders")],
        "10:10",
        "'orders' is also a topic of the source",
    ),
    "a loop by a pattern": (
        [("topic: orders", "pattern: shop.#"), ("  topic: totals", "  topic: shop.totals")],
        "10:10",
        "'shop.totals' matches the source's pattern 'shop.#'",
    ),
    "a bad encoding": ([("  topic: totals", "  topic: totals\n  value: xml")], "11:10", "target.value can't be 'xml'"),
    "a table without a name": (
        [("  topic: totals", "  postgres: postgresql://a@b/c")],
        "10:3",
        "target has no 'table'",
    ),
    "a database that is none": (
        [("  topic: totals", "  postgres: mysql://a@b\n  table: t")],
        "10:13",
        "this is not the URL of a database",
    ),
    "a console that is off": ([("  topic: totals", "  console: false")], "10:12", "the console is off"),
    "an unknown trigger": (
        [("target:", "trigger: once\ntarget:")],
        "9:10",
        "'once' is not a trigger; write `trigger: available-now`",
    ),
    "a bad duration": ([("target:", "trigger: {every: often}\ntarget:")], "9:18", "'often' is not a duration"),
    "a last ack without an end": (
        [("target:", "trigger: {every: 5s}\nack_last: true\ntarget:")],
        "10:11",
        "only a run that ends has a last batch to ack",
    ),
    "a name that is no folder": ([("name: totals", "name: ../totals")], "1:7", "can't be a pipeline's name"),
    "a checkpoint in the output": (
        [("  topic: totals", "  parquet: ./out\ncheckpoint: ./out/checkpoint")],
        "11:13",
        "checkpoint and output are one inside the other",
    ),
    "an output in the checkpoint": (
        [("  topic: totals", "  delta: ./checkpoints/totals/table")],
        "1:1",
        "checkpoint and output are one inside the other",
    ),
    "a checkpoint that is a file": (
        [("target:", "checkpoint: ./pipeline.yaml/x\ntarget:")],
        "9:13",
        "pipeline.yaml is a file",
    ),
    "a switch that is text": (
        [("target:", "ack_last: maybe\ntarget:")],
        "9:11",
        "ack_last is 'maybe', but must be true or false",
    ),
    "a second document": ([("source:", "---\nsource:")], "3:1", "a second document begins here"),
    "a variable that is not set": (
        [("  topic: totals", "  postgres: ${DATABASE}\n  table: t")],
        "10:13",
        "the environment variable DATABASE is not set; set it before the run: export DATABASE=…",
    ),
    "a variable without a name": (
        [("topic: orders", "topic: orders${}")],
        "3:10",
        "'${}' is not a variable; write a variable as",
    ),
}


@pytest.mark.parametrize("name", list(PROBLEMS))
def test_a_problem_is_explained_where_it_stands(name: str, tmp_path: Path) -> None:
    changes, place, words = PROBLEMS[name]
    found = problems_in(tmp_path, changed(*changes))
    assert [problem for problem in found if problem.startswith(f"{place}: ") and words in problem], found
    assert len(found) == 1 or name == "a second document", found


def test_a_good_file_is_a_pipeline(tmp_path: Path) -> None:
    (tmp_path / "totals.yaml").write_text(GOOD)
    assert load(str(tmp_path / "totals.yaml")) == Pipeline(
        name="totals",
        source=Source(topic="orders"),
        value=Value(format="json", schema="id bigint, price double"),
        transform=Transform(sql="SELECT id, price FROM messages"),
        target=TopicTarget(topic="totals"),
        checkpoint=str(tmp_path / "checkpoints/totals"),
    )


@pytest.mark.parametrize(
    ("declared", "target"),
    [
        ("  topics: by-row\n  create: true", TopicTarget(topic="", create=True)),
        ("  parquet: /out\n  partition_by: [day, hour]", ParquetTarget(path="/out", partition_by=("day", "hour"))),
        ("  delta: /lake/table", DeltaTarget(path="/lake/table")),
        (
            "  postgres: postgresql://ada@host/shop\n  table: totals\n  create: true",
            PostgresTarget(url="postgresql://ada@host/shop", table="totals", create=True),
        ),
        ("  console: true\n  rows: 5", ConsoleTarget(rows=5)),
    ],
)
def test_every_target_can_be_declared(declared: str, target: object, tmp_path: Path) -> None:
    (tmp_path / "p.yaml").write_text(changed(("  topic: totals", declared)))
    assert load(str(tmp_path / "p.yaml")).target == target


def test_a_duration_without_a_unit_is_a_number_of_seconds(tmp_path: Path) -> None:
    (tmp_path / "p.yaml").write_text(changed(("target:", "trigger: {every: 5}\ntarget:")))
    assert load(str(tmp_path / "p.yaml")).trigger.options == {"processingTime": "5000 milliseconds"}


def test_all_problems_are_explained_at_once(tmp_path: Path) -> None:
    text = """\
        name: "a/b"
        source: {topic: orders, begin: earliest}
        value: {format: json, schema: id bgint}
        transform: {sql: SELECT 1}
        target: {topic: orders, parquet: ./x}
        trigger: {every: never}
        """
    places = [problem.split(": ")[0] for problem in problems_in(tmp_path, text)]
    assert places == ["1:15", "2:33", "3:42", "4:26", "5:33", "6:26"]


def test_nothing_at_all_is_one_problem(tmp_path: Path) -> None:
    assert problems_in(tmp_path, "") == ["1:1: the file is empty; declare a pipeline"]
    assert problems_in(tmp_path, "[1]") == [
        "1:1: the file is not a mapping; begin it with `name: …`, `source: …`, `target: …`"
    ]


def test_variables_are_put_in_and_a_doubled_dollar_is_not(tmp_path: Path) -> None:
    text = changed(("orders", "${SHOP}.orders"), ("price FROM", "'$${id}' FROM"), ("topic: totals", "topic: totals"))
    (tmp_path / "p.yaml").write_text(text.replace("  topic: ${", "  partitions: ${N}\n  topic: ${"))
    pipeline = validate(str(tmp_path / "p.yaml"), {"SHOP": "eu", "N": "3"}).pipeline
    assert pipeline is not None
    assert pipeline.source is not None
    assert (pipeline.source.topic, pipeline.source.partitions) == ("eu.orders", 3)
    assert pipeline.transform == Transform(sql="SELECT id, '${id}' FROM messages")


def test_a_schema_may_be_a_mapping_with_structs_and_arrays(tmp_path: Path) -> None:
    schema = "schema:\n    id: bigint\n    who: {name: string}\n    tags: [string]\n    items: [{n: int}]"
    (tmp_path / "p.yaml").write_text(changed(("schema: id bigint, price double", schema)))
    assert load(str(tmp_path / "p.yaml")).value.schema == (
        "`id` bigint, `who` struct<`name`:string>, `tags` array<string>, `items` array<struct<`n`:int>>"
    )


def test_a_place_in_sql_of_several_lines_is_found(tmp_path: Path) -> None:
    text = changed(("sql: SELECT id, price FROM messages", "sql: |\n    SELECT id\n    FROM messages"))
    (tmp_path / "p.yaml").write_text(text)
    document = validate(str(tmp_path / "p.yaml")).document
    assert document.position(("transform", "sql"), len("SELECT id\nFROM ")) == (10, 10)


def test_a_function_beside_the_file_is_found_whatever_has_the_same_name_elsewhere(tmp_path: Path) -> None:
    text = changed(("sql: SELECT id, price FROM messages", "python: cleaning:clean"))
    for name, code in (("one", "def clean(rows): return rows"), ("two", "def polish(rows): return rows")):
        folder = tmp_path / name
        folder.mkdir()
        (folder / "cleaning.py").write_text(code)
    assert problems_in(tmp_path / "one", text) == []
    assert problems_in(tmp_path / "two", text) == ["8:11: the module cleaning has no 'clean'; it has polish"]


def test_a_module_that_fails_is_a_problem_with_its_reason(tmp_path: Path) -> None:
    (tmp_path / "broken_cleaning.py").write_text("raise ValueError('no luck')")
    text = changed(("sql: SELECT id, price FROM messages", "python: broken_cleaning:clean"))
    [problem] = problems_in(tmp_path, text)
    assert "the module broken_cleaning can't be imported: ValueError: no luck" in problem


def test_a_module_that_misses_another_names_that_one(tmp_path: Path) -> None:
    (tmp_path / "needy_cleaning.py").write_text("import no_such_module_anywhere")
    text = changed(("sql: SELECT id, price FROM messages", "python: needy_cleaning:clean"))
    [problem] = problems_in(tmp_path, text)
    assert "needs 'no_such_module_anywhere'; install no_such_module_anywhere" in problem


@pytest.mark.parametrize(
    ("package", "target", "command"),
    [
        ("psycopg", "postgres: postgresql://a@b/c\n  table: t", 'pip install "oncemq[postgres]"'),
        ("deltalake", "delta: ./table", 'pip install "oncemq[spark]"'),
    ],
)
def test_a_target_whose_package_is_missing_names_the_pip_command(
    package: str, target: str, command: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = importlib.util.find_spec
    monkeypatch.setattr(
        importlib.util, "find_spec", lambda name, *rest: None if name == package else found(name, *rest)
    )
    [problem] = problems_in(tmp_path, changed(("topic: totals", target)))
    assert problem.endswith(f"{package} is not installed; {command}")


def test_an_anchor_that_holds_itself_does_no_harm(tmp_path: Path) -> None:
    assert problems_in(tmp_path, GOOD + "checkpoint: &a [*a]\n")


def test_a_pipeline_made_in_python_is_checked_in_the_same_way(tmp_path: Path) -> None:
    pipeline = Pipeline(
        name="totals",
        source=Source(topic="orders"),
        target=TopicTarget(topic="orders"),
        trigger=Trigger(every="often"),
    )
    with pytest.raises(PipelineInvalid) as caught:
        ensure_valid(pipeline)
    assert [line.split(":")[0] for line in caught.value.text.splitlines()] == [
        "trigger.every",
        "target.topic",
        "checkpoint",
    ]


@pytest.mark.parametrize("example", sorted(EXAMPLES.glob("*.yaml")), ids=lambda path: path.stem)
def test_the_examples_have_no_problems(example: Path) -> None:
    assert validate(str(example), {"REVENUE_DATABASE": "postgresql://ada@localhost/shop"}).problems == []


def test_validation_imports_no_spark() -> None:
    code = (
        "import sys; from oncemq.spark.pipeline.pipeline_file import validate\n"
        f"validate({str(EXAMPLES / 'order-totals.yaml')!r}); print('pyspark' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "False\n"


@pytest.mark.parametrize("opening", ["[", "{a: ", "- "])
def test_a_file_that_is_nested_very_deeply_is_a_problem_of_the_file(tmp_path: Path, opening: str) -> None:
    file = tmp_path / "deep.yaml"
    file.write_text("name: totals\nsource: \n  " + opening * 5_000)
    [problem] = validate(str(file)).problems
    assert (problem.line, problem.text) == (3, "values are nested too deeply")


def test_problems_of_this_machine_do_not_matter_elsewhere(tmp_path: Path) -> None:
    (tmp_path / "a-file").touch()
    text = changed(("  topic: totals", "  parquet: s3://lake/x\n  storage: {region: NOT_SET}"))
    file = tmp_path / "pipeline.yaml"
    file.write_text(text + f"checkpoint: {tmp_path}/a-file/checkpoint\n")
    assert len(validate(str(file)).problems) == 2
    assert validate(str(file), runs_here=False).problems == []
    file.write_text(text.replace("s3://lake/x", "ftp://lake/x"))
    assert len(validate(str(file), runs_here=False).problems) == 2


def test_a_file_names_a_context_and_contains_no_secret(tmp_path: Path) -> None:
    file = tmp_path / "pipeline.yaml"
    file.write_text(f"{GOOD}context: prod\n")
    assert load(str(file)).context == "prod"
    for key, advice in {
        "token": "ONCEMQ_TOKEN",
        "curve_secret": "ONCEMQ_CURVE_SECRET",
        "token_file": "context: NAME",
        "tls": "context: NAME",
        "url": "--url",
    }.items():
        [problem] = problems_in(tmp_path, f"{GOOD}{key}: ${{SECRET}}\n", SECRET="sss")
        assert f"a pipeline has no key '{key}'" in problem
        assert advice in problem
        assert "sss" not in problem
    [problem] = problems_in(tmp_path, f"{GOOD}context: a b\n")
    assert problem.startswith("11:10: 'a b' is not the name of a context; use 1 to 64")
