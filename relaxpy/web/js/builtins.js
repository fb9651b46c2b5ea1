/**
 * Builtin functions that programs call by name: `relaxpy.runtime.builtins` for JavaScript.
 *
 * `relaxpy web` refuses programs that call others, by reading the names of `BUILTINS` from this file: each is on a line
 * of its own. `this` has `host`, the device of the host, and `empty(device, shape, dtype)`.
 */

import { RelaxError, mismatch } from "./errors.js";
import { mul, product } from "./integers.js";
import { shapeOf } from "./patterns.js";
import { DTYPES, Data, Float, Shape, Tensor, describe, dtypeInfo, element, isInteger, raw } from "./values.js";

const invalid = (text) => new RelaxError("shape-value", text);

/** The elements of a host tensor. */
const items = (tensor) => tensor.device.view(tensor);
const numbers = (tensor) => Array.from(items(tensor), (item) => element(tensor.dtype, item));

/** A new host tensor of these elements, as typed arrays have them. */
function made(context, dtype, shape, elements) {
  const out = context.empty(context.host, shape, dtype);
  items(out).set(elements);
  return out;
}

const int64s = (context, shape, values) => made(context, "int64", shape, values.map(BigInt));

function tensorToShape(tensor) {
  if (tensor.shape.length !== 1 || !isInteger(tensor.dtype)) {
    throw invalid(`a shape must be a 1-d tensor of integers of at least 0, got ${describe(tensor)}`);
  }
  return shapeOf(numbers(tensor));
}

function shapeToTensor(shape) {
  return int64s(this, [shape.dims.length], shape.dims);
}

function scalarToTensor(value, dtype) {
  dtypeInfo(dtype);
  const number = value instanceof Float ? value.value : value;
  return made(this, dtype, [], [raw(dtype, typeof number === "boolean" ? Number(number) : number)]);
}

function tensorToScalar(tensor) {
  if (tensor.shape.length) throw mismatch(`a tensor of shape [${tensor.shape}] is not a scalar`);
  const [value] = numbers(tensor);
  return DTYPES[tensor.dtype].code > 1 && tensor.dtype !== "bool" ? new Float(value) : value;
}

function copy(tensor) {
  const out = this.empty(tensor.device, tensor.shape, tensor.dtype);
  tensor.device.copy(tensor.buffer, tensor.offset, out.buffer, 0, tensor.nbytes);
  return out;
}

function writable(value) {
  if (value instanceof Tensor) {
    if (value.constant) return copy.call(this, value);
    if (value.lost && value.size) {
      throw new RelaxError("update-lost", `the value ${value.lost}, but the function updates it in place`, {
        help: "pass a tensor: vm.upload(x)",
      });
    }
  }
  return Array.isArray(value) ? value.map((item) => writable.call(this, item)) : value;
}

/** A value of a data type; constants in it are copied, since callers may write to what they get. */
function makeData(key, ...items) {
  const own = (item) => (item instanceof Tensor && item.constant ? copy.call(this, item) : item);
  return new Data(key, items.map(own));
}

function fieldOf(key, value, index) {
  if (value instanceof Data && value.key === key) return value.items[index];
  const came = value instanceof Data ? `${value.type}.${value.name}` : describe(value);
  throw mismatch(`expected a value of ${key}, got ${came}`);
}

function reshape(tensor, shape) {
  const dims = shape.dims;
  if (product(dims) !== product(tensor.shape)) {
    throw invalid(`shape [${tensor.shape}] has ${tensor.size} elements, shape [${dims}] has another number`);
  }
  const out = copy.call(this, tensor);
  return new Tensor(out.device, out.buffer, 0, dims, out.dtype);
}

function zeros(shape, dtype) {
  dtypeInfo(dtype);
  const out = this.empty(this.host, shape.dims, dtype);
  items(out).fill(raw(dtype, 0));
  return out;
}

function axisOf(tensor, axis) {
  const count = tensor.shape.length;
  if (axis < 0 || axis >= count) throw mismatch(`axis ${axis} is out of range for ${count} dimensions`);
  return axis;
}

