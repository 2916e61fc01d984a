"""The figures to touch, in the built book: every control alive, by mouse, keyboard and finger."""

import re
from types import SimpleNamespace

import pytest
from playwright.sync_api import Locator

from lengthgen.experiments import transformer
from lengthgen.experiments.transformer_units import MapConfig, attention_maps
from lengthgen.explorables import EXPLORABLES, Linear
from lengthgen.explorables.transformer import LENGTHS

SUBPATH = "/some/sub"
every_explorable = pytest.mark.parametrize("name", EXPLORABLES)

# What must be moved first for a control to have something to say.
FIRST = {
    ("equivariance", "rounded"): {"shift": "End"},
    ("pinning", "source"): {"operation": "copy"},
    ("pinning", "destination"): {"operation": "copy"},
    ("carrier", "play"): {"time": "Home"},
    ("recurrence", "play"): {"time": "Home"},
}

SEEN = """async (root) => {
    for (const _ of [1, 2]) await new Promise(requestAnimationFrame);
    if (root.getAttribute("aria-busy") === "true") return null;
    return [...root.querySelectorAll(".lx-picture svg")]
        .map((s) => [s.getAttribute("aria-label"), s.innerHTML]);
}"""


class Figure:
    """An explorable of an open page, and how a reader moves it."""

    def __init__(self, visit, name: str) -> None:
        self.visit, self.page, self.name = visit, visit.page, name
        self.root = self.page.locator(f'[data-explorable="{name}"]')

    def settled(self) -> list:
        """What the pictures and their text alternatives are once nothing moves any more."""
        for _ in range(1500):  # half a minute and more; a rest comes within a second
            if (seen := self.root.evaluate(SEEN)) is not None:
                return seen
            self.page.wait_for_timeout(20)
        raise AssertionError("the pictures never come to rest")

    def changed(self, before: list, control: str) -> list:
        """Wait for rest and check that pictures and words are others than before."""
        after = self.settled()
        for part, what in enumerate(("words", "picture")):
            same = [seen[part] for seen in after] == [seen[part] for seen in before]
            assert not same, f"{control} changes no {what}"
        return after

    def control(self, name: str) -> Locator:
        return self.root.locator(f'[name="{name}"], [data-action="{name}"]')

    def controls(self) -> list[str]:
        """Names of all controls and buttons but the one that resets."""
        return self.root.locator(".lx-control [name], [data-action]").evaluate_all(
            "all => all.map((e) => e.name || e.dataset.action).filter((name) => name !== 'reset')"
        )

    def prepare(self, control: str, seen: list) -> list:
        """Move what must be moved first; returns what is then seen."""
        for other, value in FIRST.get((self.name, control), {}).items():
            if self.kind(other) == "range":
                self.control(other).press(value)
            else:
                self.control(other).select_option(value)
            seen = self.settled()
        return seen

    def kind(self, control: str) -> str:
        return self.control(control).evaluate("e => e.type")

    def far_end(self, control: str) -> float:
        """The end of a slider, as a share of its width, that it is farther from."""
        return self.control(control).evaluate("e => +(e.value - e.min < (e.max - e.min) / 2)")

    def place(self, control: str, share: float) -> tuple[float, float]:
        """Where the middle of a control, or a share of its width, is on the screen."""
        element = self.control(control)
        element.scroll_into_view_if_needed()
        box = element.bounding_box()
        return box["x"] + box["width"] * share, box["y"] + box["height"] / 2

    def choose_another(self, control: str) -> None:
        """Choose from a menu. The list itself is the browser's, outside the page."""
        element = self.control(control)
        element.select_option(index=element.evaluate("e => (e.selectedIndex || e.length) - 1"))

    def by_mouse(self, control: str) -> None:
        kind, mouse = self.kind(control), self.page.mouse
        if kind == "select-one":
            self.choose_another(control)
        elif kind == "range":
            share = 0.25 + 0.5 * self.far_end(control)
            mouse.move(*self.place(control, 0.5))
            mouse.down()
            mouse.move(*self.place(control, share))
            mouse.up()
        elif kind == "text":
            self.control(control).fill("abcdefgh")
        else:
            mouse.click(*self.place(control, 0.5))

    def by_keyboard(self, control: str) -> None:
        element, kind = self.control(control), self.kind(control)
        element.focus()
        if kind == "text":
            self.page.keyboard.press("Control+A")
            self.page.keyboard.type("ponmlkji")
        elif kind in ("checkbox", "button"):
            self.page.keyboard.press("Space")
        elif kind == "select-one":
            last = element.evaluate("e => e.selectedIndex === e.length - 1")
            self.page.keyboard.press("ArrowUp" if last else "ArrowDown")
        else:
            self.page.keyboard.press("PageUp" if self.far_end(control) else "PageDown")

    def by_finger(self, control: str, share: float = 0.5) -> None:
        """Tap; on a slider put the finger down in its middle and draw it to a place."""
        if self.kind(control) != "range":
            self.page.touchscreen.tap(*self.place(control, 0.5))
            return
        x, y = self.place(control, 0.5)
        to = self.place(control, share)[0]
        session = self.page.context.new_cdp_session(self.page)
        for kind, at in (("touchStart", x), ("touchMove", (x + to) / 2), ("touchMove", to)):
            points = [{"x": at, "y": y}]
            session.send("Input.dispatchTouchEvent", {"type": kind, "touchPoints": points})
        session.send("Input.dispatchTouchEvent", {"type": "touchEnd", "touchPoints": []})
        session.detach()

    def wait_for_address(self, *parts: str) -> str:
        """Wait until the address names these; it follows a moment after the last move."""
        self.page.wait_for_function(
            "parts => parts.every((part) => location.hash.includes(part))", arg=list(parts)
        )
        return self.page.evaluate("location.hash")

    def move_sliders(self) -> str:
        """Move three sliders and return the address that keeps their places."""
        moved = [f"#{self.name}:"]
        for element in self.root.locator(".lx-control input[type=range]:enabled").all()[:3]:
            before, name = element.input_value(), element.get_attribute("name")
            element.press("ArrowLeft")
            if element.input_value() == before:
                element.press("ArrowRight")
            moved.append(f"{name}=")
        self.settled()
        return self.wait_for_address(*moved)

    def reset(self) -> None:
        self.root.locator('[data-action="reset"]').click()


