// msgpack, as far as the protocol needs it: nil, booleans, integers, floats, text, bytes, arrays and maps.
//
// Integers have up to 64 bits. A number beyond 2^53 can't be a JavaScript number without losing digits, so it is a BigInt
// when it is decoded; the encoder accepts both. A value is always encoded in its shortest form. Bytes are Uint8Arrays,
// and a decoded map is a Map, because the keys of an object would include those of its prototype.

const DEPTH_MAX = 64;
const text = new TextDecoder("utf-8", { fatal: true, ignoreBOM: true });

export function encode(value) {
  const writer = new Writer();
  writer.write(value);
  return writer.bytes();
}

/** Decode one value. Throws an Error if the bytes are anything else. */
export function decode(bytes) {
  const reader = new Reader(bytes);
  const value = reader.read(DEPTH_MAX);
  if (!reader.isAtEnd) throw new Error("msgpack: there are bytes behind the value");
  return value;
}

class Writer {
  #buffer = Buffer.allocUnsafe(256);
  #size = 0;

  bytes() {
    return this.#buffer.subarray(0, this.#size);
  }

  write(value) {
    if (value === null || value === undefined) this.#byte(0xc0);
    else if (typeof value === "boolean") this.#byte(value ? 0xc3 : 0xc2);
    else if (typeof value === "number" && !Number.isSafeInteger(value)) this.#float(value);
    else if (typeof value === "number" || typeof value === "bigint") this.#integer(value);
    else if (typeof value === "string") this.#text(value);
    else if (value instanceof Uint8Array) this.#binary(value);
    else if (Array.isArray(value)) this.#array(value);
    else this.#map(value instanceof Map ? [...value] : Object.entries(value));
  }

  /** Reserve bytes at the end, and return where they begin. */
  #reserve(count) {
    const at = this.#size;
    this.#size += count;
    if (this.#size > this.#buffer.length) {
      const larger = Buffer.allocUnsafe(2 * this.#size);
      this.#buffer.copy(larger, 0, 0, at);
      this.#buffer = larger;
    }
    return at;
  }

  #byte(value) {
    const at = this.#reserve(1);
    this.#buffer[at] = value;
  }

  /** Write a code, and an unsigned number of 1, 2 or 4 bytes behind it. */
  #code(code, value, count) {
    const at = this.#reserve(1 + count);
    this.#buffer[at] = code;
    this.#buffer.writeUIntBE(value, at + 1, count);
  }

  #integer(value) {
    if (value >= 0 && value < 128) this.#byte(Number(value));
    else if (value < 0 && value >= -32) this.#byte(256 + Number(value));
    else if (value >= 0 && value < 2 ** 8) this.#code(0xcc, Number(value), 1);
    else if (value >= 0 && value < 2 ** 16) this.#code(0xcd, Number(value), 2);
    else if (value >= 0 && value < 2 ** 32) this.#code(0xce, Number(value), 4);
    else if (value < 0 && value >= -(2 ** 7)) this.#code(0xd0, 2 ** 8 + Number(value), 1);
    else if (value < 0 && value >= -(2 ** 15)) this.#code(0xd1, 2 ** 16 + Number(value), 2);
    else if (value < 0 && value >= -(2 ** 31)) this.#code(0xd2, 2 ** 32 + Number(value), 4);
    else {
      const at = this.#reserve(9);
      this.#buffer[at] = value < 0 ? 0xd3 : 0xcf;
      // They throw a RangeError if the number has more than 64 bits.
      if (value < 0) this.#buffer.writeBigInt64BE(BigInt(value), at + 1);
      else this.#buffer.writeBigUInt64BE(BigInt(value), at + 1);
    }
  }

  #float(value) {
    const at = this.#reserve(9);
    this.#buffer[at] = 0xcb;
    this.#buffer.writeDoubleBE(value, at + 1);
  }

  #text(value) {
    // UTF-8 has no half characters: they would be replaced, and a name would become another one.
    if (!value.isWellFormed()) throw new TypeError("msgpack: the text is not valid Unicode");
    const size = Buffer.byteLength(value);
    if (size < 32) this.#byte(0xa0 + size);
    else this.#sized([0xd9, 0xda, 0xdb], size);
    const at = this.#reserve(size);
    this.#buffer.write(value, at);
  }

  #binary(value) {
    this.#sized([0xc4, 0xc5, 0xc6], value.length);
    const at = this.#reserve(value.length);
    this.#buffer.set(value, at);
  }

  #sized([code8, code16, code32], size) {
    if (size < 2 ** 8) this.#code(code8, size, 1);
    else if (size < 2 ** 16) this.#code(code16, size, 2);
    else this.#code(code32, size, 4);
  }

  #array(values) {
    if (values.length < 16) this.#byte(0x90 + values.length);
    else if (values.length < 2 ** 16) this.#code(0xdc, values.length, 2);
    else this.#code(0xdd, values.length, 4);
    for (const value of values) this.write(value);
  }

  #map(entries) {
    if (entries.length < 16) this.#byte(0x80 + entries.length);
    else if (entries.length < 2 ** 16) this.#code(0xde, entries.length, 2);
    else this.#code(0xdf, entries.length, 4);
    for (const [key, value] of entries) {
      this.write(key);
      this.write(value);
    }
  }
}

