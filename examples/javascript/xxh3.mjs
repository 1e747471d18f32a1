// XXH3, 64 bits, seed 0: the checksum of every payload, and the hash of every key.
//
// The algorithm depends on the length: 0, 1 to 3, 4 to 8, 9 to 16, 17 to 128, 129 to 240 bytes, and longer. All of them
// mix the input with a fixed secret. Numbers are unsigned 64-bit integers, so they are BigInts: `u64` cuts a result to 64
// bits, and where an expression has this form the engine of Node.js computes with machine words.

const SECRET = Buffer.from(
  "b8fe6c3923a44bbe7c01812cf721ad1cded46de9839097db7240a4a4b7b3671fcb79e64eccc0e578825ad07dccff7221" +
    "b8084674f743248ee03590e6813a264c3c2852bb91c300cb88d0658b1b532ea371644897a20df94e3819ef46a9deacd8" +
    "a8fa763fe39c343ff9dcbbc7c70b4f1d8a51e04bcdb45931c89f7ec9d9787364eac5ac8334d3ebc3c581a0fffa1363eb" +
    "170ddd51b7f0da49d316552629d4689e2b16be587d47a1fc8ff8b8d17ad031ce45cb3a8f95160428afd7fbcabb4b407e",
  "hex",
);
const secret = new DataView(SECRET.buffer, SECRET.byteOffset, SECRET.byteLength);

const PRIME32_1 = 0x9e3779b1n;
const PRIME32_2 = 0x85ebca77n;
const PRIME32_3 = 0xc2b2ae3dn;
const PRIME64_1 = 0x9e3779b185ebca87n;
const PRIME64_2 = 0xc2b2ae3d27d4eb4fn;
const PRIME64_3 = 0x165667b19e3779f9n;
const PRIME64_4 = 0x85ebca77c2b2ae63n;
const PRIME64_5 = 0x27d4eb2f165667c5n;
const PRIME_MX1 = 0x165667919e3779f9n;
const PRIME_MX2 = 0x9fb21c651e98df25n;

const STRIPE_BYTES = 64;
const STRIPES_PER_BLOCK = 16;
const BLOCK_BYTES = STRIPE_BYTES * STRIPES_PER_BLOCK;
const LOW_32 = 0xffffffffn;

const u64 = (number) => BigInt.asUintN(64, number);
const secret64 = (at) => secret.getBigUint64(at, true);

/** Return the hash of a Uint8Array, as a BigInt. */
export function xxh3(bytes) {
  const input = new DataView(bytes.buffer, bytes.byteOffset, bytes.byteLength);
  const size = bytes.byteLength;
  if (size === 0) return avalanche64(secret64(56) ^ secret64(64));
  if (size <= 3) return upTo3(bytes, size);
  if (size <= 8) return upTo8(input, size);
  if (size <= 16) return upTo16(input, size);
  if (size <= 128) return upTo128(input, size);
  if (size <= 240) return upTo240(input, size);
  return long(input, size);
}

function upTo3(bytes, size) {
  const combined = (bytes[0] << 16) | (bytes[size >> 1] << 24) | bytes[size - 1] | (size << 8);
  const flip = secret.getUint32(0, true) ^ secret.getUint32(4, true);
  return avalanche64(BigInt((combined ^ flip) >>> 0));
}

function upTo8(input, size) {
  const first = BigInt(input.getUint32(0, true));
  const last = BigInt(input.getUint32(size - 4, true));
  let hash = (last + (first << 32n)) ^ secret64(8) ^ secret64(16);
  hash ^= rotated(hash, 49n) ^ rotated(hash, 24n);
  hash = u64(hash * PRIME_MX2);
  hash ^= (hash >> 35n) + BigInt(size);
  hash = u64(hash * PRIME_MX2);
  return hash ^ (hash >> 28n);
}

function upTo16(input, size) {
  const low = input.getBigUint64(0, true) ^ secret64(24) ^ secret64(32);
  const high = input.getBigUint64(size - 8, true) ^ secret64(40) ^ secret64(48);
  return avalanche(BigInt(size) + swapped(low) + high + folded(low, high));
}

