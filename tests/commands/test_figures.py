import re

import numpy as np
import polars as pl
import pytest

from antiphase.report.figure import inline_svg, saved
from tests.commands.audits import audited


def draw(directory, metric="asr"):
    run = audited(directory)
    return run, run.rate_figure(metric)


@pytest.mark.parametrize("metric", ["asr", "robust_accuracy"])
def test_lines_and_bands_are_the_stored_numbers(twins, metric):
    run, figure = draw(twins, metric)
    (axes,) = figure.axes
    for line, band, model in zip(axes.lines, axes.collections, ["diffvit-0", "vit-0"], strict=True):
        rows = run.rates.filter((pl.col("model") == model) & (pl.col("metric") == metric))
        np.testing.assert_allclose(line.get_xdata(), rows["eps"])
        np.testing.assert_allclose(line.get_ydata(), 100 * rows["value"])
        heights = band.get_paths()[0].vertices[:, 1]
        np.testing.assert_allclose([heights.min(), heights.max()], [100 * rows["low"].min(), 100 * rows["high"].max()])


def test_seeds_are_thin_lines_of_their_familys_colour_below_one_mean(seeds):
    _, figure = draw(seeds)
    (axes,) = figure.axes
    assert [line.get_color() for line in axes.lines] == ["#D55E00"] * 4 + ["#0072B2"] * 4
    widths = [line.get_linewidth() for line in axes.lines[:4]]
    assert max(widths[:3]) < widths[3]
    mean = np.mean([line.get_ydata() for line in axes.lines[:3]], axis=0)
    np.testing.assert_allclose(axes.lines[3].get_ydata(), mean)
    assert [text.get_text() for text in axes.get_legend().get_texts()] == [
        "diffvit, mean of 3 seeds",
        "vit, mean of 3 seeds",
    ]


def test_a_single_eps_still_shows_its_interval(alone):
    run, figure = draw(alone)
    (axes,) = figure.axes
    (segment,) = axes.collections[0].get_segments()
    row = run.rates.row(by_predicate=pl.col("metric") == "asr", named=True)
    np.testing.assert_allclose(segment[:, 1], [100 * row["low"], 100 * row["high"]])


def test_each_attack_has_its_panel(tmp_path, make_run, make_rows):
    models = [("a", "softmax", None, 1.0)]
    rows = pl.concat([make_rows(models), make_rows(models, eps=(0.0, 0.3, 1.0), norm="l2")])
    _, figure = draw(make_run(tmp_path, models, [], rows=rows))
    assert [axes.get_title(loc="left") for axes in figure.axes] == ["PGD (L∞)", "PGD (L2)"]
    assert [axes.get_xscale() for axes in figure.axes] == ["log", "linear"]  # a log scale has no zero
    assert saved(figure, "png").startswith(b"\x89PNG")


def test_names_are_text_and_not_formulas(tmp_path, make_run):
    models = [("_$x$ \\frac{", "softmax", None, 1.0), ("y$", "differential", None, 1.0)]
    _, figure = draw(make_run(tmp_path, models, []))
    assert [text.get_text() for text in figure.axes[0].get_legend().get_texts()] == [m[0] for m in models]
    saved(figure, "svg")


def test_inline_figures_do_not_share_ids_and_keep_their_references(twins):
    svg = saved(draw(twins)[1], "svg").decode()
    pages = [inline_svg(svg, name, "a figure") for name in ("one", "two")]
    ids = [set(re.findall(r'\bid="([^"]+)"', page)) for page in pages]
    assert ids[0]
    assert not ids[0] & ids[1]
    for page, known in zip(pages, ids, strict=True):
        references = set(re.findall(r'href="#([^"]+)"', page)) | set(re.findall(r"url\(#([^)]+)\)", page))
        assert references
        assert references <= known
        assert page.startswith('<svg role="img" aria-label="a figure" ')
        assert "<?xml" not in page
