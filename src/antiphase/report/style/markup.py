"""Templates of the pages, and embedding of figures."""

import base64
import re
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup, escape
from matplotlib.figure import Figure

from antiphase.report.style.figures import as_pdf, as_png, as_svg, inline_svg


def environment() -> Environment:
    """Return the template environment with its filters."""
    found = Environment(
        loader=PackageLoader("antiphase.report"), autoescape=True, undefined=StrictUndefined, trim_blocks=True
    )
    found.filters["breakable"] = _breakable
    return found


def embedded(figure: Figure, name: str, description: str) -> dict[str, Any]:
    """Return a figure for a page: inline SVG and downloads.

    Args:
        figure: the figure.
        name: a name unique on the page; letters, digits, "-" and "_".
        description: text for screen readers.
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
    """Allow line breaks after the separators of path-like names, for narrow screens."""
    return Markup(re.sub(r"(?<=[/_.:])(?=[^\W\d])", "<wbr>", str(escape(text))))
