"""Length generalization of attention heads: tasks, encodings, training, theory, experiments."""

import atexit
import gc
import importlib
from typing import Any

__all__ = ["__version__", "diagnose"]
__version__ = "0.1.0"

# The collection at a process's end walks through all of PyTorch and matplotlib for a second or
# two, and frees what the process is about to give back anyway. Kernels and workers end often.
atexit.register(gc.freeze)


def __getattr__(name: str) -> Any:
    """Import `diagnose` when it is first asked for: `import lengthgen` stays light."""
    if name == "diagnose":
        return importlib.import_module("lengthgen.diagnosis").diagnose
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
