/** The memory of JavaScript as a device: shapes and scalars come from here, and arrays of the caller. */

import { RelaxError } from "./errors.js";
import { DTYPES } from "./values.js";

export class HostDevice {
  isHost = true;

  /**
   * @param {string} [name]
   * @param {Record<string, Function>} [kernels] functions of typed arrays and numbers, by the names of kernels
   */
  constructor(name = "the host", kernels = {}) {
    this.name = name;
    this.kernels = kernels;
  }

  allocate(nbytes) {
    try {
      return { bytes: new Uint8Array(nbytes), size: nbytes };
    } catch (error) {
      throw new RelaxError("out-of-memory", `cannot allocate ${nbytes} bytes on ${this.name}`, { cause: error });
    }
  }

  /** Memory over the caller's bytes. */
  borrow(bytes) {
    return { bytes, size: bytes.length };
  }

  release() {}

  trim() {}

  sameMemory(a, b) {
    return a.bytes.buffer === b.bytes.buffer;
  }

  /** The first byte of memory that is shared. */
  begin(buffer) {
    return buffer.bytes.byteOffset;
  }

  write(buffer, offset, bytes) {
    buffer.bytes.set(bytes, offset);
  }

  async read(buffer, offset, nbytes) {
    return buffer.bytes.subarray(offset, offset + nbytes);
  }

  copy(source, from, target, to, nbytes) {
    target.bytes.set(source.bytes.subarray(from, from + nbytes), to);
  }

  /** The elements of a tensor, in its memory if they are aligned there. */
  view(tensor) {
    const { array, bytes: width } = DTYPES[tensor.dtype];
    const { bytes } = tensor.buffer;
    const begin = bytes.byteOffset + tensor.offset;
    if (begin % width === 0) return new array(bytes.buffer, begin, tensor.nbytes / width);
    return new array(bytes.slice(tensor.offset, tensor.offset + tensor.nbytes).buffer);
  }

  /** A promise to wait for between launches, so that the page gets its turn; null where there is no need. */
  pause() {
    return null;
  }

  launch(kernel, numbers, args) {
    const run = this.kernels[kernel.name];
    if (run === undefined) throw new RelaxError("object-code", `the kernel ${kernel.name} is not for ${this.name}`);
    run(...args.map((arg) => (arg?.dtype !== undefined ? this.view(arg) : arg)));
  }
}
