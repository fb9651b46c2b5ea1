/** Compares values with the patterns of a program, and makes values of what callers pass. */

import { RelaxError, mismatch } from "./errors.js";
import { int64, integer, product } from "./integers.js";
import {
  DTYPES, Data, Float, FunctionValue, Shape, Tensor, describe, dtypeInfo, isFloat, isInteger, raw,
} from "./values.js";

const isInt = (value) => typeof value === "number" || typeof value === "bigint";

/** Whether a scalar is a value of `dtype` ("": of any type). */
export function primFits(value, dtype) {
  if (!dtype) return isInt(value) || value instanceof Float || typeof value === "boolean" || typeof value === "string";
  if (dtype === "bool") return typeof value === "boolean";
  if (dtype === "string" || dtype === "str") return typeof value === "string";
  if (isInteger(dtype)) {
    const { code, bytes } = DTYPES[dtype];
    const width = BigInt(bytes * 8);
    const low = code ? 0n : -(1n << (width - 1n));
    return isInt(value) && value >= low && value < low + (1n << width);
  }
  return isInt(value) || value instanceof Float;
}

const sizeFits = (size, want) => want === null || typeof want === "object" || want === size;

function sizesFit(sizes, wanted, ndim) {
  const rank = wanted === null ? ndim : wanted.length;
  return (rank < 0 || sizes.length === rank) && (wanted ?? []).every((want, i) => sizeFits(sizes[i], want));
}

/** Whether a value matches a pattern, apart from the conditions of `Assert`s. */
export function fits(value, pattern) {
  switch (pattern.op) {
    case "TensorPattern":
      return (
        value instanceof Tensor &&
        (!pattern.dtype || value.dtype === pattern.dtype) &&
        sizesFit(value.shape, pattern.shape, pattern.ndim)
      );
    case "ShapePattern":
      return value instanceof Shape && sizesFit(value.dims, pattern.dims, pattern.ndim);
    case "PrimPattern":
      return primFits(value, pattern.dtype) && sizeFits(value, pattern.value);
    case "TuplePattern":
      return (
        Array.isArray(value) &&
        value.length === pattern.fields.length &&
        value.every((item, i) => fits(item, pattern.fields[i]))
      );
    case "DataPattern":
      return value instanceof Data && value.type === pattern.name;
    case "CallablePattern":
      if (typeof value === "function") return true;
      return value instanceof FunctionValue && (pattern.arity < 0 || pattern.arity === value.arity);
    default:
      return true;
  }
}

/** Stores the sizes of a value that matches in the heap. Throws: RelaxError (`shape-arithmetic`). */
export function bind(value, pattern, heap) {
  const store = (sizes, dims) =>
    dims?.forEach((want, i) => {
      if (want !== null && typeof want === "object") heap[want.slot] = int64(sizes[i]);
    });
  if (pattern.op === "TensorPattern") store(value.shape, pattern.shape);
  if (pattern.op === "ShapePattern") store(value.dims, pattern.dims);
  if (pattern.op === "PrimPattern") store([value === true ? 1 : value === false ? 0 : value], [pattern.value]);
  if (pattern.op === "TuplePattern") pattern.fields.forEach((field, i) => bind(value[i], field, heap));
}

/** Why a value does not match: the first mismatch. `place` is its position in a nested value. */
export function explain(value, pattern, place = "") {
  const sizes = (have, wanted, ndim) => {
    const rank = wanted === null ? ndim : wanted.length;
    if (rank >= 0 && have.length !== rank) {
      const what = place.replace(/^ of /, "") || "it";
      return `${what} has ${have.length} dimension${have.length === 1 ? "" : "s"}, not ${rank}`;
    }
    const axis = (wanted ?? []).findIndex((want, i) => !sizeFits(have[i], want));
    return `dimension ${axis}${place} is ${have[axis]}, not ${wanted?.[axis]}`;
  };
  switch (pattern.op) {
    case "TensorPattern":
      if (!(value instanceof Tensor)) return `expected a tensor${place}, got ${describe(value)}`;
      if (pattern.dtype && value.dtype !== pattern.dtype) {
        return `the dtype${place} is ${value.dtype}, not ${pattern.dtype}`;
      }
      return sizes(value.shape, pattern.shape, pattern.ndim);
    case "ShapePattern":
      if (!(value instanceof Shape)) return `expected a shape${place}, got ${describe(value)}`;
      return sizes(value.dims, pattern.dims, pattern.ndim);
    case "PrimPattern":
      if (!primFits(value, pattern.dtype)) {
        return `expected a scalar of type ${pattern.dtype || "any"}${place}, got ${describe(value)}`;
      }
      return `the value${place} is ${value}, not ${pattern.value}`;
    case "TuplePattern": {
      if (!Array.isArray(value)) return `expected a tuple of ${pattern.fields.length}${place}, got ${describe(value)}`;
      if (value.length !== pattern.fields.length) {
        return `expected ${pattern.fields.length} fields${place}, got ${value.length}`;
      }
      const index = value.findIndex((item, i) => !fits(item, pattern.fields[i]));
      return explain(value[index], pattern.fields[index], ` of field ${index}${place}`);
    }
    case "DataPattern":
      return `expected a value of ${pattern.name}${place}, got ${describe(value)}`;
    default:
      return `expected a function${place}, got ${describe(value)}`;
  }
}

/** A shape of these sizes. Throws: RelaxError (`shape-value`) for negative ones. */
export function shapeOf(dims) {
  const found = dims.map(integer);
  const wrong = found.find((size) => size < 0 || size > 2n ** 63n - 1n);
  if (wrong !== undefined) {
    throw new RelaxError("shape-value", `a shape has sizes from 0 to 2**63 - 1, got ${wrong}`);
  }
  return new Shape(found);
}

