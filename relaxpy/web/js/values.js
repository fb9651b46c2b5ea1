/** Values of the machine: element types, tensors, shapes, scalars, functions. */

import { RelaxError, mismatch } from "./errors.js";
import { integer, mul, product } from "./integers.js";

/**
 * Element types: the DLPack code and the bytes of an element, and the typed array that holds elements. Those of
 * float16, bfloat16 and float8 are their bits.
 */
export const DTYPES = {
  bool: { code: 6, bytes: 1, array: Uint8Array },
  int8: { code: 0, bytes: 1, array: Int8Array },
  int16: { code: 0, bytes: 2, array: Int16Array },
  int32: { code: 0, bytes: 4, array: Int32Array },
  int64: { code: 0, bytes: 8, array: BigInt64Array },
  uint8: { code: 1, bytes: 1, array: Uint8Array },
  uint16: { code: 1, bytes: 2, array: Uint16Array },
  uint32: { code: 1, bytes: 4, array: Uint32Array },
  uint64: { code: 1, bytes: 8, array: BigUint64Array },
  float16: { code: 2, bytes: 2, array: Uint16Array, exponent: 5, mantissa: 10 },
  float32: { code: 2, bytes: 4, array: Float32Array },
  float64: { code: 2, bytes: 8, array: Float64Array },
  bfloat16: { code: 4, bytes: 2, array: Uint16Array, exponent: 8, mantissa: 7 },
  float8_e3m4: { code: 7, bytes: 1, array: Uint8Array, exponent: 3, mantissa: 4 },
  float8_e4m3: { code: 8, bytes: 1, array: Uint8Array, exponent: 4, mantissa: 3 },
  float8_e4m3b11fnuz: { code: 9, bytes: 1, array: Uint8Array, exponent: 4, mantissa: 3, bias: 11, nan: "zero" },
  float8_e4m3fn: { code: 10, bytes: 1, array: Uint8Array, exponent: 4, mantissa: 3, nan: "ones" },
  float8_e4m3fnuz: { code: 11, bytes: 1, array: Uint8Array, exponent: 4, mantissa: 3, bias: 8, nan: "zero" },
  float8_e5m2: { code: 12, bytes: 1, array: Uint8Array, exponent: 5, mantissa: 2 },
  float8_e5m2fnuz: { code: 13, bytes: 1, array: Uint8Array, exponent: 5, mantissa: 2, bias: 16, nan: "zero" },
  float8_e8m0fnu: { code: 14, bytes: 1, array: Uint8Array },
};

/** The properties of an element type. Throws: RelaxError (`dtype`). */
export function dtypeInfo(name) {
  if (!Object.hasOwn(DTYPES, name)) {
    throw new RelaxError("dtype", `the runtime does not support the dtype ${JSON.stringify(name)}`);
  }
  return DTYPES[name];
}

export const isInteger = (dtype) => DTYPES[dtype].code < 2;
export const isFloat = (dtype) => DTYPES[dtype].code !== 6 && DTYPES[dtype].code > 1;
/** Whether an element type's array has its elements, and not their bits. */
const isPlain = (dtype) => DTYPES[dtype].exponent === undefined && dtype !== "float8_e8m0fnu";

const sources = new Float32Array(1);
const bits = new Uint32Array(sources.buffer);

/** The number with these bits, of float16, bfloat16 or float8. */
export function decodeFloat(dtype, word) {
  if (dtype === "bfloat16") {
    bits[0] = word << 16;
    return sources[0];
  }
  if (dtype === "float8_e8m0fnu") return word === 255 ? NaN : 2 ** (word - 127);
  const { exponent, mantissa, nan, bias = 2 ** (exponent - 1) - 1 } = DTYPES[dtype];
  const sign = word >> (exponent + mantissa) ? -1 : 1;
  const power = (word >> mantissa) & (2 ** exponent - 1);
  const part = word & (2 ** mantissa - 1);
  const isLast = power === 2 ** exponent - 1;
  if (nan === "zero" && sign < 0 && !power && !part) return NaN;
  if (nan === "ones" && isLast && part === 2 ** mantissa - 1) return NaN;
  if (nan === undefined && isLast) return part ? NaN : sign * Infinity;
  return sign * (power ? (1 + part / 2 ** mantissa) * 2 ** (power - bias) : (part / 2 ** mantissa) * 2 ** (1 - bias));
}

