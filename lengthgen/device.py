"""Where tensors are: on the processor by default, on an accelerator on request.

Random numbers are always drawn on the processor, so that a seed means the same numbers anywhere.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode

__all__ = ["DEVICE", "check_device", "chosen_device", "on_device"]

DEVICE = "LENGTHGEN_DEVICE"
"""The environment variable that names the device, so that worker processes find it, too."""

TO_NUMPY = (Tensor.numpy, Tensor.__array__)


def check_device(name: str) -> torch.device:
    """Return a device on which PyTorch can compute here.

    Raises:
        ValueError: no such kind of device, or none on this machine.
    """
    try:
        device = torch.device(name)
    except RuntimeError:
        raise ValueError(f"device {name!r} is unknown; choose cpu or cuda") from None
    if device.type not in ("cpu", "cuda"):
        raise ValueError(f"device {name!r} is not supported; choose cpu or cuda")
    if device.type == "cuda":
        count = torch.cuda.device_count() if torch.cuda.is_available() else 0
        if (device.index or 0) >= count:
            raise ValueError(
                f"device {name!r} is not there: PyTorch {torch.__version__} finds {count} CUDA "
                "devices on this machine; use --device cpu"
            )
    return device


def chosen_device() -> torch.device:
    """Return the device that `LENGTHGEN_DEVICE` names, by default the processor.

    Raises:
        ValueError: as `check_device`.
    """
    return check_device(os.environ.get(DEVICE) or "cpu")


@contextmanager
def on_device(device: torch.device) -> Iterator[None]:
    """Let new tensors be on a device for a while, wherever the code makes them."""
    if device.type == "cpu":
        yield
    else:
        with device, _DrawnHere(device):
            yield


class _DrawnHere(TorchFunctionMode):
    """Draws random numbers on the processor and moves them; lets NumPy read what is elsewhere."""

    def __init__(self, device: torch.device) -> None:
        super().__init__()
        self.device = device

    def __torch_function__(
        self, function: Callable, types: Any, args: tuple = (), kwargs: dict | None = None
    ) -> Any:
        kwargs = kwargs or {}
        if kwargs.get("generator") is not None:
            return function(*args, **{**kwargs, "device": "cpu"}).to(self.device)
        if function in TO_NUMPY:
            return function(args[0].cpu(), *args[1:], **kwargs)
        return function(*args, **kwargs)
