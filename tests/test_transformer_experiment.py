from dataclasses import fields, replace

import pytest
from matplotlib.figure import Figure

from lengthgen.claims import transfer
from lengthgen.experiments import transformer, transformer_units
from lengthgen.experiments.experiment import PROFILES
from lengthgen.results import Result

TINY = transformer.Config(
    n_seeds=2,
    encodings=("rotary", "learned", "learned-random-offset"),
    length=8,
    steps=2,
    slow_steps=3,
    batch_size=4,
    rows=24,
    lengths=(8, 9, 24, 40),
    n_sequences=10,
    n_traced=4,
    traced_lengths=(16, 24),
    shift=50,
    layers=(1,),
    heads=(1,),
    n_variation_seeds=1,
)
CHANGES = {
    "n_seeds": 1,
    "encodings": ("rotary", "learned", "none"),
    "offset": 2,
    "length": 7,
    "steps": 1,
    "slow_steps": 2,
    "batch_size": 5,
    "rows": 25,
    "lengths": (8, 9, 24),
    "n_sequences": 11,
    "n_traced": 5,
    "traced_lengths": (16, 20),
    "shift": 40,
    "layers": (3,),
    "heads": (2,),
    "std": 0.2,
    "n_variation_seeds": 2,
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("transformer-cache")


@pytest.fixture
def result(folder, monkeypatch):
    monkeypatch.setenv("LENGTHGEN_CACHE", str(folder))  # trained once for all tests here
    experiment = replace(transformer.EXPERIMENT, profiles={"quick": TINY, "paper": TINY})
    return experiment.run("quick")


def test_profiles_plan_each_unit_once_and_the_paper_has_five_seeds():
    for profile in PROFILES:
        config = transformer.EXPERIMENT.config(profile)
        keys = [unit.key(c) for unit, c in transformer.EXPERIMENT.plan(config)]
        assert len(set(keys)) == len(keys)
        assert {config.length, config.length + 1, 96} <= set(config.lengths)
        assert max(config.traced_lengths) <= config.rows
    assert transformer.EXPERIMENT.config("paper").n_seeds >= 5


def test_every_field_of_the_configuration_changes_the_work():
    def keys(config):
        return sorted(unit.key(c) for unit, c in transformer.EXPERIMENT.plan(config))

    assert set(CHANGES) == {field.name for field in fields(TINY)}
    for name, value in CHANGES.items():
        assert keys(replace(TINY, **{name: value})) != keys(TINY), name


def test_accuracy_is_kept_for_every_seed_and_length_the_table_allows(result):
    rows = result.select(setting="default")
    found = {(r["encoding"], r["seed"], r["length"]) for r in rows}
    assert found == {
        (encoding, seed, length)
        for encoding in TINY.encodings
        for seed in (0, 1)
        for length in TINY.lengths
        if encoding != "learned-random-offset" or length <= TINY.rows
    }
    for row in rows:
        assert ("accuracy_beyond" in row) == (row["length"] > TINY.length)
        assert row.keys() >= {"offset", "accuracy", "n_sequences"}


def test_accuracy_by_length_is_the_mean_of_the_positions_it_has(result):
    for encoding, curves in result.summary["by_position"].items():
        for seed, curve in enumerate(curves):
            for row in result.select(setting="default", encoding=encoding, seed=seed):
                part = curve[: row["length"] - TINY.offset]
                # positions are rounded to 4 decimals
                assert row["accuracy"] == pytest.approx(sum(part) / len(part), abs=1e-4)


def test_every_head_is_reported_once(result):
    for encoding in TINY.encodings:
        for seed in (0, 1):
            rows = result.select(encoding=encoding, seed=seed)
            heads = [(r["layer"], r["head"]) for r in rows if "attention" in r]
            assert heads == [(layer, head) for layer in (1, 2) for head in (1, 2, 3, 4)]
            (cuts,) = (r for r in rows if "n_carriers" in r)
            assert cuts["carrier_cut"] == pytest.approx(
                max((r for r in rows if "attention" in r), key=lambda r: r["attention"])[
                    "accuracy_cut"
                ],
                abs=1e-6,
            )


def test_variations_are_rotary_and_name_what_they_change(result):
    names = set(transformer.variations(TINY))
    assert names == {"1 layer", "1 head", "initial scale 0.125"}
    assert {row["setting"] for row in result.rows if "setting" in row} == names | {"default"}
    assert {row["encoding"] for row in result.rows if row.get("setting") in names} == {"rotary"}


def test_a_shift_stays_inside_each_table(result):
    shifts = {row["encoding"]: row["shift"] for row in result.rows if "shift" in row}
    assert shifts == {"rotary": 50, "learned": 50, "learned-random-offset": TINY.rows - 8}


def test_a_second_run_has_identical_rows(result, monkeypatch, tmp_path):
    monkeypatch.setenv("LENGTHGEN_CACHE", str(tmp_path))
    few = replace(TINY, n_seeds=1, encodings=("rotary",), layers=(), heads=())
    experiment = replace(transformer.EXPERIMENT, profiles={"quick": few})
    again = experiment.run("quick")
    assert all(row in result.rows for row in again.rows)


def test_a_result_can_be_drawn(result):
    assert isinstance(transformer.EXPERIMENT.plot(result), Figure)


def test_maps_to_explore_are_attention_of_nested_sequences(folder, monkeypatch):
    monkeypatch.setenv("LENGTHGEN_CACHE", str(folder))
    training = transformer.training(TINY, "rotary", 0)
    maps = transformer_units.attention_maps(transformer_units.MapConfig(training, (6, 9)))
    assert maps["attention_9"].shape == (2, 4, 9, 9)
    assert maps["tokens_6"].tolist() == maps["tokens_9"][3:].tolist()
    # float32 sums of nine numbers below 1
    assert maps["attention_9"].sum(-1).sub(1).abs().max() < 1e-5


def test_a_rival_is_looked_for_among_carriers_and_where_the_curve_reaches():
    config = replace(TINY, offset=3)
    head = {"encoding": "rotary", "seed": 0, "attention": 0.9}
    rows = [
        {**head, "first_lost": 40.0},
        {**head, "first_lost": 30.0},
        {**head, "first_lost": 10.0, "attention": 0.1},
    ]
    curve = [1.0] * 27 + [0.5] * 40  # positions 3 .. 29, then 30 and later
    (found,) = transformer._rivals(config, rows, [curve])
    assert found == {"seed": 0, "rival": 30, "before": 1.0, "after": 0.5}
    assert transformer._rivals(config, rows, [curve[:40]]) == []  # too near the end
    assert transformer._rivals(config, rows[2:], [curve]) == []


# -- claims --------------------------------------------------------------------------------------


def good():
    """Made-up measurements that meet every criterion: two seeds, two layers of one head."""
    beyond = {"rotary": 1.0, "learned": 0.09, "learned-random-offset": 0.97}
    rows = []
    for seed in (0, 1):
        for encoding, value in beyond.items():
            cell = {"setting": "default", "encoding": encoding, "seed": seed, "loss": 0.01}
            rows.append({**cell, "length": 32, "accuracy": 1.0})
            rows.append({**cell, "length": 96, "accuracy": value, "accuracy_beyond": value})
        for setting, loss, value in (
            ("initial scale 0.125", 0.002, 0.7),
            ("1 head", 0.01, 1.0),
            ("8 heads", 0.01, 0.3),
        ):
            model = {"setting": setting, "encoding": "rotary", "seed": seed, "loss": loss}
            rows.append({**model, "length": 96, "accuracy": value, "accuracy_beyond": value})
        for encoding in ("rotary", "learned"):
            model = {"encoding": encoding, "seed": seed}
            for layer in (1, 2):
                head = {
                    **{"layer": layer, "head": 1, "attention": 0.9 if layer == 1 else 0.1},
                    **{"logit_change": 1e-6 if encoding == "rotary" else 1.0},
                    **{"alignment": 0.9, "explained": 0.99, "accuracy_cut": 1.0},
                    **{"attention_alone": 0.9, "attention_after": 0.4, "first_lost": 200},
                    **{"context_logit_change": 0.0 if layer == 1 else 0.8},
                    **{"peak": {"64": 5, "128": 9} if layer == 1 else {"64": 63, "128": 127}},
                }
                rows.append({**model, **head})
            rows.append({**model, "n_carriers": 1, "carriers_cut": 0.07, "control_cut": 1.0})
    config = {"length": 32, "std": 0.125, "offset": 3}
    summary = {"rivals": [{"before": 0.99, "after": 0.8}, {"before": 1.0, "after": 0.9}]}
    return Result("transformer", "paper", config, [0, 1], rows, summary)


# What must refute each claim: a column of the rows with these values, changed.
DOCTORED = {
    "transfer.rotary": ("accuracy", 0.97, {"encoding": "rotary", "length": 96}),
    "transfer.rotary_worst": ("accuracy_beyond", 0.94, {"encoding": "rotary", "length": 96}),
    "transfer.absolute": ("accuracy_beyond", 0.3, {"encoding": "learned", "length": 96}),
    "transfer.fit": ("accuracy", 0.98, {"encoding": "learned", "length": 32}),
    "transfer.control": ("accuracy_beyond", 0.8, {"encoding": "learned-random-offset"}),
    "transfer.equivariance": ("logit_change", 1e-4, {"encoding": "rotary", "layer": 2}),
    "transfer.equivariance_absolute": ("logit_change", 0.1, {"encoding": "learned"}),
    "transfer.carrier": ("attention", 0.4, {"encoding": "rotary", "layer": 1}),
    "transfer.carrier_aligned": ("alignment", 0.5, {"encoding": "rotary", "layer": 1}),
    "transfer.carrier_explained": ("explained", 0.5, {"encoding": "rotary", "layer": 1}),
    "transfer.cut_carriers": ("carriers_cut", 0.9, {"encoding": "rotary"}),
    "transfer.cut_others": ("control_cut", 0.9, {"encoding": "rotary"}),
    "transfer.redundant": ("accuracy_cut", 0.5, {"encoding": "rotary", "layer": 1}),
    "transfer.pinning": ("peak", {"64": 60}, {"encoding": "learned", "layer": 1}),
    "transfer.pinning_moves": ("peak", {"64": 5, "128": 5}, {"encoding": "learned", "layer": 1}),
    "transfer.context_logits": ("context_logit_change", 0.1, {"encoding": "rotary", "layer": 1}),
    "transfer.context_weights": ("attention_after", 0.9, {"encoding": "rotary", "layer": 1}),
    "transfer.context_deep": ("context_logit_change", 0.0, {"encoding": "rotary", "layer": 2}),
    "transfer.width": ("accuracy_beyond", 0.5, {"setting": "1 head"}),
    "transfer.selection": ("accuracy_beyond", 1.0, {"setting": "initial scale 0.125"}),
    "transfer.selection_loss": ("loss", 0.05, {"setting": "initial scale 0.125"}),
}


@pytest.mark.parametrize("claim", transfer.CLAIMS, ids=lambda claim: claim.id)
def test_a_claim_passes_on_good_measurements_and_fails_on_bad_ones(claim):
    assert claim.passes(float(claim.measure(good())))
    bad = good()
    if claim.id == "transfer.rival":
        for rival in bad.summary["rivals"]:
            rival["after"] = rival["before"]
    else:
        name, value, wanted = DOCTORED[claim.id]
        for row in bad.select(**wanted):
            row[name] = value
    assert not claim.passes(float(claim.measure(bad)))
