"""What this book needs beyond Jupyter Book: sealed pages, themed figures, chapters run once.

* **Sealed pages.** Every page carries a Content-Security-Policy, so that a browser refuses anything
  from another server, and what the tool chain would fetch from one is taken out.
* **Themed figures.** Matplotlib's SVG pictures are set into the page, their black, white, grey and
  encoding colours replaced by the theme's variables: one picture, right in light and in dark.
* **Chapters run once.** `make book` runs the chapters side by side, as tests, and the pages show
  these very runs. A build without it runs each chapter itself.
* **Light pages.** What a page need not wait for is taken out of its way (light_pages.py).
* **Published results.** `results/*.json` is copied beside the pages, for readers to download.

The rest mends faults of the tool chain itself; each says which.
"""

from __future__ import annotations

import base64
import hashlib
import html
import json
import os
import re
import shutil
from pathlib import Path
from typing import Any

from docutils import nodes
from sphinx.application import Sphinx
from sphinx.errors import ExtensionError
from sphinx.util import logging

LOGGER = logging.getLogger(__name__)

CONTENT_SECURITY_POLICY = "; ".join(
    [
        "default-src 'self'",
        "script-src 'self' 'unsafe-inline' blob:",  # explorables are imported from a blob
        "style-src 'self' 'unsafe-inline'",
        "img-src 'self' data: blob:",
        "font-src 'self' data:",
        "connect-src 'self'",
        "object-src 'none'",
        "base-uri 'self'",
        "form-action 'self'",
    ]
)
CSP_META = (
    f'<meta http-equiv="Content-Security-Policy" content="{html.escape(CONTENT_SECURITY_POLICY)}">'
)

# A Matplotlib figure's colours that follow the theme (book.css defines the variables).
# The last six are the encodings' colours, the same in figures and explorables.
THEMED_COLOURS = {
    "#000000": "currentColor",
    "black": "currentColor",
    "#ffffff": "var(--pst-color-background)",
    "white": "var(--pst-color-background)",
    "#b0b0b0": "var(--lg-rule)",  # Matplotlib's grid
    "#cccccc": "var(--lg-rule)",  # ... and legend frame
    "#0072b2": "var(--lg-rotary)",
    "#d55e00": "var(--lg-learned)",
    "#e69f00": "var(--lg-learned-random-offset)",
    "#777777": "var(--lg-none)",
    "#cc79a7": "var(--lg-sinusoidal)",
    "#00805a": "var(--lg-bias)",
}
COLOUR_PROPERTY = re.compile(r"\b(fill|stroke|stop-color)(:\s*|=\")(#[0-9a-fA-F]{6}|black|white)\b")

REDIRECT = """\
<!DOCTYPE html>
<html lang="{language}">
<head>
<meta charset="utf-8">
{csp}
<meta http-equiv="refresh" content="0; url={target}">
<meta name="viewport" content="width=device-width, initial-scale=1">
<link rel="icon" href="_static/{favicon}">
<title>{title}</title>
</head>
<body><p><a href="{target}">{title}</a></p></body>
</html>
"""


def themed_svg(source: str, label: str, key: str) -> str:
    """Return a Matplotlib SVG as an element of the page that follows its theme.

    Args:
        source: the file's text.
        label: the text alternative.
        key: made part of every id, since two figures of one page may share their ids.
    """
    body = source[source.index("<svg") :]
    body = re.sub(r"<metadata>.*?</metadata>", "", body, flags=re.DOTALL)
    # Matplotlib's <style> is meant for its own document; here it would apply to the whole page.
    body = re.sub(r"<style\b.*?</style>", "", body, flags=re.DOTALL)
    body = re.sub(r"<!--.*?-->", "", body, flags=re.DOTALL)
    body = re.sub(r'\bid="', f'id="{key}-', body)
    body = re.sub(r'href="#', f'href="#{key}-', body)
    body = re.sub(r"url\(#", f"url(#{key}-", body)
    body = COLOUR_PROPERTY.sub(lambda m: m[1] + m[2] + THEMED_COLOURS.get(m[3].lower(), m[3]), body)
    head, rest = body.split(">", 1)
    view_box = re.search(r'viewBox="([^"]+)"', head)
    if view_box is None:
        raise ValueError(f"figure {key} has no viewBox")
    width, height = (float(n) * 4 / 3 for n in view_box[1].split()[2:])  # points to CSS pixels
    return (
        f'<span class="lg-scroll"><svg class="lg-figure" role="img" '
        f'aria-label="{html.escape(label)}" '
        f'viewBox="{view_box[1]}" '
        f'style="max-width: {width:.0f}px; aspect-ratio: {width:.0f} / {height:.0f}" '
        f'xmlns:xlink="http://www.w3.org/1999/xlink">{rest.rstrip()}</span>'
    )


DATA_FIGURE = re.compile(
    r'<img class="lg-figure"[^>]*\bsrc="data:image/svg\+xml;base64,([^"]+)"[^>]*>'
)


