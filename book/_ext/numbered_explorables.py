"""Explorables have a number, as figures have, and `{numref}` finds one by `explorable-NAME`."""

from __future__ import annotations

import re
from typing import Any

from docutils import nodes
from sphinx.application import Sphinx
from sphinx.transforms import SphinxTransform


class explorable(nodes.General, nodes.Element):
    """What is around an explorable in a page: the place that has the number."""


class NumberExplorables(SphinxTransform):
    """Set every explorable into a node that Sphinx numbers."""

    default_priority = 400  # before Sphinx collects the names

    def apply(self, **kwargs: Any) -> None:
        """Wrap each output that holds an explorable's html."""
        for raw in list(self.document.findall(nodes.raw)):
            if found := re.match(r'<div data-lx-mount="(\w+)"', raw.astext()):
                bundle = raw.parent.parent  # all that the cell offers, html among it
                node = explorable(names=[f"explorable-{found[1]}"])
                self.document.note_explicit_target(node)
                bundle.replace_self(node)
                node += bundle


def visit_explorable(self: Any, node: nodes.Element) -> None:
    numbers = self.builder.fignumbers["explorable"][node["ids"][0]]
    number = self.config.numfig_format["explorable"] % ".".join(map(str, numbers))
    self.body.append(self.starttag(node, "div", CLASS="lg-explorable"))
    # The figure's script takes the number before its caption.
    self.body.append(f'<span class="lx-number">{number}: </span>')


def depart_explorable(self: Any, node: nodes.Element) -> None:
    self.body.append("</div>\n")


def name_explorables(app: Sphinx, config: Any) -> None:
    """Say how the number is written, unless `_config.yml` does."""
    config.numfig_format.setdefault("explorable", "Explorable %s")


def setup(app: Sphinx) -> dict[str, bool]:
    app.add_enumerable_node(explorable, "explorable", html=(visit_explorable, depart_explorable))
    app.add_transform(NumberExplorables)
    app.connect("config-inited", name_explorables, priority=900)  # after Sphinx's own formats
    return {"parallel_read_safe": True, "parallel_write_safe": True}
