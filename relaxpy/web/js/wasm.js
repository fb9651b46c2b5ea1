/**
 * Kernels in WebAssembly, for browsers without WebGPU: a module with a memory, in which all tensors are. It is the host
 * of its program, so nothing is copied between the two. One thread runs everything.
 *
 * Kernels have TVM's calling convention on a machine of 32 bits: a packed argument has 16 bytes, a number of its type and
 * a value; a tensor is a DLTensor.
 */

import { RelaxError } from "./errors.js";
import { HostDevice } from "./host.js";
import { Float, Tensor, dtypeInfo } from "./values.js";

const PAGE = 65536;
/** Pages of a memory with addresses of 32 bits. */
const MOST_PAGES = 65536;
/** Tensors begin at multiples of this: a line of a processor's cache. */
const UNIT = 64;
/** Types of packed arguments (`TVMFFITypeIndex`). */
const [NONE, INT, BOOL, FLOAT, DL_TENSOR, TEXT] = [0, 1, 2, 3, 7, 8];
/** Bytes of a packed argument, and of a DLTensor. */
const [ANY, DL] = [16, 40];
/** How long kernels run before the page gets its turn: three frames of a display, in milliseconds. */
const LONG = 50;

/** A module with one function, which returns a vector. */
const VECTORS = Uint8Array.of(
  0, 97, 115, 109, 1, 0, 0, 0, 1, 5, 1, 96, 0, 1, 123, 3, 2, 1, 0, 10, 10, 1, 8, 0, 65, 0, 253, 15, 253, 98, 11,
);

/** Throws: RelaxError (`device`, `device-features`) where a browser does not run WebAssembly, or has no vectors. */
export function requireWasm() {
  if (globalThis.WebAssembly === undefined) {
    throw new RelaxError("device", "this browser has no WebAssembly", { help: "its lockdown mode may have turned it off" });
  }
  if (!WebAssembly.validate(VECTORS)) {
    throw new RelaxError("device-features", "the WebAssembly of this browser has no vectors (fixed-width SIMD)", {
      help: "use Chrome or Edge 91, Firefox 89, Safari 16.4, or newer",
    });
  }
}

/** What the memory is divided into: ranges that are free, by their addresses. */
class Heap {
  constructor(memory, base) {
    this.memory = memory;
    this.end = base;
    /** [first, last + 1], ascending, none next to another. */
    this.free = [];
  }

  /** The address of this many bytes; -1 where there are not as many. */
  take(size) {
    let best = -1;
    this.free.forEach(([begin, end], i) => {
      const room = end - begin;
      if (room >= size && (best < 0 || room < this.free[best][1] - this.free[best][0])) best = i;
    });
    if (best >= 0) {
      const range = this.free[best];
      const at = range[0];
      range[0] += size;
      if (range[0] === range[1]) this.free.splice(best, 1);
      return at;
    }
    const at = this.end;
    const lacking = Math.ceil((at + size - this.memory.buffer.byteLength) / PAGE);
    if (lacking > 0) {
      if (this.memory.buffer.byteLength / PAGE + lacking > MOST_PAGES) return -1;
      try {
        this.memory.grow(lacking);
      } catch {
        return -1;
      }
    }
    this.end += size;
    return at;
  }

  give(begin, size) {
    let i = this.free.findIndex((range) => range[0] > begin);
    if (i < 0) i = this.free.length;
    this.free.splice(i, 0, [begin, begin + size]);
    if (this.free[i + 1]?.[0] === begin + size) this.free[i][1] = this.free.splice(i + 1, 1)[0][1];
    if (this.free[i - 1]?.[1] === begin) this.free[i - 1][1] = this.free.splice(i, 1)[0][1];
    const last = this.free[this.free.length - 1];
    if (last[1] === this.end) this.end = this.free.pop()[0];
  }
}

/** A part of the memory, which its owner gives back, or the collector does. */
class Memory {
  constructor(device, range) {
    this.device = device;
    this.range = range;
  }

  get begin() {
    if (this.range === null) throw new RelaxError("arguments", "the tensor was disposed of");
    return this.range.begin;
  }

