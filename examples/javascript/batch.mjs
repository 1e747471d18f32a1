// A payload: one or more messages in columns. docs/protocol.md, "The batch", has the layout.

import { OnceMQError } from "./errors.mjs";
import { decode, encode } from "./msgpack.mjs";
import { xxh3 } from "./xxh3.mjs";

const PLAIN = 1;
const HAS_KEYS = 1;
const HAS_HEADERS = 2;
const HAS_TIMES = 4;
const HEAD_BYTES = 24;

/** Sections begin at multiples of 8 bytes. */
const padded = (size) => (size + 7) & ~7;

/** Encode messages of the form `{ value, key, headers }`. Values and keys are Uint8Arrays; `key` and `headers` can be
 *  missing. Headers are a Map or an object, from strings to Uint8Arrays. */
export function encodeBatch(messages) {
  const count = messages.length;
  const head = Buffer.alloc(HEAD_BYTES);
  const values = messages.map((message) => message.value);
  const parts = [head, ...column(values)];
  let flags = 0;
  let keysBytes = 0;
  let headersBytes = 0;
  if (messages.some((message) => message.key)) {
    flags |= HAS_KEYS;
    const keys = messages.map((message) => message.key ?? Buffer.alloc(0));
    keysBytes = total(keys);
    parts.push(bitmap(messages), ...column(keys));
  }
  if (messages.some((message) => message.headers)) {
    flags |= HAS_HEADERS;
    const headers = messages.map((message) => (message.headers ? encode(message.headers) : Buffer.alloc(0)));
    headersBytes = total(headers);
    parts.push(...column(headers));
  }
  head.writeUInt8(PLAIN, 0);
  head.writeUInt8(flags, 1);
  head.writeUInt32LE(count, 4);
  head.writeUInt32LE(total(values), 8);
  head.writeUInt32LE(keysBytes, 12);
  head.writeUInt32LE(headersBytes, 16);
  return Buffer.concat(parts);
}

/** Return the buffers of a column: its offsets, the parts themselves, and zeros up to the next section. */
function column(parts) {
  const offsets = Buffer.alloc(padded(4 * (parts.length + 1)));
  let end = 0;
  parts.forEach((part, index) => {
    end += part.length;
    offsets.writeInt32LE(end, 4 * (index + 1));
  });
  return [offsets, ...parts, Buffer.alloc(padded(end) - end)];
}

const total = (parts) => parts.reduce((sum, part) => sum + part.length, 0);

/** An empty key is a key, so a bitmap says which messages have one. */
function bitmap(messages) {
  const bits = Buffer.alloc(padded(Math.ceil(messages.length / 8)));
  messages.forEach((message, index) => {
    if (message.key) bits[index >> 3] |= 1 << (index & 7);
  });
  return bits;
}

/** Return 8 bytes for each message, or nothing if none has a key. The broker does not decode payloads: it compares these
 *  hashes where a subscription needs the order of each key. */
export function keyHashes(messages) {
  if (!messages.some((message) => message.key)) return Buffer.alloc(0);
  const hashes = Buffer.alloc(8 * messages.length);
  messages.forEach((message, index) => {
    // 0 means that there is no key.
    if (message.key) hashes.writeBigUInt64LE(xxh3(message.key) || 1n, 8 * index);
  });
  return hashes;
}

/** Return messages `skip` to `skip + count - 1` of a payload, as `{ value, key, headers, timeMs }`. A missing key is null,
 *  and `timeMs` is null unless the batch has times of its own. Values and keys are views of the payload. */
export function decodeBatch(payload, skip = 0, count = undefined) {
  if (payload.length < HEAD_BYTES) throw undecodable("it is shorter than its head");
  const view = new DataView(payload.buffer, payload.byteOffset, payload.byteLength);
  const encoding = view.getUint8(0);
  const flags = view.getUint8(1);
  if (encoding !== PLAIN || flags & ~(HAS_KEYS | HAS_HEADERS | HAS_TIMES)) {
    throw new OnceMQError("UNSUPPORTED", `this client can't decode batches of encoding ${encoding}, flags ${flags}`);
  }
  const stored = view.getUint32(4, true);
  const sections = new Sections(payload, view, stored);
  const values = sections.column(view.getUint32(8, true));
  const bits = flags & HAS_KEYS ? sections.bytes(Math.ceil(stored / 8)) : null;
  const keys = bits && sections.column(view.getUint32(12, true));
  const headers = flags & HAS_HEADERS ? sections.column(view.getUint32(16, true)) : null;
  const timesAt = flags & HAS_TIMES ? sections.skip(8 * stored) : null;
  if (sections.at !== payload.length) throw undecodable("its sections do not fit its length");
  const end = skip + (count ?? stored - skip);
  if (end > stored) throw undecodable(`it has ${stored} messages, and ${end} were expected`);
  const messages = [];
  for (let index = skip; index < end; index++) {
    messages.push({
      value: values(index),
      key: bits && bits[index >> 3] & (1 << (index & 7)) ? keys(index) : null,
      headers: headers ? headersOf(headers(index)) : new Map(),
      timeMs: timesAt === null ? null : Number(view.getBigInt64(timesAt + 8 * index, true)),
    });
  }
  return messages;
}

/** The broker does not check headers, either. */
function headersOf(packed) {
  try {
    return packed.length ? decode(packed) : new Map();
  } catch (error) {
    throw undecodable(`its headers are damaged: ${error.message}`);
  }
}

/** Walks through the sections of a payload. */
class Sections {
  constructor(payload, view, count) {
    this.payload = payload;
    this.view = view;
    this.count = count;
    this.at = HEAD_BYTES;
  }

  /** Skip a section, and return where it begins. */
  skip(size) {
    const at = this.at;
    this.at += padded(size);
    if (this.at > this.payload.length) throw undecodable("its sections do not fit its length");
    return at;
  }

  bytes(size) {
    const at = this.skip(size);
    return this.payload.subarray(at, at + size);
  }

  /** Skip an offset table and its bytes. Return a function from an index to the part of this index. */
  column(size) {
    const table = this.skip(4 * (this.count + 1));
    const bytes = this.bytes(size);
    const offset = (index) => this.view.getInt32(table + 4 * index, true);
    if (offset(0) !== 0 || offset(this.count) !== size) throw undecodable("its offsets do not fit its bytes");
    return (index) => {
      const [begin, end] = [offset(index), offset(index + 1)];
      // The broker does not check the offsets in between.
      if (begin < 0 || end < begin || end > size) throw undecodable("its offsets do not fit its bytes");
      return bytes.subarray(begin, end);
    };
  }
}

function undecodable(why) {
  return new OnceMQError("UNDECODABLE", `a stored batch can't be decoded: ${why}`);
}
