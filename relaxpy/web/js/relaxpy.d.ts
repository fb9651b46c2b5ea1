/** Runs models that relaxpy has compiled for browsers. */

import type { Functions } from "./functions.js";

export type { Functions };

export type DType =
  | "bool" | "int8" | "int16" | "int32" | "int64" | "uint8" | "uint16" | "uint32" | "uint64"
  | "float16" | "float32" | "float64" | "bfloat16"
  | "float8_e3m4" | "float8_e4m3" | "float8_e4m3b11fnuz" | "float8_e4m3fn" | "float8_e4m3fnuz" | "float8_e5m2"
  | "float8_e5m2fnuz" | "float8_e8m0fnu";

/** The typed array of each dtype. Those of bool hold bytes, those of float16, bfloat16 and float8 their bits. */
export interface Elements {
  bool: Uint8Array; int8: Int8Array; int16: Int16Array; int32: Int32Array; int64: BigInt64Array;
  uint8: Uint8Array; uint16: Uint16Array; uint32: Uint32Array; uint64: BigUint64Array;
  float16: Uint16Array; float32: Float32Array; float64: Float64Array; bfloat16: Uint16Array;
  float8_e3m4: Uint8Array; float8_e4m3: Uint8Array; float8_e4m3b11fnuz: Uint8Array; float8_e4m3fn: Uint8Array;
  float8_e4m3fnuz: Uint8Array; float8_e5m2: Uint8Array; float8_e5m2fnuz: Uint8Array; float8_e8m0fnu: Uint8Array;
}

export type TypedArray = Elements[DType];

/** An integer: a number, or a bigint beyond ±(2⁵³ - 1). */
export type Integer = number | bigint;

/** Elements and their shape. */
export interface ArrayLike<D extends DType = DType> {
  data: Elements[D] | Nested;
  shape?: readonly Integer[];
  dtype?: D;
}

/** What a function takes for a tensor. */
export type TensorLike<D extends DType = DType> = Tensor<D> | Elements[D] | Nested | ArrayLike<D>;

export type Nested = readonly (number | bigint | boolean | Nested)[];

/** What a function takes: tensors as arrays of any kind, scalars, shapes as arrays of integers, tuples as arrays. */
export type Argument = Tensor | TypedArray | Nested | ArrayLike | Shape | Integer | boolean | string | null | Callback | Data |
  readonly Argument[];

/** What a function returns. Tuples are arrays. */
export type Value = Tensor | Shape | Integer | boolean | string | null | FunctionValue | Data | Value[];

/** A value of a data type: immutable, compared by identity. */
export class Data {
  private constructor();
  readonly type: string;
  /** The name of its constructor. */
  readonly name: string;
  readonly fields: Readonly<Record<string, Value>>;
}

/** A function of the page that a program calls. */
export type Callback = (...args: Value[]) => Argument | Promise<Argument>;

/** A function of the program: an argument of others. */
export interface FunctionValue {
  readonly arity: number;
}

/** The elements of a tensor in JavaScript: nested arrays, or one of them. */
export type Listed = number | bigint | boolean | Listed[];

/** A tensor in the memory of a device. */
export class Tensor<D extends DType = DType> {
  private constructor();
  readonly shape: readonly Integer[];
  readonly dtype: D;
  /** The number of elements. */
  readonly size: number;
  readonly nbytes: number;
  /** A copy of the elements, in row-major order. */
  array(): Promise<Elements[D]>;
  /** The elements as nested arrays; the element of a tensor without dimensions. */
  list(): Promise<Listed>;
  /** The only element. */
  item(): Promise<Integer | boolean>;
  /** Give the memory back now. Tensors that are not used any more are collected, too. */
  dispose(): void;
}

/** A shape value. */
export class Shape {
  constructor(dims: Integer[]);
  readonly dims: readonly Integer[];
}

/** An error with a code (docs/errors.md), notes about where it happened, and what to do. */
export class RelaxError extends Error {
  readonly code: string;
  readonly text: string;
  readonly notes: readonly string[];
  readonly help: string;
}

export interface Progress {
  /** Bytes. */
  loaded: number;
  total: number;
  /** No byte has come for `stalled` seconds. */
  stalled: boolean;
}

export interface LoadOptions {
  /** Called as bytes arrive. `loaded` decreases when a download starts again. */
  progress?: (progress: Progress) => void;
  /** Keep the files in the browser's storage; the default is true. */
  keep?: boolean;
  /** How often a file is downloaded again that ended early or is damaged; the default is 2. */
  retries?: number;
  /** Cancels. What is complete stays in the browser's storage. */
  signal?: AbortSignal;
  /** After how many seconds without a byte a download is said to be stalled; the default is 10. It goes on. */
  stalled?: number;
  /** The SHA-256 checksum that the manifest must have, in hexadecimal. The manifest has those of the other files. */
  sha256?: string;
  /** What to run on; the default is WebGPU where the browser and the model have it, otherwise WebAssembly. */
  target?: "webgpu" | "wasm";
  /** A WebGPU adapter; the default is the browser's choice for `powerPreference`. */
  adapter?: GPUAdapterLike;
  powerPreference?: "low-power" | "high-performance";
}

/** A `GPUAdapter` of the browser. */
export type GPUAdapterLike = object;

/**
 * Load a model from the address of its folder `model`; the default is the model of this package, whose functions
 * `Functions` declares.
 */
export function load<F = Functions>(url?: string | URL | null, options?: LoadOptions): Promise<VirtualMachine & F>;

/** Remove all models from the browser's storage. */
export function clearStorage(): Promise<boolean>;

/** A loaded model. Its functions are methods: `await vm.main(x)`. Arguments are positional, or an object by name. */
export interface VirtualMachine {
  /** What it runs on. */
  readonly target: "webgpu" | "wasm";
  readonly functions: string[];
  /** Function → its parameters and result as script. */
  readonly signatures: Record<string, string>;
  /** The constructors of the program's data types: `vm.types.List.Cons(x, tail)`. */
  readonly types: Readonly<Record<string, Readonly<Record<string, (...fields: Argument[]) => Data>>>>;
  /** How many files came from the browser's storage. */
  readonly filesKept: number;
  call(name: string, ...args: Argument[] | [Record<string, Argument>]): Promise<Value>;
  /** A copy of an array on the device. */
  upload<D extends DType = DType>(value: Elements[D] | Nested | ArrayLike<D>, dtype?: D): Tensor<D>;
  /** The verified bytes of a file that belongs to the model, such as its tokenizer. */
  file(name: string): Promise<Uint8Array>;
  /** The value of such a file of JSON. */
  json(name: string): Promise<unknown>;
  /** Wait for all work. */
  synchronise(): Promise<void>;
  /** Free memory that is kept for later calls. */
  releaseMemory(): void;
  /** Free everything. */
  destroy(): void;
}

export interface EncodeOptions {
  /** With the tokens around a text, such as [CLS]; the default is true. */
  special?: boolean;
  /** The most ids. */
  most?: number;
}

/** A tokenizer of Hugging Face's `tokenizer.json`: WordPiece as BERT has it, or BPE on bytes. */
export class Tokenizer {
  constructor(config: unknown);
  static load(url: string | URL): Promise<Tokenizer>;
  encode(text: string, options?: EncodeOptions): number[];
  decode(ids: readonly number[], options?: { special?: boolean }): string;
  id(token: string): number | undefined;
}
