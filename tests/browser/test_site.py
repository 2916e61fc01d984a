"""Every page of the built book, as a reader sees it."""

import json
import re
from pathlib import Path

import pytest
import yaml

ROOT = Path(__file__).resolve().parents[2]
SITE = ROOT / "_build" / "html"
SUBPATH = "/some/sub"
WIDTHS = {"desktop": 1280, "phone": 390}
SCHEMES = ("light", "dark")


def contents(node) -> list[str]:
    """The documents named anywhere in the table of contents, in its order."""
    if isinstance(node, dict):
        own = [node[key] for key in ("root", "file") if key in node]
        return own + [doc for value in node.values() for doc in contents(value)]
    if isinstance(node, list):
        return [doc for value in node for doc in contents(value)]
    return []


DOCUMENTS = contents(yaml.safe_load((ROOT / "_toc.yml").read_text(encoding="utf8")))
CHAPTERS = [f"{doc}.html" for doc in DOCUMENTS]
# Pages that the tool adds: search, the index of terms, the index of theorems, the redirect.
ADDED = ["search.html", "genindex.html"]
ADDED += [path.name for path in sorted(SITE.glob("*-*index.html"))]
PAGES = CHAPTERS + ADDED

every_page = pytest.mark.parametrize("path", PAGES)


def source_of(path: str) -> str:
    stem = ROOT / path.removesuffix(".html")
    for suffix in (".ipynb", ".md"):
        if stem.with_suffix(suffix).is_file():
            text = stem.with_suffix(suffix).read_text(encoding="utf8")
            if suffix == ".ipynb":
                cells = json.loads(text)["cells"]
                text = "\n".join(
                    "".join(c["source"]) for c in cells if c["cell_type"] == "markdown"
                )
            return text
    return ""


def set_theme(page, theme: str) -> None:
    """Press the page's own switch until it shows a theme."""
    for _ in range(3):  # light, dark, automatic
        if page.evaluate("document.documentElement.dataset.mode") == theme:
            break
        page.locator("button.theme-switch-button:visible").first.click()
    assert page.evaluate("document.documentElement.dataset.theme") == theme


# What one look at an open page can tell, in one call.
LOOK = """() => {
    const all = (selector) => [...document.querySelectorAll(selector)];
    const visible = (element) => element.getClientRects().length > 0;
    const shown = "img, svg, canvas, video, [data-explorable]";
    const ids = all(".bd-article [id]").map((e) => e.id);
    const root = document.documentElement;
    return {
        title: document.title,
        language: root.lang,
        theme: root.dataset.theme,
        text: document.body.innerText,
        images: [...document.images].map((image) => ({
            source: image.currentSrc || image.src,
            width: image.naturalWidth,
            // The logo is decoration: the book's title stands beside it.
            label: image.closest(".navbar-brand") ? "logo" : image.alt,
        })),
        figures: all("svg.lg-figure").map((figure) => ({
            label: figure.getAttribute("aria-label"),
            width: figure.getBoundingClientRect().width,
            height: figure.getBoundingClientRect().height,
        })),
        formulas: all("mjx-container").length,
        broken: all("mjx-container [data-mml-node='merror'], mjx-merror").length,
        raw: all(".bd-article .math")
            .filter((e) => !e.querySelector("mjx-container")).map((e) => e.textContent),
        stderr: all(".output.stderr, .output.traceback").length,
        empty: all(".cell_output")
            .filter((e) => visible(e) && !e.textContent.trim() && !e.querySelector(shown)).length,
        doubled: ids.filter((id, index) => ids.indexOf(id) !== index),
        wide: root.scrollWidth <= window.innerWidth ? [] : all("body *")
            .filter((e) => visible(e) && e.getBoundingClientRect().right > window.innerWidth + 1)
            .slice(0, 5).map((e) => e.outerHTML.slice(0, 120)),
        overflow: root.scrollWidth - window.innerWidth,
    };
}"""


@pytest.mark.parametrize("device", WIDTHS)
@every_page
def test_page_opens_whole(visiting, path, device):
    with visiting(width=WIDTHS[device]) as visit:
        visit.open(path)
        for scheme in SCHEMES:
            visit.page.emulate_media(color_scheme=scheme)
            visit.settle()
            check_look(visit.page.evaluate(LOOK), path, scheme)
        visit.check()