const tensorShape = (tensor, axis) => tensor.shape[axisOf(tensor, axis)];
const tensorStride = (tensor, axis) => tensor.shape.slice(axisOf(tensor, axis) + 1).reduce(mul, 1);

/** A value as Python prints it. */
function text(value) {
  if (value === null) return "None";
  if (typeof value === "boolean") return value ? "True" : "False";
  if (value instanceof Float) {
    if (Number.isNaN(value.value)) return "nan";
    if (!Number.isFinite(value.value)) return value.value < 0 ? "-inf" : "inf";
    return Number.isInteger(value.value) ? `${value.value}.0` : String(value.value);
  }
  if (value instanceof Shape) return `Shape([${value.dims.join(", ")}])`;
  if (value instanceof Tensor) return value.shape.length ? JSON.stringify(numbers(value).map(String)) : String(numbers(value)[0]);
  if (Array.isArray(value)) return `(${value.map(text).join(", ")}${value.length === 1 ? "," : ""})`;
  return String(value);
}

/** A text with values in the places `{}`. */
function formatted(values, pattern) {
  const rest = [...values];
  return pattern.replace(/\{\{|\}\}|\{\}/g, (mark) => (mark === "{}" ? text(rest.shift() ?? null) : mark[0]));
}

const say = (line) => console.log(line);

function printFormatted(values, pattern) {
  for (const line of pattern ? [formatted(values, pattern)] : values.map(text)) say(line);
  return null;
}

function assertTrue(condition, values, pattern) {
  const isTrue = condition instanceof Tensor ? items(condition)[0] !== 0 : condition === true;
  if (!isTrue) throw new RelaxError("assertion-failed", formatted(values, pattern));
  return null;
}

/** The position of an element with this number in a tensor of this shape. */
function positionOf(index, shape) {
  const found = [];
  for (const size of [...shape].reverse()) {
    found.unshift(index % size);
    index = Math.floor(index / size);
  }
  return found;
}

function checkRange(tensor, count, what, lowest = 0) {
  const index = numbers(tensor).findIndex((item) => item < lowest || item >= count);
  if (index >= 0) {
    const came = `got ${numbers(tensor)[index]} at [${positionOf(index, tensor.shape)}]`;
    throw new RelaxError("index-range", `${what} must be from ${lowest} to ${count - 1}, ${came}`);
  }
  return tensor;
}

function checkMadeFinite(tensor, what, ...given) {
  return given.every((each) => Array.from(numbers(each)).every(Number.isFinite)) ? checkFinite(tensor, what) : tensor;
}

function checkFinite(tensor, what) {
  const items = Array.from(numbers(tensor));
  const index = items.findIndex((item) => !Number.isFinite(item));
  if (index >= 0) {
    const count = items.filter((item) => !Number.isFinite(item)).length;
    const first = `the first is ${items[index]} at [${positionOf(index, tensor.shape)}]`;
    throw new RelaxError("not-a-number", `${what}: ${count} of ${items.length} elements are NaN or infinite, ${first}`);
  }
  return tensor;
}

function nonzero(tensor) {
  const shape = tensor.shape.length ? tensor.shape : [1];
  const found = numbers(tensor)
    .map((item, index) => (item !== false && item !== 0 ? positionOf(index, shape) : null))
    .filter((place) => place !== null);
  return int64s(this, [shape.length, found.length], shape.flatMap((_, axis) => found.map((place) => place[axis])));
}

function squeeze(tensor, axis = null) {
  const named = axis === null ? [] : Array.isArray(axis) ? axis : [axis];
  const rank = tensor.shape.length;
  if (named.some((a) => a < -rank || a >= rank || tensor.shape.at(a) !== 1)) {
    throw invalid(`a tensor of shape [${tensor.shape}] has no axis [${named}] of size 1`);
  }
  const gone = new Set(named.map((a) => (a < 0 ? a + rank : a)));
  const dims = tensor.shape.filter((size, i) => (named.length ? !gone.has(i) : size !== 1));
  return reshape.call(this, tensor, new Shape(dims));
}

