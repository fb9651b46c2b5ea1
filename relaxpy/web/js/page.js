/** What the pages share: loading with a bar, and errors where they are seen. */

import { RelaxError, load } from "./relaxpy.js";

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

/** Load the model beside the page, with a bar in `#load`. */
export async function loaded() {
  const begin = performance.now();
  const bar = $("bar");
  const target = new URLSearchParams(location.search).get("target") ?? undefined;
  const vm = await load(new URL("./model/", import.meta.url), {
    target,
    progress: ({ loaded: bytes, total }) => {
      bar.max = total;
      bar.value = bytes;
      $("status").textContent = `${megabytes(bytes)} of ${megabytes(total)} MiB`;
    },
  });
  bar.hidden = true;
  const { vendor = "", architecture = "", description = "" } = vm.device.info ?? {};
  const where = [description || vendor, architecture].filter(Boolean).join(", ") || "WebGPU";
  const kept = vm.filesKept ? ", from the browser's storage" : "";
  $("status").textContent = `ready in ${((performance.now() - begin) / 1000).toFixed(1)} s on ${where}${kept}`;
  document.body.dataset.state = "ready";
  return vm;
}

/** The JSON of a file beside the page. */
export async function json(file) {
  const response = await fetch(new URL(file, import.meta.url));
  if (!response.ok) throw new RelaxError("file-read", `cannot read ${file}: ${response.status}`);
  return response.json();
}

/** Run the page's function, and show its error. */
export function run(main) {
  main().catch(fail);
}
