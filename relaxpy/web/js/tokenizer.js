/**
 * Tokenizers of Hugging Face's `tokenizer.json`: WordPiece with BERT's normalizer (sentence encoders), and BPE on bytes
 * (decoders). Parts of a tokenizer that are not here are refused by name.
 *
 * Ids are those of the library `tokenizers`. BERT's rules ask whether a character is a mark or punctuation: the library's
 * tables are of Unicode 8, the browser's are newer, so some characters that came later are treated otherwise.
 */

import { RelaxError } from "./errors.js";

const unsupported = (what) => new RelaxError("tokenizer", `the tokenizer has ${what}, which is not supported in a browser`);

export class Tokenizer {
  /** @param {object} config the content of a tokenizer.json */
  constructor(config) {
    const { model } = config;
    this.vocabulary = new Map(Object.entries(model.vocab));
    this.tokens = [];
    for (const [token, id] of this.vocabulary) this.tokens[id] = token;
    this.added = (config.added_tokens ?? []).map(({ id, content, special, lstrip, rstrip, single_word, normalized }) => {
      if (lstrip || rstrip || single_word) throw unsupported("added tokens that strip, or are whole words");
      if (normalized && config.normalizer) throw unsupported("added tokens that are normalized");
      this.tokens[id] = content;
      this.vocabulary.set(content, id);
      return { id, content, special };
    });
    this.special = new Set(this.added.filter(({ special }) => special).map(({ id }) => id));
    const texts = this.added.map(({ content }) => content).sort((a, b) => b.length - a.length);
    const quoted = texts.map((text) => text.replace(/[.*+?^${}()|[\]\\]/g, "\\$&"));
    this.splitter = texts.length ? new RegExp(`(${quoted.join("|")})`, "u") : null;
    this.normalize = normalizer(config.normalizer);
    this.split = preTokenizer(config.pre_tokenizer);
    this.template = templateOf(config.post_processor);
    this.encodeWord = { WordPiece: wordPiece, BPE: bytePairs }[model.type]?.(model, this);
    if (this.encodeWord === undefined) throw unsupported(`a model of type ${model.type}`);
    this.joined = decoder(config.decoder);
  }

  /** The tokenizer at an address. Throws: RelaxError (`file-read`, `tokenizer`). */
  static async load(url) {
    const response = await fetch(url);
    if (!response.ok) throw new RelaxError("file-read", `cannot read ${url}: ${response.status}`);
    return new Tokenizer(await response.json());
  }

  /**
   * The ids of a text.
   *
   * @param {string} text
   * @param {{special?: boolean, most?: number}} [options] `special`: with the tokens around a text, such as [CLS];
   *   `most`: truncated to this number
   */
  encode(text, { special = true, most = Infinity } = {}) {
    const found = [];
    for (const [i, part] of (this.splitter === null ? [text] : text.split(this.splitter)).entries()) {
      if (i % 2) found.push(this.vocabulary.get(part));
      else if (part) for (const word of this.split(this.normalize(part))) found.push(...this.encodeWord(word));
    }
    const { before, after } = special ? this.template : { before: [], after: [] };
    const room = Math.max(most - before.length - after.length, 0);
    return [...before, ...found.slice(0, room), ...after];
  }

  /** The text of ids, without special tokens. */
  decode(ids, { special = false } = {}) {
    return this.joined(ids.filter((id) => special || !this.special.has(id)).map((id) => this.tokens[id] ?? ""));
  }

  /** The id of a token; undefined if there is none. */
  id(token) {
    return this.vocabulary.get(token);
  }
}

// Normalizers

const isChinese = (code) =>
  (code >= 0x4e00 && code <= 0x9fff) || (code >= 0x3400 && code <= 0x4dbf) || (code >= 0x20000 && code <= 0x2a6df) ||
  (code >= 0x2a700 && code <= 0x2b73f) || (code >= 0x2b740 && code <= 0x2b81f) || (code >= 0x2b920 && code <= 0x2ceaf) ||
  (code >= 0xf900 && code <= 0xfaff) || (code >= 0x2f800 && code <= 0x2fa1f);

