"""Pages that answer soon: what a page need not carry is taken out, what can wait waits.

A reader who opens a chapter wants to read, and to move its figure. So that nothing stands before
that,

* icons are set into the page: no script of 1.5 MB has to look for them;
* scripts of the search are left to the search page (book.js marks the words it found);
* MathJax is loaded once the page can be used (book.js), other scripts once it is read;
* the theme's colours are chosen before the first style is computed, not after the last script.
"""

from __future__ import annotations

import re
from pathlib import Path

from sphinx.application import Sphinx
from sphinx.errors import ExtensionError

# What the head says first. The theme would choose light or dark in its last script, and every style
# be computed once more; fonts would be asked for when the text is there, and then move it. (From
# the disk a browser must not be asked for a font in advance.)
HEAD_SCRIPT = '<script data-cfasync="false">'
HEAD = """\
<!-- Icons: Font Awesome Free by Fonticons, Inc., CC BY 4.0 -->
  <script>
    if ((localStorage.getItem("mode") || "auto") === "auto")
      localStorage.setItem(
        "theme", matchMedia("(prefers-color-scheme: dark)").matches ? "dark" : "light");
    if (location.protocol.startsWith("http"))
      for (const font of ["source-serif-4", "source-sans-3"]) {
        const link = document.createElement("link");
        link.href = `ROOT_static/fonts/${font}-latin-wght-normal.woff2`;
        document.head.append(
          Object.assign(link, { rel: "preload", as: "font", crossOrigin: "anonymous" }));
      }
  </script>
  """
ICON = re.compile(r'<(i|span) class="([^"]*\bfa-[^"]*)"([^>]*)>\s*</\1>')
ICON_STYLES = {"fa-solid", "fa-lg"}
ICON_SCRIPT = re.compile(r'\s*<script [^>]*\bsrc="[^"]*/fontawesome\.js[^>]*></script>')
SEARCH_SCRIPT = re.compile(
    r'\s*<script src="[^"]*'
    r"(?:searchtools|language_data|searchindex|sphinx_highlight)\.js[^>]*></script>"
)
# Scripts in the page itself need the options at once.
EAGER_SCRIPT = re.compile(
    r"<script (?=[^>]*\bsrc=)(?![^>]*\b(?:defer|async)\b)(?![^>]*documentation_options)"
)
MATHJAX_SCRIPT = re.compile(r'<script [^>]*\bsrc="([^"]*/mathjax/[^"]*)"[^>]*></script>')


class Icons:
    """The solid icons of Font Awesome (CC BY 4.0), read from the theme's own copy."""

    def __init__(self, source: str) -> None:
        self.source = source
        self.known: dict[str, str] = {}

    def svg(self, name: str, classes: str, attributes: str) -> str:
        """Return an icon as an element of the page.

        Raises:
            ExtensionError: there is no icon of this name.
        """
        if name not in self.known:
            entry = rf'[,{{]"?{name}"?:\[(\d+),(\d+),\[[^\]]*\],"\w*","([^"]+)"\]'
            found = re.findall(entry, self.source)
            if not found:
                raise ExtensionError(f"the theme has no icon {name!r}")
            width, height, path = found[-1]  # regular icons come before solid ones
            self.known[name] = (
                f'viewBox="0 0 {width} {height}" aria-hidden="true">'
                f'<path fill="currentColor" d="{path}"/></svg>'
            )
        return f'<svg class="lg-icon {classes}"{attributes} {self.known[name]}'


def lighten(page: str, icons: Icons, is_search: bool = False) -> str:
    """Return a finished page without what it need not carry, or wait for."""

    def icon(match: re.Match[str]) -> str:
        classes = match[2].split()
        name = next(c for c in classes if c.startswith("fa-") and c not in ICON_STYLES)
        return icons.svg(name.removeprefix("fa-"), " ".join(classes), match[3])

    page = ICON_SCRIPT.sub("", ICON.sub(icon, page))
    root = re.search(r'data-content_root="([^"]*)"', page)
    head = HEAD.replace("ROOT", root[1] if root else "")
    page = page.replace(HEAD_SCRIPT, head + HEAD_SCRIPT, 1)
    if 'id="pst-secondary-sidebar"' in page:  # it comes last: book.css keeps its place
        page = page.replace('class="bd-content"', 'class="bd-content lg-with-contents"', 1)
    if not is_search:
        page = EAGER_SCRIPT.sub("<script defer ", SEARCH_SCRIPT.sub("", page))
    return MATHJAX_SCRIPT.sub(r'<script type="text/plain" data-lg-mathjax="\1"></script>', page)


def lighten_all(app: Sphinx, exception: Exception | None) -> None:
    """Lighten every page (`build-finished`, once the theme's parts are around the text)."""
    if exception is not None or app.builder.format != "html":
        return
    out = Path(app.outdir)
    font_awesome = out / "_static" / "scripts" / "fontawesome.js"
    icons = Icons(font_awesome.read_text(encoding="utf8"))
    font_awesome.unlink()
    for path in set(out.rglob("*.html")) - set((out / "_static").rglob("*.html")):
        text = path.read_text(encoding="utf8")
        path.write_text(lighten(text, icons, path.stem == "search"), encoding="utf8")


def setup(app: Sphinx) -> dict[str, bool]:
    app.connect("build-finished", lighten_all)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
