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

/** After so many seconds without a byte a download is said to be stalled. */
const STALLED = 10;

/** The files of one model. */
export class Store {
  /**
   * @param {string} base the address of the folder
   * @param {object} [options] `urls`: the addresses of files that are elsewhere; `keep`: keep the files in the browser's
   *   storage; `retries`: how often a download that ends early is tried again; `signal` cancels; `onBytes` is called with
   *   numbers of bytes, `onStall` with true where none have come for `stalled` seconds, and false when they come again
   */
  constructor(base, { urls = {}, keep = true, retries = 2, signal, onBytes = () => {}, onStall = () => {}, stalled = STALLED } = {}) {
    this.base = base;
    this.urls = urls;
    this.retries = retries;
    this.signal = signal;
    this.onBytes = onBytes;
    this.onStall = onStall;
    this.stalled = stalled;
    this.keep = keep;
    this.kept = null;
    /** Files that came from the browser's storage. */
    this.found = 0;
  }

  /** The address of a file. */
  #url(file) {
    return this.urls[file] ?? new URL(file, this.base).href;
  }

  /**
   * The manifest, or without a network that of the last visit. Throws: RelaxError (`file-read`, `file-format`,
   * `file-damaged`).
   *
   * @param {string} [wanted] its checksum, where the page knows it
   */
  async manifest(wanted) {
    const url = this.#url("model.json");
    let data;
    try {
      const response = await this.#fetch("model.json", { cache: "no-cache" });
      data = new Uint8Array(await this.#watched(response.arrayBuffer()));
    } catch (error) {
      const told = error instanceof RelaxError ? error : this.#interrupted("model.json", "", error);
      if (told.code === "file-read") throw told; // refused, or cancelled
      data = await this.#keptManifest(url);
      if (data === null) throw told;
    }
    if (wanted) await this.#verify("model.json", data, wanted);
    try {
      const manifest = JSON.parse(new TextDecoder().decode(data));
      const cache = await this.#open();
      await cache?.put(this.#manifestKey(url), new Response(data)).catch(() => {});
      return manifest;
    } catch {
      throw new RelaxError("file-format", `${url} is not the manifest of a model`, {
        help: "give the address of the folder `model` that `relaxpy web` has written",
      });
    }
  }

  #manifestKey(url) {
    return new Request(new URL(`/.relaxpy/manifest?${encodeURIComponent(url)}`, globalThis.location.href));
  }

  async #keptManifest(url) {
    const cache = await this.#open();
    const response = await cache?.match(this.#manifestKey(url));
    return response === undefined ? null : new Uint8Array(await response.arrayBuffer());
  }

  /** What a promise gives; meanwhile it is told when nothing comes for long. */
  async #watched(promise) {
    let isStalled = false;
    const timer = setTimeout(() => {
      isStalled = true;
      this.onStall(true);
    }, this.stalled * 1000);
    try {
      return await promise;
    } finally {
      clearTimeout(timer);
      if (isStalled) this.onStall(false);
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
    throw new RelaxError("file-damaged", `${this.#url(file)} is damaged: its checksum is ${found}, not ${wanted}`, {
      help: "the server has a file of another build: write and copy the whole folder again",
    });
  }

  async #fetch(file, options = {}) {
    const url = this.#url(file);
    let response;
    try {
      response = await this.#watched(fetch(url, { signal: this.signal, ...options }));
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
        const { done, value } = await this.#watched(reader.read());
        if (done) break;
        if (at + value.length > bytes) {
          throw new RelaxError("file-damaged", `${this.#url(file)} has more than the ${bytes} bytes that it should have`);
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
    if (this.signal?.aborted) return new RelaxError("file-read", `the download of ${this.#url(file)} was cancelled`, { cause });
    return new RelaxError("file-truncated", `the download of ${this.#url(file)} ended${where}`, {
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
