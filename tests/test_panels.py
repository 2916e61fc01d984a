import math
import re
from functools import partial

import ipywidgets as widgets
import matplotlib.pyplot as plt
import pytest
import torch

from lengthgen.panels import (
    Panel,
    card,
    card_panel,
    carrier,
    carrier_panel,
    dilution,
    dilution_panel,
    equivariance_panel,
    heads,
    pinning_panel,
    task_panel,
)
from lengthgen.position_loss import log_loss

TRAIN_ANY = {"task": task_panel, "equivariance": equivariance_panel, "pinning": pinning_panel}
BUILDERS = TRAIN_ANY | {"carrier": carrier_panel, "dilution": dilution_panel, "card": card_panel}
"""The panels of chapters 6, 7 and 9 have tests beside those of their experiments."""


class Compute:
    """Stands for training: notes what it was called with, draws that, or fails."""

    def __init__(self):
        self.calls, self.error = [], None

    def __call__(self, report, **values):
        self.calls.append(values)
        if self.error is not None:
            raise self.error
        figure, axes = plt.subplots(figsize=(1, 1))
        axes.plot([0, values["offset"]])
        return figure, f'offset is {values["offset"]} & "quoted" <b>'


@pytest.fixture
def compute():
    return Compute()


@pytest.fixture
def panel(compute):
    return Panel(compute, {"offset": widgets.IntSlider(2, 1, 8)}, "01_task.ipynb")


def static(panel):
    """What a page without a kernel shows."""
    return panel._repr_mimebundle_()[0]["text/html"]


def pictures(page):
    return re.findall(r'<img [^>]*src="data:image/svg\+xml;base64,([A-Za-z0-9+/=]+)"', page)


def assert_no_dead_control(page):
    for tag in (
        "<input",
        "<button",
        "<select",
        "<textarea",
        "<script",
        "onclick",
        "contenteditable",
    ):
        assert tag not in page.lower()


def test_the_static_page_has_the_picture_its_words_and_one_line_on_how_to_run_it(panel):
    page = static(panel)
    assert len(pictures(page)) == 1
    alt = re.search(r'alt="([^"]*)"', page).group(1)
    assert alt == "offset is 2 &amp; &quot;quoted&quot; &lt;b&gt;"
    line = re.search(r'<p class="lg-static">(.*?)</p>', page).group(1)
    assert "offset 2" in line and "make lab" in line and "notebooks/01_task.ipynb" in line
    assert_no_dead_control(page)


def test_a_kernel_still_gets_the_widget(panel):
    data, _ = panel._repr_mimebundle_()
    assert "application/vnd.jupyter.widget-view+json" in data


def test_moving_a_control_and_pressing_the_button_redraws_with_the_new_value(panel, compute):
    before = panel.picture.value
    panel.controls["offset"].value = 5
    assert panel.values == {"offset": 5}
    panel.button.click()
    assert compute.calls == [{"offset": 2}, {"offset": 5}]
    assert panel.picture.value != before
    assert "offset is 5" in panel.status.value
    assert not panel.button.disabled
    assert "offset 5" in static(panel)


def test_a_control_that_was_moved_says_that_the_picture_is_of_before(panel):
    drawn = panel.status.value
    panel.controls["offset"].value = 7
    assert panel.status.value != drawn and panel.button.description in panel.status.value
    panel.update()
    assert panel.status.value == "offset is 7" + drawn.removeprefix("offset is 2")


def test_the_static_line_names_the_settings_of_the_picture_not_of_the_sliders(panel):
    panel.controls["offset"].value = 7  # moved, not trained
    assert "offset 2" in static(panel) and "offset 7" not in static(panel)


@pytest.mark.parametrize(
    "error", [ValueError("offset=9 does not fit"), RuntimeError("loss is nan")]
)
def test_an_error_is_shown_and_the_last_picture_stays(panel, compute, error):
    before = panel.picture.value
    compute.error = error
    panel.update()
    assert panel.status.value == str(error)
    assert panel.picture.value == before
    assert not panel.button.disabled
    compute.error = None
    panel.update()
    assert "offset is 2" in panel.status.value


def test_a_first_picture_that_fails_fails_the_chapter(compute):
    """Else the book would be built with an empty panel."""
    compute.error = ValueError("no picture")
    with pytest.raises(ValueError, match="no picture"):
        Panel(compute, {"offset": widgets.IntSlider(2, 1, 8)}, "01_task.ipynb")