def check_look(seen: dict, path: str, scheme: str) -> None:
    assert seen["title"] and "no title" not in seen["title"].lower()
    assert seen["language"] == "en"
    assert seen["theme"] == scheme, "the page does not follow the reader's colour scheme"
    for fault in ("Traceback (most recent call last)", "<no title>", "application/vnd.jupyter"):
        assert fault not in seen["text"]
    assert seen["stderr"] == 0
    assert seen["empty"] == 0, "an output cell shows nothing"
    assert seen["doubled"] == [], "two elements share an id"

    for image in seen["images"]:
        assert image["width"] > 0, f"{image['source']} did not load"
        assert image["label"], f"{image['source']} has no text alternative"
    for figure in seen["figures"]:
        assert figure["label"] and not figure["label"].endswith(".svg"), "no text alternative"
        assert figure["width"] > 100 and figure["height"] > 50, figure

    assert seen["broken"] == 0, "a formula is not understood"
    assert seen["raw"] == [], "a formula is not typeset"
    if re.search(r"\$[^$\n]+\$|```\{math\}", source_of(path)):
        assert seen["formulas"] > 0
    assert seen["overflow"] <= 0, f"{seen['overflow']} px too wide: {seen['wide']}"


def test_the_ledger_is_a_list_of_cards_on_a_phone(visiting):
    with visiting(width=WIDTHS["phone"]) as visit:
        visit.open("book/claims.html")
        wide = "boxes => boxes.filter((b) => b.scrollWidth > b.clientWidth).length"
        boxes = visit.page.locator(".pst-scrollable-table-container:has(.lg-ledger)")
        assert boxes.count() > 0 and boxes.evaluate_all(wide) == 0
        labels = "cells => cells.map((c) => getComputedStyle(c, '::before').content)"
        row = visit.page.locator(".lg-ledger tbody tr").first
        seen = row.locator("td").evaluate_all(labels)
        room = """cells => cells.every((c) => parseFloat(getComputedStyle(c).paddingLeft)
            >= parseFloat(getComputedStyle(c, '::before').width))"""
        assert row.locator("td").evaluate_all(room), "the labels stand outside the box"
        heads = visit.page.locator(".lg-ledger").first.get_by_role("columnheader")
        assert [text.split('"')[1] for text in seen] == heads.all_inner_texts()[1:]
        visit.check()


def test_eighty_columns_of_code_fit_beside_both_sidebars(visiting):
    with visiting(width=WIDTHS["desktop"]) as visit:
        visit.open(next(path for path in CHAPTERS if path.startswith("notebooks/")))
        visit.page.evaluate("document.querySelectorAll('details').forEach((d) => d.open = true)")
        widths = """(selector) => {
            const pre = document.querySelector(selector);
            pre.textContent = "x".repeat(80);
            return [pre.scrollWidth, pre.clientWidth];
        }"""
        for selector in (".cell:not(.tag_hide-input) .cell_input pre", ".tag_hide-input pre"):
            needed, there = visit.page.evaluate(widths, selector)
            assert needed <= there, selector
        visit.check()


@every_page
def test_policy_comes_before_anything_that_loads(site, path):
    head = (site / path).read_text(encoding="utf8").split("</head>")[0]
    policy = head.index('http-equiv="Content-Security-Policy"')
    assert "default-src &#x27;self&#x27;" in head
    for tag in ("<script", "<link", "<style", "<base", "<img"):
        assert policy < head.find(tag) or tag not in head


def test_entry_page_leads_to_the_book(visiting, site):
    text = (site / "index.html").read_text(encoding="utf8")
    assert "Content-Security-Policy" in text and '<html lang="en">' in text
    with visiting() as visit:
        visit.page.goto(f"{visit.base}/")
        visit.page.wait_for_url(f"**/{CHAPTERS[0]}")
        visit.settle()
        visit.check()


def test_nothing_names_another_server_to_load_from(site):
    pattern = re.compile(r"""(?:\bsrc=|<link[^>]*\bhref=|@import\s|url\()\s*["']?(?:https?:)?//""")
    # Addresses that say where something is, but load nothing.
    harmless = re.compile(r'<link rel="(?:canonical|license)"[^>]*>')
    for path in site.rglob("*.html"):
        found = pattern.search(harmless.sub("", path.read_text(encoding="utf8")))
        assert found is None, f"{path.relative_to(site)}: {found[0]}"


def test_no_pickle_and_no_widget_state(site):
    assert not [p for p in site.rglob("*") if p.suffix in {".pkl", ".pickle", ".pt", ".pth"}]
    for path in site.rglob("*.html"):
        assert "vnd.jupyter.widget-state" not in path.read_text(encoding="utf8"), path


