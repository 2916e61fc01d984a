"""Explorables in Python: bundles, packed arrays, what a kernel sends and hears."""

import base64
import json
import re
from dataclasses import replace

import numpy as np
import pytest
import torch

from lengthgen import explorables
from lengthgen.attention import HeadConfig, HeadStack
from lengthgen.chapter import frozen
from lengthgen.encodings import rotary_frequencies
from lengthgen.experiments import transformer
from lengthgen.experiments.heads import OFFSETS
from lengthgen.experiments.transformer_units import MapConfig, attention_maps
from lengthgen.explorables import (
    EXPLORABLES,
    Atlas,
    Carrier,
    Dilution,
    Equivariance,
    Linear,
    Pinning,
    Recurrent,
    Task,
    Transformer,
)
from lengthgen.explorables.base import pack, script
from lengthgen.explorables.heads import column, learned_heads, new_heads, rotary_heads
from lengthgen.explorables.task import head_pair
from lengthgen.explorables.transformer import LENGTHS, rounded_triangle
from lengthgen.position_head import margin

LIMIT = 300_000
"""Bytes a page may spend on an explorable's script, and as many on its data."""


def untrained(encoding: str, seeds=(0,)) -> HeadStack:
    """Heads as the book's are stacked, before training."""
    return HeadStack.initialize(HeadConfig(encoding), [s for s in seeds for _ in OFFSETS])


@pytest.fixture(scope="module")
def maps():
    """What two decoders do after one step of training."""
    training = {
        e: replace(transformer.training(transformer.Config(), e, 0), steps=1, batch_size=2)
        for e in ("rotary", "learned")
    }
    return {e: attention_maps(MapConfig(t, LENGTHS)) for e, t in training.items()}


@pytest.fixture(scope="module")
def built(maps):
    """Every explorable, with untrained heads: sizes and shapes are those of the book."""
    rotary, learned = untrained("rotary"), untrained("learned")
    return {
        "task": Task(Task.export(rotary, learned)),
        "equivariance": Equivariance(Equivariance.export(rotary, learned)),
        "pinning": Pinning(head_pair(rotary, learned)),
        "carrier": Carrier(),
        "dilution": Dilution(Dilution.export(untrained("rotary", (0, 1, 2, 3)))),
        "linear": Linear(),
        "transformer": Transformer(Transformer.export(maps, 3, 32)),
        "atlas": Atlas(),
        "recurrence": Recurrent(),
    }


def test_every_explorable_is_built_here(built):
    assert list(built) == list(EXPLORABLES)
    assert set(explorables.__all__) >= {cls.__name__ for cls in EXPLORABLES.values()}


@pytest.mark.parametrize("name", EXPLORABLES)
def test_script_and_data_are_light(built, name):
    assert len(built[name]._esm.encode()) < LIMIT
    assert len(json.dumps(built[name].data).encode()) < LIMIT


@pytest.mark.parametrize("name", EXPLORABLES)
def test_script_stands_alone(name):
    text = EXPLORABLES[name]._esm.replace("http://www.w3.org/2000/svg", "")  # a name, not a place
    assert not re.search(r"^import |fetch\(|XMLHttpRequest|https?:", text, re.M)
    assert re.findall(r"^export .*$", text, re.M) == ["export default { render };"]
    names = re.findall(r"^(?:async )?(?:function\*?|class|const|let) (\w+)", text, re.M)
    assert len(names) == len(set(names)), "two files define one name"


@pytest.mark.parametrize("name", EXPLORABLES)
def test_page_and_notebook_get_the_same(built, name):
    data, _ = built[name]._repr_mimebundle_()
    assert "application/vnd.jupyter.widget-view+json" in data
    page = data["text/html"]
    assert page.count("<script") == page.count("</script>") == 2
    traits = json.loads(re.search(r'<script type="application/json">(.*?)</script>', page)[1])
    assert traits["data"] == json.loads(json.dumps(built[name].data))
    assert f'data-lx-mount="{name}"' in page
    # A module would wait for the end of the page and for all other scripts.
    assert 'type="module"' not in page and "export " not in page.split("<script>")[1]


