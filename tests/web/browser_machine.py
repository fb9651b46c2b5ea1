"""A virtual machine in a browser, called from Python: values travel as the JSON of the machine's suite."""

from __future__ import annotations

import json
from typing import Any

from relaxpy.errors import RuntimeCheckError
from tests.machine.values import from_json, to_json
from tests.server.chromium import Page
from tests.web.support import JS

PAGE = """<!doctype html><link rel="icon" href="data:,"><script type="module">
import * as relaxpy from "./relaxpy.js";
import * as values from "./values.js";
import { integer } from "./integers.js";
import { converters } from "./json.mjs";
const { fromJson, toJson } = converters(values, integer);
globalThis.relaxpy = relaxpy;
globalThis.load = async (url, options) => {
  globalThis.vm?.destroy();
  globalThis.vm = await relaxpy.load(url, { keep: false, ...options });
};
globalThis.call = async (name, args) => toJson(await vm.machine.run(name, args.map((each) => fromJson(each, vm.machine))));
globalThis.caught = async (run) => {
  try {
    return { result: await run() };
  } catch (error) {
    const { code = "", text, notes = [], message = String(error), stack } = error;
    return { code, text, notes, message, stack };
  }
};
document.body.dataset.state = "ready";
</script><body></body>"""
"""A page whose functions tests call."""
FILES = {"test.html": PAGE.encode(), "json.mjs": (JS / "json.mjs").read_bytes()}


class BrowserMachine:
    """The model at an address, loaded in a page of `PAGE`."""

    def __init__(self, page: Page, url: str, target: str | None = None) -> None:
        self.page = page
        options = {} if target is None else {"target": target}
        self.outcome(f"load({json.dumps(url)}, {json.dumps(options)})")

    def outcome(self, script: str) -> Any:
        """The value of an expression. Raises: RuntimeCheckError for an error of the machine."""
        found = self.page.run(f"caught(() => {script})")
        if "code" in found:
            assert found["code"], found
            raise RuntimeCheckError(found["code"], found["text"], notes=found["notes"])
        return found.get("result")

    def __getitem__(self, name: str) -> Any:
        def call(*args: Any) -> Any:
            given = json.dumps([to_json(arg) for arg in args])
            return from_json(self.outcome(f"call({json.dumps(name)}, {given})"))

        return call
