"""MMVP-VLM's pairs, and the paper's figures from answers in its own file format."""

import csv

import numpy as np
import polars as pl
import pytest
import torch
import torch.nn.functional as F
from PIL import Image

from antiphase.errors import UserError
from antiphase.evaluation.metrics import summarise_tasks
from antiphase.evaluation.mmvp import PAPER_PATTERNS, PATTERNS, load_mmvp, right_pairs
from antiphase.statistics.decisions import mcnemar_exact
from tests.evaluation.outcomes import answer_rows


def write_mmvp(folder, pairs_each=15, patterns=PATTERNS):
    """Write a set in MMVP-VLM's layout, all questions of one tiny image a type."""
    folder.mkdir(exist_ok=True)
    with (folder / "Questions.csv").open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["Question ID", "Type", "Statement"])
        for number in range(2 * pairs_each * len(patterns)):
            kind = patterns[number // (2 * pairs_each)].split()[0]
            writer.writerow([number + 1, kind, f"statement, {number + 1}"])
            path = folder / "MLLM_VLM Images" / kind / f"{number + 1}.jpg"
            path.parent.mkdir(parents=True, exist_ok=True)
            Image.fromarray(np.full((16, 16, 3), number % 256, np.uint8)).save(path)
    return folder


def test_a_pair_counts_where_both_statements_find_their_image():
    draw = torch.Generator().manual_seed(0)
    images, texts = (F.normalize(torch.randn(53, 2, 5, generator=draw), dim=-1) for _ in range(2))
    verdicts = right_pairs(images, texts)
    for two, statements, right in zip(images, texts, verdicts, strict=True):
        choices = [0 if float(two[0] @ text) > float(two[1] @ text) else 1 for text in statements]
        assert bool(right) == (choices == [0, 1])
    assert 5 < int(verdicts.sum()) < 25  # a quarter by chance
    assert not right_pairs(torch.ones(3, 2, 5), torch.ones(3, 2, 5)).any()  # undecided is wrong


@pytest.mark.parametrize("changed", [torch.nan, torch.inf])
def test_right_pairs_rejects_embeddings_that_are_not_finite(changed):
    whole, broken = torch.ones(3, 2, 5), torch.full((3, 2, 5), changed)
    with pytest.raises(UserError, match=r"images of shape .*without NaN or infinite values"):
        right_pairs(broken, whole)
    with pytest.raises(UserError, match=r"texts of shape .*without NaN or infinite values"):
        right_pairs(whole, broken)


def test_the_papers_figures_are_those_of_seven_patterns_of_nine(tmp_path):
    pairs = load_mmvp(write_mmvp(tmp_path / "set"))
    assert (len(pairs), pairs.pattern_names) == (135, PATTERNS)
    seven = [index for index, pattern in enumerate(pairs.patterns) if PATTERNS[pattern] in PAPER_PATTERNS]
    rows, hits = [], {}
    for name, count, others in (("clip", 23, 4), ("diffclip", 29, 9)):
        random = np.random.default_rng(count)
        right = np.zeros(135, bool)
        right[random.choice(seven, count, replace=False)] = True
        right[random.choice(sorted(set(range(135)) - set(seven)), others, replace=False)] = True
        hits[name] = right
        about = {"model": name, "attention": "softmax", "task": "mmvp", "data": "mmvp"}
        answers = answer_rows(torch.from_numpy(right), pairs.patterns)
        rows.append(answers.select(*(pl.lit(value).alias(key) for key, value in about.items()), pl.all()))
    summary = summarise_tasks(pl.concat(rows), {"diffclip": "clip"}, {"mmvp": pairs.pattern_names})
    results = {(r["model"], r["metric"]): r for r in summary["results"]}
    assert round(100 * results["clip", "mean of 7"]["value"], 1) == 21.9
    assert round(100 * results["diffclip", "mean of 7"]["value"], 1) == 27.6
    assert results["clip", "mean of 9"]["value"] == pytest.approx(27 / 135)
    assert results["clip", "Texts"]["n"] == 15
    apart = {d["metric"]: d for d in summary["differences"]}
    assert apart["mean of 7"]["difference"] == pytest.approx(6 / 105)
    assert apart["mean of 7"]["p"] == mcnemar_exact(hits["diffclip"][seven], hits["clip"][seven])
    assert apart["mean of 9"]["p"] == mcnemar_exact(hits["diffclip"], hits["clip"])