@pytest.fixture(scope="session")
def pages(site) -> dict[str, str]:
    """The page of the built book that holds each explorable."""
    found = {}
    for path in sorted(site.glob("notebooks/*.html")):
        for name in re.findall(r'data-lx-mount="(\w+)"', path.read_text(encoding="utf8")):
            found[name] = f"notebooks/{path.name}"
    return found


@pytest.fixture
def opened(visiting, pages):
    """`with opened("task", hash="#task:length=64") as figure:` the page, drawn."""

    class Opening:
        def __init__(self, name, hash="", **options):
            self.name, self.hash = name, hash
            self.context = visiting(**options)

        def __enter__(self):
            visit = self.context.__enter__()
            visit.open(pages[self.name] + self.hash)
            figure = Figure(visit, self.name)
            figure.settled()
            return figure

        def __exit__(self, kind, *error):
            self.context.__exit__(kind, *error)

    return Opening


# ---------------------------------------------------------------- every explorable


def test_every_chapter_has_its_explorable(pages):
    assert list(pages) == list(EXPLORABLES)


@every_explorable
def test_at_a_desk_every_control_answers_and_the_address_keeps_the_state(opened, site, name):
    with opened(name) as figure:
        first = figure.settled()
        for control in figure.controls():
            mouse_and_keyboard_move(figure, control, first)
        address = figure.move_sliders()
        moved = figure.changed(first, "a slider")
        the_theme_is_followed(figure)
        figure.visit.check()
    # The same address brings the state back, here in the site as it lies on the disk.
    with opened(name, hash=address, base=site.as_uri()) as figure:
        assert figure.settled() == moved
        figure.reset()
        assert figure.settled() == first
        figure.page.wait_for_function("() => !location.hash")
        figure.visit.check()


def mouse_and_keyboard_move(figure, control, first):
    kind, output = figure.kind(control), figure.control(control).locator("xpath=../output")
    before = figure.prepare(control, first)
    for move in (figure.by_mouse, figure.by_keyboard):
        shown = output.all_inner_texts()
        move(control)
        after = figure.changed(before, control)
        if kind == "range":
            assert output.all_inner_texts() != shown, f"{control} does not say its value"
        if kind == "button":  # which may do the same twice
            figure.reset()
            before = figure.prepare(control, figure.settled())
        else:
            before = after
    figure.reset()
    assert figure.settled() == first, f"{control} is not reset"


def the_theme_is_followed(figure):
    ink = "e => getComputedStyle(e.querySelector('.lx-label')).fill"
    light, seen = figure.root.evaluate(ink), figure.settled()
    figure.page.emulate_media(color_scheme="dark")
    figure.page.wait_for_function("() => document.documentElement.dataset.theme === 'dark'")
    assert figure.root.evaluate(ink) != light, "a picture does not follow the theme"
    assert figure.settled() == seen


