"""The report of `gpu.py` as tables of docs/targets.md."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from benchmarks.gpu_sections import PEERS
from benchmarks.report import RESULTS, ROOT, markdown_table, remarks, replace_section

PAGE = ROOT / "docs" / "targets.md"
SECTION = "On a GPU"
CORRECT = ("operators", "programs")
AGREEING = {"agreement": "Small decoders", "libraries": "By NVIDIA's libraries"}
"""Sections whose calls are compared with the processor's, and what they are called."""
NONE = "–"


def page_section(report: Mapping[str, Any]) -> str:
    """The section of docs/targets.md."""
    return "\n\n".join(_parts(report))


def write_page(report: Mapping[str, Any]) -> None:
    """Write the section into docs/targets.md, with the remarks on the report of this kind of device."""
    name = f"gpu_{str(report['device']).partition(':')[0]}"
    said = remarks(name) if (RESULTS / f"{name}_remarks.md").exists() else ""
    replace_section(SECTION, "\n\n".join(filter(None, (page_section(report), said))), PAGE)


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
    yield from _agreements(report)
    if left_out := report["left_out"]:
        yield f"Not compiled: {len(left_out)}, the first: {'; '.join([*left_out.values()][:3])}"
    if rows := [*_decoder_rows(report)]:
        columns = (
            "step",
            "ms",
            "tokens a second",
            "of a copy's rate",
            "transformers, ms",
            "as a graph",
            "torch.compile",
        )
        yield markdown_table(columns, rows, "lrrrrrr")
    if rows := [*_variant_rows(_results(report, "encoder") | _results(report, "ablation"))]:
        rows += _encoder_peers(report)
        yield markdown_table(("call", "variant", "ms", "replays of graphs"), rows, "llrr")
    if rows := [*_product_rows(_results(report, "matmul"))]:
        columns = ("product", "µs", "TFLOP/s", "with cuBLASLt, µs", "torch, µs", "torch, TFLOP/s")
        yield markdown_table(columns, rows, "lrrrrr")
    if rows := [*_convolution_rows(_results(report, "convolutions"))]:
        yield markdown_table(("convolution", "µs", "with cuDNN, µs", "torch, µs"), rows, "lrrr")
    if rows := [
        [name, f"{r['bytes'] / (1 << 20):.1f}"] for name, r in _results(report, "memory").items()
    ]:
        yield markdown_table(("successive calls", "MiB"), rows, "lr")
    for name, found in sections.items():
        for item, error in found["errors"].items():
            yield f"Failed: {name}, {item}: {error}"
        if reasons := dict.fromkeys(found["skipped"].values()):
            yield f"Skipped: {len(found['skipped'])} of {name}: {'; '.join(reasons)}."


def _agreements(report: Mapping[str, Any]) -> Iterator[str]:
    """How far results are from the processor's: the largest difference of each dtype, in parts of the largest
    number."""
    for section, title in AGREEING.items():
        found = _results(report, section)
        if not found:
            continue
        calls = sum(r["calls"] for r in found.values())
        wrong = sum(len(r["wrong"]) for r in found.values())
        largest: dict[str, float] = {}
        for item, result in found.items():
            kind = item.split(", ")[1]
            largest[kind] = max(largest.get(kind, 0.0), result["largest"])
        parts = ", ".join(f"{kind} {share:.1g}" for kind, share in largest.items())
        counts = f"{title} beside the processor: {calls} calls, {wrong} wrong"
        yield f"{counts}; the largest difference, in parts of the largest number: {parts}."


def _results(report: Mapping[str, Any], section: str) -> dict[str, Any]:
    return dict(report["sections"].get(section, {}).get("results", {}))


def _decoder_rows(report: Mapping[str, Any]) -> Iterator[list[str]]:
    peers = _results(report, "transformers")
    for item, found in _results(report, "decoders").items():
        model, _, cell = item.partition(": ")
        model = model.removesuffix(" with cuBLASLt")
        beside = [
            peers.get(f"{model}, transformers {how}", {}).get(cell, {}).get("ms") for how in PEERS
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


def _encoder_peers(report: Mapping[str, Any]) -> list[list[str]]:
    peers = _results(report, "transformers")
    return [
        [call, f"transformers, {how}", f"{found['ms']:.2f}", NONE]
        for how in PEERS
        for call, found in peers.get(f"encoder, transformers {how}", {}).items()
    ]


def _product_rows(results: Mapping[str, Any]) -> Iterator[list[str]]:
    for item, found in results.items():
        if ", by " in item or item.endswith(", cuBLAS"):
            continue
        library = results.get(f"{item}, by cuBLASLt", {}).get("us")
        other = results.get(f"{item}, cuBLAS", {})
        yield [
            item,
            f"{found['us']:.1f}",
            f"{found['tflops']:.1f}",
            _number(library),
            _number(other.get("us")),
            _number(other.get("tflops")),
        ]


def _convolution_rows(results: Mapping[str, Any]) -> Iterator[list[str]]:
    for item, found in results.items():
        title, _, how = item.rpartition(": ")
        if how == "relaxpy":
            others = (
                results.get(f"{title}: {each}", {}) for each in ("relaxpy with cuDNN", "torch")
            )
            yield [title, _number(found["us"]), *(_number(each.get("us")) for each in others)]


def _number(value: float | None) -> str:
    return NONE if value is None else f"{value:.1f}"
