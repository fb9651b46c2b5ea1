/**
 * Runs models that relaxpy has compiled for browsers:
 *
 *     import * as relaxpy from "./relaxpy.js";
 *     const vm = await relaxpy.load("./model/");
 *     const y = await vm.main([[1, 2, 3]]);
 *     console.log(y.shape, await y.array());
 */

import { readFunction, readParams, readTypes } from "./bytecode.js";
import { RelaxError } from "./errors.js";
import { FILES } from "./files.js";
import { HostDevice } from "./host.js";
import { formula } from "./integers.js";
import { Machine, signature } from "./machine.js";
import { tensorOf } from "./patterns.js";
import { Store, clearStorage } from "./store.js";
import { Tokenizer } from "./tokenizer.js";
import { Data, DTYPES, Shape, Tensor } from "./values.js";
import { WasmDevice, requireWasm } from "./wasm.js";
import { openDevice } from "./webgpu.js";

export { Data, RelaxError, Shape, Tensor, Tokenizer, clearStorage };

/** The version of the files that this module reads. */
const FORMAT = 2;

/**
 * Load a model: open the device, download what is not kept yet, compile the kernels, upload the weights.
 *
 * @param {string | URL | null} [url] the address of the folder `model`; without one the model of this package is loaded
 * @param {object} [options] see relaxpy.d.ts
 * @returns {Promise<VirtualMachine>}
 */
export async function load(url = null, options = {}) {
  const { progress = () => {}, keep, retries, signal, stalled, target, sha256, ...gpu } = options;
  const urls = url === null ? FILES : {};
  if (url === null && FILES["model.json"] === undefined) {
    throw new RelaxError("arguments", "this package has no model of its own", {
      help: "give the address of the folder `model` that `relaxpy web` has written: load(\"./model/\")",
    });
  }
  const page = globalThis.location?.href ?? import.meta.url;
  const base = new URL(url ?? FILES["model.json"], page).href.replace(/model\.json$/, "").replace(/\/?$/, "/");
  const state = { loaded: 0, total: 0, stalled: false };
  const onBytes = (count) => {
    state.loaded += count;
    progress({ ...state });
  };
  const onStall = (stalled) => {
    state.stalled = stalled;
    progress({ ...state });
  };
  const store = new Store(base, { urls, keep, retries, signal, stalled, onBytes, onStall });
  const manifest = await store.manifest(sha256);
  if (manifest.format !== FORMAT) {
    throw new RelaxError("file-version", `${base} is of format ${manifest.format}, and this module reads ${FORMAT}`, {
      help: "take relaxpy.js from the folder that has the model",
    });
  }
  // Before anything is downloaded: a device that is missing, or too small.
  const { model, device: gpuDevice } = await chosen(base, manifest.models, target, gpu);
  state.total = [model.program, model.kernels, ...model.weights].reduce((sum, { bytes }) => sum + bytes, 0);
  let device = gpuDevice;
  try {
    const text = new TextDecoder();
    const program = readProgram(JSON.parse(text.decode(await store.file(model.program))));
    const kernels = await store.file(model.kernels);
    let compiled;
    if (device === null) device = await WasmDevice.of(kernels);
    else compiled = device.compile(program.kernels, JSON.parse(text.decode(kernels)));
    compiled?.catch(() => {}); // told below
    const host = device.isHost ? device : new HostDevice();
    const devices = program.slots.map(({ Slot: [, kind] }) => (kind === "cpu" ? host : device));
    const constants = await uploaded(store, model.weights, program, devices);
    await compiled;
    const machine = new Machine(program, devices, constants);
    store.onBytes = store.onStall = () => {}; // files that are asked for later are no progress of this
    return new VirtualMachine(machine, device, model.target, manifest, store);
  } catch (error) {
    device?.destroy();
    throw error;
  }
}

/** The first of the manifest's models that this browser runs, and its device if it is one of WebGPU. */
async function chosen(base, models, target, gpu) {
  const asked = models.filter((model) => target === undefined || model.target === target);
  if (!asked.length) {
    throw new RelaxError("device", `${base} has no code for ${target}, but for ${models.map((model) => model.target).join(", ")}`, {
      help: `write it with \`relaxpy web --target ${target}\``,
    });
  }
  const refusals = [];
  for (const model of asked) {
    try {
      if (model.target === "wasm") requireWasm();
      const device = model.target === "wasm" ? null : await openDevice(model.limits, gpu);
      return { model, device };
    } catch (error) {
      if (!(error instanceof RelaxError)) throw error;
      refusals.push(error);
    }
  }
  const [first, ...others] = refusals;
  for (const { text } of others) first.note(`also: ${text}`);
  throw first;
}

function readProgram(program) {
  const kernels = program.kernels.map((kernel) => ({
    ...kernel,
    params: readParams(kernel.params),
    folds: kernel.launch[2] === 1,
    launch: kernel.launch.map(formula),
  }));
  const types = readTypes(program.data_types ?? []);
  return { ...program, functions: program.functions.map(readFunction), kernels, types };
}