SMALL = """(root) => [...root.querySelectorAll("input, select, button")]
    .map((e) => [e.name || e.textContent, (e.closest(".lx-check") || e).offsetHeight])
    .filter(([, height]) => height < 44)"""


@every_explorable
def test_a_finger_on_a_phone_moves_every_control_and_nothing_jumps(opened, server, name):
    with opened(name, base=server + SUBPATH, width=390, touch=True) as figure:
        page, root = figure.page, figure.root
        assert page.evaluate("document.documentElement.scrollWidth") <= 390
        assert root.evaluate(SMALL) == [], "too small for a finger"
        height, first = root.evaluate("e => e.offsetHeight"), figure.settled()
        for control in figure.controls():
            before, kind = figure.prepare(control, first), figure.kind(control)
            if kind == "select-one":
                figure.choose_another(control)
            elif kind == "text":
                figure.by_finger(control)
                page.keyboard.type("hgfedcba")
            else:
                far = figure.far_end(control) if kind == "range" else 0
                figure.by_finger(control, 0.02 + 0.96 * far)
            figure.changed(before, control)
            assert root.evaluate("e => e.offsetHeight") == height, f"{control} moves what follows"
            figure.by_finger("reset")
            assert figure.settled() == first
        figure.visit.check()


def test_explorables_are_numbered_and_referred_to(pages, site, opened):
    texts = {path: (site / path).read_text(encoding="utf8") for path in pages.values()}
    for name, path in pages.items():
        chapter = re.search(r'<h1><span class="section-number">(\d+)\.', texts[path])[1]
        assert f'id="explorable-{name}"' in texts[path]
        assert f'<span class="lx-number">Explorable {chapter}.1: </span>' in texts[path]
    link = r'href="#explorable-recurrence"><span class="std std-numref">Explorable 9\.1</span>'
    assert re.search(link, texts[pages["recurrence"]])
    with opened("recurrence", hash="#explorable-recurrence") as figure:
        caption = figure.root.locator("figcaption").inner_text()
        assert caption.startswith("Explorable 9.1: "), caption
        assert figure.root.evaluate("e => e.getBoundingClientRect().top") < 844
        figure.visit.check()


# ---------------------------------------------------------------- single ones


def test_paper_shows_the_present_state(opened):
    with opened("recurrence") as figure:
        figure.move_sliders()
        words = [label for label, _ in figure.settled()]
        figure.page.emulate_media(media="print")
        assert [label for label, _ in figure.settled()] == words
        assert not figure.root.locator(".lx-buttons").is_visible()
        assert figure.root.locator(".lx-control output").first.is_visible()
        figure.visit.check()


def test_maps_of_heads_are_what_was_measured(opened):
    """The picture of a head has the attention of that head, and says whether answers are right."""
    config = transformer.Config()
    with opened("transformer", hash="#transformer:length=128,head=2.3") as figure:
        labels = dict(zip(("rotary", "learned"), (a for a, _ in figure.settled()), strict=False))
        for encoding, label in labels.items():
            # The very unit whose value the page was built from.
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
        figure.visit.check()


def test_the_atlas_names_what_it_shows(opened):
    with opened("atlas") as figure:
        root = figure.root
        figure.control("second").select_option("alibi")
        figure.settled()
        assert root.locator(".lx-table thead th").all_inner_texts() == ["rotary", "alibi"]
        assert root.locator(".lx-legend span").all_inner_texts() == ["rotary", "alibi"]
        assert root.get_by_text("alibi: kernel").is_visible()
        rows = root.locator(".lx-table tbody tr")
        filled = root.locator(".lx-table tbody tr:has(td:nth-child(3):not(:empty))")
        assert rows.count() == filled.count() > 0
        figure.visit.check()


@pytest.mark.parametrize("name", ["carrier", "recurrence"])
def test_play_moves_until_it_is_stopped(opened, name):
    # The shared reader wants no motion; what the button then does is tested with all controls.
    with opened(name, fresh=True, reduced_motion="no-preference") as figure:
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
        figure.visit.check()


def test_a_reload_keeps_the_state_and_broken_addresses_and_anchors_are_harmless(opened):
    with opened("task") as figure:
        page, length, offset = figure.page, figure.control("length"), figure.control("offset")
        figure.move_sliders()
        wanted = figure.settled()
        page.reload(wait_until="load")
        figure.visit.settle()
        assert figure.settled() == wanted
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
        figure.visit.check()


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
    figure = Figure(SimpleNamespace(page=page), "linear")
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
