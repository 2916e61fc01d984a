"""The figures to touch, in the built book: every control alive, by mouse, keyboard and finger."""

import re
from contextlib import contextmanager

import pytest
from built import PAGE_OF, every_way, explorable
from figure import Figure

from lengthgen.experiments import transformer
from lengthgen.experiments.transformer_units import MapConfig, attention_maps
from lengthgen.explorables import EXPLORABLES, Linear
from lengthgen.explorables.transformer import LENGTHS

every_explorable = explorable(*EXPLORABLES)
MOVES = {
    "desk": (Figure.by_mouse, "light"),
    "phone": (Figure.by_finger, "dark"),
    "disk": (Figure.by_keyboard, "light"),
}


@pytest.fixture
def touching(opened):
    """`with touching(name, "phone") as figure:` the explorable, drawn; it is reset afterwards."""

    @contextmanager
    def touching(name, way="desk", hash=""):
        with opened(way, PAGE_OF[name], hash) as visit:
            figure = Figure(visit.page, name)
            figure.settled()
            yield figure
            figure.reset()
            figure.settled()

    return touching


# ---------------------------------------------------------------- every explorable


def test_every_chapter_has_its_explorable(site):
    assert list(PAGE_OF) == list(EXPLORABLES)


@every_explorable
def test_the_address_keeps_the_state(touching, name):
    with touching(name) as figure:
        first, words = figure.settled(whole=True), figure.settled()
        address = figure.move_sliders()
        figure.changed(words, "a slider")
        moved = figure.settled(whole=True)
    # The same address brings the state back, here in the site as it lies on the disk.
    with touching(name, "disk", hash=address) as figure:
        assert figure.settled(whole=True) == moved
        figure.reset()
        assert figure.settled(whole=True) == first
        figure.page.wait_for_function("() => !location.hash")


@every_way
@every_explorable
def test_every_control_answers(touching, name, way):
    """By mouse at a desk, by finger on a phone, by keyboard in the site from the disk."""
    move, scheme = MOVES[way]
    with touching(name, way) as figure:
        figure.page.emulate_media(color_scheme=scheme)
        first = figure.settled()
        for control in figure.controls():
            before = figure.prepare(control, first)
            then = figure.about(control)
            move(figure, control)
            figure.changed(before, control)
            now = figure.about(control)
            assert now["room"] == then["room"], f"{control} moves what follows"
            if now["kind"] == "range":
                assert now["said"] != then["said"], f"{control} does not say its value"
            move(figure, "reset")
            assert figure.settled() == first, f"{control} is not reset"


@every_way
@every_explorable
def test_the_theme_is_followed(touching, name, way):
    ink = "e => getComputedStyle(e.querySelector('.lx-label')).fill"
    with touching(name, way) as figure:
        light, seen = figure.root.evaluate(ink), figure.settled()
        figure.page.emulate_media(color_scheme="dark")
        figure.page.wait_for_function("() => document.documentElement.dataset.theme === 'dark'")
        assert figure.root.evaluate(ink) != light, "a picture does not follow the theme"
        assert figure.settled() == seen


SMALL = """(root) => [...root.querySelectorAll("input, select, button")]
    .map((e) => [e.name || e.textContent, (e.closest(".lx-check") || e).offsetHeight])
    .filter(([, height]) => height < 44)"""


@every_explorable
def test_every_control_on_a_phone_is_large_enough_for_a_finger(touching, name):
    with touching(name, "phone") as figure:
        assert figure.root.evaluate(SMALL) == []


def test_explorables_are_numbered(site):
    texts = {path: (site / path).read_text(encoding="utf8") for path in PAGE_OF.values()}
    for name, path in PAGE_OF.items():
        chapter = re.search(r'<h1><span class="section-number">(\d+)\.', texts[path])[1]
        assert f'id="explorable-{name}"' in texts[path]
        assert f'<span class="lx-number">Explorable {chapter}.1: </span>' in texts[path]
    link = r'href="#explorable-recurrence"><span class="std std-numref">Explorable 9\.1</span>'
    assert re.search(link, texts[PAGE_OF["recurrence"]])


# ---------------------------------------------------------------- single ones


@explorable("recurrence")
def test_an_address_leads_to_an_explorable_by_its_number(touching, name):
    with touching(name, hash="#explorable-recurrence") as figure:
        caption = figure.root.locator("figcaption").inner_text()
        assert caption.startswith("Explorable 9.1: "), caption
        assert figure.root.evaluate("e => e.getBoundingClientRect().top") < 844


@explorable("recurrence")
def test_paper_shows_the_present_state(touching, name):
    with touching(name) as figure:
        figure.move_sliders()
        words = [label for label, _ in figure.settled()]
        figure.page.emulate_media(media="print")
        assert [label for label, _ in figure.settled()] == words
        assert not figure.root.locator(".lx-buttons").is_visible()
        assert figure.root.locator(".lx-control output").first.is_visible()
        figure.page.emulate_media(media="screen")