def inline_figures(app: Sphinx, pagename: str, body: str) -> str:
    """Replace the page's Matplotlib `<img>` by the picture itself."""
    sources = {target: Path(app.srcdir, uri) for uri, target in app.builder.images.items()}
    counter = 0

    def replace(match: re.Match[str]) -> str:
        tag = match[0]
        path = sources.get(html.unescape(match[1]))
        if path is None:
            return tag
        source = path.read_text(encoding="utf8")
        return tag if "matplotlib" not in source[:2000].lower() else themed(tag, source)

    def set_in(match: re.Match[str]) -> str:
        return themed(match[0], base64.b64decode(match[1]).decode())

    def themed(tag: str, source: str) -> str:
        nonlocal counter
        alt = re.search(r'\balt="([^"]*)"', tag)
        label = html.unescape(alt[1]) if alt else ""
        if not label or label.endswith(".svg"):  # myst-nb falls back on the file's name
            LOGGER.warning("figure %d has no alternative text", counter + 1, location=pagename)
        counter += 1
        page = hashlib.sha256(pagename.encode()).hexdigest()[:6]
        return themed_svg(source, label, f"f{page}{counter}")

    body = re.sub(r'<img\b[^>]*\bsrc="(?:[^"]*/)?_images/([^"/]+\.svg)"[^>]*>', replace, body)
    return DATA_FIGURE.sub(set_in, body)  # the pictures that live panels carry along


def mend_body(body: str) -> str:
    """Cure the tool chain's own accessibility faults in a page's content."""
    # docutils: a list whose children are not list items (bibliography).
    if 'class="citation-list"' in body:
        body = body.replace('role="doc-biblioentry"', 'role="listitem"')
    # sphinx-proof: all statements' contents share one id, and so do all proofs without a label.
    body = body.replace(' id="proof-content"', "").replace(
        '<div class="proof admonition" id="proof">', '<div class="proof admonition">'
    )
    return re.sub(
        r'(<div class="proof admonition"[^>]*>\s*<p>)Proof\. ', r"\1<em>Proof.</em> ", body
    )


def is_foreign_or_dead(script: Any) -> bool:
    """Tell whether a page does not need a script.

    sphinx-thebe names a file on another server on every page, twice, used or not; and the widgets'
    state repeats every explorable's module for a kernel that a static page does not have.
    """
    attributes = getattr(script, "attributes", {})
    text = str(attributes.get("body") or "")
    name = str(getattr(script, "filename", script) or "")
    return (
        "THEBE_JS_URL" in text
        or "thebe" in name
        or "vnd.jupyter.widget-state" in str(attributes.get("type"))
    )


def prepare_page(
    app: Sphinx,
    pagename: str,
    templatename: str,
    context: dict[str, Any],
    doctree: nodes.document | None,
) -> None:
    """Seal a page and set its figures (`html-page-context`, after every other extension)."""
    context["metatags"] = CSP_META + context.get("metatags", "")
    context["script_files"] = [s for s in context["script_files"] if not is_foreign_or_dead(s)]
    context["css_files"] = [s for s in context["css_files"] if not is_foreign_or_dead(s)]
    if "body" in context:
        body = re.sub(
            r'<script type="application/vnd\.jupyter\.widget-state\+json">.*?</script>',
            "",
            context["body"],
            flags=re.DOTALL,
        )
        context["body"] = mend_body(inline_figures(app, pagename, body))


def take_executed_chapter(app: Sphinx, docname: str, source: list[str]) -> None:
    """Take a notebook's outputs from the folder that `make book` names (`source-read`).

    Raises:
        ExtensionError: what was run is not the notebook as it stands.
    """
    folder = os.environ.get("LENGTHGEN_CHAPTERS")
    if not folder or Path(app.env.doc2path(docname)).suffix != ".ipynb":
        return
    path = Path(folder, f"{Path(docname).name}.ipynb")
    chapter, executed = json.loads(source[0]), json.loads(path.read_text(encoding="utf8"))
    cells = [
        [(c["cell_type"], "".join(c["source"])) for c in n["cells"]] for n in (chapter, executed)
    ]
    if cells[0] != cells[1]:
        raise ExtensionError(f"{docname}.ipynb was changed after it was run: `make book` again")
    for cell, run in zip(chapter["cells"], executed["cells"], strict=True):
        if cell["cell_type"] == "code":
            cell["outputs"], cell["execution_count"] = run["outputs"], run["execution_count"]
    chapter["metadata"].setdefault("mystnb", {})["execution_mode"] = "off"
    source[0] = json.dumps(chapter)


def without_repository_no_buttons(app: Sphinx) -> None:
    """Leave the launch buttons out until `_config.yml` names a repository."""
    options = app.config.html_theme_options
    if not options.get("repository_url"):
        options.pop("launch_buttons", None)
        options.pop("repository_url", None)


def publish(app: Sphinx, exception: Exception | None) -> None:
    """Write the entry page and copy the frozen results."""
    if exception is not None or app.builder.format != "html":
        return
    out = Path(app.outdir)
    results = sorted(Path(app.srcdir, "results").glob("*.json"))
    for path in results:
        (out / "results").mkdir(exist_ok=True)
        shutil.copyfile(path, out / "results" / path.name)
    # Written before the tool writes its bare redirect, which it then leaves out.
    (out / "index.html").write_text(
        REDIRECT.format(
            language=app.config.language or "en",
            csp=CSP_META,
            target=app.builder.get_target_uri(app.config.master_doc),
            favicon=Path(app.config.html_favicon).name,
            title=html.escape(app.config.html_title),
        ),
        encoding="utf8",
    )


def setup(app: Sphinx) -> dict[str, bool]:
    app.setup_extension("numbered_explorables")
    app.setup_extension("light_pages")
    app.connect("source-read", take_executed_chapter)
    app.connect("builder-inited", without_repository_no_buttons, priority=1)
    app.connect("html-page-context", prepare_page, priority=990)
    app.connect("build-finished", publish, priority=1)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