def test_results_are_published(site):
    for path in sorted((ROOT / "results").glob("*.json")):
        assert (site / "results" / path.name).read_bytes() == path.read_bytes()


@pytest.fixture(scope="session")
def axe():
    return pytest.importorskip("axe_playwright_python.sync_playwright").Axe()


def grave(axe, page, **options) -> list[str]:
    """Serious and critical accessibility faults of an open page, with the elements concerned."""
    return [
        f"{fault['impact']} {fault['id']}: {fault['help']}\n"
        + "\n".join(f"  {n['html'][:160]}\n  {n['failureSummary']}" for n in fault["nodes"][:4])
        for fault in axe.run(page, options={"resultTypes": ["violations"], **options}).response[
            "violations"
        ]
        if fault["impact"] in ("serious", "critical")
    ]


# Most of a chapter's text is words of code and cells of tables, and axe measures the contrast of
# each for milliseconds. Such words lie in the flow, over their ancestors' grounds and nothing else:
# of those that agree in all that decides contrast, one is measured. Any other text always is.
MARK_LOOKALIKES = """() => {
    const grounds = new Map([[null, ""]]);
    const ground = (element) => {
        if (!grounds.has(element)) {
            const s = getComputedStyle(element);
            const own = [s.backgroundColor, s.backgroundImage, s.opacity, s.filter, s.mixBlendMode];
            grounds.set(element, `${own}/${ground(element.parentElement)}`);
        }
        return grounds.get(element);
    };
    const seen = new Set();
    for (const element of document.querySelectorAll("pre span, table *")) {
        const s = getComputedStyle(element);
        const flows = s.position === "static" && s.float === "none";
        const look = [s.color, s.fontSize, s.fontWeight, s.textShadow, s.visibility,
            element.getClientRects().length > 0, ground(element)].join();
        const text = [...element.childNodes].some((n) => n.nodeType === 3 && n.data.trim());
        element.toggleAttribute("data-lookalike", flows && text && seen.has(look));
        if (flows && text) seen.add(look);
    }
}"""


def contrast_axe(axe):
    """axe, with the contrast of look-alikes left out."""
    rule = {"id": "color-contrast", "selector": "*:not([data-lookalike])"}
    return type(axe)(f"{axe.axe_script};axe.configure({json.dumps({'rules': [rule]})});")


def set_scheme(visit, scheme: str) -> None:
    """Change the reader's colour scheme, and mark what looks alike in it."""
    visit.page.emulate_media(color_scheme=scheme)
    visit.settle()
    assert visit.page.evaluate("document.documentElement.dataset.theme") == scheme
    visit.page.evaluate(MARK_LOOKALIKES)


@every_page
def test_page_is_accessible(visiting, axe, path):
    axe = contrast_axe(axe)
    with visiting() as visit:
        visit.open(path)
        # Folded parts are read as well.
        visit.page.evaluate("document.querySelectorAll('details').forEach((d) => d.open = true)")
        set_scheme(visit, "light")
        visit.check()  # before axe, which asks for style sheets by names of its own
        assert (faults := grave(axe, visit.page)) == [], "\n".join(faults)
        # The theme changes colours and nothing else.
        set_scheme(visit, "dark")
        assert (faults := grave(axe, visit.page, runOnly=["color-contrast"])) == [], "\n".join(
            faults
        )


WORDS = f"<pre>{'<span>word</span> ' * 20}</pre>"
CELLS = f"<table><tr>{'<td>cell</td>' * 20}</tr></table>"


@pytest.mark.parametrize("style", ["color: #999", "background: #555", "opacity: 0.4"])
@pytest.mark.parametrize(
    ("tag", "whole"), [("pre", WORDS), ("span", WORDS), ("tr", CELLS), ("td", CELLS)]
)
def test_one_weak_contrast_is_found_among_lookalikes(visiting, axe, tag, whole, style):
    before, after = whole.rsplit(f"<{tag}>", 1)
    with visiting() as visit:
        for spoiled in ("", f' style="{style}"'):
            visit.page.set_content(f"<main>{whole}{before}<{tag}{spoiled}>{after}</main>")
            visit.page.evaluate(MARK_LOOKALIKES)
            assert visit.page.locator("[data-lookalike]").count() > 0
            faults = grave(contrast_axe(axe), visit.page, runOnly=["color-contrast"])
            assert [fault.split(":")[0] for fault in faults] == ["serious color-contrast"] * bool(
                spoiled
            )


