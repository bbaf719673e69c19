"""``docs/agreement.md`` holds what ``benchmarks/agreement.json`` says, and no search in it loses an image."""

import json
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.fixture
def benchmark(script):
    return script("agreement")


def test_the_page_is_made_from_the_json(benchmark):
    record = json.loads((ROOT / "benchmarks/agreement.json").read_text(encoding="utf-8"))
    page = (ROOT / "docs/agreement.md").read_text(encoding="utf-8")
    for part, text in benchmark.page(record).items():
        assert page.split(f"<!-- {part} -->\n")[1].split(f"<!-- /{part} -->")[0] == text
    lines = record["verdicts"]["lines"]
    assert lines
    for line in lines:
        assert benchmark.lost_and_gained(line, lines)[0] == 0
        assert line["differ"] == 0 or line["search"] in ("auto", "bf16")
        assert line["differ"] <= 1  # of 1,000; 0 is asked for


def test_lost_and_gained_images_are_told_apart(benchmark):
    first = {"model": "m", "broken": 5, "differ": 0}
    line = {"model": "m", "broken": 6, "differ": 3}  # one lost, two gained
    assert benchmark.lost_and_gained(line, [first, line]) == (1, 2)


def test_who_is_right_is_counted(benchmark):
    line = {"attack": "pgd", "library": "foolbox", "norm": "linf", "eps": 8 / 255, "model": "specimen:vit-0"}
    line |= {"robust": [0.25, 0.5], "only": [3, 1], "right": [2, 0]}
    record = {"images": 4, "versions": {"torch": "2", "foolbox": "3"}, "commit": "c", "date": "d", "lines": [line]}
    text = benchmark.table(record)
    assert (
        "| pgd | L∞, 8/255 | vit-0 | foolbox 3 | 25.0 % and 50.0 % | ours 3 (2 confirmed), theirs 1 (0 confirmed) |"
        in text
    )
    assert "only ours breaks 3 images (2 confirmed in float64), only the other library 1 (0 confirmed)" in text
