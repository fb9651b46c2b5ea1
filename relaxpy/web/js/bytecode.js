/** Reads the bytecode of a program: `relaxpy.runtime.bytecode` in the encoding of `relaxpy.runtime.codec`. */

import { RelaxError } from "./errors.js";
import { formula, integer } from "./integers.js";
import { Float } from "./values.js";

/** The fields of each class in order, as `relaxpy.runtime.bytecode` declares them. */
export const FIELDS = {
  Const: ["loc", "dst", "index", "slot"],
  Match: ["loc", "src", "pattern", "check"],
  Eval: ["loc", "dst", "expr"],
  Assert: ["loc", "lhs", "rhs", "check"],
  Alloc: ["loc", "dst", "shape", "ndim", "dtype", "storage", "offset", "slot"],
  View: ["loc", "dst", "src", "shape", "ndim", "dtype", "slot"],
  Copy: ["loc", "dst", "src", "slot"],
  Read: ["loc", "dst", "src"],
  Kernel: ["loc", "index", "args", "work", "flops", "nbytes"],
  Library: ["loc", "index", "args"],
  Packed: ["loc", "dst", "index", "args"],
  Call: ["loc", "dst", "index", "args"],
  Closure: ["loc", "dst", "index", "captured"],
  Invoke: ["loc", "dst", "closure", "args"],
  MakeTuple: ["loc", "dst", "fields"],
  Item: ["loc", "dst", "src", "index"],
  MakeShape: ["loc", "dst", "shape", "ndim"],
  MakePrim: ["loc", "dst", "value", "dtype"],
  Move: ["loc", "dst", "src"],
  If: ["loc", "cond", "then_len", "else_len"],
  Graph: ["loc", "length", "slot"],
  Kill: ["loc", "regs"],
  Return: ["loc", "src"],
  TensorPattern: ["shape", "ndim", "dtype", "slot"],
  ShapePattern: ["dims", "ndim"],
  PrimPattern: ["dtype", "value"],
  TuplePattern: ["fields"],
  CallablePattern: ["arity"],
  ObjectPattern: [],
  DataPattern: ["name", "args"],
  ParamPattern: ["index"],
  DataCase: ["name", "fields", "patterns"],
  DataInfo: ["name", "params", "cases"],
  Check: ["what", "name", "annotation", "detail", "symbols"],
  Location: ["binding", "file", "line", "column", "end_column"],
  Param: ["name", "annotation", "updated"],
  FunctionCode: [
    "name", "params", "ret", "num_regs", "heap_init", "storages", "code", "checks", "locations", "public",
    "storage_slots",
  ],
  KernelParam: ["dtype", "shape", "size", "access"],
  Slot: ["name", "kind", "index"],
};

/** An object with the fields of its class, and `op`, the name of the class. */
function record(code) {
  const [op] = Object.keys(code);
  const names = Object.hasOwn(FIELDS, op) ? FIELDS[op] : undefined;
  const values = code[op];
  if (names === undefined || values.length !== names.length) {
    throw new RelaxError("bytecode", `${op} is no class of the bytecode, or has other fields`);
  }
  const found = { op };
  names.forEach((name, i) => (found[name] = values[i]));
  return found;
}

/** A dimension of a pattern: null, an integer, or `{slot}`, which takes the size. */
function dim(code) {
  if (code === null || typeof code === "number") return code;
  return "Heap" in code ? { slot: code.Heap[0] } : literal(code);
}

/** The integer, number, truth or text that a literal is. */
function literal(code) {
  if (typeof code === "number" && !Number.isInteger(code)) return new Float(code);
  if (typeof code !== "object") return code;
  return "Int64" in code ? integer(BigInt(code.Int64)) : new Float(float(code.Float));
}

const float = (text) => Number(text.replace("inf", "Infinity"));

/** An operand of a call: `{reg}`, `{slot}`, or `{value}`. */
function operand(code) {
  if (code !== null && typeof code === "object") {
    if ("Reg" in code) return { reg: code.Reg[0] };
    if ("Heap" in code) return { slot: code.Heap[0] };
  }
  return { value: literal(code) };
}