def test_theme_switch_changes_and_is_remembered(visiting):
    with visiting(fresh=True) as visit:
        visit.open(CHAPTERS[0])
        colours = set()
        for theme in SCHEMES:
            set_theme(visit.page, theme)
            colours.add(visit.page.evaluate("getComputedStyle(document.body).backgroundColor"))
        assert len(colours) == 2
        visit.open(CHAPTERS[-1])
        assert visit.page.evaluate("document.documentElement.dataset.theme") == SCHEMES[-1]
        visit.check()


def test_a_dark_page_is_printed_light(visiting):
    with visiting(scheme="dark") as visit:
        visit.open(CHAPTERS[0])
        for media, theme in [("print", "light"), ("screen", "dark")]:
            visit.page.emulate_media(media=media)
            visit.page.wait_for_function(
                "t => document.documentElement.dataset.theme == t", arg=theme
            )
        visit.check()


def a_word_of_the_first_page() -> str:
    """A long word of the book's first page."""
    text = re.sub(
        r"\A---.*?\n---\n|```.*?```|\$[^$]*\$|\{[^}]*\}`[^`]*`|[#*_]",
        " ",
        source_of(CHAPTERS[0]),
        flags=re.DOTALL,
    )
    return max(re.findall(r"\b[a-z]{4,14}\b", text), key=len)


@pytest.mark.parametrize(("prefix", "scheme"), [("", "light"), (SUBPATH, "dark")])
def test_search_finds_a_word(visiting, server, axe, prefix, scheme):
    word = a_word_of_the_first_page()
    with visiting(base=server + prefix, scheme=scheme) as visit:
        visit.open(f"search.html?q={word}")
        hits = visit.page.locator("#search-results ul.search li a")
        hits.first.wait_for()
        # The results come one by one; the summary line says when all are there.
        visit.page.wait_for_function(
            "!document.querySelector('#search-results')?.innerText.includes('Searching')"
        )
        links = hits.evaluate_all("links => links.map((a) => a.getAttribute('href'))")
        assert any(CHAPTERS[0] in link for link in links), f"{word}: {links}"
        hits.filter(visible=True).first.click()
        visit.page.locator(".bd-article mark").first.wait_for()
        marked = visit.page.locator(".bd-article mark").all_inner_texts()
        assert {text.lower() for text in marked} == {word}
        visit.settle()
        visit.check()
        assert (faults := grave(axe, visit.page, runOnly=["color-contrast"])) == [], "\n".join(
            faults
        )


@pytest.mark.parametrize("path", CHAPTERS)
def test_page_works_from_a_folder_of_a_server(visiting, server, path):
    with visiting(base=server + SUBPATH) as visit:
        visit.open(path)
        links = visit.page.locator("a.reference.internal, nav a").evaluate_all(
            "links => links.map((a) => a.href)"
        )
        assert all(link.startswith((server + SUBPATH, "http")) for link in links)
        escaped = [link for link in links if link.startswith(server) and SUBPATH not in link]
        assert escaped == [], "a link leaves the folder"
        assert visit.page.locator(".bd-article h1").first.inner_text()
        visit.check()


@pytest.mark.parametrize("path", CHAPTERS)
def test_page_works_from_the_disk(visiting, site, path):
    with visiting(base=site.as_uri()) as visit:
        visit.open(path)
        seen = visit.page.evaluate(LOOK)
        assert seen["raw"] == [] and seen["broken"] == 0
        assert all(image["width"] > 0 for image in seen["images"])
        visit.check()


def test_search_works_from_the_disk(visiting, site):
    word = a_word_of_the_first_page()
    # The one exception: a page from the disk may not read the pages it takes excerpts from.
    tolerated = ("CORS policy", "Failed to fetch", "net::ERR_FAILED")
    with visiting(base=site.as_uri(), tolerate=tolerated) as visit:
        visit.open(f"search.html?q={word}")
        visit.page.locator("#search-results ul.search li a").first.wait_for()
        visit.check()


@pytest.mark.parametrize("path", CHAPTERS)
def test_links_inside_the_book_lead_somewhere(site, path):
    text = (site / path).read_text(encoding="utf8")
    for link in re.findall(r'<a\b[^>]*\bhref="([^"]+)"', text):
        if re.match(r"[a-z]+:|//", link):
            continue
        name, _, anchor = link.partition("#")
        target = ((site / path).parent / name.split("?")[0]).resolve() if name else site / path
        assert target.exists(), f"{link} on {path}"
        if anchor and target.suffix == ".html":
            goal = target.read_text(encoding="utf8")
            assert re.search(rf"""\bid=["']?{re.escape(anchor)}["'\s>]""", goal), (
                f"{link} on {path}"
            )
