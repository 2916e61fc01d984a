"""What every explorable shares: one script for two homes, packed arrays, training on request.

In JupyterLab an explorable is a widget (anywidget). In the book's static page it is HTML that
carries the same script and data, so that it works without a kernel and without another server.
"""

from __future__ import annotations

import base64
import json
import re
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any, ClassVar

import anywidget
import numpy as np
import torch
import traitlets
from torch import Tensor

from lengthgen.attention import HeadStack
from lengthgen.results import one_thread, to_json

__all__ = ["Cancelled", "Explorable", "pack", "script"]

FOLDER = Path(__file__).parent
SHARED = FOLDER / "shared"
FIGURE = ("draw", "controls", "address", "running", "frame")
"""Files of the folder `shared` that every figure needs."""
DTYPES = ("float32", "float64", "int32", "uint8")

Report = Callable[[int, int, HeadStack, Tensor], None]


class Cancelled(Exception):
    """A reader stopped the training."""


def pack(array: Tensor | np.ndarray) -> dict[str, Any]:
    """Return an array as JSON: dtype, shape and base64 of its little-endian bytes.

    Raises:
        ValueError: a dtype other than float32, float64, int32 and uint8, or a number that is not
            finite.

    Example:
        >>> pack(torch.ones(2))
        {'dtype': 'float32', 'shape': [2], 'data': 'AACAPwAAgD8='}
    """
    array = np.ascontiguousarray(torch.as_tensor(array).numpy())
    if array.dtype.name not in DTYPES:
        raise ValueError(
            f"dtype {array.dtype.name} is not allowed: choose from {', '.join(DTYPES)}"
        )
    if not np.isfinite(array).all():
        raise ValueError(f"{array[~np.isfinite(array)][0]} is not a finite number")
    data = array.astype(array.dtype.newbyteorder("<")).tobytes()
    return {
        "dtype": array.dtype.name,
        "shape": list(array.shape),
        "data": base64.b64encode(data).decode(),
    }


def script(name: str, *shared: str) -> str:
    """Join shared files and NAME.js into one module that imports nothing.

    No two files define the same name, so joining is enough: the shared files' `export` words are
    dropped, and NAME.js keeps its `export default`, which a notebook needs.

    Args:
        name: the explorable.
        shared: files of the folder `shared`, in the order in which they need each other.

    Raises:
        ValueError: there is no NAME.js.
    """
    if not (FOLDER / f"{name}.js").is_file():
        known = sorted(path.stem for path in FOLDER.glob("*.js"))
        raise ValueError(f"no explorable {name!r}; choose from {', '.join(known)}")
    texts = [(SHARED / f"{part}.js").read_text(encoding="utf8") for part in shared]
    joined = re.sub(r"^export (?=function|class|const)", "", "\n".join(texts), flags=re.M)
    return joined + "\n" + (FOLDER / f"{name}.js").read_text(encoding="utf8")


class Explorable(anywidget.AnyWidget):
    """A figure to touch: the same in a notebook with a kernel and in a page without.

    Args:
        data: what the figure draws, JSON with packed arrays; assign new data and it redraws.
        state: the controls' values by name. A reader's move arrives here; values set here move the
            controls.
    """

    name: ClassVar[str] = ""
    files: ClassVar[tuple[str, ...]] = ()
    """The mathematics that the script needs: files of the folder `shared`."""

    data = traitlets.Dict().tag(sync=True)
    state = traitlets.Dict().tag(sync=True)
    progress = traitlets.Dict().tag(sync=True)
    trainable = traitlets.Bool(False).tag(sync=True)

    def __init_subclass__(cls, **options: Any) -> None:
        if "name" in vars(cls):  # a class of ours: widgets also derive classes of their own
            cls._esm = script(cls.name, "numbers", *cls.files, *FIGURE)
            cls._css = (FOLDER / "explorable.css").read_text(encoding="utf8")
        super().__init_subclass__(**options)

    def __init__(self, data: dict[str, Any] | None = None, **traits: Any) -> None:
        self._cancelled = threading.Event()
        self._thread: threading.Thread | None = None
        traits.setdefault("trainable", type(self).retrain is not Explorable.retrain)
        super().__init__(data=to_json(self.load() if data is None else data), **traits)
        self.on_msg(self._on_message)

    def load(self) -> dict[str, Any]:
        """Return the data of the book's own heads, trained now if they are not in the cache."""
        raise NotImplementedError

    # -- in a page without a kernel -----------------------------------------------------------

    def html(self) -> str:
        """Return the explorable as HTML that needs no kernel: its traits, its style, its script."""
        traits = json.dumps({"data": self.data, "state": self.state}, separators=(",", ":"))
        static = (SHARED / "static.js").read_text(encoding="utf8").replace("export ", "")
        module = self._esm.replace("export default { render };", static)
        if ending := re.search(r"</(script|style)|<!--", module + self._css):
            raise ValueError(f"the script of {self.name} holds {ending[0]!r}, which would end it")
        return (
            f'<div data-lx-mount="{self.name}" class="lx-mount">'
            f"<p>This figure needs JavaScript.</p></div>"
            f'<script type="application/json">{traits.replace("<", chr(92) + "u003c")}</script>'
            f"<style>{self._css}</style>"
            # Not a module: those wait until the whole page is read.
            f'<script>\n(() => {{\n"use strict";\n{module}\nstartStatic(render, "{self.name}");\n'
            f"}})();\n</script>"
        )

    def _repr_mimebundle_(self, **options: Any) -> Any:
        bundle = super()._repr_mimebundle_(**options)
        data, metadata = bundle if isinstance(bundle, tuple) else (bundle or {}, {})
        return {**data, "text/html": self.html()}, metadata

    # -- with a kernel ------------------------------------------------------------------------

    def retrain(self, report: Report, seed: int) -> dict[str, Any]:
        """Train new heads from a seed and return new data; `report` is called after every step."""
        raise NotImplementedError

    def train(self, seed: int) -> None:
        """Train new heads in the background; progress and result appear in the figure."""
        if self._thread is not None and self._thread.is_alive():
            return
        self._cancelled.clear()
        self._thread = threading.Thread(target=self._train, args=(seed,), daemon=True)
        self._thread.start()

    def cancel(self) -> None:
        """Stop the training after its present step."""
        self._cancelled.set()

    def _train(self, seed: int) -> None:
        def report(step: int, steps: int, stack: HeadStack, losses: Tensor) -> None:
            if self._cancelled.is_set():
                raise Cancelled
            if step % 20 == 0 or step == steps:
                text = f"seed {seed}: step {step} of {steps}, mean loss {losses[:, -1].mean():.3f}"
                self.progress = {"step": step, "steps": steps, "text": text, "running": True}

        try:
            with one_thread():
                self.data = to_json(self.retrain(report, seed))
            text = f"heads of seed {seed}"
        except Cancelled:
            text = "cancelled"
        except Exception as error:  # shown to the reader: there is nobody else to catch it
            text = str(error)
        self.progress = {"step": 0, "steps": 1, "text": text, "running": False}

    def _on_message(self, _: Any, content: dict[str, Any], buffers: list[Any]) -> None:
        if content.get("type") == "train":
            self._last_seed = getattr(self, "_last_seed", 99) + 1  # none of the book's own
            self.train(self._last_seed)
        elif content.get("type") == "cancel":
            self.cancel()
