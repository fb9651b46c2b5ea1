/** Downloads the files of a model: checked, with progress, and kept in the browser's storage. */

import { RelaxError } from "./errors.js";

const CACHE = "relaxpy-models";

const hex = (digest) => Array.from(new Uint8Array(digest), (byte) => byte.toString(16).padStart(2, "0")).join("");

async function sha256(bytes) {
  const { subtle } = globalThis.crypto ?? {};
  if (subtle === undefined) {
    throw new RelaxError("device", "this page cannot verify checksums: crypto.subtle is missing", {
      help: "browsers have it on pages from https or localhost only",
    });
  }
  return hex(await subtle.digest("SHA-256", bytes));
}

/** The files of one model. */
export class Store {
  /**
   * @param {string} base the address of the folder
   * @param {{keep?: boolean, retries?: number, signal?: AbortSignal, onBytes?: (bytes: number) => void}} options `keep`:
   *   keep the files in the browser's storage; `retries`: how often a download that ends early is tried again
   */
  constructor(base, { keep = true, retries = 2, signal, onBytes = () => {} } = {}) {
    this.base = base;
    this.retries = retries;
    this.signal = signal;
    this.onBytes = onBytes;
    this.keep = keep;
    this.kept = null;
    /** Files that came from the browser's storage. */
    this.found = 0;
  }

  /** The manifest. Throws: RelaxError (`file-read`, `file-format`). */
  async manifest() {
    const response = await this.#fetch("model.json", { cache: "no-cache" });
    let text;
    try {
      text = await response.text();
    } catch (error) {
      throw this.#interrupted("model.json", "", error);
    }
    try {
      return JSON.parse(text);
    } catch {
      throw new RelaxError("file-format", `${this.base}model.json is not the manifest of a model`, {
        help: "give the address of the folder `model` that `relaxpy web` has written",
      });
    }
  }

  /** The verified bytes of a file that the manifest names. */
  async file({ file, bytes, sha256: wanted }) {
    const kept = await this.#kept(wanted);
    if (kept !== null) {
      this.found += 1;
      this.onBytes(kept.length);
      return kept;
    }
    for (let attempt = 0; ; attempt += 1) {
      let loaded = 0;
      try {
        const data = await this.#download(file, bytes, (count) => {
          loaded += count;
          this.onBytes(count);
        });
        await this.#verify(file, data, wanted);
        await this.#put(wanted, data);
        return data;
      } catch (error) {
        this.onBytes(-loaded);
        const isOurs = error instanceof RelaxError && ["file-truncated", "file-damaged"].includes(error.code);
        if (!isOurs || attempt >= this.retries || this.signal?.aborted) throw error;
      }
    }
  }

  async #verify(file, data, wanted) {
    const found = await sha256(data);
    if (found === wanted) return;
    throw new RelaxError("file-damaged", `${this.base}${file} is damaged: its checksum is ${found}, not ${wanted}`, {
      help: "the server has a file of another build: write and copy the whole folder again",
    });
  }

  async #fetch(file, options = {}) {
    const url = this.base + file;
    let response;
    try {
      response = await fetch(url, { signal: this.signal, ...options });
    } catch (error) {
      if (this.signal?.aborted) throw new RelaxError("file-read", `the download of ${url} was cancelled`, { cause: error });
      throw new RelaxError("file-truncated", `cannot download ${url}: ${error.message}`, { cause: error });
    }
    if (!response.ok) {
      throw new RelaxError("file-read", `cannot read ${url}: ${response.status} ${response.statusText}`.trimEnd());
    }
    return response;
  }

  async #download(file, bytes, onBytes) {
    // Checksums say which version it is, so what the browser has cached is as good; a second attempt asks the server.
    const response = await this.#fetch(file, { cache: this.attempted?.has(file) ? "reload" : "default" });
    (this.attempted ??= new Set()).add(file);
    const data = new Uint8Array(bytes);
    let at = 0;
    const reader = response.body.getReader();
    try {
      for (;;) {
        const { done, value } = await reader.read();
        if (done) break;
        if (at + value.length > bytes) {
          throw new RelaxError("file-damaged", `${this.base}${file} has more than the ${bytes} bytes that it should have`);
        }
        data.set(value, at);
        at += value.length;
        onBytes(value.length);
      }
    } catch (error) {
      if (error instanceof RelaxError) throw error;
      throw this.#interrupted(file, ` after ${at} of ${bytes} bytes`, error);
    }
    if (at < bytes) throw this.#interrupted(file, ` after ${at} of ${bytes} bytes`);
    return data;
  }

  #interrupted(file, where, cause) {
    if (this.signal?.aborted) return new RelaxError("file-read", `the download of ${this.base}${file} was cancelled`, { cause });
    return new RelaxError("file-truncated", `the download of ${this.base}${file} ended${where}`, {
      cause,
      help: "load the model again: files that are complete are kept",
    });
  }

  // The browser's storage: files by their checksums, so that models share them and a new build replaces what changed.

  async #open() {
    if (!this.keep || globalThis.caches === undefined) return null;
    try {
      this.kept ??= await caches.open(CACHE);
    } catch {
      this.keep = false; // a private window may have no storage
    }
    return this.kept;
  }

  #key(digest) {
    return new Request(new URL(`/.relaxpy/${digest}`, globalThis.location.href));
  }

  async #kept(digest) {
    const cache = await this.#open();
    const response = await cache?.match(this.#key(digest));
    if (response === undefined) return null;
    const data = new Uint8Array(await response.arrayBuffer());
    if ((await sha256(data)) === digest) return data;
    await cache.delete(this.#key(digest)); // the disk has changed it
    return null;
  }

  async #put(digest, data) {
    const cache = await this.#open();
    try {
      await cache?.put(this.#key(digest), new Response(data));
    } catch {
      this.keep = false; // the storage is full: the model runs without
    }
  }
}

/** Remove all models from the browser's storage. */
export async function clearStorage() {
  return globalThis.caches?.delete(CACHE) ?? false;
}