class Reader {
  #bytes;
  #view;
  #at = 0;

  constructor(bytes) {
    this.#bytes = bytes;
    this.#view = new DataView(bytes.buffer, bytes.byteOffset, bytes.byteLength);
  }

  get isAtEnd() {
    return this.#at === this.#bytes.length;
  }

  read(depth) {
    if (depth === 0) throw new Error("msgpack: the value is nested too deeply");
    const code = this.#unsigned(1);
    if (code < 0x80) return code;
    if (code < 0x90) return this.#map(code - 0x80, depth);
    if (code < 0xa0) return this.#array(code - 0x90, depth);
    if (code < 0xc0) return text.decode(this.#take(code - 0xa0));
    if (code >= 0xe0) return code - 256;
    switch (code) {
      case 0xc0: return null;
      case 0xc2: return false;
      case 0xc3: return true;
      case 0xc4: return this.#take(this.#unsigned(1));
      case 0xc5: return this.#take(this.#unsigned(2));
      case 0xc6: return this.#take(this.#unsigned(4));
      case 0xca: return this.#view.getFloat32(this.#skip(4));
      case 0xcb: return this.#view.getFloat64(this.#skip(8));
      case 0xcc: return this.#unsigned(1);
      case 0xcd: return this.#unsigned(2);
      case 0xce: return this.#unsigned(4);
      case 0xcf: return narrowed(this.#view.getBigUint64(this.#skip(8)));
      case 0xd0: return this.#view.getInt8(this.#skip(1));
      case 0xd1: return this.#view.getInt16(this.#skip(2));
      case 0xd2: return this.#view.getInt32(this.#skip(4));
      case 0xd3: return narrowed(this.#view.getBigInt64(this.#skip(8)));
      case 0xd9: return text.decode(this.#take(this.#unsigned(1)));
      case 0xda: return text.decode(this.#take(this.#unsigned(2)));
      case 0xdb: return text.decode(this.#take(this.#unsigned(4)));
      case 0xdc: return this.#array(this.#unsigned(2), depth);
      case 0xdd: return this.#array(this.#unsigned(4), depth);
      case 0xde: return this.#map(this.#unsigned(2), depth);
      case 0xdf: return this.#map(this.#unsigned(4), depth);
      default: throw new Error(`msgpack: code ${code} is not supported`);
    }
  }

  /** Skip bytes, and return where they begin. */
  #skip(count) {
    const at = this.#at;
    if (at + count > this.#bytes.length) throw new Error("msgpack: the value is not complete");
    this.#at += count;
    return at;
  }

  #take(count) {
    const at = this.#skip(count);
    return this.#bytes.subarray(at, at + count);
  }

  #unsigned(count) {
    const at = this.#skip(count);
    if (count === 1) return this.#view.getUint8(at);
    return count === 2 ? this.#view.getUint16(at) : this.#view.getUint32(at);
  }

  #array(count, depth) {
    // No array of the announced size is made before its values are there: the size may be a lie.
    const values = [];
    for (let index = 0; index < count; index++) values.push(this.read(depth - 1));
    return values;
  }

  #map(count, depth) {
    const map = new Map();
    for (let index = 0; index < count; index++) {
      const key = this.read(depth - 1);
      map.set(key, this.read(depth - 1));
    }
    return map;
  }
}

function narrowed(number) {
  const isSafe = number >= Number.MIN_SAFE_INTEGER && number <= Number.MAX_SAFE_INTEGER;
  return isSafe ? Number(number) : number;
}
