/** What a module of WebAssembly imports and exports; its bytes come in hexadecimal on the input. */

import { readFileSync } from "node:fs";

const module = new WebAssembly.Module(Buffer.from(readFileSync(0, "utf8"), "hex"));
const imports = WebAssembly.Module.imports(module);
const functions = Object.fromEntries(imports.map(({ name }) => [name, () => 0]));
const { exports } = new WebAssembly.Instance(module, { relaxpy: functions });
console.log(JSON.stringify({ imports, exports: Object.keys(exports), heap: exports.__heap_base.value }));