def test_an_unknown_script_is_refused():
    with pytest.raises(ValueError, match="no explorable 'nothing'; choose from atlas, carrier"):
        script("nothing")


@pytest.mark.parametrize("dtype", ["float32", "float64", "int32", "uint8"])
def test_packing_is_exact(dtype):
    array = np.arange(6, dtype=dtype).reshape(2, 3)
    packed = pack(array)
    back = np.frombuffer(base64.b64decode(packed["data"]), np.dtype(dtype).newbyteorder("<"))
    assert packed["dtype"] == dtype and np.array_equal(back.reshape(packed["shape"]), array)


def test_packing_refuses_what_a_page_cannot_read():
    with pytest.raises(ValueError, match=r"dtype float16 is not allowed: choose from float32"):
        pack(torch.ones(1, dtype=torch.float16))
    with pytest.raises(ValueError, match="nan is not a finite number"):
        pack(torch.tensor([1.0, torch.nan]))


def test_heads_that_the_script_does_not_know_are_refused(small_head):
    base_100 = HeadStack.initialize(small_head("rotary", base=100.0), [0])
    with pytest.raises(ValueError, match=r"options \{'base': 100.0\}.*rotary with its defaults"):
        rotary_heads(base_100)
    with pytest.raises(ValueError, match=r"'learned' .* is not allowed: rotary"):
        rotary_heads(untrained("learned"))
    with pytest.raises(ValueError, match=r"'rotary', .* is not allowed: learned"):
        learned_heads(untrained("rotary"), 16, 64)
    with pytest.raises(ValueError, match=r"n_rows=2000 .* 1024 rows"):
        learned_heads(untrained("learned"), 16, 2_000)
    with pytest.raises(ValueError, match="rows beyond 16: give heads of one seed"):
        learned_heads(untrained("learned", (0, 1)), 16, 64)


def test_frozen_rows_become_arrays():
    rows = [
        {"a": a, "b": b, "x": a + b, "seed": s} for a in (1, 2) for b in (10, 20) for s in (0, 1)
    ]
    axes = [("a", (2, 1)), ("b", (10, 20))]
    assert column(rows, "x", axes).tolist() == [[12, 22], [11, 21]]
    assert column(rows, "x", [("b", (20,))]).tolist() == [21.5]
    with pytest.raises(ValueError, match=r"no row with \(a, b\) = \(3, 10\)"):
        column(rows, "x", [("a", (3,)), ("b", (10,))])


def test_rounded_weights_are_the_past_to_half_a_step(maps):
    for found in maps.values():
        for length in LENGTHS:
            attention = found[f"attention_{length}"]
            rounded = rounded_triangle(attention)
            assert rounded.shape == (
                attention.shape[0] * attention.shape[1],
                length * (length + 1) // 2,
            )
            last = rounded[-1, -length:] / 255  # the last head's last query
            # Half a step, and the last digit of single precision.
            assert (last - attention[-1, -1, -1]).abs().max() <= 0.5 / 255 + 1e-6


def test_weights_on_the_future_are_refused():
    future = torch.full((1, 1, 2, 2), 0.5)
    with pytest.raises(ValueError, match=r"on the future up to 0.5: weights in \[0, 1\]"):
        rounded_triangle(future)
    with pytest.raises(ValueError, match="attention up to 2"):
        rounded_triangle(2 * torch.eye(2)[None, None])


def test_the_atlas_says_what_the_results_say():
    result, data = frozen("variants"), Atlas().data
    assert list(data["encodings"]) == list(result.summary["encodings"])
    for name, entry in data["encodings"].items():
        assert entry["color"].startswith("var(--lg-")
        for offset, card in zip(data["offsets"], entry["cards"], strict=True):
            measured = result.summary["encodings"][name][str(offset)]
            means = [measured["accuracy"][str(n)] for n in card["lengths"]]
            assert card["mean"] == pytest.approx(means, abs=1e-4)  # four digits are exported
            columns = zip(card["low"], means, card["high"], strict=True)
            assert all(low <= mean <= high for low, mean, high in columns)
            assert card["fitted"] == [measured["fitted"], measured["n_heads"]]
            # Every family of the atlas has a margin on every range.
            assert len(card["could"]) == len(data["margin_offsets"]) and None not in card["could"]
            assert all(a >= b for a, b in zip(card["could"], card["could"][1:], strict=False))


