"""The version of relaxpy, read by the package metadata too."""

from __future__ import annotations

__version__ = "0.1.0"