  get size() {
    return this.range?.size ?? 0;
  }

  /** The bytes, until the memory grows. */
  get bytes() {
    return new Uint8Array(this.device.memory.buffer, this.begin, this.size);
  }
}

export class WasmDevice extends HostDevice {
  /** What kernels run on, for pages. */
  info = { description: "WebAssembly" };
  /** Why an update of the caller's array in place would be lost. */
  copies = "is copied into the memory of WebAssembly";

  constructor(module) {
    super("WebAssembly");
    this.imports = new Imports(this);
    this.instance = new WebAssembly.Instance(module, { relaxpy: this.imports.functions });
    const { memory, __heap_base: base, __stack_pointer: stack } = this.instance.exports;
    this.memory = memory;
    this.stack = stack;
    this.heap = new Heap(memory, Math.ceil(base.value / UNIT) * UNIT);
    this.owners = new FinalizationRegistry((range) => this.heap.give(range.begin, range.room));
    this.scratch = null;
    this.since = 0;
  }

  /**
   * The device of a program.
   *
   * Throws: RelaxError (`object-code`) for a module that the browser does not compile.
   *
   * @param {Uint8Array} code the module that `relaxpy web` has linked
   */
  static async of(code) {
    try {
      return new WasmDevice(await WebAssembly.compile(code));
    } catch (error) {
      if (error instanceof RelaxError) throw error;
      throw new RelaxError("object-code", `this browser does not compile the kernels: ${error.message}`, {
        help: /unsafe-eval|Content Security/.test(error.message)
          ? "the page's Content-Security-Policy must have 'wasm-unsafe-eval' in script-src"
          : "",
        cause: error,
      });
    }
  }

  // Memory

  allocate(nbytes) {
    const room = Math.ceil(Math.max(nbytes, 1) / UNIT) * UNIT;
    const begin = this.heap.take(room);
    if (begin < 0) {
      throw new RelaxError("out-of-memory", `cannot allocate ${nbytes} bytes on ${this.name}: its memory has at most 4 GiB`);
    }
    const range = { begin, size: nbytes, room };
    const memory = new Memory(this, range);
    this.owners.register(memory, range, memory);
    return memory;
  }

  borrow(bytes) {
    const memory = this.allocate(bytes.length);
    memory.bytes.set(bytes);
    return memory;
  }

  release(memory) {
    if (memory.range === null) return;
    this.owners.unregister(memory);
    this.heap.give(memory.range.begin, memory.range.room);
    memory.range = null;
  }

  sameMemory() {
    return true;
  }

  begin(memory) {
    return memory.begin;
  }

  copy(source, from, target, to, nbytes) {
    new Uint8Array(this.memory.buffer).copyWithin(target.begin + to, source.begin + from, source.begin + from + nbytes);
  }

  async synchronise() {}

  destroy() {
    this.instance = null;
    this.memory = { buffer: new ArrayBuffer(0) };
  }

  // Kernels

  launch(kernel, numbers, args) {
    const run = this.instance.exports[kernel.entry];
    const result = this.#packed(args);
    const stack = this.stack.value;
    this.since ||= performance.now();
    this.imports.error = null;
    let status;
    try {
      status = run(0, result + ANY, args.length, result);
    } catch (error) {
      if (error instanceof RelaxError) throw error;
      throw new RelaxError("kernel-failed", `the kernel ${kernel.name} failed: ${error.message}`, { cause: error });
    } finally {
      this.stack.value = stack;
    }
    if (status) throw this.imports.error ?? new RelaxError("kernel-failed", `the kernel ${kernel.name} failed`);
  }

  /** A promise that gives the page its turn, when kernels have run for long. */
  pause() {
    if (!this.since || performance.now() - this.since < LONG) return null;
    this.since = 0;
    return new Promise((done) => {
      const { port1, port2 } = new MessageChannel();
      port1.onmessage = () => {
        port1.close();
        done();
      };
      port2.postMessage(0);
    });
  }

