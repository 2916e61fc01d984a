import re

import pytest

from lengthgen.experiments import transformer as experiment
from lengthgen.panels import transformer as panel

TINY = experiment.Config(length=8, steps=2, slow_steps=3, batch_size=4, rows=24)


@pytest.fixture
def shown(monkeypatch, tmp_path):
    monkeypatch.setenv("LENGTHGEN_CACHE", str(tmp_path))
    monkeypatch.setattr(panel, "SETTINGS", TINY)
    monkeypatch.setattr(panel, "LENGTHS", (6, 20))
    return panel.transformer_panel()


def test_every_choice_of_every_control_is_drawn_and_described(shown):
    pictures, words = set(), set()
    for name, control in shown.controls.items():
        first = control.value
        choices = getattr(control, "options", None) or range(control.min, control.max + 1)
        assert len(choices) > 1, name
        for choice in choices:
            control.value = choice
            shown._draw()  # unlike update(), raises
            pictures.add(shown.picture.value)
            words.add(re.sub(r"[\d.]+", "", shown.status.value))
            assert f"{name} {choice}" in shown._repr_mimebundle_()[0]["text/html"]
        control.value = first
    # 4 encodings, 2 layers, 4 heads, 2 lengths; each control passes the first picture again
    assert len(pictures) == 1 + 3 + 1 + 3 + 1
    assert {text.split(",")[0] for text in words} >= {"rotary", "learned absolute", "no encoding"}


def test_weights_beyond_the_training_range_are_told_apart(shown):
    assert "from there on" in shown.status.value
    shown.controls["length"].value = 6
    shown._draw()
    assert "from there on" not in shown.status.value
