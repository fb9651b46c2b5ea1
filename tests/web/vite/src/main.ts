import { load, RelaxError } from "my-model";

const row = document.getElementById("row") as HTMLInputElement;
const out = document.getElementById("out")!;

try {
  const vm = await load(undefined, {
    progress: ({ loaded, total, stalled }) => (out.textContent = stalled ? "stalled" : `${loaded} of ${total} bytes`),
  });

  async function show(): Promise<void> {
    const [y, shape] = await vm.main([row.value.split(",").map(Number)]);
    const values: Float32Array = await y.array();
    y.dispose();
    out.textContent = `${vm.target}: ${shape.dims.join(" × ")}: ${Array.from(values, (value) => value.toFixed(3)).join(", ")}`;
  }

  row.oninput = () => void show().catch((error: Error) => (out.textContent = error.message));
  await show();
} catch (error) {
  out.textContent = error instanceof RelaxError ? error.message : String(error);
}
