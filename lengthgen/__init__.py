"""Length generalization of attention heads: tasks, encodings, training, theory, experiments."""

import importlib
from typing import Any

__all__ = ["__version__", "diagnose"]
__version__ = "0.1.0"


def __getattr__(name: str) -> Any:
    """Import `diagnose` when it is first asked for: `import lengthgen` stays light."""
    if name == "diagnose":
        return importlib.import_module("lengthgen.diagnosis").diagnose
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