/** The indices of a slice of an axis, by the rules of Python. */
function sliced(size, begin, end, step) {
  const clip = (value) => {
    const place = value < 0 ? value + size : value;
    return Math.min(Math.max(place, step < 0 ? -1 : 0), step < 0 ? size - 1 : size);
  };
  const found = [];
  for (let i = clip(begin); step < 0 ? i > clip(end) : i < clip(end); i += step) found.push(i);
  return found;
}

function dynamicStridedSlice(tensor, begin, end, strides) {
  const steps = numbers(strides).map(Number);
  if (steps.includes(0)) throw invalid(`a stride of [${steps.join(", ")}] is 0`);
  const [begins, ends] = [numbers(begin).map(Number), numbers(end).map(Number)];
  const axes = steps.map((step, axis) => sliced(tensor.shape[axis], begins[axis], ends[axis], step));
  for (const size of tensor.shape.slice(axes.length)) axes.push(Array.from({ length: size }, (_, i) => i));
  const shape = axes.map((axis) => axis.length);
  const out = this.empty(this.host, shape, tensor.dtype);
  const [source, target] = [items(tensor), items(out)];
  for (let i = 0; i < target.length; i += 1) {
    const place = positionOf(i, shape).map((at, axis) => axes[axis][at]);
    target[i] = source[place.reduce((sum, at, axis) => sum * tensor.shape[axis] + at, 0)];
  }
  return out;
}

/** The order of numbers, with NaN last. */
const compare = (a, b) => (a < b ? -1 : a > b ? 1 : Number(Number.isNaN(a)) - Number(Number.isNaN(b)));

function unique(tensor, inOrder = true, index = false, inverse = false, counts = false, axis = []) {
  const along = Array.isArray(axis) ? null : axis < 0 ? axis + tensor.shape.length : axis;
  const all = numbers(tensor);
  const { shape } = tensor;
  const size = along === null ? all.length : shape[along];
  // The elements of a slice, by their places in the tensor.
  const inner = along === null ? 1 : Number(product(shape.slice(along + 1)));
  const outer = along === null ? 1 : Number(product(shape.slice(0, along)));
  const slice = (i) =>
    Array.from({ length: outer * inner }, (_, k) => (Math.floor(k / inner) * size + i) * inner + (k % inner));
  const rows = Array.from({ length: size }, (_, i) => slice(i).map((place) => all[place]));
  const order = (a, b) => {
    for (let k = 0; k < rows[a].length; k += 1) {
      const found = compare(rows[a][k], rows[b][k]);
      if (found) return found;
    }
    return 0;
  };
  const sorted = rows.map((_, i) => i).sort((a, b) => order(a, b) || a - b);
  const firsts = [];
  const place = new Array(size);
  const count = [];
  for (const i of sorted) {
    if (!firsts.length || order(firsts[firsts.length - 1], i)) {
      firsts.push(i);
      count.push(0);
    }
    place[i] = firsts.length - 1;
    count[count.length - 1] += 1;
  }
  const groups = firsts.map((_, i) => i);
  if (!inOrder) groups.sort((a, b) => firsts[a] - firsts[b]);
  const rank = [];
  groups.forEach((group, i) => (rank[group] = i));
  const dims = along === null ? [groups.length] : shape.map((n, i) => (i === along ? groups.length : n));
  const values = this.empty(this.host, dims, tensor.dtype);
  const [source, target] = [items(tensor), items(values)];
  groups.forEach((group, i) => {
    slice(firsts[group]).forEach((from, k) => {
      target[(Math.floor(k / inner) * groups.length + i) * inner + (k % inner)] = source[from];
    });
  });
  const found = [values];
  if (index) found.push(int64s(this, [groups.length], groups.map((group) => firsts[group])));
  if (inverse) found.push(int64s(this, [size], place.map((group) => rank[group])));
  if (counts) found.push(int64s(this, [groups.length], groups.map((group) => count[group])));
  return found.length === 1 ? found[0] : found;
}

