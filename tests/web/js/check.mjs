/** Properties of the machine beyond single calls: memory, depth, calls at the same time, functions of the caller. */

import assert from "node:assert/strict";
import { readFunction, readParams } from "../../../relaxpy/web/js/bytecode.js";
import { HostDevice } from "../../../relaxpy/web/js/host.js";
import { Machine } from "../../../relaxpy/web/js/machine.js";
import { FunctionValue, Tensor } from "../../../relaxpy/web/js/values.js";

const N = { Heap: [0] };
const VECTOR = { TensorPattern: [[N], 1, "float32", 1] };
const CALLABLE = { CallablePattern: [-1] };
const INT = { PrimPattern: ["int64", N] };

function code(name, patterns, body, { heap = [0, 0, 0], storages = [], slots = [] } = {}) {
  const params = patterns.map((_, i) => ({ Param: [`p${i}`, "R.Object", false] }));
  const matches = patterns.map((pattern, i) => ({ Match: [0, i, pattern, i] }));
  const checks = patterns.map((_, i) => ({ Check: ["parameter", `p${i}`, "R.Object", "", [["n", 0]]] }));
  const place = { Location: ["lv", "model.py", 10, 4, 0] };
  return readFunction({
    FunctionCode: [name, params, "R.Object", 12, heap, storages, [...matches, ...body], checks, [place], true, slots],
  });
}

/** A device beside the host that counts the memory in use. */
class Counting extends HostDevice {
  isHost = false;
  live = new Set();

  allocate(nbytes) {
    const buffer = super.allocate(nbytes);
    this.live.add(buffer);
    return buffer;
  }

  release(buffer) {
    assert(this.live.delete(buffer), "memory is released once");
  }
}

const param = (access) => ({ KernelParam: ["float32", [N], -1, access] });
const ADD = { name: "add", slot: 1, params: readParams([param("read"), param("read"), param("write")]), launch: [] };
const add = (a, b, c) => c.forEach((_, i) => (c[i] = a[i] + b[i]));

function machineOf(...functions) {
  const device = new Counting("device", { add });
  const program = { functions, kernels: [ADD], packed: [], libraries: [] };
  return { device, machine: new Machine(program, [new HostDevice(), device], []) };
}

const alloc = (dst, storage) => ({ Alloc: [0, dst, 0, 1, "float32", storage, 0, 1] });
const kernel = (...args) => ({ Kernel: [0, 0, args.map((reg) => ({ Reg: [reg] })), -1, -1, -1] });
const STORAGE = { storages: [{ IntOp: ["mul", [N, 4]] }], slots: [1] };
const sum = code("main", [VECTOR, VECTOR], [
  alloc(2, 0), kernel(0, 1, 2), alloc(3, -1), kernel(2, 0, 3), alloc(4, -1), kernel(3, 3, 4), { Return: [0, 3] },
], STORAGE);

{
  // What a call allocates is given back when it ends, but for its result and the storage of the next call.
  const { device, machine } = machineOf(sum);
  for (let turn = 0; turn < 3; turn += 1) {
    const result = await machine.call("main", [new Float32Array([1, 2]), [10, 20]]);
    assert.deepEqual(await result.list(), [12, 24]);
    assert.equal(device.live.size, 2);
    result.dispose();
    await assert.rejects(result.array(), { code: "arguments" });
    assert.equal(device.live.size, 1);
  }
  // After an error too; the arguments of the caller stay.
  const kept = new Tensor(device, device.allocate(8), 0, [2], "float32");
  await assert.rejects(machine.call("main", [kept, [1, 2, 3]]), { code: "check" });
  assert.equal(device.live.size, 2);
  assert(device.live.has(kept.buffer));
  machine.releaseMemory();
  assert.deepEqual([...device.live], [kept.buffer]);
}

{
  // A result that is an argument of the call is the caller's.
  const { device, machine } = machineOf(code("main", [VECTOR], [{ Return: [0, 0] }]));
  const mine = new Tensor(device, device.allocate(4), 0, [1], "float32");
  assert.equal(await machine.call("main", [mine]), mine);
  assert.equal(device.live.size, 1);
  const uploaded = await machine.call("main", [[5]]);
  assert.deepEqual(await uploaded.list(), [5]);
  assert.equal(device.live.size, 2);
}

