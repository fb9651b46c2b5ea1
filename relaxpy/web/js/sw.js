/**
 * The service worker of the pages: it keeps the page and its scripts, so that it opens without a network. What comes
 * from the network is newer, so that is asked first. The model's files are kept by store.js, under their checksums.
 */

const CACHE = `relaxpy-page ${self.registration.scope}`;
const MODEL = new URL("model/", self.registration.scope).href;

self.addEventListener("install", (event) => {
  event.waitUntil(fill().then(() => self.skipWaiting()));
});

self.addEventListener("activate", (event) => event.waitUntil(self.clients.claim()));

self.addEventListener("fetch", (event) => {
  const { request } = event;
  const isOurs = request.method === "GET" && request.url.startsWith(self.registration.scope);
  if (isOurs && !request.url.startsWith(MODEL)) event.respondWith(answered(request));
});

async function fill() {
  const response = await fetch(`${MODEL}model.json`, { cache: "no-cache" });
  const { page } = await response.json();
  const cache = await caches.open(CACHE);
  await cache.addAll(["./", ...page].map((file) => new Request(file, { cache: "no-cache" })));
}

async function answered(request) {
  const cache = await caches.open(CACHE);
  try {
    const response = await fetch(request);
    if (response.ok) await cache.put(request, response.clone());
    return response;
  } catch (error) {
    const kept = await cache.match(request, { ignoreSearch: true, ignoreVary: true });
    if (kept === undefined) throw error;
    return kept;
  }
}
