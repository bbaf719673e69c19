"""Maps side by side: what each cell shows, and how the figure is written."""

from dataclasses import replace

import numpy as np

from antiphase.commands.look.run import MapColumn, look_figure, paint
from antiphase.report.figure import saved

GENERATOR = np.random.default_rng(0)
IMAGES = [GENERATOR.random((side, side, 3)) for side in (11, 13)]
TEXTS = ["mug", "a lamp that stands on a desk", "dog"]


def column(model="clip", method="relevance", low=0.0):
    return MapColumn(model, method, GENERATOR.uniform(low, 1.0, (3, 2, 5, 5)))


def drawn(figure, rows=6):
    """Axes of a row each, colour bars left out."""
    return np.array([axes for axes in figure.axes if axes.images]).reshape(rows, -1)


def titles(figure, rows=6):
    return [axes.get_title() for axes in drawn(figure, rows)[0]]


def test_a_row_for_each_image_and_text_a_column_for_each_model():
    columns = [column("diffclip"), column("clip")]
    figure = look_figure(IMAGES, TEXTS, columns)
    cells = drawn(figure)
    assert cells.shape == (6, 3)
    assert [" ".join(cell.get_ylabel().split()) for cell in cells[:, 0]] == TEXTS * 2
    for row in range(6):
        image, text = divmod(row, 3)
        np.testing.assert_array_equal(cells[row, 0].images[0].get_array(), IMAGES[image])
        for place, col in enumerate(columns):
            np.testing.assert_allclose(
                cells[row, 1 + place].images[0].get_array(),
                paint(IMAGES[image], col.maps[text, image], False, max(np.abs(one.maps).max() for one in columns)),
            )
    assert titles(figure) == ["image", "diffclip", "clip"]


def test_methods_are_said_and_share_a_colour_map():
    columns = [
        column("diffclip", "attention", low=-1.0),
        replace(column("clip", "attention"), label="attention A"),
        column("clip", "relevance"),
    ]
    figure = look_figure(IMAGES, TEXTS, columns, note="A note.")
    assert titles(figure)[1:4] == ["diffclip\nattention", "clip\nattention A", "clip\nrelevance"]
    cells = drawn(figure)
    ends = [np.abs([one.maps for one in part]).max() for part in (columns[:2], columns[2:])]
    for place, signed, largest in ((1, True, ends[0]), (2, True, ends[0]), (3, False, ends[1])):
        np.testing.assert_allclose(
            cells[0, place].images[0].get_array(), paint(IMAGES[0], columns[place - 1].maps[0, 0], signed, largest)
        )
    assert len(figure.axes) - cells.size == 2  # a bar for each method
    words = " ".join(figure.texts[-1].get_text().split())
    assert words == "Maps: attention, relevance. One scale for all maps of a method. A note."


def test_no_weight_shows_the_image_and_weight_changes_its_colour():
    image = GENERATOR.random((384, 384, 3))
    np.testing.assert_allclose(paint(image, np.zeros((2, 2)), True, 1.0), image, atol=1e-12)
    for ground in (np.ones((4, 4, 3)), np.zeros((4, 4, 3))):
        shown = paint(ground, np.array([[1.0, 0.0], [0.0, -1.0]]), True, 1.0)
        assert shown[0, 0, 0] > 1.5 * shown[0, 0, 2]  # red where positive
        assert shown[-1, -1, 2] > 1.5 * shown[-1, -1, 0]  # blue where negative
        far = np.abs(paint(ground, np.array([[0.0, 0.5, 1.0]]), False, 1.0) - ground[0, 0]).sum(-1)[0]
        assert far[0] < far[len(far) // 2] < far[-1]


def test_twins_share_one_scale_and_each_map_says_how_large_it_is():
    strong, weak = np.zeros((1, 1, 2, 2)), np.zeros((1, 1, 2, 2))
    strong[0, 0, 0, 1], weak[0, 0, 0, 1] = 0.5, 0.0625
    columns = [MapColumn("diffclip", "relevance", strong), MapColumn("clip", "relevance", weak)]
    figure = look_figure(IMAGES[:1], ["mug"], columns)
    assert [axes.get_xlabel() for axes in figure.axes[1:3]] == ["largest 0.5", "largest 0.062"]
    image, *shown = (axes.images[0].get_array() for axes in figure.axes[:3])
    below = paint(image, np.zeros((2, 2)), False, 1.0)
    moved = [np.abs(one - below).max() for one in shown]
    assert moved[0] > 4 * moved[1] > 0
    assert [label.get_text() for label in figure.axes[-1].get_xticklabels()] == ["0", "0.5"]


def test_names_and_texts_are_words_and_not_formulas():
    name = "_$x$ \\frac{" + "long/" * 30
    figure = look_figure(IMAGES[:1], ["$y$ \\frac{", "z" * 200], [column(name)])
    shown = titles(figure, rows=2)[1]
    assert shown.startswith("_$x$ \\frac{")
    assert shown.endswith("…")
    assert shown.count("\n") == 1
    assert figure.axes[2].get_ylabel().endswith("…")
    saved(figure, "png")


def test_files_have_the_size_of_the_figure_and_embedded_fonts():
    figure = look_figure(IMAGES[:1], ["mug"], [column()])
    png = saved(figure, "png")
    assert png.startswith(b"\x89PNG")
    width, height = (int.from_bytes(png[offset : offset + 4], "big") for offset in (16, 20))
    np.testing.assert_allclose([width, height], 200 * figure.get_size_inches(), atol=1)
    pdf = saved(figure, "pdf")
    assert pdf.startswith(b"%PDF")
    assert b"/FontFile2" in pdf  # the outlines of the letters, as TrueType
    assert saved(figure, "pdf") == pdf


def test_with_scales_of_their_own_each_map_reaches_the_end_of_the_colours():
    columns = [column("diffclip", "attention", low=-1.0), column("clip", "attention")]
    figure = look_figure(IMAGES, TEXTS, columns, own_scales=True)
    cells = drawn(figure)
    for place, col in enumerate(columns, start=1):
        values = col.maps[1, 0]
        shown = cells[1, place].images[0].get_array()
        np.testing.assert_allclose(shown, paint(IMAGES[0], values, True, float(np.abs(values).max())))
    (bar,) = (axes for axes in figure.axes if axes not in cells)
    assert [label.get_text() for label in bar.get_xticklabels()] == ["-largest", "largest"]
    assert figure.texts[-1].get_text() == "Maps: attention. A scale of its own for each map."