/** The bits of a number in float16 or bfloat16, rounded to the nearest, ties to even. */
export function encodeFloat(dtype, value) {
  if (dtype !== "float16" && dtype !== "bfloat16") {
    throw new RelaxError("dtype", `numbers are not converted to ${dtype} in JavaScript`);
  }
  const { exponent, mantissa } = DTYPES[dtype];
  const bias = 2 ** (exponent - 1) - 1;
  const sign = value < 0 || Object.is(value, -0) ? 1 << (exponent + mantissa) : 0;
  const size = Math.abs(value);
  const last = (2 ** exponent - 1) << mantissa;
  if (Number.isNaN(value)) return last | (1 << (mantissa - 1));
  if (size === Infinity) return sign | last;
  let power = Math.max(size ? Math.floor(Math.log2(size)) : -bias, 1 - bias);
  if (size && 2 ** power > size && power > 1 - bias) power -= 1; // log2 is rounded
  if (2 ** (power + 1) <= size) power += 1;
  const steps = size / 2 ** (power - mantissa); // exact: a power of two
  let whole = Math.floor(steps);
  const rest = steps - whole;
  if (rest > 0.5 || (rest === 0.5 && whole % 2)) whole += 1;
  // Counted from the first number of this power, so that a carry goes to the next one.
  const word = whole + (power + bias - 1) * 2 ** mantissa;
  return sign | Math.min(word, last);
}

/** An element as JavaScript has it: a number, a boolean, a bigint beyond ±(2⁵³ - 1). */
export function element(dtype, raw) {
  if (dtype === "bool") return raw !== 0;
  if (typeof raw === "bigint") return integer(raw);
  return isPlain(dtype) ? raw : decodeFloat(dtype, raw);
}

/** An element of a typed array for a number. Integers are taken modulo 2**bits, as a cast does. */
export function raw(dtype, value) {
  if (dtype === "bool") return value ? 1 : 0;
  if (isInteger(dtype)) {
    const whole = typeof value === "bigint" ? value : BigInt(Math.trunc(Number(value)));
    const width = DTYPES[dtype].bytes * 8;
    const found = DTYPES[dtype].code ? BigInt.asUintN(width, whole) : BigInt.asIntN(width, whole);
    return width === 64 ? found : Number(found);
  }
  return isPlain(dtype) ? Number(value) : encodeFloat(dtype, Number(value));
}

/** A shape value, in contrast to a tuple. */
export class Shape {
  constructor(dims) {
    this.dims = dims;
  }
}

/** A scalar of a floating-point type, in contrast to an integer. */
export class Float {
  constructor(value) {
    this.value = value;
  }
}

/** A function of the program, with the values of its last parameters. */
export class FunctionValue {
  constructor(code, captured) {
    this.code = code;
    this.captured = captured;
  }

  get arity() {
    return this.code.params.length - this.captured.length;
  }
}

/**
 * A compact tensor in the memory of a device: `await tensor.array()` is a typed array of its elements, `await
 * tensor.list()` nested arrays of numbers. `dispose()` gives its memory back; the collector does that as well, later.
 */
export class Tensor {
  /**
   * @param {object} device
   * @param {object} buffer memory of the device
   * @param {number} offset the first byte
   * @param {(number|bigint)[]} shape
   * @param {string} dtype
   * @param {boolean} [constant] whether it belongs to the program, and is never written to
   */
  constructor(device, buffer, offset, shape, dtype, constant = false) {
    this.device = device;
    this.buffer = buffer;
    this.offset = offset;
    this.shape = shape;
    this.dtype = dtype;
    this.constant = constant;
    /** Why an update in place would be lost; "" if it would not. */
    this.lost = "";
    this.nbytes = Number(product(shape)) * DTYPES[dtype].bytes;
  }

