/** What the pages share: loading with a bar, and errors where they are seen. */

import { RelaxError, Tokenizer, load } from "./relaxpy.js";

export const $ = (id) => document.getElementById(id);

/** An element with this text, and properties. */
export function element(tag, text = "", properties = {}) {
  const made = Object.assign(document.createElement(tag), properties);
  made.textContent = text;
  return made;
}

const megabytes = (bytes) => (bytes / 2 ** 20).toFixed(1);

/** Show an error. */
export function fail(error) {
  const place = $("error");
  place.textContent = error instanceof RelaxError ? error.message : `${error?.stack ?? error}`;
  place.hidden = false;
  document.body.dataset.state = "failed";
}

/** Load the model beside the page, with a bar in `#load`, which can be cancelled. */
async function loaded() {
  const begin = performance.now();
  const [bar, status, cancel] = [$("bar"), $("status"), $("cancel")];
  const stop = new AbortController();
  cancel.textContent = "Cancel";
  cancel.onclick = () => stop.abort();
  bar.hidden = cancel.hidden = false;
  status.textContent = "loading";
  try {
    const vm = await load(new URL("./model/", import.meta.url), {
      signal: stop.signal,
      sha256: document.querySelector("meta[name=relaxpy-model]")?.content,
      target: new URLSearchParams(location.search).get("target") ?? undefined,
      progress({ loaded: bytes, total, stalled }) {
        bar.max = total;
        bar.value = bytes;
        const wait = stalled ? ": the download has stalled, nothing comes from the server" : "";
        status.textContent = `${megabytes(bytes)} of ${megabytes(total)} MiB${wait}`;
      },
    });
    const { vendor = "", architecture = "", description = "" } = vm.device.info ?? {};
    const where = [description || vendor, architecture].filter(Boolean).join(", ") || "WebGPU";
    const kept = vm.filesKept ? ", from the browser's storage" : "";
    status.textContent = `ready in ${((performance.now() - begin) / 1000).toFixed(1)} s on ${where}${kept}`;
    return vm;
  } catch (error) {
    status.textContent = stop.signal.aborted ? "cancelled; what is complete is kept" : "not loaded";
    throw error;
  } finally {
    bar.hidden = cancel.hidden = true;
  }
}

/**
 * Load the model, then run the page's function of the model, of its facts (page.json) and its tokenizer, if there are
 * such files. An error is shown, and a button that tries again.
 */
export async function run(main) {
  navigator.serviceWorker?.register(new URL("./sw.js", import.meta.url)).catch(() => {}); // the page runs without
  $("error").hidden = true;
  delete document.body.dataset.state;
  try {
    const vm = await loaded();
    const { files } = vm.manifest;
    const facts = "page.json" in files ? await vm.json("page.json") : {};
    const tokenizer = "tokenizer.json" in files ? new Tokenizer(await vm.json("tokenizer.json")) : null;
    document.body.dataset.state = "ready";
    await main(vm, facts, tokenizer);
  } catch (error) {
    fail(error);
    const again = $("cancel");
    again.textContent = "Try again";
    again.onclick = () => run(main);
    again.hidden = false;
  }
}
