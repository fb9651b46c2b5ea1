/**
 * The virtual machine: runs functions of relaxpy's bytecode over devices.
 *
 * A call has a stack of frames of its own, so the depth of recursion is limited by memory, and several calls may be
 * under way at once. A tail call takes the place of its caller, so a loop that is written as recursion takes constant
 * space. Instructions run without waiting, until one needs numbers of a device (`Read`, a copy to the
 * host) or a function of the caller.
 */

import { BUILTINS } from "./builtins.js";
import { CHECKED_BEFORE, DataTypes, holdsData } from "./data.js";
import { RelaxError, mismatch } from "./errors.js";
import { int64, product } from "./integers.js";
import { bind, enter, explain, fits, plain, primFits } from "./patterns.js";
import { DTYPES, Data, Float, FunctionValue, Shape, Tensor, countBytes, describe, dtypeInfo } from "./values.js";

const HOST = 0;
/** A loop has made at least this many buffers before those that it does not use any more are looked for. */
const LEAST = 64;

/** What a function needs while it runs. */
class Frame {
  constructor(code, args, dst) {
    this.code = code;
    this.regs = new Array(code.num_regs);
    args.forEach((arg, i) => (this.regs[i] = arg));
    this.heap = code.heap_init.slice();
    this.at = 0;
    /** The register of the caller's frame that gets the result. */
    this.dst = dst;
    /** Arms of branches that end before the other arm: [where they end, where the code continues]. */
    this.arms = [];
    this.memory = null;
  }
}

/** The memory that a call of `Machine.call` has allocated, to be given back when it ends. */
class Call {
  constructor() {
    this.frames = [];
    /** Buffers that tensors of the call own, with their devices. */
    this.owned = new Map();
    /** The number of them at which those that nothing refers to any more are given back. */
    this.most = LEAST;
  }
}

export class Machine {
  /**
   * @param {object} program `functions` (by `readFunction`), `kernels` (`name`, `slot`, `params`, and `launch`, the
   *   formulas of a launch), `packed`, `libraries`: names
   * @param {object[]} devices one for each slot; the first is the host's
   * @param {Tensor[][]} constants for each constant its tensor in each slot that uses it
   * @param {Record<string, Function>} functions by name, beyond the builtin ones
   */
  constructor(program, devices, constants, functions = {}) {
    this.program = program;
    this.types = new DataTypes(program.types ?? []);
    this.devices = devices;
    this.constants = constants;
    const find = (name) => {
      const found = Object.hasOwn(functions, name) ? functions[name] : Object.hasOwn(BUILTINS, name) && BUILTINS[name];
      if (!found) throw new RelaxError("library-missing", `there is no function ${name} here`);
      return found;
    };
    this.packed = program.packed.map(find);
    this.libraries = program.libraries.map(find);
    /** Memory of frames that are not in use, by function. */
    this.free = new Map(program.functions.map((code) => [code, []]));
    this.named = new Map(program.functions.map((code) => [code.name, code]));
  }

  /** The function value of this name. Throws: RelaxError (`function-name`). */
  function(name) {
    const code = this.named.get(name);
    if (code === undefined || !code.public) {
      const names = this.program.functions.filter((each) => each.public).map((each) => each.name);
      throw new RelaxError("function-name", `the program has no function ${JSON.stringify(name)}`, {
        help: `there are: ${names.join(", ") || "none"}`,
      });
    }
    return new FunctionValue(code, []);
  }

  /**
   * The result of a function, for the caller: tensors, numbers, booleans, texts, `Shape`s, functions, arrays of these
   * for tuples.
   */
  async call(name, args) {
    return simple(await this.run(name, args));
  }