  /** The number of elements. */
  get size() {
    return Number(product(this.shape));
  }

  /** The bytes of the elements. */
  async bytes() {
    if (this.buffer === null) throw new RelaxError("arguments", "the tensor was disposed of");
    if (this.nbytes === 0) return new Uint8Array(0);
    return this.device.read(this.buffer, this.offset, this.nbytes);
  }

  /** The elements in row-major order; a copy. */
  async array() {
    const { array } = DTYPES[this.dtype];
    const bytes = await this.bytes();
    return new array(bytes.slice().buffer);
  }

  /** The elements as nested arrays of numbers, booleans, and bigints beyond ±(2⁵³ - 1). */
  async list() {
    const flat = Array.from(await this.array(), (item) => element(this.dtype, item));
    return nested(flat, this.shape);
  }

  /** The only element. */
  async item() {
    if (this.size !== 1) throw mismatch(`a tensor of ${this.size} elements has no item`);
    return element(this.dtype, (await this.array())[0]);
  }

  /** Give the memory back. Other tensors over the same memory must not be used afterwards. */
  dispose() {
    if (this.buffer !== null && !this.constant) this.device.release(this.buffer);
    this.buffer = null;
  }
}

function nested(flat, shape) {
  if (shape.length === 0) return flat[0];
  let items = flat;
  for (let axis = shape.length - 1; axis > 0; axis -= 1) {
    const count = Number(product(shape.slice(0, axis)));
    const width = Number(shape[axis]);
    items = Array.from({ length: count }, (_, i) => items.slice(i * width, (i + 1) * width));
  }
  return items;
}

/** The bytes of a tensor. Throws: RelaxError (`out-of-memory`) where they cannot be counted. */
export function countBytes(shape, dtype) {
  const total = shape.reduce(mul, dtypeInfo(dtype).bytes);
  if (typeof total === "bigint") {
    throw new RelaxError("out-of-memory", `cannot allocate ${total} bytes for a tensor of shape [${shape}]`);
  }
  return total;
}

/** A value of a data type, which a constructor made. */
export class Data {
  /** @param {string} key the name of the constructor, with those of its fields: `List.Cons(head, tail)` */
  constructor(key, items) {
    this.key = key;
    this.items = items;
  }

  get type() {
    return this.key.slice(0, this.key.indexOf("."));
  }

  /** The name of the constructor. */
  get name() {
    return this.key.slice(this.key.indexOf(".") + 1, this.key.indexOf("("));
  }

  /** The fields by name. */
  get fields() {
    const names = this.key.slice(this.key.indexOf("(") + 1, -1);
    const shown = this.items.map((item) => (item instanceof Float ? item.value : item));
    return Object.fromEntries((names ? names.split(", ") : []).map((name, i) => [name, shown[i]]));
  }
}

/** A value in the notation of annotations, for messages. */
export function describe(value) {
  if (value instanceof Tensor) {
    return `R.Tensor((${value.shape.join(", ")}${value.shape.length === 1 ? "," : ""}), dtype="${value.dtype}")`;
  }
  if (value instanceof Shape) return `R.Shape([${value.dims.join(", ")}])`;
  if (value instanceof Float) return `the float ${value.value}`;
  if (value instanceof Data) return `a value ${value.type}.${value.name}`;
  if (value instanceof FunctionValue) return `the function ${value.code.name}`;
  if (Array.isArray(value)) return `a tuple of ${value.length}: (${value.slice(0, 8).map(describe).join(", ")})`;
  if (value === null) return "None";
  if (typeof value === "number" || typeof value === "bigint") return `the int ${value}`;
  if (typeof value === "boolean") return `the bool ${value ? "True" : "False"}`;
  if (typeof value === "string") return `the str ${JSON.stringify(value.slice(0, 80))}`;
  if (typeof value === "function") return "a function";
  return value === undefined ? "nothing" : `a ${value.constructor?.name ?? typeof value}`;
}