export function pattern(code) {
  const found = record(code);
  if (found.op === "TensorPattern") found.shape = found.shape?.map(dim) ?? null;
  if (found.op === "ShapePattern") found.dims = found.dims?.map(dim) ?? null;
  if (found.op === "PrimPattern") found.value = dim(found.value);
  if (found.op === "TuplePattern") found.fields = found.fields.map(pattern);
  if (found.op === "DataPattern") found.args = found.args.map(pattern);
  return found;
}

function instruction(code) {
  const found = record(code);
  switch (found.op) {
    case "Match":
      found.pattern = pattern(found.pattern);
      break;
    case "Eval":
      found.expr = formula(found.expr);
      break;
    case "Assert":
      found.lhs = formula(found.lhs);
      found.rhs = formula(found.rhs);
      break;
    case "Kernel": // its work is an estimate, which nothing here depends on
    case "Library":
    case "Packed":
      found.args = found.args.map(operand);
      break;
    case "MakePrim":
      found.value = operand(found.value);
      break;
  }
  return found;
}

const ANYTHING = { op: "ObjectPattern" };

/** The pattern of each parameter: that of its first `Match`, or any value. */
function parameterPatterns(params, code, checks) {
  const found = new Array(params.length);
  /** Register → the parameter in it. */
  const holds = new Map(params.map((_, i) => [i, i]));
  for (const instr of code) {
    if (instr.op === "Match") {
      const param = holds.get(instr.src);
      if (param !== undefined && checks[instr.check].what === "parameter") found[param] ??= instr.pattern;
      continue;
    }
    if (instr.op === "Move" && holds.has(instr.src)) holds.set(instr.dst, holds.get(instr.src));
    else if (instr.op !== "Eval") holds.delete(instr.dst);
  }
  return params.map((_, i) => found[i] ?? ANYTHING);
}

/** The calls after which a function only returns their result; not those of function values that check the result. */
function tailCalls(code) {
  /** The end of the first arm of a branch, and where the code continues from there. */
  const jumps = new Map();
  code.forEach((instr, at) => {
    if (instr.op !== "If") return;
    const middle = at + 1 + instr.then_len;
    jumps.set(middle, Math.max(jumps.get(middle) ?? 0, middle + instr.else_len));
  });
  const isLast = (start, dst) => {
    const names = new Set([dst]);
    for (let at = start; at < code.length; ) {
      const instr = code[at];
      if ((jumps.get(at) ?? at) > at) {
        at = jumps.get(at);
        continue;
      }
      if (instr.op === "Return") return names.has(instr.src);
      if (instr.op === "Move" && names.has(instr.src)) names.add(instr.dst);
      else if (instr.op === "Kill") for (const reg of instr.regs) names.delete(reg);
      else return false;
      at += 1;
    }
    return false;
  };
  const found = new Set();
  code.forEach((instr, at) => {
    if ((instr.op === "Call" || instr.op === "Invoke") && isLast(at + 1, instr.dst)) found.add(at);
  });
  return found;
}

/** A function, ready to run. */
export function readFunction(code) {
  const found = record(code);
  found.params = found.params.map(record);
  found.heap_init = found.heap_init.map(literal);
  found.storages = found.storages.map(formula);
  found.code = found.code.map(instruction);
  found.checks = found.checks.map(record);
  found.locations = found.locations.map(record);
  found.tails = tailCalls(found.code);
  found.patterns = parameterPatterns(found.params, found.code, found.checks);
  return found;
}

/** The parameters of a kernel; their shapes are formulas over the kernel's sizes. */
export function readParams(codes) {
  return codes.map((code) => {
    const found = record(code);
    // A dimension that is a size by itself defines that size.
    found.sizes = found.shape?.map((size) => (size.Heap === undefined ? -1 : size.Heap[0])) ?? [];
    found.shape = found.shape?.map(formula) ?? null;
    return found;
  });
}

/** The data types of a program. */
export function readTypes(codes) {
  const readCase = (code) => {
    const found = record(code);
    return { ...found, patterns: found.patterns.map(pattern) };
  };
  return codes.map(record).map((info) => ({ ...info, cases: info.cases.map(readCase) }));
}

export const readSlot = record;