def test_a_bar_that_nothing_moves_is_not_shown(compute):
    def trains(report, **values):
        report(3, 3, None, torch.ones(1, 3))
        return compute(report, **values)

    for does, shown in ((compute, False), (trains, True)):
        panel = Panel(does, {"offset": widgets.IntSlider(2, 1, 8)}, "01_task.ipynb")
        assert (panel.bar.layout.display != "none") == shown
        assert (panel.bar.value == panel.bar.max) == shown


def test_no_figure_is_left_open(panel):
    before = plt.get_fignums()
    panel.update()
    assert plt.get_fignums() == before


def test_two_drawings_are_the_same_bytes(panel):
    before = panel.picture.value
    panel.update()
    assert panel.picture.value == before


# -- the panels of the chapters ------------------------------------------------------------------


@pytest.fixture
def quick(monkeypatch):
    monkeypatch.setattr(heads, "STEPS", 2)
    monkeypatch.setattr(heads, "N_SEQUENCES", 20)
    monkeypatch.setattr(heads, "LENGTHS", (16, 48, 128))
    monkeypatch.setattr(carrier, "STEPS", 200)  # some heads reach 0.01 by then
    monkeypatch.setattr(dilution, "LENGTHS", (16, 48))
    monkeypatch.setattr(card, "diagnose", partial(card.diagnose, steps=2, lengths=(16, 48)))


def another(control):
    """Another value of a control."""
    if isinstance(control, widgets.Checkbox):
        return not control.value
    if options := getattr(control, "options", None):
        return options[options.index(control.value) - 1]
    return control.value - 1


@pytest.mark.parametrize("name", BUILDERS)
def test_every_control_of_every_panel_changes_what_is_computed(quick, name):
    panel = BUILDERS[name]()
    page = static(panel)
    (before,) = pictures(page)
    assert re.search('alt="[^"]{20,}"', page)
    assert_no_dead_control(page)
    assert panel.bar.value == panel.bar.max or panel.bar.layout.display == "none"
    words = panel.status.value
    for key, control in panel.controls.items():
        original = control.value
        control.value = another(control)
        panel.update()
        changed = pictures(static(panel)) != [before]
        if (name, key) == ("equivariance", "seeds"):  # the maps are those of one seed
            changed = panel.status.value != words
        assert changed, key
        control.value = original
    panel.update()
    assert pictures(static(panel)) == [before]


def test_lengths_are_mixed_whatever_the_longest_is(quick):
    """A box that is ticked and changes nothing would be a dead control."""
    panel = pinning_panel()
    panel.controls["training_length"].value = 10  # the shortest: nothing to mix
    assert panel.values["training_length"] > heads.SHORTEST
    panel.update()
    mixed = panel.picture.value
    panel.controls["mixed_lengths"].value = False
    panel.update()
    assert panel.picture.value != mixed


def test_a_shortest_length_above_the_longest_is_refused(quick):
    with pytest.raises(ValueError, match=r"lengths=\(12, 10\)"):
        heads.trained(lambda *_: None, "rotary", 1, training_length=10, seeds=1, shortest=12)


def test_the_logits_of_every_trained_position_are_drawn(quick):
    panel = equivariance_panel()
    panel.controls["training_length"].value = 32
    panel.update()
    assert "32 tokens" in panel.status.value


@pytest.mark.parametrize(("level", "n_reached"), [(0.1, 2), (1e-32, 0)])
def test_heads_that_miss_the_loss_asked_for_are_counted(monkeypatch, level, n_reached):
    monkeypatch.setattr(carrier, "STEPS", 200)
    target = torch.full((2,), 4)
    head, reached = carrier._carrier_heads(lambda *_: None, target, 2, 0.3, level)
    assert int(reached.sum()) == n_reached
    at_or_below = log_loss(head, target) <= math.log(level)
    assert at_or_below.equal(reached)


@pytest.mark.parametrize("name", TRAIN_ANY)
def test_the_corners_of_every_panel_can_be_drawn(quick, name):
    """Longest and shortest training, largest offset and shift, every encoding: no error."""
    panel = TRAIN_ANY[name]()
    for control in panel.controls.values():
        if isinstance(control, widgets.IntSlider):
            control.value = control.max if control.description != "seeds" else 1
    encoding = panel.controls["encoding"]
    for option in encoding.options:
        encoding.value = option
        for length in (10, 32):
            panel.controls["training_length"].value = length
            panel._draw()  # unlike update(), raises
            assert pictures(static(panel))
