// The stream transport, without a socket: the opening of each side, then messages. docs/protocol.md has the layout.

import { decode, encode } from "./msgpack.mjs";

const MAGIC = Buffer.from("ONCEMQ");
const VERSION = 1;
const OPENING_BYTES = 12;
const PROPERTIES_BYTES_MAX = 64 * 1024;
const MESSAGE_BYTES_MAX = 2 ** 30;
const DEFAULT_PORT = 5554;

/** Return what `net.connect` needs for an address: `oncemq://HOST[:PORT]` or `oncemq+unix://PATH`. */
export function placeOf(url) {
  const path = /^oncemq\+unix:\/\/(.+)$/.exec(url);
  // A name that begins with @ has no file. The system knows it by a zero byte.
  if (path) return { path: path[1].replace(/^@/, "\0") };
  const address = /^oncemq:\/\/(\[[^\]]+\]|[^:/[\]]+)(?::(\d+))?$/.exec(url);
  const port = Number(address?.[2] ?? DEFAULT_PORT);
  if (!address || port > 65_535) {
    throw new TypeError(`${url} is not an address like oncemq://127.0.0.1:5554 or oncemq+unix:///tmp/oncemq.sock`);
  }
  return { host: address[1].replace(/[[\]]/g, ""), port };
}

/** Encode the opening, which a side sends once, before its messages. */
export function encodeOpening(properties) {
  const encoded = encode(properties);
  const head = Buffer.alloc(OPENING_BYTES);
  MAGIC.copy(head);
  head.writeUInt8(VERSION, 6);
  head.writeUInt32LE(encoded.length, 8);
  return Buffer.concat([head, encoded]);
}

/** Return the buffers of a message: its size, the number and the sizes of its frames, and the frames. */
export function encodeMessage(frames) {
  const head = Buffer.alloc(4 * (frames.length + 2));
  let size = 4 * (frames.length + 1);
  head.writeUInt32LE(frames.length, 4);
  frames.forEach((frame, index) => {
    head.writeUInt32LE(frame.length, 4 * (index + 2));
    size += frame.length;
  });
  head.writeUInt32LE(size, 0);
  return [head, ...frames];
}

/** Splits the bytes of the other side into its opening and its messages, however the network has cut them. */
export class StreamReader {
  /** The properties of the opening, a Map; null until it has arrived. */
  properties = null;
  #chunks = [];
  #bytes = 0;
  /** How many bytes must be there before it is worth to look at them. A large message arrives in many chunks, which are
   *  joined once, at its end. */
  #needed = OPENING_BYTES;

  /** Whether a part of a message has arrived. */
  get isIncomplete() {
    return this.#bytes > 0;
  }

  /** Return the messages that are complete with these bytes, each as an array of frames. Throws an Error if the other side
   *  does not follow the protocol. */
  feed(chunk) {
    const messages = [];
    this.#chunks.push(chunk);
    this.#bytes += chunk.length;
    while (this.#bytes >= this.#needed) {
      const data = this.#chunks.length === 1 ? this.#chunks[0] : Buffer.concat(this.#chunks);
      const used = this.properties ? this.#readMessage(data, messages) : this.#readOpening(data);
      const rest = data.subarray(used);
      this.#chunks = rest.length ? [rest] : [];
      this.#bytes = rest.length;
    }
    return messages;
  }

  /** Return how many bytes were used: none if the opening is not complete. */
  #readOpening(data) {
    if (!data.subarray(0, MAGIC.length).equals(MAGIC)) throw new Error("the other side is no broker of OnceMQ");
    if (data[6] !== VERSION) throw new Error(`the broker uses version ${data[6]} of the stream transport`);
    const size = data.readUInt32LE(8);
    if (size > PROPERTIES_BYTES_MAX) throw new Error(`an opening with ${size} bytes of properties`);
    this.#needed = OPENING_BYTES + size;
    if (data.length < this.#needed) return 0;
    const properties = decode(data.subarray(OPENING_BYTES, this.#needed));
    if (!(properties instanceof Map)) throw new Error("the properties of the opening are no map");
    this.properties = properties;
    this.#needed = 4;
    return OPENING_BYTES + size;
  }

  #readMessage(data, messages) {
    const size = data.readUInt32LE(0);
    if (size < 8 || size > MESSAGE_BYTES_MAX) throw new Error(`a message of ${size} bytes`);
    this.#needed = 4 + size;
    if (data.length < this.#needed) return 0;
    const count = data.readUInt32LE(4);
    let begin = 4 * (count + 2);
    if (count < 1 || begin > this.#needed) throw new Error(`a message of ${size} bytes with ${count} frames`);
    const frames = [];
    for (let index = 0; index < count; index++) {
      const end = begin + data.readUInt32LE(4 * (index + 2));
      frames.push(data.subarray(begin, end));
      begin = end;
    }
    if (begin !== this.#needed) throw new Error("the sizes of the frames do not add up to the size of their message");
    messages.push(frames);
    this.#needed = 4;
    return 4 + size;
  }
}
