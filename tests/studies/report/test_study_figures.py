"""The figures of studies: where lines, bands, bars and pictures are, and that series can be told apart."""

import itertools
from dataclasses import replace

import numpy as np
import polars as pl
import pytest

from antiphase.studies.figures import Panel, Plot
from antiphase.studies.report.figures import gallery_figure, plot_figure, series_styles
from tests.studies.report import made_up_studies as made_up


def test_lines_bands_and_the_papers_numbers_are_where_they_belong():
    plot = made_up.figure_2().artefact.plots[0]
    figure = plot_figure(plot)
    first, second, third, _ = figure.axes
    assert [axes.get_title(loc="left") for axes in figure.axes] == [panel.title for panel in plot.panels]
    assert first.get_xscale() == "log"
    assert third.get_xscale() == "linear"
    assert [label.get_text() for label in first.get_xticklabels()] == ["0.5", "1", "2", "4", "8"]
    assert first.get_xlabel() == "ε, in 255ths of the pixel range"
    assert [line.get_color() for line in first.lines] == ["#0072B2", "#D55E00"] * 2
    for line, (_, rows) in zip(first.lines, plot.panels[0].points.group_by("series", maintain_order=True), strict=True):
        np.testing.assert_allclose(line.get_ydata(), 100 * rows["value"].to_numpy())
    hollow = [line for line in second.lines if line.get_markerfacecolor() == "white" and len(line.get_xdata())]
    assert [line.get_ydata()[0] for line in hollow] == pytest.approx([12.2, 22.1])
    assert all(line.is_dashed() for line in hollow)
    band = first.collections[0].get_paths()[0].vertices[:, 1]
    np.testing.assert_allclose([band.min(), band.max()], [100 * 0.0651625819640405, 100 * 0.8281034820053446])
    stacked = plot_figure(replace(plot, columns=1))
    assert len({round(axes.get_position().x1, 3) for axes in stacked.axes}) == 1


def test_one_legend_where_the_series_agree():
    panel = made_up.figure_2().artefact.plots[0].panels[1]
    figure = plot_figure(Plot("two", "", (panel, replace(panel, paper=None))))
    (legend,) = figure.legends
    names = [text.get_text() for text in legend.get_texts()]
    assert names == ["CLIP", "DiffCLIP", "DiffCLIP*", "DiffCLIP†", "the paper"]
    assert all(axes.get_legend() is None for axes in figure.axes)


def test_intervals_without_an_end_are_not_drawn_and_huge_ones_are_cut():
    wild, apart = plot_figure(made_up.figure_2().artefact.plots[1]).axes
    assert all(len(np.unique(band.get_paths()[0].vertices[:, 0])) == 2 for band in wild.collections[:1])
    assert wild.get_ylim()[1] < 6
    assert apart.get_ylim()[0] < -10  # differences are no rates: below 0 is shown
    points = made_up.points({"ViT": [0.5, 0.52]}, (1, 2), half=4.0)
    (cut,) = plot_figure(Plot("cut", "", (Panel("", "x", "y", points),))).axes
    assert -0.1 < cut.get_ylim()[0] < cut.get_ylim()[1] < 1.1


def test_bars_stand_on_zero_with_the_papers_beside_them():
    plot = made_up.ood().artefact.plots[0]
    (axes,) = plot_figure(plot).axes
    assert axes.get_ylim()[0] == 0
    filled = list(axes.patches)
    hollow = [line for line in axes.lines if line.get_markerfacecolor() == "white" and len(line.get_xdata())]
    assert (len(filled), sum(len(line.get_xdata()) for line in hollow)) == (20, 10)
    assert sorted(bar.get_height() for bar in filled) == pytest.approx(
        sorted(100 * plot.panels[0].points["value"].to_numpy())
    )
    spans = sorted((bar.get_x(), bar.get_x() + bar.get_width()) for bar in axes.patches)
    assert all(one[1] <= two[0] + 1e-9 for one, two in itertools.pairwise(spans))
    assert [label.get_text() for label in axes.get_xticklabels()] == list(plot.panels[0].ticks)


def test_series_are_told_apart_without_colour():
    names = ["ViT, 1", "ViT, 2", "DiffViT, 1", "other"]
    styles = series_styles(names)
    assert styles["ViT, 1"].color == styles["ViT, 2"].color == series_styles(["CLIP"])["CLIP"].color
    assert styles["ViT, 1"].dashes != styles["ViT, 2"].dashes
    assert len({styles[name].marker for name in names}) == len({styles[name].hatch for name in names}) == 4
    assert series_styles(["ViT-B/16"])["ViT-B/16"].color == "#009E73"  # another model's name


def test_a_gallery_has_its_titles_and_no_more_pixels_than_asked_for():
    gallery = made_up.gallery(2, 4)
    figure = gallery_figure(gallery, pixels=8 * 50**2)
    pictures = [axes for axes in figure.axes if axes.images]
    assert [axes.images[0].get_array().shape for axes in pictures] == [(50, 50, 3)] * 8
    titles = [" ".join(axes.get_title().split()) for axes in pictures]
    assert titles == [picture.title for row in gallery.rows for picture in row]


def test_single_seeds_are_thin_lines_or_dots_within_the_frame():
    points = made_up.points({"ViT": [0.4, 0.5], "DiffViT": [0.5, 0.6]}, (1.0, 2.0))
    seeds = [[0.2, 0.6, 0.4], [0.3, 0.7], [0.5, 0.5, 0.5], [0.55, 0.65]]  # fewer at the second x
    points = points.with_columns(by_seed=pl.Series(seeds))
    (axes,) = plot_figure(Plot("lines", "", (Panel("", "x", "y", points, percent=True),))).axes
    thin = [line.get_ydata().tolist() for line in axes.lines if line.get_linewidth() == 0.6]
    assert thin[:2] == [pytest.approx([20, 30]), pytest.approx([60, 70])]
    assert len(thin) == 6
    assert axes.get_ylim()[0] < 20
    assert axes.get_ylim()[1] > 70
    bars = Panel("", "", "y", points.with_columns(x=pl.col("x") - 1), kind="bar", ticks=("a", "b"), percent=True)
    (axes,) = plot_figure(Plot("bars", "", (bars,))).axes
    dots = [height for line in axes.lines for height in line.get_ydata() if line.get_marker() == "."]
    assert sorted(height for height in dots if np.isfinite(height)) == pytest.approx(
        sorted(100 * v for values in seeds for v in values)
    )
    alone = Panel("", "x", "y", points.with_columns(by_seed=pl.col("by_seed").list.head(1)))
    (axes,) = plot_figure(Plot("one", "", (alone,))).axes
    assert not [line for line in axes.lines if line.get_linewidth() == 0.6]
