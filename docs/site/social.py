"""The card that other sites show with a link to this one."""

import io
import textwrap

import numpy as np
from matplotlib.figure import Figure


def social_card(words: str) -> bytes:
    """Return a PNG of 1200 × 630 pixels: the name, two waves in antiphase, and a sentence."""
    figure = Figure(figsize=(12, 6.3), facecolor="#15171a")
    axes = figure.add_axes((0, 0.1, 1, 0.32))
    axes.axis("off")
    x = np.linspace(0, 12 * np.pi, 1200)
    axes.plot(x, np.sin(x), color="#5bb4e5", lw=5)
    axes.plot(x, -np.sin(x), color="#f08a4b", lw=5)
    axes.margins(x=0)
    figure.text(0.06, 0.74, "antiphase", color="#ffffff", size=64, weight="bold")
    figure.text(0.06, 0.66, textwrap.fill(words, 58), color="#e8e6e1", size=26, va="top", linespacing=1.4)
    picture = io.BytesIO()
    figure.savefig(picture, format="png", dpi=100, facecolor=figure.get_facecolor())
    return picture.getvalue()
