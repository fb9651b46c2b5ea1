/** Values of the machine as the JSON of its suite (docs/machine.md), and back. */

/** @param {object} values the module values.js @param {Function} integer of integers.js */
export function converters({ DTYPES, Data, Float, FunctionValue, Shape, Tensor, element, isInteger }, integer) {
  const fromText = (item) => (typeof item === "string" ? Number(item.replace("inf", "Infinity")) : item);
  const toText = (value) =>
    Number.isFinite(value) ? value : String(value).replace("Infinity", "inf").replace("NaN", "nan");
  const exactText = (value) => (typeof value === "bigint" ? String(value) : value);

  /** The bits of a number in a narrow float: the ones that decode to it. */
  const known = new Map();
  function bits(dtype, value) {
    if (!known.has(dtype)) {
      const count = 2 ** (DTYPES[dtype].bytes * 8);
      known.set(dtype, new Map(Array.from({ length: count }, (_, word) => [text(element(dtype, word)), word])));
    }
    return known.get(dtype).get(text(value));
  }
  const text = (value) => (Object.is(value, -0) ? "-0" : String(value));

  function fromJson(value, machine) {
    const [[kind, content]] = Object.entries(value);
    switch (kind) {
      case "tensor": {
        const [dtype, shape, items] = content;
        const { array, bytes } = DTYPES[dtype];
        let data;
        if (dtype === "bool") data = items.map(Number);
        else if (isInteger(dtype)) data = bytes === 8 ? items.map(BigInt) : items.map(Number);
        else if (array === Float32Array || array === Float64Array) data = items.map(fromText);
        else data = items.map((item) => bits(dtype, fromText(item)));
        return { data: array.from(data), shape, dtype };
      }
      case "shape":
        return new Shape(content.map((size) => integer(BigInt(size))));
      case "data":
        return new Data(content[0], content[1].map((item) => fromJson(item, machine)));
      case "tuple":
        return content.map((item) => fromJson(item, machine));
      case "int":
        return integer(BigInt(content));
      case "float":
        return new Float(fromText(content));
      case "function": {
        const captured = content[1].map((item) => fromJson(item, machine));
        return new FunctionValue(machine.named.get(content[0]), captured);
      }
      case "none":
        return null;
      default:
        return content;
    }
  }

  const item = (dtype, value) => (dtype === "bool" ? value : isInteger(dtype) ? exactText(value) : toText(value));

  async function toJson(value) {
    if (value instanceof Tensor || value?.data !== undefined) {
      const array = value.data ?? (await value.array());
      const items = Array.from(array, (each) => item(value.dtype, element(value.dtype, each)));
      return { tensor: [value.dtype, [...value.shape], items] };
    }
    if (value instanceof Shape) return { shape: value.dims.map(exactText) };
    if (value instanceof Data) return { data: [value.key, await Promise.all(value.items.map(toJson))] };
    if (Array.isArray(value)) return { tuple: await Promise.all(value.map(toJson)) };
    if (typeof value === "boolean") return { bool: value };
    if (value instanceof Float) return { float: toText(value.value) };
    if (typeof value === "number" || typeof value === "bigint") return { int: exactText(value) };
    if (typeof value === "string") return { str: value };
    if (value === null) return { none: true };
    return { function: [value.code.name, await Promise.all(value.captured.map(toJson))] };
  }

  return { fromJson, toJson };
}