@explorable("transformer")
def test_maps_of_heads_are_what_was_measured(touching, name, monkeypatch):
    """The picture of a head has the attention of that head, and says whether answers are right."""
    monkeypatch.undo()  # no cache of the test's own: the very units that the page was built from
    config = transformer.Config()
    with touching(name, hash="#transformer:length=128,head=2.3") as figure:
        labels = dict(zip(("rotary", "learned"), (a for a, _ in figure.settled()), strict=False))
        for encoding, label in labels.items():
            training = transformer.training(config, encoding, 0)
            found = attention_maps(MapConfig(training, LENGTHS))
            at_target = found["attention_128"][1, 2].diagonal(-config.offset)
            assert "layer 2, head 3, 128 tokens" in label
            beyond = slice(config.length - config.offset, None)
            # Shown with two digits, from weights rounded to 1/255.
            said = float(label.split("in range, ")[1].split(" ")[0])
            assert abs(said - float(at_target[beyond].mean())) <= 0.005 + 0.5 / 255
            answers, tokens = found["answers_128"], found["tokens_128"]
            right = (answers[config.offset :] == tokens[: -config.offset])[beyond]
            said = f"{int(right.sum())} of {len(right)} answers right"
            assert said in figure.root.locator(".lx-summary").inner_text()


@explorable("atlas")
def test_the_atlas_names_what_it_shows(touching, name):
    with touching(name) as figure:
        root = figure.root
        figure.control("second").select_option("alibi")
        figure.settled()
        assert root.locator(".lx-table thead th").all_inner_texts() == ["rotary", "alibi"]
        assert root.locator(".lx-legend span").all_inner_texts() == ["rotary", "alibi"]
        assert root.get_by_text("alibi: kernel").is_visible()
        rows = root.locator(".lx-table tbody tr")
        filled = root.locator(".lx-table tbody tr:has(td:nth-child(3):not(:empty))")
        assert rows.count() == filled.count() > 0


@explorable("carrier", "recurrence")
def test_play_moves_until_it_is_stopped(touching, name):
    # Readers here want no motion; what the button then does is tested with all controls.
    with touching(name) as figure:
        figure.page.emulate_media(reduced_motion="no-preference")
        play, time = figure.control("play"), figure.control("time")
        figure.by_mouse("play")
        assert play.inner_text() == "Pause"
        figure.page.wait_for_function(
            "e => +e.value > 3 && +e.value < +e.max", arg=time.element_handle()
        )
        figure.by_keyboard("play")
        assert play.inner_text() == "Play"
        stopped = time.input_value()
        figure.page.wait_for_timeout(300)
        assert time.input_value() == stopped


@explorable("task")
def test_a_reload_keeps_the_state_and_broken_addresses_and_anchors_are_harmless(touching, name):
    with touching(name) as figure:
        page, length, offset = figure.page, figure.control("length"), figure.control("offset")
        figure.move_sliders()
        wanted = figure.settled(whole=True)
        page.reload(wait_until="load")
        assert figure.settled(whole=True) == wanted
        for broken in ("length=abc,offset=99", "=,,=", "unknown=1", "length", "%E0%A4%A"):
            page.evaluate("hash => { location.hash = hash; }", f"#task:x=1,{broken}")
            figure.settled()
            assert 1 <= int(offset.input_value()) <= 8 and 10 <= int(length.input_value()) <= 512
        length.press("ArrowRight")
        shown = length.input_value()
        anchor = page.locator(".bd-article section[id] section[id]").last.get_attribute("id")
        page.evaluate("hash => { location.hash = hash; }", anchor)
        figure.settled()
        assert length.input_value() == shown, "an anchor is no state"
        offset.press("ArrowRight")
        figure.wait_for_address("#task:", "offset=")


def test_a_kernel_hears_a_move_and_can_move_back(chromium):
    """The path of JupyterLab: a model with events, a button that trains, new data."""
    explorable = Linear()
    page = chromium.new_page()
    page.set_content("<div id=here></div>")
    page.evaluate(
        """async ([text, traits]) => {
            const url = URL.createObjectURL(new Blob([text], { type: "text/javascript" }));
            const { default: widget } = await import(url);
            const heard = (window.heard = { saved: 0, sent: [] });
            const model = (window.model = {
                traits, handlers: {},
                get: (k) => model.traits[k], set: (k, v) => (model.traits[k] = v),
                on: (k, f) => (model.handlers[k] ??= []).push(f), off() {},
                save_changes: () => heard.saved++, send: (m) => heard.sent.push(m),
                change: (k, v) => {
                    model.traits[k] = v;
                    model.handlers[`change:${k}`].forEach((f) => f());
                },
            });
            widget.render({ model, el: document.getElementById("here") });
        }""",
        [
            explorable._esm,
            {"data": explorable.data, "state": {}, "trainable": True, "progress": {}},
        ],
    )
    figure = Figure(page, "linear")
    page.locator("[name=offset]").press("ArrowRight")
    assert page.evaluate("[model.traits.state.offset, heard.saved]") == [3, 1]
    page.evaluate("model.change('state', { offset: 5 })")
    assert page.locator("[name=offset]").input_value() == "5"
    before = figure.settled()
    page.evaluate("model.change('data', { ...model.traits.data, count: 8 })")
    assert figure.settled() != before
    page.get_by_role("button", name="Train new heads").click()
    assert page.evaluate("heard.sent[0].type") == "train"
    page.evaluate("model.change('progress', { step: 1, steps: 2, text: 'half', running: true })")
    assert page.get_by_text("half").is_visible()
    page.get_by_role("button", name="Cancel").click()
    assert page.evaluate("heard.sent[1].type") == "cancel"
    assert not page.evaluate("location.hash"), "a notebook's address is its own"
    page.close()