// The shape heap of TVM's programs (`relaxpy.runtime.shape_heap`): a dimension is an action and a number or an index.

function allocShapeHeap(size) {
  return int64s(this, [size], new Array(size).fill(0));
}

function places(heap) {
  if (heap === null) throw mismatch("the shape heap is the null value, which has no places");
  return items(heap);
}

function matchDim(came, heap, action, operand, what) {
  if (action === 1) places(heap)[operand] = BigInt(came);
  if (action === 0 || action === 3) {
    const wanted = action === 0 ? operand : Number(places(heap)[operand]);
    if (came !== wanted) throw mismatch(`${what}must be ${wanted}, got ${came}`);
  }
}

function matchShape(value, heap, count, ...rest) {
  const dims = value instanceof Tensor ? value.shape : value.dims;
  const context = typeof rest.at(-1) === "string" ? rest.at(-1) : "";
  if (dims.length !== count) throw mismatch(`${context}${count} dimensions are expected, got ${dims.length}`);
  dims.forEach((size, i) => matchDim(size, heap, rest[2 * i], rest[2 * i + 1], `${context}dimension ${i} `));
  return [];
}

function matchPrimValue(value, heap, action, operand, context = "") {
  matchDim(value, heap, action, operand, context);
  return [];
}

const loaded = (heap, source, operand) => (source === 0 ? operand : element("int64", places(heap)[operand]));

function makeShape(heap, count, ...codes) {
  return shapeOf(Array.from({ length: count }, (_, i) => loaded(heap, codes[2 * i], codes[2 * i + 1])));
}

export const BUILTINS = {
  "vm.builtin.shape_of": (tensor) => new Shape(tensor.shape),
  "vm.builtin.tensor_to_shape": tensorToShape,
  "vm.builtin.shape_to_tensor": shapeToTensor,
  "vm.builtin.scalar_to_tensor": scalarToTensor,
  "vm.builtin.tensor_to_scalar": tensorToScalar,
  "vm.builtin.copy": copy,
  "vm.builtin.writable": writable,
  "vm.builtin.reshape": reshape,
  "vm.builtin.null_value": () => null,
  "vm.builtin.print": (...values) => printFormatted(values, ""),
  "vm.builtin.zeros": zeros,
  "vm.builtin.alloc_shape_heap": allocShapeHeap,
  "vm.builtin.match_shape": matchShape,
  "vm.builtin.match_prim_value": matchPrimValue,
  "vm.builtin.make_shape": makeShape,
  "vm.builtin.make_prim_value": loaded,
  "vm.builtin.tuple_getitem": (fields, index) => fields[index],
  "relaxpy.inspect.shape": tensorShape,
  "relaxpy.inspect.stride": tensorStride,
  "relaxpy.inspect.ndim": (tensor) => tensor.shape.length,
  "relaxpy.inspect.dtype_code": (tensor) => DTYPES[tensor.dtype].code,
  "relaxpy.inspect.dtype_bits": (tensor) => DTYPES[tensor.dtype].bytes * 8,
  "relaxpy.inspect.dtype_lanes": () => 1,
  "relaxpy.inspect.offset": () => 0,
  "relaxpy.data.make": makeData,
  "relaxpy.data.is": (key, value) => value instanceof Data && value.key === key,
  "relaxpy.data.field": fieldOf,
  "relaxpy.same": (value) => value,
  "relaxpy.unique": unique,
  "relaxpy.check_range": checkRange,
  "relaxpy.check_finite": checkFinite,
  "relaxpy.check_made_finite": checkMadeFinite,
  "relaxpy.print": printFormatted,
  "relaxpy.assert": assertTrue,
  "relaxpy.nonzero": nonzero,
  "relaxpy.dynamic_strided_slice": dynamicStridedSlice,
  "relaxpy.squeeze": squeeze,
};