const arrays = new Map();
for (const [dtype, { array }] of Object.entries(DTYPES)) {
  if (dtype !== "bool" && !arrays.has(array)) arrays.set(array, dtype);
}

/**
 * The dtype and shape of a typed array, nested array or `{data, shape, dtype}`, and its elements as bytes. Bare arrays
 * have the parameter's dtype, typed arrays their own.
 */
function arrayOf(value, wanted) {
  const given = ArrayBuffer.isView(value) || Array.isArray(value) ? { data: value } : value;
  let { data, shape, dtype } = given;
  if (Array.isArray(data)) {
    const name = dtype ?? (wanted || "float32");
    const found = flattened(data, name);
    return { dtype: name, shape: shape ?? found.shape, array: found.array };
  }
  if (typeof data === "number" || typeof data === "bigint" || typeof data === "boolean") {
    const name = dtype ?? (wanted || "float32");
    return { dtype: name, shape: [], array: DTYPES[name].array.of(raw(name, data)) };
  }
  if (!ArrayBuffer.isView(data) || data instanceof DataView) {
    throw mismatch(`expected a typed array, nested arrays of numbers, or {data, shape, dtype}; got ${describe(value)}`);
  }
  // A typed array may hold what JavaScript has no arrays of: booleans, and the bits of narrow floats.
  const fitting = wanted && DTYPES[wanted]?.array === data.constructor ? wanted : arrays.get(data.constructor);
  dtype ??= fitting;
  if (dtype === undefined || dtypeInfo(dtype).array !== data.constructor) {
    throw mismatch(`a ${data.constructor.name} does not hold elements of ${dtype ?? "any dtype"}`);
  }
  return { dtype, shape: shape ?? [data.length], array: data };
}

function flattened(data, dtype) {
  const shape = [];
  for (let level = data; Array.isArray(level); level = level[0]) shape.push(level.length);
  const { array } = dtypeInfo(dtype);
  const found = new array(Number(product(shape)));
  let at = 0;
  const visit = (level, axis) => {
    if (axis === shape.length) {
      const isNumber = typeof level === "number" || typeof level === "bigint" || typeof level === "boolean";
      const isWhole = typeof level !== "number" || Number.isInteger(level);
      if (!isNumber || (isInteger(dtype) && !isWhole)) {
        throw mismatch(`expected numbers of ${dtype}, got ${describe(level)}`);
      }
      if (isInteger(dtype) && !primFits(typeof level === "boolean" ? Number(level) : integer(level), dtype)) {
        throw mismatch(`${level} is no number of ${dtype}`);
      }
      found[at++] = raw(dtype, level);
      return;
    }
    if (!Array.isArray(level) || level.length !== shape[axis]) {
      throw mismatch(`nested arrays must have equal lengths: expected ${shape[axis]} items on level ${axis}`);
    }
    for (const item of level) visit(item, axis + 1);
  };
  visit(data, 0);
  return { shape, array: found };
}

/**
 * A tensor of the host over a caller's array: its memory is shared where JavaScript allows it.
 *
 * @param {object} host the device of the host
 */
export function tensorOf(host, value, wanted = "") {
  const { dtype, shape, array } = arrayOf(value, wanted);
  const dims = Array.from(shape, integer);
  if (dims.some((size) => !isInt(size) || size < 0) || product(dims) !== array.length) {
    throw mismatch(`${array.length} elements are no tensor of shape [${dims.join(", ")}]`);
  }
  const bytes = new Uint8Array(array.buffer, array.byteOffset, array.byteLength);
  const made = new Tensor(host, host.borrow(bytes), 0, dims, dtype);
  made.lost = host.copies ?? "";
  return made;
}

/**
 * The machine's value of an argument, by the pattern of its parameter. The function's own `Match` refuses others.
 * `types` are the program's data types.
 */
export function enter(value, pattern, host, types) {
  if (value instanceof Shape) return shapeOf(value.dims);
  if (value instanceof Tensor || value instanceof Float || value instanceof FunctionValue) return value;
  switch (pattern.op) {
    case "TensorPattern": {
      const isData = ArrayBuffer.isView(value) || Array.isArray(value) || value?.data !== undefined;
      const isScalar = pattern.shape?.length === 0 && ["number", "bigint", "boolean"].includes(typeof value);
      if (isScalar) return tensorOf(host, { data: value }, pattern.dtype);
      return isData ? tensorOf(host, value, pattern.dtype) : value;
    }
    case "ShapePattern":
      return Array.isArray(value) ? shapeOf(value) : value;
    case "PrimPattern":
      return scalar(value, pattern.dtype);
    case "TuplePattern":
      if (!Array.isArray(value) || value.length !== pattern.fields.length) return value;
      return value.map((item, i) => enter(item, pattern.fields[i], host, types));
    case "DataPattern":
      return types.entered(value, pattern, host);
    default:
      return plain(value, host);
  }
}

function scalar(value, dtype) {
  if (typeof value === "bigint") return integer(value);
  if (typeof value !== "number") return value;
  const isInt = Number.isInteger(value) && !(dtype in DTYPES && isFloat(dtype));
  return isInt ? integer(BigInt(value)) : new Float(value);
}

/** The machine's value of what a function of the caller returned, or of an argument of any type. */
export function plain(value, host) {
  if (value === undefined) return null;
  if (typeof value === "number" || typeof value === "bigint") return scalar(value, "");
  if (ArrayBuffer.isView(value) || value?.data !== undefined) return tensorOf(host, value);
  if (Array.isArray(value)) return value.map((item) => plain(item, host));
  return value;
}
