// What the client throws.

/** `code` is one of docs/reference/errors.md and never changes; `text` is for people. */
export class OnceMQError extends Error {
  constructor(code, text) {
    super(`${text} (${code})`);
    this.name = "OnceMQError";
    this.code = code;
    this.text = text;
  }
}
