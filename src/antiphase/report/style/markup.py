"""The templates of the pages, and figures embedded in them."""

import base64
import re
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup, escape
from matplotlib.figure import Figure

from antiphase.report.style.figures import as_pdf, as_png, as_svg, inline_svg


def environment() -> Environment:
    """Return the templates, with what they use."""
    found = Environment(
        loader=PackageLoader("antiphase.report"), autoescape=True, undefined=StrictUndefined, trim_blocks=True
    )
    found.filters["breakable"] = _breakable
    return found


def embedded(figure: Figure, name: str, description: str) -> dict[str, Any]:
    """Return a figure for a page: inline, and as files to take away.

    Args:
        figure: what is drawn.
        name: that no other figure of the page has; letters, digits, "-" and "_".
        description: what a screen reader says.
    """
    svg = as_svg(figure)
    files = {"svg": svg.encode(), "png": as_png(figure), "pdf": as_pdf(figure)}
    types = {"svg": "image/svg+xml", "png": "image/png", "pdf": "application/pdf"}
    return {
        "name": name,
        "svg": Markup(inline_svg(svg, name, description)),
        "files": files,
        "downloads": {
            ending: f"data:{types[ending]};base64,{base64.b64encode(content).decode()}"
            for ending, content in files.items()
        },
    }


def _breakable(text: str) -> Markup:
    """Let a path-like name break after its separators, where it would else run out of a narrow screen."""
    return Markup(re.sub(r"(?<=[/_.:])(?=[^\W\d])", "<wbr>", str(escape(text))))
