/** Loads models and calls their functions, as the lines of JSON on its input say: for WebAssembly in node. */

import { createInterface } from "node:readline";
import { integer } from "../../../relaxpy/web/js/integers.js";
import * as relaxpy from "../../../relaxpy/web/js/relaxpy.js";
import * as values from "../../../relaxpy/web/js/values.js";
import { converters } from "./json.mjs";

const { fromJson, toJson } = converters(values, integer);
let vm;

const commands = {
  async load(url, options) {
    vm?.destroy();
    vm = await relaxpy.load(url, options);
    return { target: vm.target, signatures: vm.signatures };
  },
  async call(name, args) {
    return toJson(await vm.machine.run(name, args.map((each) => fromJson(each, vm.machine))));
  },
  /** The bytes of the memory that is in use. */
  async used() {
    globalThis.gc?.();
    const { heap } = vm.device;
    return heap.end - heap.free.reduce((sum, [begin, end]) => sum + end - begin, 0);
  },
};

for await (const line of createInterface({ input: process.stdin })) {
  const [command, ...args] = JSON.parse(line);
  let answer;
  try {
    answer = { result: await commands[command](...args) };
  } catch (error) {
    const { code = "", text, notes = [], message = String(error), stack } = error;
    answer = { code, text, notes, message, stack };
  }
  process.stdout.write(`${JSON.stringify(answer)}\n`);
}
