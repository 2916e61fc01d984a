"""An explorable of an open page, and how a reader moves it by mouse, keyboard or finger."""

from playwright.sync_api import Locator

# What must be moved first for a control to have something to say.
FIRST = {
    ("equivariance", "rounded"): {"shift": "End"},
    ("pinning", "source"): {"operation": "copy"},
    ("pinning", "destination"): {"operation": "copy"},
    ("carrier", "play"): {"time": "Home"},
    ("recurrence", "play"): {"time": "Home"},
}

# Wait until nothing moves any more, half a minute of frames and more; a rest comes within a second.
# Pictures are long, so a picture is named by its place among those that this page has shown.
SEEN = """async (root, whole) => {
    for (let frames = 0; frames < 2 || root.getAttribute("aria-busy") === "true"; frames++) {
        if (frames > 3000) return null;
        await new Promise(requestAnimationFrame);
    }
    const shown = (window.picturesShown ??= new Map());
    return [...root.querySelectorAll(".lx-picture svg")].map((svg) => {
        const picture = svg.innerHTML;
        if (!shown.has(picture)) shown.set(picture, shown.size);
        return [svg.getAttribute("aria-label"), whole ? picture : shown.get(picture)];
    });
}"""

# All that a reader must know of a control to move it, once it is in view.
CONTROL = """(element) => {
    element.scrollIntoView({ block: "center" });
    const { x, y, width, height } = element.getBoundingClientRect();
    const far = +(element.value - element.min < (element.max - element.min) / 2);
    const said = element.parentElement.querySelector("output")?.textContent;
    const room = element.closest("[data-explorable]").offsetHeight;
    return { kind: element.type, x, y: y + height / 2, width, far, said, room };
}"""


class Figure:
    """An explorable of an open page, and how a reader moves it."""

    def __init__(self, page, name: str) -> None:
        self.page, self.name = page, name
        self.root = page.locator(f'[data-explorable="{name}"]')

    def settled(self, whole: bool = False) -> list:
        """What the text alternatives and the pictures are once nothing moves any more.

        A picture is given by its number on this page, or else as a whole.
        """
        seen = self.root.evaluate(SEEN, whole)
        assert seen is not None, "the pictures never come to rest"
        return seen

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

    def about(self, control: str) -> dict:
        """Kind and place of a control, what it says, and the end of a slider that is farther."""
        return self.control(control).evaluate(CONTROL)

    def prepare(self, control: str, seen: list) -> list:
        """Move what must be moved first; returns what is then seen."""
        for other, value in FIRST.get((self.name, control), {}).items():
            if self.about(other)["kind"] == "range":
                self.control(other).press(value)
            else:
                self.control(other).select_option(value)
            seen = self.settled()
        return seen

    def choose_another(self, control: str) -> None:
        """Choose from a menu. The list itself is the browser's, outside the page."""
        element = self.control(control)
        element.select_option(index=element.evaluate("e => (e.selectedIndex || e.length) - 1"))

    def by_mouse(self, control: str) -> None:
        at, mouse = self.about(control), self.page.mouse
        middle = at["x"] + at["width"] / 2
        if at["kind"] == "select-one":
            self.choose_another(control)
        elif at["kind"] == "range":
            mouse.move(middle, at["y"])
            mouse.down()
            mouse.move(at["x"] + at["width"] * (0.25 + 0.5 * at["far"]), at["y"])
            mouse.up()
        elif at["kind"] == "text":
            mouse.click(middle, at["y"], click_count=3)
            self.page.keyboard.type("abcdefgh")
        else:
            mouse.click(middle, at["y"])

    def by_keyboard(self, control: str) -> None:
        at, element, keyboard = self.about(control), self.control(control), self.page.keyboard
        element.focus()
        if at["kind"] == "text":
            keyboard.press("Control+A")
            keyboard.type("ponmlkji")
        elif at["kind"] in ("checkbox", "button"):
            keyboard.press("Space")
        elif at["kind"] == "select-one":
            last = element.evaluate("e => e.selectedIndex === e.length - 1")
            keyboard.press("Home" if last else "End")  # a neighbour may look the same
        else:
            keyboard.press("PageUp" if at["far"] else "PageDown")

    def by_finger(self, control: str) -> None:
        """Tap; on a slider put the finger down in its middle and draw it to the farther end."""
        at = self.about(control)
        middle = at["x"] + at["width"] / 2
        if at["kind"] == "select-one":
            self.choose_another(control)
        elif at["kind"] == "range":
            to = at["x"] + at["width"] * (0.02 + 0.96 * at["far"])
            session = self.page.context.new_cdp_session(self.page)
            for kind, x in (
                ("touchStart", middle),
                ("touchMove", (middle + to) / 2),
                ("touchMove", to),
                ("touchEnd", None),
            ):
                points = [] if x is None else [{"x": x, "y": at["y"]}]
                session.send("Input.dispatchTouchEvent", {"type": kind, "touchPoints": points})
            session.detach()
        else:
            self.page.touchscreen.tap(middle, at["y"])
            if at["kind"] == "text":
                self.page.keyboard.type("hgfedcba")

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
