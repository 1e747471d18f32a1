// A client for OnceMQ: put, subscribe, get, ack.
//
//     const client = await connect("oncemq://127.0.0.1:5554");
//     await client.subscribe("orders", "kitchen");
//     const receipt = await client.put("orders", "one pizza", { key: "table-7" });

import { decodeBatch, encodeBatch, keyHashes } from "./batch.mjs";
import { OnceMQError } from "./errors.mjs";
import { Session } from "./session.mjs";
import { xxh3 } from "./xxh3.mjs";

export { OnceMQError };

const NEW = -1;
const EARLIEST = -2;
/** How often messages that do not match their checksum are requested. */
const DAMAGES_MAX = 3;

/** Connect to a broker. `url` has one address, or those of a broker and its standbys, separated by commas.
 *
 *  Options: `session` is the name of a session that outlives this process; `timeoutMs` is how long a reply may take before
 *  everything is sent again over a new connection; `patienceMs` is how long that may go on before a call fails. */
export async function connect(url = "oncemq://127.0.0.1:5554", { session: name, ...options } = {}) {
  const session = new Session(url.split(",").map((each) => each.trim()), { name, ...options });
  await session.open();
  return new Client(session);
}

class Client {
  #session;

  constructor(session) {
    this.#session = session;
  }

  /** Create a durable subscription, and the topic, unless they exist. `start` is "new", "earliest" or an offset. */
  async subscribe(topic, subscriber, { start = "new" } = {}) {
    const position = { new: NEW, earliest: EARLIEST }[start] ?? start;
    const [, topicId, acked, isCreated] = await this.#session.execute(["subscribe", topic, subscriber, position]);
    return { topicId, acked, isCreated };
  }

  /** Store a message. When this returns, it is on the broker's disk, once. Text is stored as UTF-8. */
  async put(topic, value, { key, headers, create = false } = {}) {
    return this.putMany(topic, [{ value, key, headers }], { create });
  }

  /** Store several messages, all or nothing. Returns where they are. */
  async putMany(topic, messages, { create = false } = {}) {
    const batch = messages.map(({ value, key, headers }) => ({
      value: bytesOf(value),
      key: key === undefined || key === null ? null : bytesOf(key),
      headers: headers && new Map(entriesOf(headers).map(([name, content]) => [name, bytesOf(content)])),
    }));
    const payload = encodeBatch(batch);
    if (payload.length > this.#session.batchBytesMax) {
      const text = `a batch of ${payload.length} bytes; this broker accepts at most ${this.#session.batchBytesMax}`;
      throw new OnceMQError("TOO_LARGE", text);
    }
    const envelope = [batch.length, payload.length, xxh3(payload), 0, 0, keyHashes(batch)];
    const stored = await this.#session.execute(["put", topic, envelope, create], [payload]);
    const [, topicId, offset, count, timeMs, subscriptions] = stored;
    return { topicId, offset, count, timeMs, subscriptions };
  }

  /** Become the owner of a subscription. A former owner is fenced: its next get or ack is refused. */
  async open(topic, subscriber) {
    const [, topicId, epoch, acked] = await this.#session.execute(["open", topic, subscriber]);
    return new Subscription(this.#session, { topic, subscriber, topicId, epoch, acked });
  }

  /** Wait for the puts in flight, and disconnect. */
  async close() {
    await this.#session.close();
  }
}

class Subscription {
  /** The offset of the next get. A program can raise it, to go past messages that can't be decoded. */
  position;
  #session;
  #about;

  constructor(session, about) {
    this.#session = session;
    this.#about = about;
    this.position = about.acked;
  }

  /** Return the next messages: at least one, unless none arrives within `waitMs`. This changes nothing at the broker:
   *  messages that are not acked are delivered again after the next `open`. Call it once at a time. */
  async get({ waitMs = 0, bytesMax = 1024 * 1024 } = {}) {
    const { topicId, subscriber, epoch } = this.#about;
    for (let attempt = 1; ; attempt++) {
      const command = ["get", topicId, subscriber, epoch, this.position, bytesMax, waitMs];
      const [reply, payloads] = await this.#session.ask(command, waitMs);
      const [messages, isDamaged] = this.#take(reply, payloads);
      if (messages.length || !isDamaged) return messages;
      if (attempt === DAMAGES_MAX) {
        throw new OnceMQError("DAMAGED_IN_TRANSIT", `messages from offset ${this.position} on do not match their checksum`);
      }
    }
  }

  /** Return the messages of a reply, up to the first batch that was damaged on its way or can't be decoded. The next get
   *  begins with that batch: messages that are skipped without notice would be acked with the next one. */
  #take(reply, payloads) {
    const { topic, topicId } = this.#about;
    const [, , nextPosition, , , batches] = reply;
    const messages = [];
    for (const [index, [firstOffset, count, skip, batchTimeMs, checksum]] of batches.entries()) {
      if (xxh3(payloads[index]) !== BigInt(checksum)) return [messages, true];
      let decoded;
      try {
        decoded = decodeBatch(payloads[index], skip, count);
      } catch (error) {
        if (messages.length) return [messages, false];
        throw error;
      }
      for (const [number, message] of decoded.entries()) {
        const timeMs = message.timeMs ?? batchTimeMs;
        messages.push(new Message(topic, topicId, firstOffset + number, { ...message, timeMs }));
      }
      this.position = firstOffset + count;
    }
    // It may be behind the last message, if later ones have expired.
    this.position = nextPosition;
    return [messages, false];
  }

  /** A message, and all before it, is done: it is never delivered again. */
  async ack(message) {
    const { topicId, subscriber, epoch } = this.#about;
    await this.#session.ask(["ack", topicId, subscriber, epoch, message.offset + 1]);
  }

  /** Say that this client does not use the subscription any more. The subscription stays. */
  async close() {
    const { topicId, subscriber, epoch } = this.#about;
    await this.#session.execute(["close", topicId, subscriber, epoch]);
  }
}

class Message {
  constructor(topic, topicId, offset, { value, key, headers, timeMs }) {
    Object.assign(this, { topic, offset, value, key, headers, timeMs });
    /** The same for every delivery of this message, and different for every other message. */
    this.idempotencyKey = `${topicId.toString(16)}-${offset}`;
  }

  get text() {
    return Buffer.from(this.value).toString();
  }
}

const bytesOf = (value) => (typeof value === "string" ? Buffer.from(value) : value);
const entriesOf = (headers) => (headers instanceof Map ? [...headers] : Object.entries(headers));
