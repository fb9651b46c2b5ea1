"""Rates of memory in a report of `gpu.py` as shares of what the device can do."""

from __future__ import annotations

from typing import Any


def add_shares(report: dict[str, Any]) -> None:
    """Write beside every rate of memory the share of a copy's, and of what the device's facts say."""
    sections = report["sections"]
    limits = sections.get("device", {}).get("results", {})
    rates = {
        "share_of_copy": limits.get("copy", {}).get("bytes_per_second"),
        "share_of_peak": limits.get("device", {}).get("bytes_per_second"),
    }
    for name in ("decoders", "ablation", "matmul"):
        for result in sections.get(name, {}).get("results", {}).values():
            if "bytes_per_second" in result:
                moved = result["bytes_per_second"]
                result |= {key: moved / rate for key, rate in rates.items() if rate}
