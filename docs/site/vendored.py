"""MathJax as a file of the site: equations need no request to another host."""

from importlib.metadata import files
from pathlib import Path


def mathjax() -> Path:
    """Return MathJax's script, which the package django-static-mathjax brings."""
    (script,) = (path for path in files("django-static-mathjax") or () if path.match("es5/tex-svg.js"))
    return Path(str(script.locate()))