  /** The address of a result and, after it, packed arguments. */
  #packed(args) {
    const tensors = args.filter((arg) => arg instanceof Tensor);
    const ranks = tensors.reduce((sum, { shape }) => sum + shape.length, 0);
    const needed = ANY * (args.length + 1) + DL * tensors.length + 8 * ranks;
    if (this.scratch === null || this.scratch.size < needed) {
      if (this.scratch !== null) this.release(this.scratch);
      this.scratch = this.allocate(2 * needed);
    }
    const words = new DataView(this.memory.buffer);
    const start = this.scratch.begin;
    let at = start + ANY * (args.length + 1);
    words.setInt32(start, NONE, true);
    args.forEach((arg, i) => {
      const place = start + ANY * (i + 1);
      const type = arg instanceof Tensor ? DL_TENSOR : arg instanceof Float ? FLOAT : typeof arg === "boolean" ? BOOL : INT;
      words.setInt32(place, type, true);
      words.setInt32(place + 4, 0, true);
      if (type === DL_TENSOR) {
        words.setUint32(place + 8, at, true);
        words.setUint32(place + 12, 0, true);
        at = described(words, at, arg);
      } else if (type === FLOAT) {
        words.setFloat64(place + 8, arg.value, true);
      } else {
        words.setBigInt64(place + 8, BigInt(arg), true);
      }
    });
    return start;
  }
}

/** Write a DLTensor of a compact tensor, with its shape behind it. Returns the address after both. */
function described(words, at, tensor) {
  const { code, bytes } = dtypeInfo(tensor.dtype);
  words.setUint32(at, tensor.buffer.begin + tensor.offset, true);
  words.setInt32(at + 4, 1, true); // a processor,
  words.setInt32(at + 8, 0, true); // the first one
  words.setInt32(at + 12, tensor.shape.length, true);
  words.setUint8(at + 16, code);
  words.setUint8(at + 17, bytes * 8);
  words.setUint16(at + 18, 1, true);
  words.setUint32(at + 20, at + DL, true);
  words.setUint32(at + 24, 0, true); // no strides: it is compact
  words.setUint32(at + 28, 0, true);
  words.setBigInt64(at + 32, 0n, true);
  let next = at + DL;
  for (const size of tensor.shape) {
    words.setBigInt64(next, BigInt(size), true);
    next += 8;
  }
  return next;
}

/** What kernels ask of their host (`relaxpy/web/wasm_module.py`). */
class Imports {
  constructor(device) {
    this.device = device;
    /** What a kernel that has returned a status has failed of. */
    this.error = null;
    /** Memory of kernels that run. */
    this.held = new Map();
    /** Functions by their handles. */
    this.handles = [null];
    this.functions = {
      TVMBackendAllocWorkspace: (device_type, device_id, nbytes) => this.#allocated(Number(nbytes)),
      TVMBackendFreeWorkspace: (device_type, device_id, address) => this.#freed(address),
      TVMFFIEnvModLookupFromImports: (context, name, out) => this.#found(this.#text(name), out),
      TVMFFIHandleInitOnce: (place, find) => {
        const isKnown = new DataView(this.device.memory.buffer).getUint32(place, true) !== 0;
        return isKnown ? 0 : this.device.instance.exports.table.get(find)(place);
      },
      TVMBackendParallelLaunch: (task, data) => this.#alone(task, data),
      TVMBackendParallelBarrier: () => 0,
      TVMFFIErrorSetRaisedFromCStr: (kind, message) => this.#raise(this.#text(kind), this.#text(message)),
      TVMFFIErrorSetRaisedFromCStrParts: (kind, parts, count) => {
        const words = new DataView(this.device.memory.buffer);
        const texts = Array.from({ length: count }, (_, i) => this.#text(words.getUint32(parts + 4 * i, true)));
        this.#raise(this.#text(kind), texts.join(""));
      },
      TVMFFIFunctionCall: (handle, args, count, result) => this.#called(handle, args, count, result),
      ...MATH,
    };
  }

  #text(address) {
    const bytes = new Uint8Array(this.device.memory.buffer, address);
    return new TextDecoder().decode(bytes.slice(0, bytes.indexOf(0)));
  }

