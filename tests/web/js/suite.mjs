/** Runs the machine's suite (docs/machine.md) in node: `node suite.mjs FOLDER`. Prints a line for each problem. */

import { readFileSync } from "node:fs";
import { FIELDS, readFunction, readParams } from "../../../relaxpy/web/js/bytecode.js";
import { BUILTINS } from "../../../relaxpy/web/js/builtins.js";
import { HostDevice } from "../../../relaxpy/web/js/host.js";
import { formula, integer } from "../../../relaxpy/web/js/integers.js";
import { Machine } from "../../../relaxpy/web/js/machine.js";
import * as values from "../../../relaxpy/web/js/values.js";
import { converters } from "./json.mjs";

const { Tensor } = values;

const folder = process.argv[2];
const read = (name) => JSON.parse(readFileSync(`${folder}/${name}.json`, "utf8"));
const problems = [];
let count = 0;

const { fromJson, toJson } = converters(values, integer);

/** The tensor programs of the suite; their parameters are as they are compiled. */
const N = { Heap: [0] };
const f32 = (shape, access) => ({ KernelParam: ["float32", [shape], -1, access] });
const KERNELS = {
  add: [[f32(N, "read"), f32(N, "read"), f32(N, "write")], (a, b, c) => c.forEach((_, i) => (c[i] = a[i] + b[i]))],
  double: [
    [f32(N, "read"), f32({ IntOp: ["mul", [N, 2]] }, "write")],
    (a, b) => b.forEach((_, i) => (b[i] = a[i >> 1])),
  ],
  count: [
    [{ KernelParam: ["int64", [N], -1, "write"] }, { KernelParam: ["int64", null, -1, "read"] }],
    (a, start) => a.forEach((_, i) => (a[i] = BigInt(i) + BigInt(start))),
  ],
  increase: [[f32(N, "read-write")], (a) => a.forEach((_, i) => (a[i] += 1))],
};
const LIBRARIES = { "suite.negate": (x, out) => out.device.view(out).set(x.device.view(x).map((each) => -each)) };

function machineOf(functions, { constants = [], packed = [], libraries = [], slots = 1, kernels = [] } = {}) {
  const runs = Object.fromEntries(Object.entries(KERNELS).map(([name, [, run]]) => [name, run]));
  const devices = Array.from({ length: slots }, (_, i) => new HostDevice(`slot ${i}`, runs));
  const program = {
    functions: functions.map(readFunction),
    kernels: kernels.map((name) => ({ name, slot: 0, params: readParams(KERNELS[name][0]), launch: [] })),
    packed,
    libraries,
  };
  const placed = constants.map((tensor) => {
    const { data, shape, dtype } = fromJson({ tensor }, null);
    return devices.map((device) => {
      const buffer = device.allocate(data.byteLength);
      device.write(buffer, 0, new Uint8Array(data.buffer));
      return new Tensor(device, buffer, 0, shape, dtype, true);
    });
  });
  return new Machine(program, devices, placed, LIBRARIES);
}

async function outcome(machine, run) {
  const args = run.args.map((arg) => fromJson(arg, machine));
  let found;
  try {
    found = { result: await toJson(await machine.run("main", args)) };
  } catch (error) {
    found = { error: error.code ?? error.stack };
  }
  const after = run.after === undefined ? {} : { after: await Promise.all(args.map(toJson)) };
  return { ...found, ...after };
}

const plain = (value) => JSON.stringify(value, (_, each) => (Object.is(each, -0) ? 0 : each));
const same = (a, b) => plain(a) === plain(b);
const wanted = ({ result, error, after }) => ({
  ...(error ? { error } : { result }),
  ...(after === undefined ? {} : { after }),
});

async function instructions() {
  const suite = read("instructions");
  for (const test of suite.cases) {
    if (test.refused) continue; // `relaxpy web` verifies what it exports
    const slots = test.slots?.length ?? 1;
    const machine = machineOf(test.functions, { ...test, slots, kernels: suite.kernels });
    for (const [i, run] of test.runs.entries()) {
      count += 1;
      const found = await outcome(machine, run);
      if (!same(found, wanted(run))) problems.push(`${test.name}, run ${i}: ${plain(found)}, not ${plain(wanted(run))}`);
    }
  }
}

async function builtins() {
  for (const [i, test] of read("builtins").cases.entries()) {
    if (!(test.builtin in BUILTINS)) continue; // `relaxpy web` refuses it by name
    count += 1;
    const regs = test.args.map((_, reg) => ({ Reg: [reg] }));
    const n = regs.length;
    const param = { Param: ["p", "R.Object", false] };
    const main = { FunctionCode: [
      "main", regs.map(() => param), "R.Object", n + 1, [], [],
      [{ Packed: [0, n, 0, regs] }, { Return: [0, n] }], [], [], true, [],
    ] };
    const machine = machineOf([main], { packed: [test.builtin] });
    let output = "";
    const log = console.log;
    console.log = (line) => (output += `${line}\n`);
    const found = await outcome(machine, test);
    console.log = log;
    const name = `${i}: ${test.builtin}`;
    if (!same(found, wanted(test))) problems.push(`${name}: ${plain(found)}, not ${plain(wanted(test))}`);
    if (output !== (test.output ?? "")) problems.push(`${name}: wrote ${JSON.stringify(output)}`);
  }
}

/** A formula in the compact encoding. */
function encoded(code) {
  if (typeof code === "number") return code;
  if (typeof code === "string") return code[0] === "h" ? { Heap: [Number(code.slice(1))] } : { Int64: code };
  const [op, ...args] = code;
  return { IntOp: [op, args.map(encoded)] };
}

function computed(run, heap) {
  try {
    return String(run(heap));
  } catch (error) {
    const text = error.text ?? String(error);
    return text.includes("64 bits") ? "overflow" : text.includes("divides by 0") ? "division by zero" : text;
  }
}

function formulas() {
  const suite = read("formulas");
  const whole = (value) => integer(BigInt(value));
  const edges = suite.edges.map(whole);
  const heaps = suite.heaps.map((heap) => heap.map(whole));
  const compare = (text, run, heap, want) => {
    count += 1;
    const got = computed(run, heap);
    if (got !== String(want)) problems.push(`${JSON.stringify(text)} on [${heap}]: ${got}, not ${want}`);
  };
  for (const [op, table] of Object.entries(suite.pairs)) {
    const run = formula(encoded([op, "h0", "h1"]));
    table.forEach((row, i) => row.forEach((want, j) => compare(op, run, [edges[i], edges[j]], want)));
  }
  for (const [code, ...found] of suite.formulas) {
    const run = formula(encoded(code));
    for (const [at, want] of found) compare(code, run, heaps[at], want);
  }
}

formulas();
await instructions();
await builtins();
console.log(JSON.stringify({ count, problems: problems.slice(0, 40), failed: problems.length, builtins: Object.keys(BUILTINS), fields: FIELDS }));
