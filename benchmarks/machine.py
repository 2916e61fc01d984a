"""The machine and the versions a measurement belongs to, and how fast it multiplies matrices."""

from __future__ import annotations

import os
import platform
from importlib import metadata
from pathlib import Path
from typing import Any

import torch

__all__ = ["describe", "matrix_product", "usable_cores"]

PACKAGES = ("torch", "jax", "jaxlib", "optax", "x-transformers", "numpy")
SIZE = 1024
"""Rows of the matrices whose product measures the rate: large enough for full speed."""


def describe() -> dict[str, Any]:
    """Return processor, cores, memory, system and versions; no name of the machine."""
    return {
        "processor": _processor(),
        "cores": usable_cores(),
        "memory_gb": round(os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") / 1e9, 1),
        "system": f"{platform.system()} {platform.machine()}",
        "python": platform.python_version(),
        "versions": {name: metadata.version(name) for name in PACKAGES},
    }


def _processor() -> str:
    information = Path("/proc/cpuinfo")
    if information.exists():
        for line in information.read_text().splitlines():
            if line.startswith("model name"):
                return line.split(":", 1)[1].strip()
    return platform.processor() or platform.machine()


def usable_cores() -> int:
    """Return how many cores this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def matrix_product(products: int = 8) -> tuple[Any, float]:
    """Return a function that multiplies float32 matrices, and its floating-point operations."""
    generator = torch.Generator().manual_seed(0)
    left, right = (torch.randn(SIZE, SIZE, generator=generator) for _ in range(2))

    def run() -> None:
        for _ in range(products):
            torch.mm(left, right)

    return run, 2.0 * SIZE**3 * products
