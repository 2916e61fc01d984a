"""Print the built book as one document: `python book/_ext/pdf.py OUT.pdf`.

Every page is opened as a reader opens it. Once its mathematics and explorables are drawn its text
is taken out, and the texts of all pages are printed as one: page numbers run on, links lead to the
place within the document, and what can be moved on the screen shows its present state.
"""

import os
import sys
from pathlib import Path
from typing import Any

import yaml
from chromium import ARGUMENTS, NAMES, find_chromium
from playwright.sync_api import Page, sync_playwright

ROOT = Path(__file__).resolve().parents[2]
SITE = ROOT / "_build" / "html"
WIDTH = 660  # CSS pixels between the margins of an A4 page
MARGIN = {"top": "18mm", "bottom": "20mm", "left": "17.5mm", "right": "17.5mm"}
FOOTER = (
    '<div style="font: 8pt sans-serif; width: 100%; text-align: center">'
    '<span class="pageNumber"></span></div>'
)

DRAWN = """() => document.readyState === "complete"
    && [...document.querySelectorAll("[data-lx-mount]")].every((mount) => {
        const figure = mount.querySelector(".lx");
        return figure && figure.getAttribute("aria-busy") !== "true"
            && figure.querySelector(".lx-summary").textContent;
    })"""

# Returns the text of a page, self-contained: what a reader set becomes an attribute, names get the
# page's name in front, addresses of the book's pages become names, and those of other files go.
TAKE = """async (names) => {
    await lengthgenReady();
    await document.fonts.ready;
    const nameOf = (url) => names[decodeURI(url.pathname)];
    const here = nameOf(location), article = document.querySelector("article.bd-article");
    article.querySelectorAll("script, .headerlink").forEach((e) => e.remove());
    for (const e of article.querySelectorAll("input")) {
        e.setAttribute("value", e.value);
        e.toggleAttribute("checked", e.checked);
    }
    for (const e of article.querySelectorAll("option")) e.toggleAttribute("selected", e.selected);
    for (const e of article.querySelectorAll("details:not(.hide)")) e.open = true;
    for (const e of article.querySelectorAll("[id]"))
        if (!e.closest("svg")) e.id = `${here}--${e.id}`;
    for (const e of article.querySelectorAll(".lx-picture svg")) e.style.height = "auto";
    for (const e of article.querySelectorAll("img")) {
        e.loading = "eager";
        e.setAttribute("src", e.src);
    }
    for (const e of article.querySelectorAll("a[href]")) {
        if (e.protocol !== location.protocol) continue;
        const page = nameOf(e);
        if (page) e.setAttribute("href", e.hash ? `#${page}--${e.hash.slice(1)}` : `#${page}`);
        else e.removeAttribute("href");
    }
    article.id = here;
    return [article.outerHTML, document.querySelector("#MJX-SVG-styles")?.outerHTML ?? ""];
}"""

JOIN = """([title, texts, style]) => {
    document.title = title;
    document.head.insertAdjacentHTML("beforeend", style);
    document.body.innerHTML = texts.join("");
}"""
STYLE = """<style>
    html, body { background: none; margin: 0; scroll-padding: 0; }
    article.bd-article { display: block; max-width: none; padding: 0; }
    article.bd-article + article.bd-article { break-before: page; }
</style>"""


def contents() -> tuple[str, list[str]]:
    """Return the book's title and its pages in reading order.

    Raises:
        FileNotFoundError: a page has not been built.
    """
    toc, config = (
        yaml.safe_load((ROOT / name).read_text(encoding="utf8"))
        for name in ("_toc.yml", "_config.yml")
    )
    pages = [toc["root"], *(c["file"] for part in toc["parts"] for c in part["chapters"])]
    if missing := [page for page in pages if not (SITE / f"{page}.html").is_file()]:
        raise FileNotFoundError(f"{missing[0]}.html is not in {SITE}: run `make book` first")
    return config["title"], pages


def browser_path() -> str:
    """Return where a Chromium is.

    Raises:
        FileNotFoundError: there is none.
    """
    if path := find_chromium():
        return path
    names = os.environ.get("LENGTHGEN_CHROMIUM") or " or ".join(NAMES)
    raise FileNotFoundError(f"no {names} found: install Chromium, or name it in LENGTHGEN_CHROMIUM")


def take(page: Page, name: str, names: dict[str, str]) -> list[Any]:
    """Return the text of one page, all drawn, and the style of its mathematics."""
    page.goto((SITE / f"{name}.html").as_uri())
    page.wait_for_function(DRAWN)
    return page.evaluate(TAKE, names)


def main(out: Path) -> None:
    """Write the document, whole or not at all."""
    title, pages = contents()
    names = {str(SITE / f"{page}.html"): page.replace("/", "-") for page in pages}
    partial = out.with_suffix(".partial")
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=browser_path(), args=ARGUMENTS)
        page = browser.new_page(viewport={"width": WIDTH, "height": 900}, reduced_motion="reduce")
        page.set_default_timeout(120_000)  # for a busy machine
        page.emulate_media(media="print", color_scheme="light")
        taken = [take(page, name, names) for name in pages]
        page.goto((SITE / f"{pages[0]}.html").as_uri())
        style = next((style for _, style in taken if style), "") + STYLE
        page.evaluate(JOIN, [title, [text for text, _ in taken], style])
        page.pdf(
            path=partial,
            format="A4",
            margin=MARGIN,
            print_background=True,
            display_header_footer=True,
            header_template="<span></span>",
            footer_template=FOOTER,
            tagged=True,
            outline=True,
        )
        browser.close()
    partial.replace(out)
    print(f"{out} ({out.stat().st_size / 2**20:.1f} MiB)")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