  #raise(kind, message) {
    const code = { OutOfRange: "tir-bounds", OutOfMemory: "out-of-memory" }[kind] ?? "kernel-failed";
    this.error = new RelaxError(code, message);
  }

  #allocated(nbytes) {
    const memory = this.device.allocate(nbytes);
    this.held.set(memory.begin, memory);
    return memory.begin;
  }

  #freed(address) {
    const memory = this.held.get(address);
    if (memory !== undefined) this.device.release(memory);
    this.held.delete(address);
    return 0;
  }

  /** Run all of a parallel loop as one task. */
  #alone(task, data) {
    const { device } = this;
    const group = device.allocate(16);
    const words = new DataView(device.memory.buffer);
    words.setUint32(group.begin, group.begin + 8, true); // a counter for barriers
    words.setInt32(group.begin + 4, 1, true); // the number of tasks
    words.setInt32(group.begin + 8, 0, true);
    try {
      return device.instance.exports.table.get(task)(0, group.begin, data);
    } finally {
      device.release(group);
    }
  }

  #found(name, out) {
    const run = { "relaxpy.out_of_range": outOfRange, "relaxpy.require_memory": (...args) => this.#require(...args) }[name];
    if (run === undefined) {
      this.#raise("", `there is no function ${name} here`);
      return -1;
    }
    new DataView(this.device.memory.buffer).setUint32(out, this.handles.push(run) - 1, true);
    return 0;
  }

  #called(handle, args, count, result) {
    const words = new DataView(this.device.memory.buffer);
    const values = Array.from({ length: count }, (_, i) => {
      const at = args + ANY * i;
      const type = words.getInt32(at, true);
      if (type === TEXT) return this.#text(words.getUint32(at + 8, true));
      return type === FLOAT ? words.getFloat64(at + 8, true) : Number(words.getBigInt64(at + 8, true));
    });
    try {
      this.handles[handle](...values);
    } catch (error) {
      this.error = error;
      return -1;
    }
    words.setInt32(result, NONE, true);
    return 0;
  }

  /** Throws: RelaxError (`out-of-memory`) where a kernel is going to ask for memory that is not there. */
  #require(program, name, itemsize, ...sizes) {
    const nbytes = sizes.reduce((product, size) => product * size, itemsize);
    try {
      this.device.release(this.device.allocate(nbytes));
    } catch (error) {
      throw error.about(`${program}: ${name}`);
    }
  }
}

/** The error for an index of a kernel, in the words of `relaxpy.errors.out_of_range`. */
function outOfRange(program, name, dim, index, extent) {
  const problem = {
    "-2": `${name} must not be negative, got ${index}`,
    "-1": `${name} must be less than its extent ${extent}, got ${index}`,
  }[dim];
  const text = problem ?? `index ${index} is out of bounds for dimension ${dim} of ${name}, of extent ${extent}`;
  throw new RelaxError("tir-bounds", `${program}: ${text}`);
}

/**
 * Functions of C's library that LLVM calls, most for float64. `relaxpy web` refuses kernels that call others, by reading the names from
 * this file: each is on a line of its own. Remainders are exact, so those of float64 are those of float32 as well.
 */
export const MATH = {
  acos: Math.acos,
  acosh: Math.acosh,
  asin: Math.asin,
  asinh: Math.asinh,
  atan: Math.atan,
  atan2: Math.atan2,
  atanh: Math.atanh,
  cos: Math.cos,
  cosh: Math.cosh,
  exp: Math.exp,
  exp2: (x) => 2 ** x,
  fmod: (x, y) => x % y,
  fmodf: (x, y) => x % y,
  log: Math.log,
  log10: Math.log10,
  log1p: Math.log1p,
  log2: Math.log2,
  pow: (x, y) => (x === 1 || (x === -1 && Math.abs(y) === Infinity) ? 1 : x ** y), // C has no NaN there
  sin: Math.sin,
  sinh: Math.sinh,
  tan: Math.tan,
  tanh: Math.tanh,
};