{
  // Recursion is as deep as memory allows; an error deep inside names some callers, not all.
  const body = [
    { Eval: [0, 1, { IntOp: ["sub", [N, 1]] }] },
    { Eval: [0, 2, { IntOp: ["lt", [0, N]] }] },
    { MakePrim: [0, 2, { Heap: [2] }, "bool"] },
    { If: [0, 2, 2, 1] },
    { MakePrim: [0, 3, { Heap: [1] }, "int64"] },
    { Call: [0, 3, 0, [3, 1]] },
    { Invoke: [0, 3, 1, []] },
    { Return: [0, 3] },
  ];
  const { machine } = machineOf(code("main", [INT, CALLABLE], body));
  assert.equal(await machine.call("main", [200_000, () => 7]), 7);
  const broken = () => { throw Error("no"); };
  await assert.rejects(machine.call("main", [1000, broken]), (error) => {
    assert.equal(error.code, "callback-failed");
    assert.match(error.message, /in the binding of lv, model.py:10/);
    assert(error.notes.length < 20);
    return true;
  });
}

{
  // Calls that wait for the caller's functions at the same time have frames of their own.
  const body = [
    alloc(2, 0), kernel(0, 0, 2), { Invoke: [0, 3, 1, []] }, alloc(4, -1), kernel(2, 0, 4), { Return: [0, 4] },
  ];
  const { machine, device } = machineOf(code("main", [VECTOR, CALLABLE], body, STORAGE));
  const gates = [];
  const calls = [1, 2, 3].map((x) => machine.call("main", [[x], () => new Promise((done) => gates.push(done))]));
  while (gates.length < 3) await new Promise((done) => setTimeout(done, 1));
  gates.reverse().forEach((done) => done(0));
  const results = await Promise.all(calls);
  assert.deepEqual(await Promise.all(results.map((each) => each.list())), [[3], [6], [9]]);
  assert.equal(device.live.size, 6);
}

{
  // Arguments by every kind of array; what does not fit says what was expected.
  const { machine } = machineOf(sum, code("two", [{ TensorPattern: [[N, 2], 2, "float32", 0] }], [{ Return: [0, 0] }]));
  const two = async (x) => (await machine.call("two", [x])).list();
  assert.deepEqual(await two([[1, 2], [3, 4]]), [[1, 2], [3, 4]]);
  assert.deepEqual(await two({ data: new Float32Array([1, 2]), shape: [1, 2] }), [[1, 2]]);
  assert.deepEqual(await two({ data: new Float32Array(8).subarray(2, 4), shape: [1, 2] }), [[0, 0]]);
  assert.deepEqual(await two({ data: [], shape: [0, 2] }), []);
  for (const [wrong, text] of [
    [[[1, 2], [3]], /equal lengths/],
    [[["a", "b"]], /expected numbers of float32/],
    [new Float32Array(4), /it has 1 dimension, not 2/],
    [{ data: new Float32Array(4), shape: [3, 2] }, /4 elements are no tensor of shape \[3, 2\]/],
    [{ data: new Float32Array(4), shape: [-2, -2] }, /no tensor of shape/],
    [{ data: new Float32Array(4), shape: [2, 2], dtype: "int32" }, /a Float32Array does not hold elements of int32/],
    [{ data: new Float32Array(4), shape: [2, 2], dtype: "float99" }, /does not support the dtype/],
    [{ data: new Int32Array(2), shape: [1, 2] }, /the dtype is int32, not float32/],
    [null, /expected a tensor, got None/],
    ["text", /expected a tensor, got the str/],
    [undefined, /expected a tensor, got nothing/],
    [[], /it has 1 dimension, not 2/],
  ]) {
    await assert.rejects(machine.call("two", [wrong]), (error) => {
      assert.match(error.message, text);
      assert.match(error.message, /two: parameter p0: /);
      return true;
    });
  }
  await assert.rejects(machine.call("two", []), { code: "arguments" });
  await assert.rejects(machine.call("three", []), { code: "function-name" });
  await assert.rejects(machine.call("toString", []), { code: "function-name" });
  const value = new FunctionValue(machine.named.get("two"), []);
  await assert.rejects(machine.call("two", [value]), /expected a tensor, got the function two/);
}