  /** The same, in the machine's values: 1 differs from 1.0 (`Float`). */
  async run(name, args) {
    const value = this.function(name);
    const { code } = value;
    if (args.length !== code.params.length) {
      const wanted = `${code.params.length} argument${code.params.length === 1 ? "" : "s"}`;
      throw new RelaxError("arguments", `${name} takes ${wanted}, got ${args.length}`, {
        help: `the signature is ${signature(code)}`,
      });
    }
    const call = new Call();
    try {
      const values = [];
      for (const [i, arg] of args.entries()) values.push(await this.#entered(call, code, i, arg));
      const result = await this.#leave(await this.#run(call, value, values));
      const kept = new Set(buffers(result));
      for (const arg of args) for (const buffer of buffers(arg)) kept.add(buffer);
      this.#end(call, kept);
      return result;
    } catch (error) {
      this.#end(call, new Set());
      throw error;
    }
  }

  async #entered(call, code, position, arg) {
    const pattern = code.patterns[position];
    const { name, annotation } = code.params[position];
    try {
      const entered = enter(arg, pattern, this.devices[HOST], this.types);
      const reason = holdsData(pattern) ? this.types.misfit(entered, pattern) : "";
      if (reason) throw mismatch(reason);
      // What was made of the caller's arrays belongs to the call.
      const given = new Set(buffers(arg));
      for (const tensor of tensors(entered)) if (!given.has(tensor.buffer)) call.owned.set(tensor.buffer, tensor.device);
      return await this.#placed(call, entered, pattern);
    } catch (error) {
      if (!(error instanceof RelaxError)) throw error;
      throw error.about(`${code.name}: parameter ${name}`).note(`${name} is annotated ${annotation}`);
    }
  }

  /** The value with its tensors on the devices of their patterns. */
  async #placed(call, value, pattern) {
    if (pattern.op === "TuplePattern" && Array.isArray(value) && value.length === pattern.fields.length) {
      const items = [];
      for (const [i, item] of value.entries()) items.push(await this.#placed(call, item, pattern.fields[i]));
      return items;
    }
    if (pattern.op !== "TensorPattern" || !(value instanceof Tensor)) return value;
    if (value.buffer === null) throw new RelaxError("arguments", "the tensor was disposed of");
    const device = this.devices[pattern.slot];
    if (value.device === device) return value;
    const placed = await this.#copied(call, value, device);
    placed.lost = `is not on ${device.name}`;
    return placed;
  }

