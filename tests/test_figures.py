import io
import re

import matplotlib.pyplot as plt
import numpy as np
import pytest

from lengthgen import figures
from lengthgen.encodings import ENCODINGS


def rows(encodings=("rotary", "learned"), offsets=(1, 2), seeds=(0, 1, 2), lengths=(16, 17, 48)):
    return [
        {"encoding": e, "offset": k, "seed": s, "length": n, "accuracy": 1 / (1 + s + k + n / 16)}
        for e in encodings
        for k in offsets
        for s in seeds
        for n in lengths
    ]


@pytest.fixture(autouse=True)
def close_figures():
    yield
    plt.close("all")


def lightness(color):
    r, g, b = (int(color[i : i + 2], 16) / 255 for i in (1, 3, 5))
    return 0.2126 * r + 0.7152 * g + 0.0722 * b


@pytest.mark.parametrize("name", ENCODINGS)
def test_every_encoding_has_a_colour_a_label_and_a_marker(name):
    assert re.fullmatch("#[0-9A-Fa-f]{6}", figures.COLORS[name])
    assert figures.LABELS[name] and figures.MARKERS[name]


def test_labels_and_markers_are_distinct_and_so_are_the_shades_of_colours():
    assert set(figures.COLORS) == set(ENCODINGS)
    for table in (figures.LABELS, figures.MARKERS):
        assert len(set(table.values())) == len(table)
    shades = sorted(lightness(c) for c in set(figures.COLORS.values()))
    assert min(np.diff(shades)) > 0.01  # distinct in grey too


def test_the_look_ends_with_the_block():
    before = plt.rcParams["axes.spines.top"]
    with figures.style():
        assert plt.rcParams["axes.spines.top"] is False
    assert plt.rcParams["axes.spines.top"] == before


def test_every_seed_is_a_thin_line_and_the_mean_a_thick_one():
    _, grid = figures.panels(1, 1)
    curves = np.array([[1, 0.5], [0.8, 0.1], [0.9, 0.3]])
    figures.seed_lines(grid[0, 0], [16, 32], curves, "#0072B2", "rotary")
    *seeds, mean = grid[0, 0].get_lines()
    assert [line.get_ydata().tolist() for line in seeds] == curves.tolist()
    np.testing.assert_allclose(mean.get_ydata(), curves.mean(0))
    assert all(line.get_linewidth() < mean.get_linewidth() for line in seeds)


@pytest.mark.parametrize(("by_offset", "n_panels"), [(False, 1), (True, 5)])
def test_accuracy_by_length_shows_every_model_chance_and_the_training_range(by_offset, n_panels):
    data = rows(offsets=(1, 2, 3, 4, 5))
    figure = figures.accuracy_by_length(data, by_offset)
    axes = [a for a in figure.axes if a.axison]
    assert len(axes) == n_panels
    for panel in axes:
        lines = panel.get_lines()
        thin = [line for line in lines if line.get_linewidth() < 0.7]
        assert len(thin) == 2 * 3 * 5 / n_panels
        chance = [line for line in lines if np.allclose(line.get_ydata(), 1 / 16)]
        assert len(chance) == 1
        assert panel.patches or panel.collections  # the shaded training range
    texts = [t.get_text() for legend in figure.legends for t in legend.get_texts()]
    assert texts == ["rotary", "learned absolute"]
    assert any("length (tokens)" in a.get_xlabel() for a in axes)
    assert any(a.get_ylabel() == "accuracy" for a in axes)


def test_chance_is_named_once_a_row_where_no_curve_is():
    with figures.style():
        figure = figures.accuracy_by_length(rows(offsets=(1, 2, 3, 4, 5)), by_offset=True)
        figure.draw_without_rendering()
    named = [axes for axes in figure.axes if axes.texts]
    assert [axes.get_title("left") for axes in named] == ["offset 4", "offset 5"]
    for axes in named:
        (word,) = axes.texts
        place, window = word.get_window_extent(), axes.get_window_extent()
        assert word.get_text() == "chance"
        assert place.x0 > window.x1 and place.x1 < figure.bbox.x1
        middle = axes.transData.transform((0, 1 / 16))[1]
        assert place.y0 < middle < place.y1


def test_panels_with_axes_of_their_own_each_name_chance():
    _, grid = figures.panels(1, 2)
    for axes in grid[0]:
        figures.mark_chance(axes)
        assert [text.get_text() for text in axes.texts] == ["chance"]


def test_lines_are_drawn_at_their_lengths_whatever_the_order_of_rows():
    data = rows(("rotary",), (1,), (0,))
    for order in (data, data[::-1]):
        line = figures.accuracy_by_length(order).axes[0].get_lines()[0]
        assert line.get_xdata().tolist() == [16, 17, 48]
        np.testing.assert_allclose(line.get_ydata(), [r["accuracy"] for r in data])


def test_an_encoding_without_a_colour_is_still_drawn():
    assert figures.accuracy_by_length(rows(("mine",))).axes[0].get_lines()


def test_two_drawings_are_the_same_bytes():
    def svg():
        with figures.style():
            figure = figures.accuracy_by_length(rows())
            data = io.BytesIO()
            figure.savefig(data, format="svg", metadata={"Date": None})
            return data.getvalue()

    assert svg() == svg()
