/**
 * The WebGPU device of a browser: memory, launches, and their order. It does what relaxpy.runtime.devices.webgpu does
 * through wgpu.
 *
 * Launches are recorded into one pass with one buffer of their numbers, which is written just before the submission. A
 * write takes effect before all work that is submitted later, so a pass is submitted before anything else is written.
 */

import { RelaxError } from "./errors.js";
import { Float } from "./values.js";

/** The numbers of a launch begin at a multiple of this: the guaranteed `minUniformBufferOffsetAlignment`. */
const SLOT = 256;
const ROOM = 256 * 1024;
/** Launches that are recorded before they are submitted, so that the device begins with them. */
const MOST_LAUNCHES = 64;
/** The most bytes that a binding may have, so that an `i32` indexes all of them. */
const LARGEST = 2 ** 31 - 1;
/** Bind groups that a kernel keeps. */
const MOST_GROUPS = 64;

const rounded = (size, unit) => Math.ceil(size / unit) * unit;

/** Limits for which a device is asked beyond what WebGPU guarantees, if the adapter has more. */
const WANTED = [
  "maxStorageBuffersPerShaderStage",
  "maxStorageBufferBindingSize",
  "maxBufferSize",
  "maxComputeWorkgroupStorageSize",
  "maxComputeInvocationsPerWorkgroup",
  "maxComputeWorkgroupSizeX",
  "maxComputeWorkgroupSizeY",
  "maxComputeWorkgroupSizeZ",
];

/**
 * The browser's device, with at least these limits. Throws: RelaxError (`device`) where there is none,
 * (`device-features`) where a limit is too small.
 *
 * @param {Record<string, number>} limits
 * @param {GPURequestAdapterOptions & {adapter?: GPUAdapter}} [options]
 */
export async function openDevice(limits, { adapter: given, ...options } = {}) {
  const gpu = globalThis.navigator?.gpu;
  if (given === undefined && gpu === undefined) {
    const isSecure = globalThis.isSecureContext !== false;
    throw new RelaxError("device", "this browser has no WebGPU", {
      help: isSecure
        ? "use a browser with WebGPU (Chrome or Edge 113, Safari 26, Firefox 141 and newer), and see that it is on"
        : "browsers have WebGPU on pages from https or localhost only",
    });
  }
  const adapter = given ?? (await gpu.requestAdapter(options));
  if (!adapter) {
    throw new RelaxError("device", "this browser has WebGPU, but no adapter: the GPU or its driver is not supported", {
      help: "chrome://gpu or about:support say why",
    });
  }
  const lacking = Object.entries(limits).filter(([name, least]) => name in adapter.limits && adapter.limits[name] < least);
  if (lacking.length) {
    const [[name, least]] = lacking;
    throw new RelaxError("device-features", `the model needs ${name} of ${least}; this device has ${adapter.limits[name]}`, {
      notes: lacking.slice(1).map(([other, more]) => `also ${other} of ${more}; it has ${adapter.limits[other]}`),
    });
  }
  const names = WANTED.filter((name) => adapter.limits[name] !== undefined);
  const requiredLimits = Object.fromEntries(names.map((name) => [name, adapter.limits[name]]));
  return new WebGPUDevice(await adapter.requestDevice({ requiredLimits }), adapter.info);
}

/** A buffer of the browser. Bind groups and the pool refer to it, not to its owner. */
class Block {
  constructor(buffer, size, number) {
    this.buffer = buffer;
    this.size = size;
    this.number = number;
  }
}

/** The owner of a block: when it is released or collected, the block is used again. */
class Memory {
  constructor(block) {
    this.held = block;
    this.size = block.size;
  }

  /** The block. Throws: RelaxError (`arguments`) after it was released. */
  get block() {
    if (this.held === null) throw new RelaxError("arguments", "the tensor was disposed of");
    return this.held;
  }
}

export class WebGPUDevice {
  isHost = false;
  name = "webgpu";