function normalizer(config) {
  if (!config) return (text) => text;
  switch (config.type) {
    case "Sequence": {
      const steps = config.normalizers.map(normalizer);
      return (text) => steps.reduce((found, step) => step(found), text);
    }
    case "NFC":
    case "NFD":
    case "NFKC":
    case "NFKD":
      return (text) => text.normalize(config.type);
    case "Lowercase":
      return (text) => text.toLowerCase();
    case "BertNormalizer":
      return bertNormalizer(config);
    default:
      throw unsupported(`a normalizer ${config.type}`);
  }
}

/** What is removed from texts: controls, formats, private characters. */
const OTHERS = /[\p{Cc}\p{Cf}\p{Co}\ufffd]/gu;

function bertNormalizer({ clean_text: clean, handle_chinese_chars: chinese, strip_accents: strip, lowercase }) {
  return (text) => {
    let found = text;
    if (clean) {
      found = found.replace(/[\t\n\r]/g, " ").replace(OTHERS, "");
      found = found.replace(/\p{White_Space}/gu, " ");
    }
    if (chinese) found = Array.from(found, (c) => (isChinese(c.codePointAt(0)) ? ` ${c} ` : c)).join("");
    if (strip ?? lowercase) found = found.normalize("NFD").replace(/\p{Mn}/gu, "");
    // One character at a time: the final sigma of a word is no case of its own.
    if (lowercase) found = Array.from(found, (c) => c.toLowerCase()).join("");
    return found;
  };
}

// Words

