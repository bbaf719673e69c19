"""A table of a model beside its twin, from a stored evaluation."""

import json

import pytest

from antiphase.errors import UserError
from antiphase.report.twin_findings import twin_section

WHERE = {"task": "zero-shot", "data": "openmoji", "setting": "80", "metric": "top-1", "n": 50}
RUN = dict.fromkeys(
    ("command", "settings", "data", "data_fingerprint", "n", "seconds", "hardware", "versions", "warnings"),
    "x",
)


def write(folder, differences):
    values = {"one": (0.5, 0.36, 0.64), "two": (0.25, None, None)}
    results = [
        WHERE | {"model": name, "value": value, "low": low, "high": high}
        for name, (value, low, high) in values.items()
    ]
    summary = {"models": [], "results": results, "differences": differences}
    (folder / "summary.json").write_text(json.dumps(summary))
    (folder / "run.json").write_text(json.dumps(RUN))
    return folder


def test_every_difference_has_a_line_with_both_numbers(tmp_path):
    apart = WHERE | {"model": "one", "twin": "two", "difference": 0.25, "low": 0.1, "high": 0.4}
    text, runs = twin_section(write(tmp_path, [apart]), "The title")
    assert text.startswith("## The title\n")
    line = text.strip().splitlines()[-1]
    assert line.startswith("| one | openmoji | zero-shot, 80 prompts, top-1 | 50.0 [36.0, 64.0] | 25.0 ")
    assert line.endswith("| 25.0 [10.0, 40.0] |")
    assert runs == [RUN]


def test_an_evaluation_without_twins_is_refused(tmp_path):
    with pytest.raises(UserError, match="expected a run of antiphase evaluate with --against"):
        twin_section(write(tmp_path, []), "x")
