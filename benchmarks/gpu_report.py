"""The report of `gpu.py` as tables of docs/targets.md."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from benchmarks.report import ROOT, markdown_table, replace_section

PAGE = ROOT / "docs" / "targets.md"
SECTION = "On a GPU"
CORRECT = ("operators", "programs")
NONE = "–"


def page_section(report: Mapping[str, Any]) -> str:
    """The section of docs/targets.md."""
    return "\n\n".join(_parts(report))


def write_page(report: Mapping[str, Any]) -> None:
    """Write the section into docs/targets.md."""
    replace_section(SECTION, page_section(report), PAGE)


def _parts(report: Mapping[str, Any]) -> Iterator[str]:
    sections: Mapping[str, Any] = report["sections"]
    device = _results(report, "device").get("device", {})
    copy = _results(report, "device").get("copy", {}).get("bytes_per_second")
    rate = f", whose memory copies {copy / 1e9:.0f} GB/s" if copy else ""
    yield f"`python benchmarks/gpu.py` on {device.get('name') or report['device']}{rate}."
    for name in CORRECT:
        found = _results(report, name).values()
        calls, wrong = sum(r["calls"] for r in found), sum(len(r["wrong"]) for r in found)
        failed = len(sections.get(name, {}).get("errors", {}))
        if found:
            yield f"{name.capitalize()}: {calls} calls, {wrong} wrong; {failed} files failed."
    if left_out := report["left_out"]:
        yield f"Not compiled: {len(left_out)}, the first: {'; '.join([*left_out.values()][:3])}"
    if rows := [*_decoder_rows(report)]:
        columns = (
            "step",
            "ms",
            "tokens a second",
            "of a copy's rate",
            "transformers",
            "torch.compile",
        )
        yield markdown_table(columns, rows, "lrrrrr")
    if rows := [*_variant_rows(_results(report, "encoder") | _results(report, "ablation"))]:
        yield markdown_table(("call", "variant", "ms", "replays of graphs"), rows, "llrr")
    if rows := [*_product_rows(_results(report, "matmul"))]:
        yield markdown_table(
            ("product", "µs", "TFLOP/s", "cuBLAS, TFLOP/s", "ratio"), rows, "lrrrr"
        )
    if rows := [
        [name, f"{r['bytes'] / (1 << 20):.1f}"] for name, r in _results(report, "memory").items()
    ]:
        yield markdown_table(("successive calls", "MiB"), rows, "lr")
    for name, found in sections.items():
        for item, error in found["errors"].items():
            yield f"Failed: {name}, {item}: {error}"
        if reasons := dict.fromkeys(found["skipped"].values()):
            yield f"Skipped: {len(found['skipped'])} of {name}: {'; '.join(reasons)}."


def _results(report: Mapping[str, Any], section: str) -> dict[str, Any]:
    return dict(report["sections"].get(section, {}).get("results", {}))


def _decoder_rows(report: Mapping[str, Any]) -> Iterator[list[str]]:
    peers = _results(report, "transformers")
    for item, found in _results(report, "decoders").items():
        model, _, cell = item.partition(": ")
        beside = [
            peers.get(f"{model}, transformers {how}", {}).get(cell, {}).get("ms")
            for how in ("eager", "torch.compile")
        ]
        share = found.get("share_of_copy")
        yield [
            item,
            f"{found['ms']:.2f}",
            f"{found['tokens_per_second']:.0f}",
            NONE if share is None else f"{share:.0%}",
            *(NONE if ms is None else f"{ms:.2f}" for ms in beside),
        ]


def _variant_rows(results: Mapping[str, Any]) -> Iterator[list[str]]:
    for item, found in sorted(results.items()):
        call, _, variant = item.rpartition(", ")
        yield [call, variant, f"{found['ms']:.2f}", str(found["replays"])]


def _product_rows(results: Mapping[str, Any]) -> Iterator[list[str]]:
    for item, found in results.items():
        if item.endswith(", cuBLAS"):
            continue
        other = results.get(f"{item}, cuBLAS", {}).get("tflops")
        yield [
            item,
            f"{found['us']:.1f}",
            f"{found['tflops']:.1f}",
            NONE if other is None else f"{other:.1f}",
            NONE if other is None else f"{found['tflops'] / other:.2f}",
        ]