  /** Give the memory of a call back, but for these buffers. */
  #end(call, kept) {
    for (const frame of call.frames) this.#release(frame);
    for (const [buffer, device] of call.owned) if (!kept.has(buffer)) device.release(buffer);
  }

  #release(frame) {
    if (frame.memory !== null) this.free.get(frame.code).push(frame.memory);
    frame.memory = null;
  }

  /** Give the memory back that is kept for later calls. */
  releaseMemory() {
    for (const [code, kept] of this.free) {
      for (const memory of kept.splice(0)) {
        memory.forEach((buffer, storage) => this.devices[code.storage_slots[storage] ?? HOST].release(buffer));
      }
    }
    for (const device of new Set(this.devices)) device.trim();
  }

  // Running

  async #run(call, value, args) {
    const stack = [this.#frame(call, value, args, -1)];
    for (;;) {
      try {
        const pending = this.#advance(call, stack);
        if (pending.waits === undefined) return pending.result;
        pending.then(await pending.waits);
      } catch (error) {
        throw this.#located(error, stack);
      }
    }
  }

  #frame(call, value, args, dst) {
    const frame = new Frame(value.code, [...args, ...value.captured], dst);
    call.frames.push(frame);
    try {
      this.#requireOwn(frame);
    } catch (error) {
      throw error.about(frame.code.name);
    }
    return frame;
  }

  /** Begin a call of a function: on top of the frame of its caller, or for a tail call in its place. */
  #enter(call, stack, func, args, dst) {
    const caller = stack[stack.length - 1];
    const kept = new Set(caller.memory);
    if (!caller.code.tails.has(caller.at) || (kept.size > 0 && args.some((arg) => refersTo(arg, kept)))) {
      stack.push(this.#frame(call, func, args, dst));
      return;
    }
    const made = this.#frame(call, func, args, caller.dst);
    this.#leaveFrame(call, stack);
    stack.push(made);
    if (call.owned.size > call.most) this.#sweep(call);
  }

  #leaveFrame(call, stack) {
    const frame = stack.pop();
    this.#release(frame);
    call.frames.splice(call.frames.lastIndexOf(frame), 1);
  }

  /** Give the buffers back to which no frame of a call refers. */
  #sweep(call) {
    const kept = new Set(call.frames.flatMap((frame) => frame.regs.flatMap(buffers)));
    for (const [buffer, device] of call.owned) {
      if (kept.has(buffer)) continue;
      call.owned.delete(buffer);
      device.release(buffer);
    }
    call.most = Math.max(LEAST, 2 * call.owned.size);
  }

  /** Run until the end (`result`), or until something has to be waited for (`waits`; `then` takes it). */
  #advance(call, stack) {
    for (;;) {
      const frame = stack[stack.length - 1];
      const { regs, heap, code } = frame;
      while (frame.arms.length && frame.arms[frame.arms.length - 1][0] === frame.at) {
        frame.at = frame.arms.pop()[1];
      }
      const instr = code.code[frame.at];
      switch (instr.op) {
        case "Const":
          regs[instr.dst] = this.constants[instr.index][instr.slot];
          break;
        case "Match":
          this.#match(frame, instr);
          break;
        case "Eval":
          heap[instr.dst] = instr.expr(heap);
          break;
        case "Assert": {
          const [came, wanted] = [instr.lhs(heap), instr.rhs(heap)];
          if (came !== wanted) throw unequal(frame, instr.check, came, wanted);
          break;
        }
        case "Alloc":
          regs[instr.dst] = this.#alloc(call, frame, instr);
          break;
        case "View":
          regs[instr.dst] = this.#view(frame, instr);
          break;
        case "Copy": {
          const source = regs[instr.src];
          const device = this.devices[instr.slot];
          if (!(source instanceof Tensor)) throw mismatch(`expected a tensor, got ${describe(source)}`);
          if (source.device !== device) {
            return {
              waits: this.#copied(call, source, device),
              then: (copy) => this.#next(frame, instr.dst, copy),
            };
          }
          regs[instr.dst] = source;
          break;
        }
        case "Read": {
          const source = regs[instr.src];
          if (!(source instanceof Tensor) || source.shape.length) {
            throw mismatch(`expected a 0-d tensor, got ${describe(source)}`);
          }
          return { waits: source.item(), then: (item) => this.#next(frame, instr.dst, scalarOf(source, item)) };
        }
        case "Kernel": {
          this.#kernel(call, frame, instr);
          const waits = this.devices[this.program.kernels[instr.index].slot].pause();
          if (waits !== null) return { waits, then: () => (frame.at += 1) };
          break;
        }
        case "Library":
          this.libraries[instr.index](...this.#operands(frame, instr));
          break;
        case "Packed": {
          const func = this.packed[instr.index];
          const context = { host: this.devices[HOST], empty: (...given) => this.#empty(call, ...given) };
          const found = func.call(context, ...this.#operands(frame, instr));
          if (found instanceof Promise) return { waits: found, then: (value) => this.#next(frame, instr.dst, value) };
          regs[instr.dst] = found;
          break;
        }
        case "Call": {
          const args = instr.args.map((reg) => regs[reg]);
          this.#enter(call, stack, new FunctionValue(this.program.functions[instr.index], []), args, instr.dst);
          continue;
        }
        case "Closure":
          regs[instr.dst] = new FunctionValue(
            this.program.functions[instr.index],
            instr.captured.map((reg) => regs[reg]),
          );
          break;
        case "Invoke": {
          const func = regs[instr.closure];
          const args = instr.args.map((reg) => regs[reg]);
          if (func instanceof FunctionValue) {
            if (args.length !== func.arity) {
              throw new RelaxError(
                "arity",
                `${func.code.name} takes ${func.arity} arguments, a function value of it was called with ${args.length}`,
              );
            }
            this.#enter(call, stack, func, args, instr.dst);
            continue;
          }
          if (typeof func !== "function") {
            throw new RelaxError("not-callable", `expected a function, got ${describe(func)}`);
          }
          const given = args.map((arg) => (arg instanceof Float ? arg.value : arg));
          return {
            waits: Promise.resolve(func(...given)),
            then: (value) => this.#next(frame, instr.dst, plain(value, this.devices[HOST])),
          };
        }
        case "MakeTuple":
          regs[instr.dst] = instr.fields.map((reg) => regs[reg]);
          break;
        case "Item": {
          const fields = regs[instr.src];
          if (!Array.isArray(fields) || instr.index >= fields.length) {
            throw mismatch(`expected a tuple of more than ${instr.index} fields, got ${describe(fields)}`);
          }
          regs[instr.dst] = fields[instr.index];
          break;
        }
        case "MakeShape":
          regs[instr.dst] = new Shape(heap.slice(instr.shape, instr.shape + instr.ndim));
          break;
        case "MakePrim":
          regs[instr.dst] = primOf(instr, heap);
          break;
        case "Move":
          regs[instr.dst] = regs[instr.src];
          break;
        case "Graph":
          break; // its launches follow, and run one by one
        case "Kill":
          for (const reg of instr.regs) regs[reg] = undefined;
          break;
        case "If": {
          const middle = frame.at + 1 + instr.then_len;
          if (truth(regs[instr.cond])) frame.arms.push([middle, middle + instr.else_len]);
          else frame.at = middle - 1;
          break;
        }
        case "Return": {
          const value = regs[instr.src];
          this.#leaveFrame(call, stack);
          if (stack.length === 0) return { result: value };
          const caller = stack[stack.length - 1];
          caller.regs[frame.dst] = value;
          caller.at += 1;
          continue;
        }
        default:
          throw new RelaxError("bytecode", `there is no instruction ${instr.op}`);
      }
      frame.at += 1;
    }
  }

  #next(frame, dst, value) {
    frame.regs[dst] = value;
    frame.at += 1;
  }

  #operands(frame, instr) {
    return instr.args.map((arg) =>
      arg.reg !== undefined ? frame.regs[arg.reg] : arg.slot !== undefined ? frame.heap[arg.slot] : arg.value,
    );
  }

  // Values

  #match(frame, instr) {
    const value = frame.regs[instr.src];
    const { pattern } = instr;
    const isHere = pattern.op !== "TensorPattern" || !(value instanceof Tensor) || this.#isOn(value, pattern.slot);
    const looks = holdsData(pattern) && !CHECKED_BEFORE.includes(frame.code.checks[instr.check].what);
    const reason = looks ? this.types.misfit(value, pattern) : "";
    if (!isHere || reason || !fits(value, pattern)) {
      const check = frame.code.checks[instr.check];
      const where = reason ? reason : isHere ? explain(value, pattern) : `it must be on ${this.devices[pattern.slot].name}`;
      const error = checkError(frame, check, where);
      error.note(`the actual value is ${describe(value)}`);
      const isCast = value instanceof Tensor && pattern.dtype && value.dtype !== pattern.dtype;
      if (isCast && check.what === "parameter") {
        error.help = `there are no implicit casts: pass {data, shape, dtype: "${pattern.dtype}"} with an array of it`;
        error.message = error.render();
      }
      throw error;
    }
    bind(value, pattern, frame.heap);
  }

  #isOn(tensor, slot) {
    return tensor.device === this.devices[slot];
  }

  #requireOwn(frame) {
    const { params } = frame.code;
    if (!params.some((param) => param.updated)) return;
    const pieces = params.flatMap((param, position) =>
      tensors(frame.regs[position]).map((tensor) => ({ tensor, position, written: param.updated })),
    );
    for (const { tensor, position, written } of pieces) {
      if (!written || !tensor.size) continue;
      const { name } = params[position];
      if (tensor.lost) {
        throw new RelaxError(
          "update-lost",
          `parameter ${name}: the value ${tensor.lost}, but the function updates it in place: the update would be lost`,
          { help: "pass a tensor: vm.upload(x)" },
        );
      }
      if (tensor.constant) {
        throw new RelaxError("read-only", `parameter ${name}: it is read-only, but the function updates it in place`);
      }
      for (const other of pieces) {
        if (other.tensor !== tensor && overlap(tensor, other.tensor)) {
          const names = `${name} and ${params[other.position].name}`;
          throw new RelaxError("update-shared", `${names} share memory, and the function updates ${name} in place`);
        }
        if (other.tensor === tensor && other.position !== position) {
          const names = `${name} and ${params[other.position].name}`;
          throw new RelaxError("update-shared", `${names} share memory, and the function updates ${name} in place`);
        }
      }
    }
  }

  // Memory

  #empty(call, device, shape, dtype) {
    if (shape.some((size) => size < 0)) throw mismatch(`a dimension is negative: [${shape}]`);
    const buffer = device.allocate(countBytes(shape, dtype));
    call.owned.set(buffer, device);
    return new Tensor(device, buffer, 0, shape, dtype);
  }

  async #copied(call, source, device) {
    const bytes = device.isHost || source.device !== device ? await source.bytes() : null;
    const made = this.#empty(call, device, source.shape, source.dtype);
    if (bytes === null) device.copy(source.buffer, source.offset, made.buffer, 0, source.nbytes);
    else if (bytes.length) device.write(made.buffer, 0, bytes);
    return made;
  }

  #alloc(call, frame, instr) {
    const shape = frame.heap.slice(instr.shape, instr.shape + instr.ndim);
    const device = this.devices[instr.slot];
    if (instr.storage < 0) return this.#empty(call, device, shape, instr.dtype);
    if (shape.some((size) => size < 0)) throw mismatch(`a dimension is negative: [${shape}]`);
    const have = this.#storageSize(frame, instr.storage);
    const need = instr.offset + countBytes(shape, instr.dtype);
    if (have < need) throw mismatch(`a tensor of ${need} bytes in a storage of ${have}`);
    return new Tensor(device, this.#storage(frame, instr.storage, have, device), instr.offset, shape, instr.dtype);
  }

  #storageSize(frame, storage) {
    let size;
    try {
      size = int64(frame.code.storages[storage](frame.heap));
    } catch (error) {
      throw new RelaxError("out-of-memory", `the size of its storage cannot be computed: ${error.text}`);
    }
    if (typeof size === "bigint") throw new RelaxError("out-of-memory", `cannot allocate ${size} bytes`);
    return size;
  }

  #storage(frame, storage, nbytes, device) {
    frame.memory ??= this.free.get(frame.code).pop() ?? [];
    const there = frame.memory[storage];
    if (there !== undefined && there.size >= nbytes) return there;
    if (there !== undefined) device.release(there);
    delete frame.memory[storage];
    return (frame.memory[storage] = device.allocate(nbytes));
  }

  #view(frame, instr) {
    const source = frame.regs[instr.src];
    const shape = frame.heap.slice(instr.shape, instr.shape + instr.ndim);
    if (!(source instanceof Tensor)) throw mismatch(`expected a tensor, got ${describe(source)}`);
    if (!this.#isOn(source, instr.slot)) throw mismatch("the tensor is not on the device of its view");
    if (shape.some((size) => size < 0)) throw mismatch(`a dimension is negative: [${shape}]`);
    const need = countBytes(shape, instr.dtype);
    if (need > source.nbytes) throw mismatch(`a view of ${need} bytes of a tensor of ${source.nbytes}`);
    if (source.offset % dtypeInfo(instr.dtype).bytes) {
      throw mismatch(`its memory is not aligned for elements of ${instr.dtype}`);
    }
    const view = new Tensor(source.device, source.buffer, source.offset, shape, instr.dtype, source.constant);
    view.lost = source.lost;
    return view;
  }

  // Kernels

  #kernel(call, frame, instr) {
    const kernel = this.program.kernels[instr.index];
    const device = this.devices[kernel.slot];
    const args = this.#operands(frame, instr);
    const sizes = this.#sizes(kernel, args, device);
    const numbers = kernel.launch.map((each) => each(sizes));
    const copied = (tensor) => {
      const copy = this.#empty(call, device, tensor.shape, tensor.dtype);
      device.copy(tensor.buffer, tensor.offset, copy.buffer, 0, tensor.nbytes);
      return copy;
    };
    try {
      device.launch(kernel, numbers, args, copied);
    } catch (error) {
      if (["tir-bounds", "out-of-memory"].includes(error.code)) error.about(frame.code.name);
      throw error;
    }
  }

  /** The sizes of a kernel, after a comparison of the arguments with its parameters. */
  #sizes(kernel, args, device) {
    const wrong = (number, problem) => mismatch(`argument ${number} of the kernel ${kernel.name} ${problem}`);
    const sizes = [];
    kernel.params.forEach((param, number) => {
      const arg = args[number];
      if (param.shape === null) {
        const isFloat = arg instanceof Float;
        if (!primFits(arg, param.dtype) || isFloat !== (DTYPES[param.dtype].code > 1 && param.dtype !== "bool")) {
          throw wrong(number, `must be a scalar of type ${param.dtype}, got ${describe(arg)}`);
        }
        if (param.size >= 0) sizes[param.size] ??= arg;
        return;
      }
      if (!(arg instanceof Tensor) || arg.dtype !== param.dtype || arg.shape.length !== param.shape.length) {
        const wanted = `${param.dtype} of ${param.shape.length} dimensions`;
        throw wrong(number, `must be a tensor of ${wanted}, got ${describe(arg)}`);
      }
      if (param.access !== "read" && arg.constant) throw wrong(number, "is updated, but is a constant");
      if (arg.device !== device) throw wrong(number, `must be on ${device.name}`);
      param.sizes.forEach((size, axis) => {
        if (size >= 0) sizes[size] ??= arg.shape[axis];
      });
    });
    kernel.params.forEach((param, number) => {
      const arg = args[number];
      if (param.shape === null) {
        if (param.size >= 0 && sizes[param.size] !== arg) throw wrong(number, `must be ${sizes[param.size]}, got ${arg}`);
        return;
      }
      const wanted = param.shape.map((size) => size(sizes));
      if (wanted.some((size, axis) => size !== arg.shape[axis])) {
        throw wrong(number, `must have shape [${wanted}], got [${arg.shape}]`);
      }
    });
    return sizes;
  }

  // Results and errors

  async #leave(value) {
    const copies = new Map();
    const copied = async (item) => {
      if (item instanceof Tensor && item.constant) {
        if (!copies.has(item)) copies.set(item, await this.#copied(new Call(), item, item.device));
        return copies.get(item);
      }
      if (!Array.isArray(item)) return item;
      const items = [];
      for (const each of item) items.push(await copied(each));
      return items;
    };
    return copied(value);
  }

  #located(error, stack) {
    const inner = stack[stack.length - 1];
    const found = error instanceof RelaxError ? error : this.#foreign(error, inner);
    if (found.code === "shape-arithmetic") found.about("a dimension cannot be computed").about(inner.code.name);
    for (let i = stack.length - 1; i >= 0; i -= 1) {
      const { code, at } = stack[i];
      const place = code.locations[code.code[at]?.loc];
      const binding = place?.binding ? `, in the binding of ${place.binding}` : "";
      const file = place?.file ? `, ${place.file}:${place.line}` : "";
      found.note(`${i === stack.length - 1 ? "in function" : "called from"} ${code.name}${binding}${file}`);
    }
    return found;
  }

  /** The error for an exception that is not one of the machine's. */
  #foreign(error, frame) {
    const instr = frame.code.code[frame.at];
    const reason = `${error?.name ?? "error"}: ${error?.message ?? error}`;
    const [code, what] =
      {
        Kernel: ["kernel-failed", () => `the kernel ${this.program.kernels[instr.index].name} failed`],
        Library: ["library-failed", () => `the library function ${this.program.libraries[instr.index]} failed`],
        Packed: ["call-failed", () => `the function ${this.program.packed[instr.index]} failed`],
        Invoke: ["callback-failed", () => "a function that was passed as an argument failed"],
      }[instr?.op] ?? ["execution", () => `${instr?.op ?? "the function"} failed`];
    return new RelaxError(code, `${frame.code.name}: ${what()}: ${reason}`, { cause: error });
  }
}