  constructor(device, info = {}) {
    this.device = device;
    this.info = info;
    this.limits = device.limits;
    this.window = Math.floor(Math.min(device.limits.maxStorageBufferBindingSize, LARGEST) / SLOT) * SLOT;
    /** The first failure that was not told yet. */
    this.failure = null;
    this.lost = null;
    device.lost?.then((lost) => (this.lost = `the device was lost (${lost.reason || "unknown"}): ${lost.message}`));
    device.addEventListener("uncapturederror", (event) => {
      event.preventDefault();
      const isMemory = globalThis.GPUOutOfMemoryError && event.error instanceof GPUOutOfMemoryError;
      this.failure ??= { code: isMemory ? "out-of-memory" : "device-failed", text: event.error.message };
    });
    /** Blocks that are not in use, by size. */
    this.pool = new Map();
    this.owners = new FinalizationRegistry((block) => this.#put(block));
    this.count = 0;
    this.numbers = device.createBuffer({ size: ROOM, usage: GPUBufferUsage.UNIFORM | GPUBufferUsage.COPY_DST });
    this.recorded = new Uint8Array(ROOM);
    this.words = new DataView(this.recorded.buffer);
    this.used = 0;
    this.launches = 0;
    this.encoder = null;
    this.pass = null;
    /** Launches since the device was opened. */
    this.launched = 0;
  }

  // Memory

  /** Memory of at least this many bytes. Throws: RelaxError (`out-of-memory`). */
  allocate(nbytes) {
    const size = rounded(Math.max(nbytes, 16), nbytes < 2 ** 20 ? SLOT : 2 ** 16);
    const kept = this.pool.get(size);
    if (kept?.length) return this.#owned(kept.pop());
    if (size > this.limits.maxBufferSize) {
      const most = `a buffer may have ${this.limits.maxBufferSize}`;
      throw new RelaxError("out-of-memory", `cannot allocate ${nbytes} bytes on ${this.name}: ${most}`);
    }
    const usage = GPUBufferUsage.STORAGE | GPUBufferUsage.COPY_SRC | GPUBufferUsage.COPY_DST;
    let buffer;
    try {
      buffer = this.device.createBuffer({ size, usage });
    } catch (error) {
      throw new RelaxError("out-of-memory", `cannot allocate ${nbytes} bytes on ${this.name}: ${error.message}`);
    }
    return this.#owned(new Block(buffer, size, (this.count += 1)));
  }

  #owned(block) {
    const memory = new Memory(block);
    this.owners.register(memory, block, memory);
    return memory;
  }

  /** Later work uses the block again, and runs after the work that uses it now. */
  release(memory) {
    if (memory.held === null) return;
    this.owners.unregister(memory);
    this.#put(memory.held);
    memory.held = null;
  }

