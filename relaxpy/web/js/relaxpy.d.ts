/** Runs models that relaxpy has compiled for WebGPU. */

export type DType =
  | "bool" | "int8" | "int16" | "int32" | "int64" | "uint8" | "uint16" | "uint32" | "uint64"
  | "float16" | "float32" | "float64" | "bfloat16"
  | "float8_e3m4" | "float8_e4m3" | "float8_e4m3b11fnuz" | "float8_e4m3fn" | "float8_e4m3fnuz" | "float8_e5m2"
  | "float8_e5m2fnuz" | "float8_e8m0fnu";

export type TypedArray =
  | Int8Array | Uint8Array | Int16Array | Uint16Array | Int32Array | Uint32Array | BigInt64Array | BigUint64Array
  | Float32Array | Float64Array;

/** An integer: a number, or a bigint beyond ±(2⁵³ - 1). */
export type Integer = number | bigint;

/** Elements and their shape. Those of bool are bytes, those of float16, bfloat16 and float8 their bits. */
export interface ArrayLike {
  data: TypedArray | Nested;
  shape?: readonly Integer[];
  dtype?: DType;
}

export type Nested = readonly (number | bigint | boolean | Nested)[];

/** What a function takes: tensors as arrays of any kind, scalars, shapes as arrays of integers, tuples as arrays. */
export type Argument = Tensor | TypedArray | Nested | ArrayLike | Shape | Integer | boolean | string | null | Callback |
  readonly Argument[];

/** What a function returns. Tuples are arrays. */
export type Value = Tensor | Shape | Integer | boolean | string | null | FunctionValue | Value[];

/** A function of the page that a program calls. */
export type Callback = (...args: Value[]) => Argument | Promise<Argument>;

/** A function of the program: an argument of others. */
export interface FunctionValue {
  readonly arity: number;
}

/** A tensor in the memory of a device. */
export class Tensor {
  readonly shape: readonly Integer[];
  readonly dtype: DType;
  /** The number of elements. */
  readonly size: number;
  readonly nbytes: number;
  /** A copy of the elements, in row-major order. */
  array(): Promise<TypedArray>;
  /** The elements as nested arrays; the element of a tensor without dimensions. */
  list(): Promise<any>;
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
}

export interface LoadOptions {
  /** Called as bytes arrive. `loaded` decreases when a download starts again. */
  progress?: (progress: Progress) => void;
  /** Keep the files in the browser's storage; the default is true. */
  keep?: boolean;
  /** How often a file is downloaded again that ended early or is damaged; the default is 2. */
  retries?: number;
  signal?: AbortSignal;
  /** What to run on; the default is WebGPU where the browser and the model have it, otherwise WebAssembly. */
  target?: "webgpu" | "wasm";
  /** A WebGPU adapter; the default is the browser's choice for `powerPreference`. */
  adapter?: GPUAdapterLike;
  powerPreference?: "low-power" | "high-performance";
}

/** A `GPUAdapter` of the browser. */
export type GPUAdapterLike = object;

/** Load a model from the address of its folder `model`; the default is that beside this module. */
export function load(url?: string | URL, options?: LoadOptions): Promise<VirtualMachine>;

/** Remove all models from the browser's storage. */
export function clearStorage(): Promise<boolean>;

/** A loaded model. Its functions are methods: `await vm.main(x)`. Arguments are positional, or an object by name. */
export interface VirtualMachine {
  /** What it runs on. */
  readonly target: "webgpu" | "wasm";
  readonly functions: string[];
  /** Function → its parameters and result as script. */
  readonly signatures: Record<string, string>;
  /** How many files came from the browser's storage. */
  readonly filesKept: number;
  call(name: string, ...args: Argument[] | [Record<string, Argument>]): Promise<Value>;
  /** A copy of an array on the device. */
  upload(value: TypedArray | Nested | ArrayLike, dtype?: DType): Tensor;
  /** Wait for all work. */
  synchronise(): Promise<void>;
  /** Free memory that is kept for later calls. */
  releaseMemory(): void;
  /** Free everything. */
  destroy(): void;
  /** A function of the model. */
  [name: string]: any;
}

export interface EncodeOptions {
  /** With the tokens around a text, such as [CLS]; the default is true. */
  special?: boolean;
  /** The most ids. */
  most?: number;
}

/** A tokenizer of Hugging Face's `tokenizer.json`: WordPiece as BERT has it, or BPE on bytes. */
export class Tokenizer {
  constructor(config: object);
  static load(url: string | URL): Promise<Tokenizer>;
  encode(text: string, options?: EncodeOptions): number[];
  decode(ids: readonly number[], options?: { special?: boolean }): string;
  id(token: string): number | undefined;
}