/** The parameters and the result of a function, as script. */
export function signature(code) {
  const params = code.params.map(({ name, annotation }) => (annotation ? `${name}: ${annotation}` : name));
  return `${code.name}(${params.join(", ")})${code.ret ? ` -> ${code.ret}` : ""}`;
}

function simple(value) {
  if (value instanceof Float) return value.value;
  return Array.isArray(value) ? value.map(simple) : value;
}

/** The tensors in a value, in order. Data may be a million levels deep. */
function tensors(value) {
  const found = [];
  const waiting = [value];
  const seen = new Set();
  while (waiting.length) {
    const at = waiting.pop();
    if (at instanceof Tensor) found.push(at);
    let inner = Array.isArray(at) ? at : at instanceof FunctionValue ? at.captured : [];
    if (at instanceof Data && !seen.has(at)) {
      seen.add(at);
      inner = at.items;
    }
    for (let i = inner.length - 1; i >= 0; i -= 1) waiting.push(inner[i]);
  }
  return found;
}

/** Whether a value has one of these buffers of a frame. Data has none: what is stored in it leaves the call. */
function refersTo(value, kept) {
  if (value instanceof Tensor) return kept.has(value.buffer);
  if (value instanceof FunctionValue) return value.captured.some((each) => refersTo(each, kept));
  return Array.isArray(value) && value.some((each) => refersTo(each, kept));
}

