// A session: the reason why a command happens once, although connections break and brokers crash.
//
// Commands that change something are numbered 1, 2, 3, … A command whose reply is missing is sent again under the same
// number, over a new connection. The broker remembers the verdict of each number until `seen_below` says that it has
// arrived here, so a repeated number gets its verdict again and changes nothing. Commands without a number (get, ack) are
// harmless to repeat.
//
// After a connection was lost, nothing is known about the commands that were not answered. The next connection starts with
// a hello that has the epoch of this session. Its reply has the verdicts of the numbers that were decided meanwhile, and all
// others are sent again, in order.

import { randomBytes } from "node:crypto";

import { Connection } from "./connection.mjs";
import { OnceMQError } from "./errors.mjs";
import { decode, encode } from "./msgpack.mjs";
import { placeOf } from "./stream.mjs";

const VERSION = 1;
/** More bytes in flight make nothing faster, and a busy broker disconnects a peer that sends too much. */
const IN_FLIGHT_BYTES_MAX = 24 * 1024 * 1024;
/** Pauses between attempts to connect, and after "not now". They double up to the maximum. */
const CONNECT_PAUSE_MS = { first: 20, max: 500 };
const NOT_NOW_PAUSE_MS = { first: 20, max: 1000 };
/** The session itself is lost. A new one must not be started automatically: two processes with the same name would take the
 *  session from each other endlessly. */
const FINAL_CODES = new Set(["FENCED", "SESSION_UNKNOWN"]);
/** Refusals of requests that never became a decision: their number is still unused. */
const UNDECIDED_CODES = new Set(["MALFORMED", "VERSION_UNSUPPORTED", "TOO_LARGE", "BROKER_BUG"]);

const nowMs = () => performance.now();
const doubled = (pauseMs, { first, max }) => Math.min(max, Math.max(first, 2 * pauseMs));

/** A command that its caller waits for. */
class Command {
  /** 0 until it is sent for the first time, and for commands without a number. */
  number = 0;
  /** The request that it was sent in last; 0 if it must be sent. */
  requestId = 0;
  /** It is not sent before this. */
  notBeforeMs = 0;
  /** When it was first lost, or answered with "not now"; 0: never. */
  troubleMs = 0;
  isVoid = false;

  constructor(body, payloads, waitMs) {
    this.body = body;
    this.payloads = payloads;
    this.waitMs = waitMs;
    this.promise = new Promise((resolve, reject) => Object.assign(this, { resolve, reject }));
  }

  get payloadBytes() {
    return this.payloads.reduce((sum, payload) => sum + payload.length, 0);
  }

  /** The caller has given up. Its number must be used all the same: numbers have no gaps. If the broker has executed the
   *  command already, a void under its number changes nothing; if not, it never will. */
  makeVoid() {
    Object.assign(this, { body: ["void"], payloads: [], isVoid: true, requestId: 0 });
  }
}

export class Session {
  /** The largest payload that the broker accepts. */
  batchBytesMax = 0;
  #urls;
  #urlIndex = 0;
  #options;
  #name;
  #isAnonymous;
  #nonce = randomBytes(8).readBigUInt64LE();
  /** 0 until the broker has answered the first hello. */
  #epoch = 0;
  /** The highest term of any broker. One with a lower term was replaced by a standby, and may not know it yet. */
  #term = 0;
  #window = 1;
  #nextNumber = 1;
  /** The highest number whose verdict has arrived. */
  #answeredNumber = 0;

  /** number → command, in order: those that are not decided, as far as is known here. */
  #numbered = new Map();
  /** Commands that were never sent, because the window is full or there is no connection. They have no number yet. */
  #queue = [];
  #unnumbered = new Set();

  #connection = null;
  /** The hello of this connection was answered. */
  #isOpen = false;
  /** Request id → what was sent over this connection and not answered. */
  #requests = new Map();
  #nextRequestId = 1;
  #connectPauseMs = 0;
  #connectNotBeforeMs = 0;
  /** Since when no command was answered because connections were lost; 0: the last connection has answered commands. */
  #awayMs = 0;
  #pauseMs = 0;
  /** Numbered commands are not sent before this. */
  #pausedUntilMs = 0;
  #timer = null;
  /** Why there will be no more commands. */
  #finished = null;

