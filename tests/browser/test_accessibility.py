"""Every page of the built book without serious faults of accessibility, by axe-core."""

import json

import pytest
from built import ADDED, CHAPTERS, SCHEMES, every_page

RULES_OF_COLOUR = ["color-contrast", "link-in-text-block"]


@pytest.fixture(scope="session")
def axe(needed):
    return needed("axe_playwright_python.sync_playwright").Axe()


def grave(axe, page, **options) -> list[str]:
    """Serious and critical accessibility faults of an open page, with the elements concerned."""
    # Style sheets would be fetched for a rule on phones held sideways, which is off by default.
    options = {"resultTypes": ["violations"], "preload": False} | options
    return [
        f"{fault['impact']} {fault['id']}: {fault['help']}\n"
        + "\n".join(f"  {n['html'][:160]}\n  {n['failureSummary']}" for n in fault["nodes"][:4])
        for fault in axe.run(page, options=options).response["violations"]
        if fault["impact"] in ("serious", "critical")
    ]


# Most of a page's elements are shapes of drawings, parts of formulas and tokens of code. axe has
# nothing to say of a shape without a name, a role or a link, of the contrast of text in a drawing,
# nor of the inside of MathML, but takes its time for each. And of the tokens of code that agree in
# all classes and inline styles, whatever the colour scheme, one stays an element.
THIN = """() => {
    const named = "a, title, desc, [role], [tabindex], [aria-label], [aria-hidden], [onclick]";
    const drawings = [...document.querySelectorAll("svg, math")];
    const drawn = drawings.filter((e) => !e.querySelector(named));
    const parts = drawn.map((e) => [e, [...e.childNodes]]);
    for (const e of drawn) e.replaceChildren(...(e.matches("math") ? [e.textContent] : []));
    const path = (e) => e && `${path(e.parentElement)}>${e.className}/${e.style.cssText}`;
    const seen = new Set(), tokens = [];
    for (const token of document.querySelectorAll("pre span:not(:has(*))")) {
        const look = path(token);
        if (!seen.has(look)) seen.add(look);
        else {
            const words = document.createTextNode(token.textContent);
            token.replaceWith(words);
            tokens.push([words, token]);
        }
    }
    window.whole = () => {
        for (const [words, token] of tokens) words.replaceWith(token);
        for (const [e, inside] of parts) e.replaceChildren(...inside);
    };
}"""

# axe measures the contrast of each text for milliseconds. A text in the flow lies over the grounds
# of its ancestors and nothing else: of those in one positioned box that agree in all that decides
# contrast, one is measured. A text that is itself placed outside the flow always is.
MARK_LOOKALIKES = """() => {
    const flows = (s) => ["static", "relative"].includes(s.position) && s.float === "none";
    const grounds = new Map([[null, ""]]);
    const ground = (element) => {
        if (!grounds.has(element)) {
            const s = getComputedStyle(element);
            const own = [s.backgroundColor, s.backgroundImage, s.opacity, s.filter, s.mixBlendMode];
            if (!flows(s)) own.push(grounds.size); // another box
            grounds.set(element, `${own}/${ground(element.parentElement)}`);
        }
        return grounds.get(element);
    };
    const seen = new Set();
    for (const element of document.querySelectorAll("body *")) {
        const text = [...element.childNodes].some((n) => n.nodeType === 3 && n.data.trim());
        const s = text && getComputedStyle(element);
        const look = text && flows(s) && [s.color, s.fontSize, s.fontWeight, s.textShadow,
            s.visibility, element.getClientRects().length > 0, ground(element)].join();
        element.toggleAttribute("data-lookalike", seen.has(look));
        if (look) seen.add(look);
    }
}"""


def contrast_axe(axe):
    """axe, with the contrast of look-alikes left out."""
    rule = {"id": "color-contrast", "selector": "*:not([data-lookalike])"}
    return type(axe)(f"{axe.axe_script};axe.configure({json.dumps({'rules': [rule]})});")


# The theme changes colours and nothing else, and what a phone does not show of a page, its sidebars
# and outline, is alike on all of one kind: at a desk, one page of each kind is seen in the dark.
DARK_AT_A_DESK = (CHAPTERS[0], next(p for p in CHAPTERS if p.startswith("notebooks/")), *ADDED)


@pytest.mark.parametrize("way", ["desk", "phone"])
@every_page
def test_page_is_accessible(opened, axe, path, way):
    looks = {"light": {}} if way == "desk" else {"dark": {}}
    if way == "desk" and path in DARK_AT_A_DESK:
        looks["dark"] = {"runOnly": RULES_OF_COLOUR}
    axe = contrast_axe(axe)
    with opened(way, path) as visit:
        visit.unfold()  # what is folded is read as well
        visit.page.evaluate(THIN)
        for scheme, options in looks.items():
            visit.set_scheme(scheme)
            visit.page.evaluate(MARK_LOOKALIKES)
            faults = grave(axe, visit.page, **options)
            assert faults == [], "\n".join(faults)
        visit.page.evaluate("whole()")


def test_words_that_were_searched_for_are_legible(visiting, axe):
    with visiting() as visit:
        # As the search page leaves it behind.
        visit.page.add_init_script("localStorage.setItem('sphinx_highlight_terms', 'the')")
        visit.open(CHAPTERS[0])
        visit.page.locator(".bd-article mark").first.wait_for()
        visit.page.evaluate(THIN)
        for scheme in SCHEMES:
            visit.set_scheme(scheme)
            faults = grave(axe, visit.page, runOnly=["color-contrast"])
            assert faults == [], "\n".join(faults)
        visit.check()


WORDS = f"<pre>{'<span>word</span> ' * 20}</pre>"
PARAGRAPHS = "<p>words</p>" * 20
CELLS = f"<table><tr>{'<td>cell</td>' * 20}</tr></table>"


SPOILS = ("", ' style="color: #999"', ' style="background: #555"', ' style="opacity: 0.4"')


@pytest.mark.parametrize(
    ("tag", "whole"),
    [("pre", WORDS), ("span", WORDS), ("tr", CELLS), ("td", CELLS), ("p", PARAGRAPHS)],
)
def test_one_weak_contrast_is_found_among_lookalikes(visiting, axe, tag, whole):
    axe, (before, after) = contrast_axe(axe), whole.rsplit(f"<{tag}>", 1)
    with visiting() as visit:
        for spoil in SPOILS:
            visit.page.set_content(f"<main>{whole}{before}<{tag}{spoil}>{after}</main>")
            visit.page.evaluate(THIN)
            visit.page.evaluate(MARK_LOOKALIKES)
            assert visit.page.locator("body *:not([data-lookalike])").count() < 10
            faults = grave(axe, visit.page, runOnly=["color-contrast"])
            wanted = ["serious color-contrast"] if spoil else []
            assert [fault.split(":")[0] for fault in faults] == wanted, spoil
