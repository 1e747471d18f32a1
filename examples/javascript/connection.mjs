// One connection to a broker. It is used until it ends; the session opens the next one.

import net from "node:net";

import { encodeMessage, encodeOpening, placeOf, StreamReader } from "./stream.mjs";

const OPENING = encodeOpening({ client: "oncemq-javascript-example" });
/** Large requests are written in parts, so that it is known whether they make progress. */
const PART_BYTES = 256 * 1024;

export class Connection {
  /** When a part of a large request or reply was transferred last. Its reply is not overdue meanwhile. */
  transferredMs = 0;
  #socket;
  #reader = new StreamReader();
  #outgoing = [OPENING];
  #isWriting = false;
  #isEnded = false;
  #onMessage;
  #onEnd;

  /** `onMessage` is called with the frames of each message, and `onEnd` once, with the reason, unless `destroy` was called.
   *  Messages can be sent at once: they follow the opening when the connection is established. */
  constructor(url, onMessage, onEnd) {
    this.#onMessage = onMessage;
    this.#onEnd = onEnd;
    // Without noDelay, the system may keep a small request back until an earlier one is acknowledged.
    this.#socket = net.connect({ ...placeOf(url), noDelay: true, keepAlive: true, keepAliveInitialDelay: 30_000 });
    this.#socket.on("connect", () => this.#checkPeer());
    this.#socket.on("data", (chunk) => this.#receive(chunk));
    this.#socket.on("error", (error) => this.#end(error.message));
    this.#socket.on("close", () => this.#end("the broker has closed the connection"));
    this.#write();
  }

  send(frames) {
    this.#outgoing.push(...encodeMessage(frames));
    this.#write();
  }

  destroy() {
    this.#isEnded = true;
    this.#socket.destroy();
  }

  #end(why) {
    if (this.#isEnded) return;
    this.destroy();
    this.#onEnd(why);
  }

  /** If nobody listens at a port, the system may give it to the very socket that connects to it. */
  #checkPeer() {
    const { localPort, remotePort, localAddress, remoteAddress } = this.#socket;
    if (localPort && localPort === remotePort && localAddress === remoteAddress) {
      this.#end("the connection leads to itself");
    }
  }

  #write() {
    if (this.#isWriting || this.#isEnded || !this.#outgoing.length) return;
    const part = this.#takePart();
    this.#isWriting = true;
    this.#socket.write(part, () => {
      this.#isWriting = false;
      if (part.length === PART_BYTES) this.transferredMs = performance.now();
      this.#write();
    });
  }

  #takePart() {
    const buffers = [];
    let size = 0;
    while (this.#outgoing.length && size < PART_BYTES) {
      const first = this.#outgoing[0];
      const taken = first.subarray(0, PART_BYTES - size);
      if (taken.length === first.length) this.#outgoing.shift();
      else this.#outgoing[0] = first.subarray(taken.length);
      buffers.push(taken);
      size += taken.length;
    }
    return Buffer.concat(buffers, size);
  }

  #receive(chunk) {
    let messages;
    const wasOpen = this.#reader.properties !== null;
    try {
      messages = this.#reader.feed(chunk);
    } catch (error) {
      this.#end(error.message);
      return;
    }
    const refusal = !wasOpen && this.#reader.properties?.get("error");
    if (refusal) {
      this.#end(`the broker has refused the connection: ${refusal.join(": ")}`);
      return;
    }
    if (this.#reader.isIncomplete) this.transferredMs = performance.now();
    for (const frames of messages) {
      // A message may have made the session leave this connection.
      if (!this.#isEnded) this.#onMessage(frames);
    }
  }
}