function upTo128(input, size) {
  let sum = BigInt(size) * PRIME64_1;
  // Pairs of 16 bytes, from both ends towards the middle.
  for (let pair = (size - 1) >> 5; pair >= 0; pair--) {
    sum += mixed(input, 16 * pair, 32 * pair) + mixed(input, size - 16 * (pair + 1), 32 * pair + 16);
  }
  return avalanche(sum);
}

function upTo240(input, size) {
  let sum = BigInt(size) * PRIME64_1;
  for (let part = 0; part < 8; part++) sum += mixed(input, 16 * part, 16 * part);
  sum = avalanche(sum);
  for (let part = 8; part < size >> 4; part++) sum += mixed(input, 16 * part, 16 * (part - 8) + 3);
  return avalanche(sum + mixed(input, size - 16, 136 - 17));
}

function long(input, size) {
  const lanes = BigUint64Array.of(
    PRIME32_3, PRIME64_1, PRIME64_2, PRIME64_3, PRIME64_4, PRIME32_2, PRIME64_5, PRIME32_1,
  );
  const blocks = Math.floor((size - 1) / BLOCK_BYTES);
  for (let block = 0; block < blocks; block++) {
    accumulate(lanes, input, block * BLOCK_BYTES, STRIPES_PER_BLOCK);
    scramble(lanes);
  }
  const rest = size - 1 - blocks * BLOCK_BYTES;
  accumulate(lanes, input, blocks * BLOCK_BYTES, Math.floor(rest / STRIPE_BYTES));
  // The last stripe may overlap the one before it.
  addStripe(lanes, input, size - STRIPE_BYTES, SECRET.length - STRIPE_BYTES - 7);
  let sum = BigInt(size) * PRIME64_1;
  for (let at = 0; at < 8; at += 2) {
    sum += folded(lanes[at] ^ secret64(11 + 8 * at), lanes[at + 1] ^ secret64(19 + 8 * at));
  }
  return avalanche(sum);
}

function accumulate(lanes, input, at, stripes) {
  for (let stripe = 0; stripe < stripes; stripe++) addStripe(lanes, input, at + STRIPE_BYTES * stripe, 8 * stripe);
}

function addStripe(lanes, input, at, secretAt) {
  for (let lane = 0; lane < 8; lane++) {
    const value = input.getBigUint64(at + 8 * lane, true);
    const key = value ^ secret.getBigUint64(secretAt + 8 * lane, true);
    lanes[lane ^ 1] = BigInt.asUintN(64, lanes[lane ^ 1] + value);
    lanes[lane] = BigInt.asUintN(64, lanes[lane] + BigInt.asUintN(64, (key & LOW_32) * (key >> 32n)));
  }
}

function scramble(lanes) {
  for (let lane = 0; lane < 8; lane++) {
    const value = lanes[lane];
    const key = value ^ (value >> 47n) ^ secret64(SECRET.length - STRIPE_BYTES + 8 * lane);
    lanes[lane] = BigInt.asUintN(64, key * PRIME32_1);
  }
}

/** Mix 16 bytes of the input with 16 bytes of the secret. */
function mixed(input, at, secretAt) {
  return folded(
    input.getBigUint64(at, true) ^ secret64(secretAt),
    input.getBigUint64(at + 8, true) ^ secret64(secretAt + 8),
  );
}

/** Multiply to 128 bits, and combine the two halves. */
function folded(one, other) {
  const product = one * other;
  return u64(product) ^ (product >> 64n);
}

function avalanche(sum) {
  let hash = u64(sum);
  hash ^= hash >> 37n;
  hash = u64(hash * PRIME_MX1);
  return hash ^ (hash >> 32n);
}

function avalanche64(start) {
  let hash = start ^ (start >> 33n);
  hash = u64(hash * PRIME64_2);
  hash ^= hash >> 29n;
  hash = u64(hash * PRIME64_3);
  return hash ^ (hash >> 32n);
}

function rotated(number, bits) {
  return u64(number << bits) | (number >> (64n - bits));
}

/** Reverse the bytes of a number. */
function swapped(number) {
  const bytes = Buffer.alloc(8);
  bytes.writeBigUInt64LE(number);
  return bytes.readBigUInt64BE();
}
