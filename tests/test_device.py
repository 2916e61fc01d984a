"""The device `meta` computes shapes alone, and refuses to mix with tensors of the processor."""

import os

import numpy
import pytest
import torch

from lengthgen import device
from lengthgen.attention import HeadConfig
from lengthgen.cli import main
from lengthgen.device import check_device, on_device
from lengthgen.task import Stream, generator_for
from lengthgen.training import TrainingConfig
from lengthgen.units import computed, unit

META = torch.device("meta")


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("gpu", "device 'gpu' is unknown; choose cpu or cuda"),
        ("meta", "device 'meta' is not supported; choose cpu or cuda"),
    ],
)
def test_other_devices_are_refused(name, message):
    with pytest.raises(ValueError, match=message):
        check_device(name)


@pytest.mark.parametrize(("available", "count"), [(False, 0), (True, 1)])
def test_a_device_that_is_not_there_is_refused_with_what_was_found(monkeypatch, available, count):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: available)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: count)
    with pytest.raises(ValueError, match=f"'cuda:3' is not there: .* finds {count} CUDA devices"):
        check_device("cuda:3")
    assert check_device("cpu").type == "cpu"
    if available:
        assert check_device("cuda").type == "cuda"


def test_tensors_are_made_on_the_device_and_only_for_a_while():
    with on_device(META):
        assert torch.arange(3).is_meta and torch.tensor([1.0]).is_meta
        assert torch.as_tensor(numpy.ones(2)).is_meta
    assert not torch.arange(3).is_meta
    with on_device(torch.device("cpu")):
        assert not torch.arange(3).is_meta


def test_random_numbers_are_drawn_on_the_processor_whatever_the_device(monkeypatch):
    """Were they drawn on the device, a generator of the processor would be refused."""
    drawn = []
    to = torch.Tensor.to
    monkeypatch.setattr(torch.Tensor, "to", lambda x, *a: drawn.append(x.clone()) or to(x, *a))
    with on_device(META):
        moved = torch.rand(5, generator=generator_for(Stream.WEIGHTS, 7))
    assert moved.is_meta
    assert torch.equal(drawn[0], torch.rand(5, generator=generator_for(Stream.WEIGHTS, 7)))


# those that neither look at their positions' values nor read a number from a tensor
SHAPES_ALONE = ("none", "sinusoidal", "rotary", "rotary-interpolated", "rotary-ntk", "alibi")


@pytest.mark.parametrize("name", SHAPES_ALONE)
def test_heads_do_not_mix_the_device_with_the_processor(small_head, name):
    with on_device(META):
        stack = TrainingConfig(small_head(name), (0, 1), (1, 2)).stack()
        assert all(p.is_meta for p in stack.parameters.values())
        answer, attention = stack.forward(torch.zeros(4, 3, 6, dtype=torch.long))
        tables = stack.tables(torch.tensor([5]), torch.arange(6))
    assert answer.is_meta and attention.is_meta and tables.logit.is_meta
    assert HeadConfig(name).reach is None


@unit
def drawn(config: tuple[int]) -> dict[str, torch.Tensor]:
    """A unit that reads another one, as measurements read trained models."""
    return {"drawn": torch.rand(config[0], generator=generator_for(Stream.WEIGHTS, 1))}


def test_a_unit_is_computed_on_the_device_and_kept_under_another_name(monkeypatch):
    name = drawn.key((3,))
    monkeypatch.setattr(device, "check_device", torch.device)
    monkeypatch.setenv(device.DEVICE, "meta")
    assert drawn.key((3,)) != name
    seen = []
    monkeypatch.setattr(torch.Tensor, "cpu", lambda x: seen.append(x) or torch.ones(x.shape))
    assert torch.equal(drawn((3,))["drawn"], torch.ones(3))  # read where no device is chosen
    assert seen[0].is_meta
    with on_device(META):
        assert drawn((3,))["drawn"].is_meta


@pytest.mark.parametrize(("here", "there"), [("meta", None), (None, "meta"), ("cpu", "meta")])
def test_a_worker_computes_on_the_device_of_who_asks(monkeypatch, here, there):
    """It may have been started with another one."""

    def choose(name):
        if name is None:
            monkeypatch.delenv(device.DEVICE, raising=False)
        else:
            monkeypatch.setenv(device.DEVICE, name)

    def worker(function, calls):
        choose(there)
        for call in calls:
            yield function(*call)
        assert os.environ.get(device.DEVICE) == here

    monkeypatch.setattr(device, "check_device", torch.device)
    monkeypatch.setattr(torch.Tensor, "cpu", lambda x: torch.ones(x.shape))
    choose(here)
    path = drawn.path((3,))
    assert list(computed([(drawn, (3,))], worker)) == [(drawn, (3,))]
    assert path.exists()


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a CUDA device")
def test_the_command_line_says_in_one_line_that_there_is_no_device(tmp_path, capsys, monkeypatch):
    monkeypatch.delenv(device.DEVICE, raising=False)
    folder = tmp_path / "out"
    assert main(["reproduce", "shift", "--device", "cuda", "--out", str(folder)]) == 2
    error = capsys.readouterr().err
    assert error.count("\n") == 1 and "device 'cuda' is not there" in error
    assert not folder.exists()
