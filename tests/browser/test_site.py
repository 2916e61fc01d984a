"""Every page of the built book, as a reader sees it."""

import json
import re

import pytest
from built import (
    CHAPTERS,
    ROOT,
    SCHEMES,
    SUBPATH,
    every_chapter,
    every_page,
    every_way,
    on_page,
)


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


@every_way
@every_page
def test_page_opens_whole(opened, path, way):
    with opened(way, path) as visit:
        for scheme in SCHEMES:
            visit.set_scheme(scheme)
            check_look(visit.page.evaluate(LOOK), path, scheme)


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


@on_page("book/claims.html")
def test_the_ledger_is_a_list_of_cards_on_a_phone(opened, path):
    with opened("phone", path) as visit:
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


FIRST_CHAPTER = next(path for path in CHAPTERS if path.startswith("notebooks/"))


@on_page(FIRST_CHAPTER)
def test_eighty_columns_of_code_fit_beside_both_sidebars(opened, path):
    with opened("desk", path) as visit:
        visit.unfold()
        widths = """(selector) => {
            const pre = document.querySelector(selector);
            const kept = [...pre.childNodes];
            pre.textContent = "x".repeat(80);
            const found = [pre.scrollWidth, pre.clientWidth];
            pre.replaceChildren(...kept);
            return found;
        }"""
        for selector in (".cell:not(.tag_hide-input) .cell_input pre", ".tag_hide-input pre"):
            needed, there = visit.page.evaluate(widths, selector)
            assert needed <= there, selector


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


@on_page(CHAPTERS[0])
def test_a_dark_page_is_printed_light(opened, path):
    with opened("desk", path) as visit:
        visit.set_scheme("dark")
        for media, theme in [("print", "light"), ("screen", "dark")]:
            visit.page.emulate_media(media=media)
            visit.page.wait_for_function(
                "t => document.documentElement.dataset.theme == t", arg=theme
            )


def a_word_of_the_first_page() -> str:
    """A long word of the book's first page."""
    text = re.sub(
        r"\A---.*?\n---\n|```.*?```|\$[^$]*\$|\{[^}]*\}`[^`]*`|[#*_]",
        " ",
        source_of(CHAPTERS[0]),
        flags=re.DOTALL,
    )
    return max(re.findall(r"\b[a-z]{4,14}\b", text), key=len)


@pytest.mark.parametrize("prefix", ["", SUBPATH])
def test_search_finds_a_word(visiting, server, prefix):
    word = a_word_of_the_first_page()
    with visiting(base=server + prefix) as visit:
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
        visit.check()


@every_chapter
def test_links_stay_in_the_folder_of_a_server(opened, server, path):
    with opened("phone", path) as visit:
        links = visit.page.locator("a.reference.internal, nav a").evaluate_all(
            "links => links.map((a) => a.href)"
        )
        assert all(link.startswith((server + SUBPATH, "http")) for link in links)
        escaped = [link for link in links if link.startswith(server) and SUBPATH not in link]
        assert links and escaped == [], "a link leaves the folder"


def test_search_works_from_the_disk(visiting, site):
    word = a_word_of_the_first_page()
    # The one exception: a page from the disk may not read the pages it takes excerpts from.
    tolerated = ("CORS policy", "Failed to fetch", "net::ERR_FAILED")
    with visiting(base=site.as_uri(), tolerate=tolerated) as visit:
        visit.open(f"search.html?q={word}")
        visit.page.locator("#search-results ul.search li a").first.wait_for()
        visit.check()


@every_chapter
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
