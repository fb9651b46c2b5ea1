"""The report of the benchmark of GPUs: shares of rates, and tables."""

from __future__ import annotations

from typing import Any

from benchmarks.gpu_report import page_section
from benchmarks.gpu_shares import add_shares


def report() -> dict[str, Any]:
    """As a run leaves it."""

    def section(**results: Any) -> dict[str, Any]:
        return {"results": results, "errors": {}, "skipped": {}, "seconds": 1.0}

    step = {"ms": 2.0, "tokens_per_second": 500.0, "bytes_per_second": 1.7e12, "replays": 9}
    encoder = {"ms": 0.5, "replays": 3, "wrong": ""}
    product = {"us": 10.0, "tflops": 300.0, "bytes_per_second": 1e12}
    return {
        "device": "cuda",
        "left_out": {"programs-4": "an index check"},
        "sections": {
            "device": section(
                device={"name": "A GPU", "bytes_per_second": 4e12}, copy={"bytes_per_second": 2e12}
            ),
            "operators": section(a={"calls": 11, "wrong": []}, b={"calls": 9, "wrong": ["x: 1"]}),
            "programs": {"results": {}, "errors": {"programs-3": "it died"}, "skipped": {}},
            "decoders": section(**{"L, fp16: decode 1 × 8": step, "L, int4: decode 1 × 8": step | {"ms": 1.0}}),
            "transformers": {
                **section(**{
                    "L, fp16, transformers eager": {"decode 1 × 8": {"ms": 4.0}},
                    "encoder, transformers graph": {"encoder 1 × 4": {"ms": 0.4}},
                }),
                "skipped": {"L, bf16, transformers eager": "torch is not installed"},
            },
            "encoder": section(**{"encoder 1 × 4, all": encoder}),
            "ablation": section(**{"encoder 1 × 4, none": encoder | {"ms": 1.5, "replays": 0}}),
            "matmul": section(**{
                "1 × 2 × 3": product, "1 × 2 × 3, by cuBLASLt": product | {"us": 12.0},
                "1 × 2 × 3, cuBLAS": product | {"us": 7.5, "tflops": 400.0},
            }),
            "convolutions": section(**{"a convolution: relaxpy": {"us": 9.0}, "a convolution: torch": {"us": 7.0}}),
            "agreement": section(**{
                "heads, fp32, 3 prompts": {"calls": 5, "wrong": [], "largest": 1e-6},
                "heads, bf16, 3 prompts": {"calls": 5, "wrong": ["x: 1"], "largest": 0.02},
            }),
            "memory": section(**{"steps, all": {"bytes": 3 << 20}}),
        },
    }  # fmt: skip


def test_shares() -> None:
    found = report()
    add_shares(found)
    add_shares(found)  # after each section
    step = found["sections"]["decoders"]["results"]["L, fp16: decode 1 × 8"]
    assert step["share_of_copy"] == 0.85
    assert step["share_of_peak"] == 0.425
    assert "share_of_copy" not in found["sections"]["encoder"]["results"]["encoder 1 × 4, all"]
    found = report()
    found["sections"]["device"]["results"] = {"device": {"bytes_per_second": None}}
    add_shares(found)
    assert "share_of_peak" not in found["sections"]["decoders"]["results"]["L, fp16: decode 1 × 8"]


def test_tables() -> None:
    found = report()
    add_shares(found)
    text = page_section(found)
    for line in (
        "`python benchmarks/gpu.py` on A GPU, whose memory copies 2000 GB/s.",
        "Operators: 20 calls, 1 wrong; 0 files failed.",
        "Not compiled: 1, the first: an index check",
        "| L, fp16: decode 1 × 8 | 2.00 | 500 | 85% | 4.00 | – | – |",
        "| L, int4: decode 1 × 8 | 1.00 | 500 | 85% | – | – | – |",
        "| encoder 1 × 4 | transformers, graph | 0.40 | – |",
        "| a convolution | 9.0 | – | 7.0 |",
        "Small decoders beside the processor: 10 calls, 1 wrong; the largest difference, in parts of the largest number: fp32 1e-06, bf16 0.02.",
        "| encoder 1 × 4 | none | 1.50 | 0 |",
        "| 1 × 2 × 3 | 10.0 | 300.0 | 12.0 | 7.5 | 400.0 |",
        "| steps, all | 3.0 |",
        "Failed: programs, programs-3: it died",
        "Skipped: 1 of transformers: torch is not installed.",
    ):
        assert line in text.splitlines()


def test_a_report_of_nothing() -> None:
    """A run that found no device."""
    empty = {"results": {}, "errors": {"device": "no device cuda:0"}, "skipped": {}}
    found = {"device": "cuda", "left_out": {}, "sections": {"device": empty}}
    add_shares(found)
    text = page_section(found)
    assert text.splitlines()[0] == "`python benchmarks/gpu.py` on cuda."
    assert "Failed: device, device: no device cuda:0" in text