/** The constants on the devices that use them, from the shards as they arrive. */
async function uploaded(store, shards, program, devices) {
  const used = program.constants.map(() => new Set());
  for (const { code } of program.functions) {
    for (const instr of code) if (instr.op === "Const") used[instr.index].add(devices[instr.slot]);
  }
  const constants = program.constants.map(({ dtype, shape }, i) => {
    const on = new Map();
    const nbytes = shape.reduce((size, dim) => size * dim, DTYPES[dtype].bytes);
    for (const device of used[i]) on.set(device, new Tensor(device, device.allocate(nbytes), 0, shape, dtype, true));
    return on;
  });
  const pieces = program.constants
    .map(({ offset }, i) => ({ begin: offset, tensors: [...constants[i].values()] }))
    .filter(({ tensors }) => tensors.length && tensors[0].nbytes);
  let start = 0;
  for (const shard of shards) {
    const data = await store.file(shard);
    for (const { begin, tensors } of pieces) {
      const [from, to] = [Math.max(begin, start), Math.min(begin + tensors[0].nbytes, start + data.length)];
      if (from >= to) continue;
      for (const { device, buffer } of tensors) device.write(buffer, from - begin, data.subarray(from - start, to - start));
    }
    start += data.length;
  }
  return constants.map((on) => devices.map((device) => on.get(device)));
}

/** A loaded model: its functions are methods, `await vm.main(x)`, or `await vm.call("main", x)`. */
class VirtualMachine {
  #host = new HostDevice();

  #store;

  constructor(machine, device, target, manifest, store) {
    /** The machine: `run(name, args)` takes and returns its own values, in which 1 is not 1.0. */
    this.machine = machine;
    /** The device that kernels run on. */
    this.device = device;
    /** `webgpu` or `wasm`. */
    this.target = target;
    this.manifest = manifest;
    /** How many files came from the browser's storage. */
    this.filesKept = store.found;
    this.#store = store;
    /** The constructors of the program's data types: `vm.types.List.Cons(x, tail)`. */
    this.types = machine.types.constructors;
    /** Function → its parameters and result as script. */
    this.signatures = {};
    for (const code of machine.program.functions) {
      if (!code.public) continue;
      this.signatures[code.name] = signature(code);
      if (!(code.name in this)) this[code.name] = (...args) => this.call(code.name, ...args);
    }
  }

  /** The names of the functions. */
  get functions() {
    return Object.keys(this.signatures);
  }

  /** The verified bytes of a file that belongs to the model, such as its tokenizer. Throws: RelaxError (`file-read`). */
  async file(name) {
    const entry = this.manifest.files[name];
    if (entry === undefined) {
      const names = Object.keys(this.manifest.files).join(", ") || "none";
      throw new RelaxError("file-read", `the model has no file ${name}`, { help: `there are: ${names}` });
    }
    return this.#store.file(entry);
  }

  /** The same as the value of its JSON. */
  async json(name) {
    return JSON.parse(new TextDecoder().decode(await this.file(name)));
  }

  /** The result of a function. Arguments are positional, or one object of them by name. */
  async call(name, ...args) {
    const { params } = this.machine.function(name).code;
    const given = args.length === 1 && isNamed(args[0], params) ? byName(name, args[0], params) : args;
    return this.machine.call(name, given);
  }

  /** A copy of an array on the device, for arguments that functions get again and again, or update in place. */
  upload(value, dtype = "") {
    const tensor = tensorOf(this.#host, value, dtype);
    const made = new Tensor(this.device, this.device.allocate(tensor.nbytes), 0, tensor.shape, tensor.dtype);
    if (tensor.nbytes) this.device.write(made.buffer, 0, tensor.buffer.bytes);
    return made;
  }

  /** Wait for all work. */
  async synchronise() {
    await this.device.synchronise();
  }

  /** Free memory that is kept for later calls. */
  releaseMemory() {
    this.machine.releaseMemory();
  }

  /** Free everything. The machine and its tensors cannot be used afterwards. */
  destroy() {
    this.device.destroy();
  }
}

/** Whether an argument is an object of arguments by name: a plain object whose keys are parameters. */
function isNamed(value, params) {
  if (value === null || typeof value !== "object" || Object.getPrototypeOf(value) !== Object.prototype) return false;
  const names = new Set(params.map((param) => param.name));
  const isTensor = "data" in value && !names.has("data");
  return !isTensor;
}

function byName(name, given, params) {
  const names = params.map((param) => param.name);
  const unknown = Object.keys(given).filter((key) => !names.includes(key));
  const missing = names.filter((key) => !(key in given));
  const problems = [...unknown.map((key) => `has no parameter ${key}`), ...(missing.length ? [`lacks ${missing.join(", ")}`] : [])];
  if (problems.length) {
    throw new RelaxError("arguments", `${name} ${problems.join("; ")}`, { help: `its parameters are ${names.join(", ")}` });
  }
  return names.map((key) => given[key]);
}
