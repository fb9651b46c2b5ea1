/** Prints the numbers of all codes of each narrow float, and the codes of the numbers of standard input. */

import { readFileSync } from "node:fs";
import { DTYPES, decodeFloat, encodeFloat } from "../../../relaxpy/web/js/values.js";

const narrow = Object.keys(DTYPES).filter((name) => DTYPES[name].code > 1 && DTYPES[name].bytes < 4 && name !== "bool");
const decoded = Object.fromEntries(
  narrow.map((name) => [name, Array.from({ length: 2 ** (8 * DTYPES[name].bytes) }, (_, i) => String(decodeFloat(name, i)))]),
);
const values = JSON.parse(readFileSync(0, "utf8")).map(Number);
const encoded = Object.fromEntries(["float16", "bfloat16"].map((name) => [name, values.map((x) => encodeFloat(name, x))]));
console.log(JSON.stringify({ decoded, encoded }));