const buffers = (value) => tensors(value).map((tensor) => tensor.buffer);

function overlap(a, b) {
  if (!a.device.sameMemory(a.buffer, b.buffer)) return false;
  const [x, y] = [a.device.begin(a.buffer) + a.offset, b.device.begin(b.buffer) + b.offset];
  return x < y + b.nbytes && y < x + a.nbytes;
}

const scalarOf = (tensor, item) => (DTYPES[tensor.dtype].code > 1 && tensor.dtype !== "bool" ? new Float(item) : item);

/** The condition of an `If`: a boolean, or the element of a 0-d tensor of the host. */
function truth(value) {
  if (typeof value === "boolean") return value;
  if (value instanceof Tensor && value.device.isHost && product(value.shape) === 1) {
    return value.device.view(value)[0] !== 0;
  }
  throw new RelaxError("condition", `a condition must be a bool, got ${describe(value)}`);
}

function primOf({ value, dtype }, heap) {
  const found = value.slot === undefined ? value.value : heap[value.slot];
  if (dtype === "bool") return found === true || (typeof found !== "boolean" && found !== 0);
  if (dtype in DTYPES && DTYPES[dtype].code > 1 && !(found instanceof Float)) return new Float(Number(found));
  return found;
}

/** The error of an `Assert` that failed. */
function unequal(frame, index, came, wanted) {
  const check = frame.code.checks[index];
  // The condition of a relation names the sizes that do not fit.
  if (check.what === "relation") return checkError(frame, check, check.detail);
  return checkError(frame, check, `${check.detail ? `${check.detail} ` : ""}must be ${wanted}, got ${came}`);
}

function checkError(frame, check, reason) {
  const subject = check.what === "relation" ? "" : `${check.what} ${check.name}: `;
  const written = writtenSlots(frame.code.code.slice(0, frame.at));
  const bound = check.symbols.filter(([, slot]) => written.has(slot)).map(([n, slot]) => `${n} = ${frame.heap[slot]}`);
  const notes = check.annotation ? [`${check.name} is annotated ${check.annotation}`] : [];
  if (bound.length) notes.push(`bound so far: ${bound.join(", ")}`);
  return new RelaxError("check", `${frame.code.name}: ${subject}${reason}`, { notes });
}

/** The heap slots that these instructions write. */
function writtenSlots(instrs) {
  const found = new Set();
  const visit = (pattern) => {
    for (const want of [...(pattern.shape ?? pattern.dims ?? []), pattern.value]) {
      if (want !== null && typeof want === "object") found.add(want.slot);
    }
    if (pattern.op === "TuplePattern") pattern.fields.forEach(visit);
  };
  for (const instr of instrs) {
    if (instr.op === "Match") visit(instr.pattern);
    if (instr.op === "Eval") found.add(instr.dst);
  }
  return found;
}
