/** Encodes and decodes the texts of standard input with a tokenizer.json: {config, texts} → a list for each text. */

import { readFileSync } from "node:fs";
import { Tokenizer } from "../../../relaxpy/web/js/tokenizer.js";

const { config, texts, most } = JSON.parse(readFileSync(0, "utf8"));
const tokenizer = new Tokenizer(config);
const found = texts.map((text) => {
  const ids = tokenizer.encode(text);
  const bare = tokenizer.encode(text, { special: false });
  return [ids, bare, tokenizer.encode(text, { most }), tokenizer.decode(ids)];
});
console.log(JSON.stringify(found));
