import csv

import pytest
import torch

from antiphase.data.decoding import decode_whole
from antiphase.errors import UserError
from antiphase.evaluation.mmvp import PAPER_PATTERNS, PATTERNS, load_mmvp

TYPES = ("Orientation", "Presence", "State", "Quantity", "Position", "Color", "Structure", "Text", "Camera View")


@pytest.fixture
def write(tmp_path, write_image):
    """Write rows of (question, type, statement) and the images that they name, and return the folder."""

    def written(rows, header=("Question ID", "Type", "Statement"), images=True):
        folder = tmp_path / "MMVP_VLM"
        folder.mkdir(exist_ok=True)
        with (folder / "Questions.csv").open("w", newline="") as file:
            csv.writer(file).writerows([header, *rows])
        for row in rows if images else ():
            write_image(folder / "MLLM_VLM Images" / str(row[1]) / f"{row[0]}.jpg", int(row[0]))
        return folder

    return written


def questions(types, pairs=1):
    """Return rows of so many pairs of each type, numbered from 1."""
    kinds = [kind for kind in types for _ in range(2 * pairs)]
    return [(str(n), kind, f"{kind}, number {n}") for n, kind in enumerate(kinds, start=1)]


def test_two_rows_are_a_pair_whose_first_statement_is_of_the_odd_question(write):
    folder = write(questions(TYPES, pairs=15))
    made = load_mmvp(folder)
    assert (made.name, len(made), made.pattern_names) == ("mmvp", 135, PATTERNS)
    assert made.patterns == tuple(k for k in range(9) for _ in range(15))
    assert made.question_ids[15] == (31, 32)
    assert made.statements[15] == ("Presence, number 31", "Presence, number 32")
    assert made.files[134] == ("MLLM_VLM Images/Camera View/269.jpg", "MLLM_VLM Images/Camera View/270.jpg")
    first, second = (decode_whole(made.root / file) for file in made.files[134])
    assert not torch.equal(first, second)


def test_the_paper_has_seven_of_the_nine_patterns():
    assert len(PATTERNS) == 9
    assert [name for name in PATTERNS if name not in PAPER_PATTERNS] == ["Quantity and Count", "Texts"]


def test_a_smaller_set_keeps_its_own_names_and_any_number_of_pairs(write):
    rows = [*questions(["left or right"], 3), ("9", "colour", "red"), ("10", "colour", "blue, not red")]
    folder = write(rows)
    made = load_mmvp(folder)
    assert (made.pattern_names, made.patterns) == (("left or right", "colour"), (0, 0, 0, 1))
    assert made.statements[3] == ("red", "blue, not red")
    assert made.files[3] == ("MLLM_VLM Images/colour/9.jpg", "MLLM_VLM Images/colour/10.jpg")


def test_a_type_that_comes_back_is_the_same_pattern(write):
    rows = questions(["a", "b", "a"])
    assert load_mmvp(write(rows)).patterns == (0, 1, 0)


def test_the_default_folder_is_below_that_of_the_data_sets(write, monkeypatch, tmp_path):
    write(questions(["a"]))
    monkeypatch.setenv("ANTIPHASE_DATA", str(tmp_path))
    assert len(load_mmvp()) == 1


def test_the_fingerprint_tells_statements_and_images_apart_but_not_folders(write, write_image):
    folder = write(questions(["a", "b"]))
    first = load_mmvp(folder).fingerprint()
    elsewhere = folder.rename(folder.with_name("elsewhere"))
    assert load_mmvp(elsewhere).fingerprint() == first
    write_image(elsewhere / "MLLM_VLM Images/b/4.jpg", 4, size=(17, 19))
    second = load_mmvp(elsewhere).fingerprint()
    text = (elsewhere / "Questions.csv").read_text()
    (elsewhere / "Questions.csv").write_text(text.replace("number 3", "number three"))
    assert len({first, second, load_mmvp(elsewhere).fingerprint()}) == 3


def test_an_absent_set_is_one_line_with_the_page(tmp_path):
    with pytest.raises(UserError, match=r"no .*Questions\.csv: .*MMVP/MMVP_VLM.*huggingface\.co") as caught:
        load_mmvp(tmp_path)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("change", "line"),
    [
        (lambda rows: rows[:-1], "two rows per pair"),
        (lambda rows: [rows[1], rows[0], *rows[2:]], "line 2 of .* expected an odd question and the next"),
        (lambda rows: [rows[0], rows[3], rows[2], rows[1]], "line 2 of .* and the next: expected an odd"),
        (lambda rows: [*rows[:2], ("3", "b", "x"), ("4", "a", "y")], "line 4 of .* their type"),
        (lambda rows: [*rows, *rows[:2]], "line 6 of .* once"),
        (lambda rows: [*rows[:3], ("4", "b")], "line 4 of .* each with its number"),
        (lambda rows: [*rows[:3], ("4", "b", " ")], "line 4 of .* and a statement"),
        (lambda rows: [*rows[:3], ("4", "b", "x", "y")], "line 4 of "),
        (lambda rows: [], "two rows per pair"),
    ],
)
def test_a_row_that_is_no_good_is_named(write, write_image, change, line):
    folder = write(questions(["a", "b"]))
    write_image(folder / "MLLM_VLM Images/a/4.jpg")  # so that an order of rows is no missing image
    write(change(questions(["a", "b"])), images=False)
    with pytest.raises(UserError, match=line) as caught:
        load_mmvp(folder)
    assert "\n" not in str(caught.value)


def test_a_question_without_a_number_or_an_image_and_a_table_without_a_header_are_one_line(write):
    folder = write(questions(["a", "b"]))
    write([*questions(["a"]), ("three", "b", "x"), ("4", "b", "y")], images=False)
    with pytest.raises(UserError, match=r"line 4 of .* each with its number"):
        load_mmvp(folder)
    write(questions(["a", "b", "c"]), images=False)
    with pytest.raises(UserError, match=r"image .*Images/c/5\.jpg is missing"):
        load_mmvp(folder)
    write(questions(["a"])[1:], header=questions(["a"])[0])
    with pytest.raises(UserError, match="expected a header, Question ID, Type, Statement"):
        load_mmvp(folder)
    (folder / "Questions.csv").write_bytes(b"Question ID,Type,Statement\n1,\xff,x\n")
    with pytest.raises(UserError, match="give a table in UTF-8"):
        load_mmvp(folder)