function preTokenizer(config) {
  if (!config) return (text) => [text];
  switch (config.type) {
    case "Sequence": {
      const steps = config.pretokenizers.map(preTokenizer);
      return (text) => steps.reduce((words, step) => words.flatMap(step), [text]);
    }
    case "BertPreTokenizer": {
      // ASCII that is no letter, digit or space counts as punctuation.
      const pattern = /[\p{P}!-/:-@[-`{-~]|[^\s\p{P}!-/:-@[-`{-~]+/gu;
      return (text) => text.match(pattern) ?? [];
    }
    case "Split": {
      if (config.behavior !== "Isolated" || config.invert) throw unsupported(`a split that is ${config.behavior}`);
      return isolated(patternOf(config.pattern));
    }
    case "Digits":
      return isolated(config.individual_digits ? /\p{N}/gu : /\p{N}+/gu);
    case "ByteLevel": {
      const words = config.use_regex ? isolated(GPT2) : (text) => [text];
      const start = config.add_prefix_space ? (text) => (/^\s/.test(text) ? text : ` ${text}`) : (text) => text;
      return (text) => words(start(text)).map(toBytes);
    }
    default:
      throw unsupported(`a pre-tokenizer ${config.type}`);
  }
}

const GPT2 = /'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+/gu;

/** The matches of a pattern, and what is between them. */
function isolated(pattern) {
  return (text) => {
    const found = [];
    let end = 0;
    for (const match of text.matchAll(pattern)) {
      if (match.index > end) found.push(text.slice(end, match.index));
      if (match[0]) found.push(match[0]);
      end = match.index + match[0].length;
    }
    if (end < text.length) found.push(text.slice(end));
    return found;
  };
}

/** A pattern of Oniguruma as one of JavaScript. */
function patternOf({ Regex: regex, String: literal }) {
  if (regex === undefined) return new RegExp(literal.replace(/[.*+?^${}()|[\]\\]/g, "\\$&"), "gu");
  // A group that ignores case is written out for browsers that have no such groups.
  const source = regex.replace(/\(\?i:([^()]*)\)/g, (_, inner) => `(?:${inner.replace(/\p{L}/gu, bothCases)})`);
  try {
    return new RegExp(source, "gu");
  } catch (error) {
    throw new RelaxError("tokenizer", `the tokenizer's pattern is not one of JavaScript: ${error.message}`);
  }
}

function bothCases(letter) {
  const upper = letter.toUpperCase();
  const others = letter.toLowerCase() === "s" ? "ſ" : letter.toLowerCase() === "k" ? "\u212a" : "";
  return `[${letter.toLowerCase()}${upper}${others}]`;
}

// Bytes as characters that can be seen, as GPT-2 has them.

const CHARACTERS = [];
const BYTES = new Map();
{
  let next = 256;
  for (let byte = 0; byte < 256; byte += 1) {
    const isSeen = (byte >= 33 && byte <= 126) || (byte >= 161 && byte <= 172) || byte >= 174;
    CHARACTERS[byte] = String.fromCodePoint(isSeen ? byte : next++);
    BYTES.set(CHARACTERS[byte], byte);
  }
}

const utf8 = new TextEncoder();
const toBytes = (text) => Array.from(utf8.encode(text), (byte) => CHARACTERS[byte]).join("");

// Models

function wordPiece({ unk_token: unknown, continuing_subword_prefix: prefix, max_input_chars_per_word: most }, tokenizer) {
  return (word) => {
    const characters = Array.from(word);
    if (characters.length > most) return [tokenizer.id(unknown)];
    const found = [];
    for (let begin = 0; begin < characters.length; ) {
      let end = characters.length;
      let id;
      for (; end > begin; end -= 1) {
        id = tokenizer.id((begin ? prefix : "") + characters.slice(begin, end).join(""));
        if (id !== undefined) break;
      }
      if (id === undefined) return [tokenizer.id(unknown)];
      found.push(id);
      begin = end;
    }
    return found;
  };
}

const MOST_WORDS = 10000;

function bytePairs({ merges, dropout, byte_fallback: fallback, ignore_merges: whole, continuing_subword_prefix: prefix,
  end_of_word_suffix: suffix }, tokenizer) {
  if (dropout || fallback || prefix || suffix) throw unsupported("BPE with dropout, byte fallback, a prefix or a suffix");
  const ranks = new Map(merges.map((pair, rank) => [typeof pair === "string" ? pair : pair.join(" "), rank]));
  const known = new Map();
  const merged = (word) => {
    if (whole && tokenizer.vocabulary.has(word)) return [tokenizer.id(word)];
    const parts = Array.from(word);
    for (;;) {
      let best = Infinity;
      let at = -1;
      for (let i = 0; i + 1 < parts.length; i += 1) {
        const rank = ranks.get(`${parts[i]} ${parts[i + 1]}`);
        if (rank !== undefined && rank < best) [best, at] = [rank, i];
      }
      if (at < 0) break;
      parts.splice(at, 2, parts[at] + parts[at + 1]);
    }
    return parts.map((part) => tokenizer.id(part)).filter((id) => id !== undefined);
  };
  return (word) => {
    let found = known.get(word);
    if (found === undefined) {
      found = merged(word);
      if (known.size >= MOST_WORDS) known.clear();
      known.set(word, found);
    }
    return found;
  };
}

// What is around a text

function templateOf(config) {
  const around = { before: [], after: [] };
  if (!config) return around;
  if (config.type === "Sequence") {
    const found = config.processors.map(templateOf);
    return found.reduceRight(
      (inner, outer) => ({ before: [...outer.before, ...inner.before], after: [...inner.after, ...outer.after] }),
      around,
    );
  }
  if (config.type === "ByteLevel") return around;
  if (config.type === "BertProcessing") return { before: [config.cls[1]], after: [config.sep[1]] };
  if (config.type !== "TemplateProcessing") throw unsupported(`a post-processor ${config.type}`);
  let place = around.before;
  for (const { SpecialToken: token } of config.single) {
    if (token === undefined) place = around.after;
    else place.push(...config.special_tokens[token.id].ids);
  }
  return around;
}

function decoder(config) {
  if (config?.type === "WordPiece") {
    const { prefix, cleanup } = config;
    const clean = (text) => text.replace(/ ([.?!,])/g, "$1").replace(/ ' /g, "'").replace(/ (n't|'m|'s|'ve|'re)/g, "$1");
    const part = (token, i) => (i === 0 ? token : token.startsWith(prefix) ? token.slice(prefix.length) : ` ${token}`);
    return (tokens) => tokens.map(part).map((text) => (cleanup ? clean(text) : text)).join("");
  }
  if (config?.type === "ByteLevel") {
    return (tokens) => {
      const bytes = tokens.flatMap((token) =>
        Array.from(token).every((c) => BYTES.has(c)) ? Array.from(token, (c) => BYTES.get(c)) : [...utf8.encode(token)],
      );
      return new TextDecoder().decode(new Uint8Array(bytes));
    };
  }
  if (!config) return (tokens) => tokens.join(" ");
  throw unsupported(`a decoder ${config.type}`);
}