  #put(block) {
    const kept = this.pool.get(block.size);
    if (kept === undefined) this.pool.set(block.size, [block]);
    else kept.push(block);
  }

  /** Free the memory that is kept for later. */
  trim() {
    this.flush();
    for (const kept of this.pool.values()) for (const block of kept) block.buffer.destroy();
    this.pool.clear();
  }

  sameMemory(a, b) {
    return a === b;
  }

  begin() {
    return 0;
  }

  write(memory, offset, bytes) {
    this.flush();
    const tail = bytes.length % 4;
    const whole = bytes.length - tail;
    if (whole) this.device.queue.writeBuffer(memory.block.buffer, offset, bytes, 0, whole);
    if (tail) {
      const last = new Uint8Array(4); // tensors end with whole words in their buffers
      last.set(bytes.subarray(whole));
      this.device.queue.writeBuffer(memory.block.buffer, offset + whole, last);
    }
  }

  /** The bytes, when all work before is done. Throws: RelaxError (`device-failed`, `out-of-memory`). */
  async read(memory, offset, nbytes) {
    const size = rounded(nbytes, 4);
    const staging = this.device.createBuffer({ size, usage: GPUBufferUsage.COPY_DST | GPUBufferUsage.MAP_READ });
    this.endPass();
    this.encoder ??= this.device.createCommandEncoder();
    this.encoder.copyBufferToBuffer(memory.block.buffer, offset, staging, 0, size);
    this.flush();
    try {
      await staging.mapAsync(GPUMapMode.READ);
    } catch (error) {
      this.tell();
      throw new RelaxError("device-failed", `${this.name}: ${error.message}`, { cause: error });
    }
    this.tell();
    const found = new Uint8Array(staging.getMappedRange().slice(0, nbytes));
    staging.destroy();
    return found;
  }

  /** Throws: RelaxError for a failure that was not told yet. */
  tell() {
    if (this.lost !== null) {
      throw new RelaxError("device-failed", `${this.name}: ${this.lost}`, { help: "load the model again" });
    }
    const { failure } = this;
    this.failure = null;
    if (failure !== null) throw new RelaxError(failure.code, `${this.name}: ${failure.text}`);
  }

  /** Wait for all work. */
  async synchronise() {
    this.flush();
    await this.device.queue.onSubmittedWorkDone();
    this.tell();
  }

  copy(source, from, target, to, nbytes) {
    if (!nbytes) return;
    const size = rounded(nbytes, 4);
    this.endPass();
    this.encoder ??= this.device.createCommandEncoder();
    this.encoder.copyBufferToBuffer(source.block.buffer, from, target.block.buffer, to, size);
  }

  // Kernels

  /** Launches run beside the page. */
  pause() {
    return null;
  }

  /**
   * Compile kernels. Throws: RelaxError (`object-code`) for code that the browser refuses.
   *
   * @param {object[]} kernels of the program, which get their pipelines
   * @param {string[]} sources their code
   */
  async compile(kernels, sources) {
    const modules = sources.map((code) => this.device.createShaderModule({ code }));
    const compiled = async (kernel) => {
      const memory = kernel.args.filter((arg) => "memory" in arg);
      const entries = memory.map((arg, binding) => ({
        binding,
        visibility: GPUShaderStage.COMPUTE,
        buffer: { type: arg.access === "read-write" ? "storage" : "read-only-storage" },
      }));
      entries.push({
        binding: memory.length,
        visibility: GPUShaderStage.COMPUTE,
        buffer: { type: "uniform", hasDynamicOffset: true },
      });
      const bindGroupLayout = this.device.createBindGroupLayout({ entries });
      const layout = this.device.createPipelineLayout({ bindGroupLayouts: [bindGroupLayout] });
      const module = modules[kernel.code];
      try {
        const compute = { module, entryPoint: kernel.entry };
        kernel.pipeline = await this.device.createComputePipelineAsync({ layout, compute });
      } catch (error) {
        const { messages } = await module.getCompilationInfo();
        const found = messages.filter((each) => each.type === "error").map((each) => `line ${each.lineNum}: ${each.message}`);
        const text = `this browser does not compile the kernel ${kernel.name}: ${found[0] ?? error.message}`;
        throw new RelaxError("object-code", text, { notes: found.slice(1, 4), cause: error });
      }
      kernel.layout = bindGroupLayout;
      kernel.groups = new Map();
      kernel.memory = memory.map((arg) => arg.memory);
      kernel.written = new Set(kernel.params.flatMap((param, i) => (param.access === "read" ? [] : [i])));
      kernel.rest = kernel.args.filter((arg) => !("memory" in arg));
      kernel.guarded = kernel.args.filter((arg) => "most" in arg);
      // 0, the number of groups, and a word or two for each number.
      const isWide = (arg) => "first" in arg || arg.dtype === "int64" || arg.dtype === "uint64";
      kernel.size = rounded(4 * kernel.rest.reduce((words, arg) => words + (isWide(arg) ? 2 : 1), 2), 16);
    };
    await Promise.all(kernels.map(compiled));
  }

  /**
   * Record a launch. `numbers` are the grid and the sizes, as formulas of the kernel gave them; `copied` makes a copy of
   * a tensor: no buffer may be written and bound a second time.
   */
  launch(kernel, numbers, args, copied) {
    const [x, y, z] = numbers;
    if (!x || !y || !z) return;
    for (const { size, most } of kernel.guarded) {
      const value = numbers[size];
      if (value < -most || value > most) throw failed(`a size of ${value} is beyond the 32 bits of WGSL's integers`);
    }
    const given = this.#apart(kernel, args, copied);
    const groups = this.#grid(kernel, numbers);
    const parts = kernel.memory.map((place) => this.#part(given[place]));
    const group = this.#group(kernel, parts);
    if (this.launches >= MOST_LAUNCHES || this.used + kernel.size > ROOM) this.flush();
    if (this.pass === null) {
      this.encoder ??= this.device.createCommandEncoder();
      this.pass = this.encoder.beginComputePass();
    }
    this.pass.setPipeline(kernel.pipeline);
    this.pass.setBindGroup(0, group, [this.used]);
    this.pass.dispatchWorkgroups(...groups);
    this.#record(kernel, Number(x), numbers, given);
    this.launches += 1;
    this.launched += 1;
  }

  /** Write the numbers of a launch. */
  #record(kernel, x, numbers, args) {
    let at = this.used;
    const word = (value) => {
      this.words.setUint32(at, value, true);
      at += 4;
    };
    word(0);
    word(x);
    for (const arg of kernel.rest) {
      if ("first" in arg) {
        const { buffer, offset } = args[arg.first];
        word((buffer.size <= this.window ? offset : offset % SLOT) / arg.itemsize);
        word(0);
        continue;
      }
      const found = "scalar" in arg ? args[arg.scalar] : numbers[arg.size];
      const value = found instanceof Float ? found.value : found === true ? 1 : found === false ? 0 : found;
      if (arg.dtype === "int64" || arg.dtype === "uint64") {
        this.words.setBigInt64(at, BigInt.asIntN(64, BigInt(value)), true);
        at += 8;
      } else if (arg.dtype.includes("float")) {
        this.words.setFloat32(at, Number(value), true);
        at += 4;
      } else {
        word(Number(BigInt.asUintN(32, BigInt(value))));
      }
    }
    this.used += rounded(kernel.size, SLOT);
  }

  /** The groups of a launch; a grid that is too long along x continues along z. */
  #grid(kernel, [x, y, z, threads]) {
    const most = this.limits.maxComputeWorkgroupsPerDimension;
    if (x * threads > LARGEST) throw failed(`a grid of ${x * threads} threads is beyond the 32 bits of WGSL's integers`);
    let [groupsX, groupsZ] = [x, z];
    if (x > most && kernel.folds) {
      groupsZ = Math.ceil(x / most);
      groupsX = Math.ceil(x / groupsZ);
    }
    if (Math.max(groupsX, y, groupsZ) > most) {
      throw failed(`a grid of ${x} × ${y} × ${z} groups is too large: ${most} along an axis`);
    }
    return [groupsX, y, groupsZ];
  }

  /** The arguments with copies of those that share a buffer with one that is written. */
  #apart(kernel, args, copied) {
    const places = new Map();
    args.forEach((arg, i) => {
      if (arg?.buffer === undefined) return;
      if (places.has(arg.buffer)) places.get(arg.buffer).push(i);
      else places.set(arg.buffer, [i]);
    });
    let given = args;
    for (const shared of places.values()) {
      const written = shared.filter((i) => kernel.written.has(i));
      if (shared.length === 1 || !written.length) continue;
      if (written.length > 1) {
        const which = written.join(" and ");
        throw new RelaxError("kernel-failed", `${this.name} cannot pass a buffer twice, but ${kernel.name} writes to ${which}`);
      }
      if (given === args) given = [...args];
      for (const i of shared) if (i !== written[0]) given[i] = copied(args[i]);
    }
    return given;
  }

  /** The part of a buffer that a kernel gets for a tensor: all of it, where that is allowed. */
  #part({ buffer: memory, offset, nbytes }) {
    if (memory === null) throw new RelaxError("arguments", "a tensor was disposed of");
    if (memory.size <= this.window) return { memory, offset: 0, size: memory.size };
    const start = Math.floor(offset / SLOT) * SLOT;
    const size = rounded(offset - start + nbytes, 4);
    if (size > this.window) {
      throw failed(`a tensor has ${nbytes} bytes, and a kernel on ${this.name} may get ${this.window}`);
    }
    return { memory, offset: start, size: Math.max(size, 4) };
  }

  #group(kernel, parts) {
    const key = parts.map(({ memory, offset, size }) => `${memory.block.number}+${offset}:${size}`).join();
    const known = kernel.groups.get(key);
    if (known !== undefined) return known;
    const entries = parts.map(({ memory, offset, size }, binding) => ({
      binding,
      resource: { buffer: memory.block.buffer, offset, size },
    }));
    entries.push({ binding: parts.length, resource: { buffer: this.numbers, offset: 0, size: kernel.size } });
    const group = this.device.createBindGroup({ layout: kernel.layout, entries });
    if (kernel.groups.size >= MOST_GROUPS) kernel.groups.clear();
    kernel.groups.set(key, group);
    return group;
  }

  endPass() {
    this.pass?.end();
    this.pass = null;
  }

  /** Submit the recorded work. */
  flush() {
    if (this.encoder === null) return;
    this.endPass();
    if (this.used) this.device.queue.writeBuffer(this.numbers, 0, this.recorded, 0, this.used);
    this.device.queue.submit([this.encoder.finish()]);
    this.encoder = null;
    this.used = 0;
    this.launches = 0;
  }

  /** Give all memory back. The device cannot be used afterwards. */
  destroy() {
    this.device.destroy();
  }
}

const failed = (text) => new RelaxError("device-failed", text);
