/**
 * Formulas over the integer heap, on int64 with checked overflow (docs/machine.md).
 *
 * An integer is a number where float64 represents it exactly, and a bigint beyond ±(2⁵³ - 1): never both, so integers
 * are equal if `===` says so. A sum, difference or product of two numbers is exact if its float64 is a safe integer;
 * otherwise it is computed again with bigints.
 */

import { RelaxError } from "./errors.js";

const SMALLEST = -(2n ** 63n);
const LARGEST = 2n ** 63n - 1n;

/** An integer in its only form: a number if that is exact, else a bigint. */
export function integer(value) {
  if (typeof value === "number") return value;
  return value >= -9007199254740991n && value <= 9007199254740991n ? Number(value) : value;
}

/** The integer, which must fit 64 bits. Throws: RelaxError (`shape-arithmetic`). */
export function int64(value) {
  if (typeof value === "number" || (value >= SMALLEST && value <= LARGEST)) return value;
  throw new RelaxError("shape-arithmetic", "it does not fit into 64 bits");
}

const wide = (compute) => (a, b) => integer(compute(BigInt(a), BigInt(b)));
const wideAdd = wide((a, b) => a + b);
const wideSub = wide((a, b) => a - b);
const wideMul = wide((a, b) => a * b);
const wideDiv = wide((a, b) => {
  const quotient = a / b;
  return a % b !== 0n && a < 0n !== b < 0n ? quotient - 1n : quotient;
});
const wideMod = wide((a, b) => {
  const rest = a % b;
  return rest !== 0n && rest < 0n !== b < 0n ? rest + b : rest;
});

/** One of a pair of implementations: for numbers whose result is exact, and for all others. */
function exact(fast, slow) {
  return (a, b) => {
    if (typeof a === "number" && typeof b === "number") {
      const found = fast(a, b);
      if (Number.isSafeInteger(found)) return found + 0; // no negative zero
    }
    return slow(a, b);
  };
}

/** The sum; any size. */
export const add = exact((a, b) => a + b, wideAdd);
/** The difference; any size. */
export const sub = exact((a, b) => a - b, wideSub);
/** The product; any size. */
export const mul = exact((a, b) => a * b, wideMul);

function divisor(b) {
  if (b === 0) throw new RelaxError("shape-arithmetic", "it divides by 0");
  return b;
}

/** The quotient, rounded towards minus infinity. */
export function floordiv(a, b) {
  divisor(b);
  if (typeof a === "number" && typeof b === "number") {
    const rest = fastMod(a, b);
    const whole = a - rest; // a multiple of b, so that the division is exact
    if (Number.isSafeInteger(whole)) return whole / b + 0;
  }
  return wideDiv(a, b);
}

function fastMod(a, b) {
  const rest = a % b; // exact, with the sign of a
  return (rest !== 0 && rest < 0 !== b < 0 ? rest + b : rest) + 0;
}

/** The remainder, with the sign of the divisor. */
export function floormod(a, b) {
  divisor(b);
  return typeof a === "number" && typeof b === "number" ? fastMod(a, b) : wideMod(a, b);
}

const truth = (value) => (value ? 1 : 0);
const smaller = (a, b) => (b < a ? b : a); // numbers and bigints compare by value
const larger = (a, b) => (b > a ? b : a);

const OPERATIONS = {
  add,
  sub,
  mul,
  floordiv,
  floormod,
  eq: (a, b) => truth(a === b),
  ne: (a, b) => truth(a !== b),
  lt: (a, b) => truth(a < b),
  le: (a, b) => truth(a <= b),
  not: (a) => truth(!a),
  min: (...all) => all.reduce(smaller),
  max: (...all) => all.reduce(larger),
};
/** The number of operands; the others have two or more. */
const ARITY = { not: 1, select: 3, add: 2, sub: 2, mul: 2, floordiv: 2, floormod: 2, eq: 2, ne: 2, lt: 2, le: 2 };

/**
 * A formula as a function of an array of integers, the heap or the sizes of a kernel. Operands are evaluated from left
 * to right, those of `select`, `and` and `or` only as far as they are needed.
 *
 * @param {unknown} code an integer, `{Heap: [i]}`, `{IntOp: [op, operands]}` or `{Int64: text}`
 * @returns {(slots: (number|bigint)[]) => number|bigint}
 */
export function formula(code) {
  if (typeof code === "number") return () => code;
  if ("Int64" in code) {
    const value = integer(BigInt(code.Int64));
    return () => value;
  }
  if ("Heap" in code) {
    const [slot] = code.Heap;
    return (slots) => slots[slot];
  }
  const [op, operands] = code.IntOp;
  const least = ARITY[op] ?? 2;
  if (operands.length < least || (op in ARITY && operands.length !== least)) {
    throw new RelaxError("bytecode", `${op} has ${operands.length} operands`);
  }
  const args = operands.map(formula);
  switch (op) {
    case "select":
      return (slots) => (args[0](slots) ? args[1](slots) : args[2](slots));
    case "and":
      return (slots) => truth(args.every((arg) => arg(slots)));
    case "or":
      return (slots) => truth(args.some((arg) => arg(slots)));
  }
  const compute = OPERATIONS[op];
  if (compute === undefined) throw new RelaxError("bytecode", `there is no operation ${op}`);
  if (args.length === 2) {
    const [first, second] = args;
    return (slots) => int64(compute(first(slots), second(slots)));
  }
  return (slots) => int64(compute(...args.map((arg) => arg(slots))));
}

/** The product of sizes; any size. */
export const product = (sizes) => sizes.reduce(mul, 1);