def test_frozen_recurrent_models_are_those_of_the_result():
    result, data = frozen("connections"), Recurrent().data
    widths = {(cell["offset"], cell["width"]) for cell in data["tails"]}
    assert {(1, 16), (2, 16), (4, 16), (2, 3), (2, 8), (2, 24)} == widths
    for cell in data["tails"]:
        rows = result.select(
            **{name: cell[name] for name in ("offset", "width")},
            **{"kind": "recurrence", "level": data["level"]},
            **{"balanced": False, "too_narrow": False},
        )
        assert [std for std, _ in cell["dots"]] == [row["std"] for row in rows]
        tails = [row["tail"] for row in rows]
        assert [tail for _, tail in cell["dots"]] == pytest.approx(tails, rel=0.01)
        seeds = [row["seed"] for row in rows]
        assert all(seeds.count(seed) == len(rows) / data["n_seeds"] for seed in seeds)


def test_the_exported_kernels_are_what_the_page_says():
    """The margins of the cone programs, and a twin that prefers its wrong offset."""
    data, w = Carrier().data, rotary_frequencies(32)
    for name, keeps in (("max_margin", True), ("twins", False)):
        numbers = base64.b64decode(data[name]["data"])
        pairs = torch.from_numpy(np.frombuffer(numbers, "<f8").copy()).view(len(OFFSETS), -1, 2)
        coefficients = torch.view_as_complex(pairs)
        offset = torch.tensor(OFFSETS)
        # Eight digits are frozen.
        assert (margin(coefficients, w, offset, 16) - 1).abs().max() < 1e-5
        wins_at_48 = margin(coefficients, w, offset, 48) > 0
        assert bool(wins_at_48.all()) if keeps else not bool(wins_at_48.any())


def finished(explorable):
    explorable._thread.join(timeout=60)
    assert not explorable._thread.is_alive()
    return explorable.progress["text"]


def test_a_kernel_trains_new_heads_and_stops_when_asked(built, monkeypatch):
    monkeypatch.setattr(
        "lengthgen.explorables.task.new_heads",
        lambda encoding, seed, report: new_heads(encoding, seed, report, steps=3),
    )
    task = Task(built["task"].data)
    seen = []
    task.observe(lambda change: seen.append(change.new), "progress")
    task._on_message(task, {"type": "train"}, [])
    assert finished(task) == "heads of seed 100"
    assert task.data != built["task"].data and task.data.keys() == built["task"].data.keys()
    assert any(progress["running"] for progress in seen)
    before = task.data

    def cancel(encoding, seed, report):
        task._on_message(task, {"type": "cancel"}, [])
        return new_heads(encoding, seed, report, steps=3)

    monkeypatch.setattr("lengthgen.explorables.task.new_heads", cancel)
    task._on_message(task, {"type": "train"}, [])
    assert finished(task) == "cancelled" and task.data == before
    monkeypatch.setattr("lengthgen.explorables.task.new_heads", None)
    task.train(7)
    assert "not callable" in finished(task), "an error is shown, not lost"
    assert not task.progress["running"]


def test_state_moves_both_ways(built):
    linear = Linear(state={"offset": 3})
    assert json.loads(re.search(r'json">(.*?)</script>', linear.html())[1])["state"] == {
        "offset": 3
    }


def test_the_button_that_trains_is_there_where_training_is(built):
    able = {name for name, explorable in built.items() if explorable.trainable}
    assert able == {"task", "equivariance", "pinning"}


def test_text_in_a_state_cannot_leave_its_script():
    page = Task({}, state={"tail": "</script><b>"}).html()
    assert "</script><b>" not in page
