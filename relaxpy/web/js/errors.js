/** Errors of the machine: a code, a sentence, and where it happened. */

/** The most notes of one error: a deep recursion has as many callers. */
const MOST_NOTES = 16;

/** An error with the same codes as relaxpy's in Python (docs/errors.md). */
export class RelaxError extends Error {
  /**
   * @param {string} code
   * @param {string} text what was expected, and what came
   * @param {{notes?: string[], help?: string, cause?: unknown}} [more]
   */
  constructor(code, text, { notes = [], help = "", cause } = {}) {
    super(text, cause === undefined ? undefined : { cause });
    this.name = "RelaxError";
    this.code = code;
    this.text = text;
    this.notes = [...notes];
    this.help = help;
    this.message = this.render();
  }

  /** The message with its code, notes and help, as `error.message` has it. */
  render() {
    const lines = [`[${this.code}] ${this.text}`, ...this.notes.map((note) => `  note: ${note}`)];
    if (this.help) lines.push(`  help: ${this.help}`);
    return lines.join("\n");
  }

  /** Add a note, unless there are too many. */
  note(text) {
    if (this.notes.length < MOST_NOTES) {
      this.notes.push(text);
      this.message = this.render();
    }
    return this;
  }

  /** Say in front of the sentence what it is about. */
  about(subject) {
    this.text = `${subject}: ${this.text}`;
    this.message = this.render();
    return this;
  }
}

/** The error for a value that does not fit. */
export const mismatch = (text, more) => new RelaxError("check", text, more);