  /** `urls` are the addresses of one broker and its standbys. Without a `name`, the session is anonymous: it ends with
   *  `close`, or a day after its last command. */
  constructor(urls, { name, timeoutMs = 1000, patienceMs = 5000, window = 64 } = {}) {
    this.#urls = urls;
    urls.forEach(placeOf);
    this.#options = { timeoutMs, patienceMs, window };
    this.#isAnonymous = name === undefined;
    this.#name = name ?? `javascript-${randomBytes(8).toString("hex")}`;
  }

  // What callers use. The reply is an array, whose first element is its tag. A refusal is thrown as an OnceMQError.

  /** Start the session, and return when the broker has answered. */
  async open() {
    // Any command is preceded by a hello.
    await this.ask(["health"]);
  }

  /** Execute an operation once, in the order of these calls. Returns its reply. */
  async execute(operation, payloads = []) {
    const command = new Command(operation, payloads, 0);
    if (!this.#finished) this.#queue.push(command);
    const [reply] = await this.#run(command);
    return reply;
  }

  /** Send a command that is harmless to repeat. Returns its reply, and the payloads that belong to it. */
  async ask(body, waitMs = 0) {
    const command = new Command(body, [], waitMs);
    if (!this.#finished) this.#unnumbered.add(command);
    return this.#run(command);
  }

  /** Wait for the operations in flight, end an anonymous session, and disconnect. */
  async close() {
    await Promise.allSettled([...this.#numbered.values(), ...this.#queue].map((command) => command.promise));
    if (this.#isAnonymous && this.#isOpen) await this.ask(["bye", this.#name, this.#epoch]).catch(() => {});
    this.#finish(new OnceMQError("CLIENT_CLOSED", "this client was closed"));
  }

  #run(command) {
    if (this.#finished) command.reject(this.#finished);
    else this.#proceed();
    return command.promise;
  }

  // Sending.

  /** Send what can be sent now, or connect. */
  #proceed() {
    if (this.#finished) return;
    if (!this.#connection) this.#connectIfNeeded();
    else if (this.#isOpen) this.#sendAll();
    this.#setTimer();
  }

  #sendAll() {
    const now = nowMs();
    if (now >= this.#pausedUntilMs) {
      for (const command of this.#numbered.values()) if (!command.requestId) this.#send(command);
      while (this.#queue.length && this.#hasRoom(this.#queue[0])) {
        const command = this.#queue.shift();
        command.number = this.#nextNumber++;
        this.#numbered.set(command.number, command);
        this.#send(command);
      }
    }
    for (const command of this.#unnumbered) {
      if (!command.requestId && now >= command.notBeforeMs) this.#send(command);
    }
  }

  #hasRoom(command) {
    if (!this.#numbered.size) return true;
    let bytes = command.payloadBytes;
    for (const sent of this.#numbered.values()) bytes += sent.payloadBytes;
    return this.#nextNumber - this.#seenBelow < this.#window && bytes <= IN_FLIGHT_BYTES_MAX;
  }

  /** All verdicts below this number have arrived: the broker may forget them. */
  get #seenBelow() {
    const { value: first } = this.#numbered.keys().next();
    return first ?? this.#nextNumber;
  }

  #send(command) {
    const { number, body, payloads, waitMs } = command;
    command.requestId = this.#request(
      number ? ["n", this.#name, this.#epoch, number, this.#seenBelow, body] : body,
      payloads,
      { command, timeoutMs: waitMs + this.#options.timeoutMs },
    );
  }

  /** Send a request with a single command. Several would be allowed, but a get that waits must be alone. */
  #request(body, payloads, about) {
    const requestId = this.#nextRequestId++;
    this.#requests.set(requestId, { ...about, sentMs: nowMs() });
    this.#connection.send([encode([VERSION, requestId, [body]]), ...payloads]);
    return requestId;
  }

  // Connecting.

  #connectIfNeeded() {
    // A void has no caller. It waits for the next command.
    if (!this.#callers().next().done && nowMs() >= this.#connectNotBeforeMs) this.#connect();
  }

  #connect() {
    const url = this.#urls[this.#urlIndex++ % this.#urls.length];
    this.#connection = new Connection(
      url,
      (frames) => this.#receive(frames),
      (why) => this.#lose(new OnceMQError("BROKER_AWAY", `no answer from ${url}: ${why}`)),
    );
    const { timeoutMs, window } = this.#options;
    // It follows the opening at once. An unanswered hello is repeated with the same nonce, so that it is the same start.
    const hello = ["hello", this.#name, this.#epoch, this.#nonce, window, this.#isAnonymous];
    this.#request(hello, [], { isHello: true, timeoutMs });
  }

  /** The connection is of no use any more. Everything that was not answered is sent again over the next one. */
  #lose(error) {
    this.#connection.destroy();
    this.#connection = null;
    this.#isOpen = false;
    this.#requests.clear();
    for (const command of [...this.#numbered.values(), ...this.#unnumbered]) {
      command.requestId = 0;
      this.#noteTrouble(command, error);
    }
    this.#awayMs ||= nowMs();
    if (nowMs() - this.#awayMs >= this.#options.patienceMs) {
      for (const command of this.#queue.splice(0)) command.reject(error);
    }
    this.#connectNotBeforeMs = nowMs() + this.#connectPauseMs;
    this.#connectPauseMs = doubled(this.#connectPauseMs, CONNECT_PAUSE_MS);
    this.#proceed();
  }

  *#callers() {
    for (const command of this.#numbered.values()) if (!command.isVoid) yield command;
    yield* this.#queue;
    yield* this.#unnumbered;
  }

  /** The hello was answered. */
  #opened(reply) {
    const [tag, ...fields] = reply;
    // If the broker has forgotten this session, or another client has taken it over, that is final.
    if (tag === "refused") return this.#finish(new OnceMQError(fields[0], fields[1]));
    if (tag !== "hello") return this.#lose(new OnceMQError(fields[0], fields[1]));
    const [epoch, lastNumber, window, verdicts, , batchBytesMax, term] = fields;
    if (term < this.#term) return this.#lose(new OnceMQError("STANDBY", "this broker was replaced by its standby"));
    if (!this.#epoch) this.#nextNumber = lastNumber + 1;
    else if (lastNumber < this.#answeredNumber) {
      const text = `the broker knows this session up to number ${lastNumber}, and has answered ${this.#answeredNumber}`;
      return this.#finish(new OnceMQError("SESSION_UNKNOWN", text));
    }
    this.batchBytesMax = batchBytesMax;
    this.#epoch = epoch;
    this.#term = term;
    this.#window = Math.min(window, this.#options.window);
    this.#isOpen = true;
    for (const [number, verdict] of verdicts) {
      const command = this.#numbered.get(number);
      if (command) this.#decided(command, verdict);
    }
  }

  // Receiving.

  #receive(frames) {
    let requestId, reply;
    try {
      [, requestId, [reply]] = decode(frames[0]);
    } catch (error) {
      return this.#lose(new OnceMQError("MALFORMED", `a reply can't be decoded: ${error.message}`));
    }
    const request = this.#requests.get(requestId);
    if (!request) return;
    this.#requests.delete(requestId);
    const [tag, code, text] = reply;
    if (tag === "not_now" && code === "STANDBY") return this.#lose(new OnceMQError(code, text));
    if (request.isHello) this.#opened(reply);
    else this.#answered(request.command, reply, frames.slice(1));
    this.#proceed();
  }

  #answered(command, reply, payloads) {
    const [tag, code, text, lastNumber] = reply;
    // The broker serves commands: if this connection breaks, the next one is opened without a pause.
    this.#connectPauseMs = this.#awayMs = 0;
    if (tag === "not_now") {
      this.#notNow(command, new OnceMQError(code, text), lastNumber);
    } else if (!command.number) {
      this.#unnumbered.delete(command);
      settle(command, reply, payloads);
    } else if (tag === "refused" && FINAL_CODES.has(code) && command.body[0] !== "close") {
      this.#finish(new OnceMQError(code, text));
    } else if (tag === "refused" && UNDECIDED_CODES.has(code) && !command.isVoid) {
      settle(command, reply, payloads);
      command.makeVoid();
    } else {
      this.#decided(command, reply);
    }
  }

  /** This is the verdict of a numbered command, and it will not change. */
  #decided(command, verdict) {
    this.#numbered.delete(command.number);
    this.#answeredNumber = Math.max(this.#answeredNumber, command.number);
    this.#pauseMs = this.#pausedUntilMs = 0;
    settle(command, verdict, []);
  }

  /** Nothing was decided: send the same again after a pause. */
  #notNow(command, error, lastNumber) {
    if (command.number) {
      // The broker takes numbers without gaps only, so the later ones must follow again.
      const from = error.code === "GAP" ? Math.min(lastNumber + 1, command.number) : command.number;
      for (const later of this.#numbered.values()) if (later.number >= from) this.#forget(later);
      this.#pauseMs = doubled(this.#pauseMs, NOT_NOW_PAUSE_MS);
      this.#pausedUntilMs = nowMs() + this.#pauseMs;
    } else {
      this.#forget(command);
      command.notBeforeMs = nowMs() + NOT_NOW_PAUSE_MS.first;
    }
    this.#noteTrouble(command, error);
  }

  /** Send a command again. Only the reply to the next request counts. */
  #forget(command) {
    this.#requests.delete(command.requestId);
    command.requestId = 0;
  }

  /** A command was lost, or answered with "not now". Its caller gets the error if this has lasted too long. */
  #noteTrouble(command, error) {
    command.troubleMs ||= nowMs();
    if (command.isVoid || nowMs() - command.troubleMs < this.#options.patienceMs) return;
    command.reject(error);
    if (command.number) command.makeVoid();
    else this.#unnumbered.delete(command);
  }

  #finish(error) {
    this.#finished = error;
    this.#connection?.destroy();
    clearTimeout(this.#timer);
    for (const command of [...this.#callers()]) command.reject(error);
    this.#numbered.clear();
    this.#queue = [];
    this.#unnumbered.clear();
  }

  // Time.

  /** Wake up when a reply is overdue, or a pause is over. */
  #setTimer() {
    clearTimeout(this.#timer);
    const nextMs = Math.min(...this.#deadlines());
    if (!this.#finished && nextMs !== Infinity) {
      this.#timer = setTimeout(() => this.#check(), Math.max(0, nextMs - nowMs()) + 1);
    }
  }

  *#deadlines() {
    if (!this.#connection) {
      if (!this.#callers().next().done) yield this.#connectNotBeforeMs;
      return;
    }
    for (const request of this.#requests.values()) yield this.#dueMs(request);
    if (!this.#isOpen) return;
    for (const command of this.#numbered.values()) if (!command.requestId) yield this.#pausedUntilMs;
    for (const command of this.#unnumbered) if (!command.requestId) yield command.notBeforeMs;
  }

  #dueMs({ sentMs, timeoutMs }) {
    return Math.max(sentMs, this.#connection.transferredMs) + timeoutMs;
  }

  #check() {
    for (const request of this.#connection ? this.#requests.values() : []) {
      if (nowMs() < this.#dueMs(request)) continue;
      this.#lose(new OnceMQError("BROKER_AWAY", `the broker has not answered within ${request.timeoutMs} ms`));
      return;
    }
    this.#proceed();
  }
}

function settle(command, reply, payloads) {
  const [tag, code, text] = reply;
  if (tag === "refused") command.reject(new OnceMQError(code, text));
  else command.resolve([reply, payloads]);
}
