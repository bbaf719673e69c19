"""What CLIPs that differ in their attention alone say: retrieval, zero-shot and robustness over training seeds."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import polars as pl

from antiphase.errors import UserError
from antiphase.evaluation.rates import clean_accuracy, rates
from antiphase.evaluation.statistics import Estimate, as_share, mean_over_seeds
from antiphase.report.evaluation import heading
from antiphase.report.families import Family, families
from antiphase.report.sections import estimate_text, table, verdict
from antiphase.report.stored import RUN_KEYS, read_attack_rows, read_json
from antiphase.report.wording import eps_label

Values = Mapping[str, float]  # of each model


def clip_section(evaluated: Path, audited: Path) -> tuple[str, list[dict[str, Any]]]:
    """Return the section and the records of the two runs.

    Models of a family differ in their training seed; every differential family is compared with the one of
    standard attention, seed by seed.

    Args:
        evaluated: directory of ``antiphase evaluate`` of all models.
        audited: directory of ``antiphase audit`` of the same models.

    Raises:
        UserError: the models are not families of the same two seeds or more, one of them of standard attention.
    """
    summary = read_json(evaluated / "summary.json", ("models", "results"))
    groups = families(summary["models"])
    seeds = {model["name"]: model["seed"] for model in summary["models"]}
    standard = [g for g in groups if _attention(g, summary["models"]) == "softmax"]
    if len(standard) != 1 or len(groups) < 2:
        raise UserError(
            f"{evaluated}: expected one family of standard attention and others to compare with it"
        )
    if any(
        {seeds[m] for m in g.models} != {seeds[m] for m in standard[0].models} or len(g.models) < 2
        for g in groups
    ):
        raise UserError(f"{evaluated}: expected the same two training seeds or more of every family")
    base = standard[0]
    others = [group for group in groups if group is not base]

    def compared(values: Values) -> list[str]:
        twin = {seeds[model]: model for model in base.models}
        cells = [estimate_text(_mean(values, base), 1, 100)]
        for group in others:
            apart = mean_over_seeds([values[model] - values[twin[seeds[model]]] for model in group.models])
            word = {"holds": "higher", "fails": "lower", "undecided": "–"}[verdict(apart)]
            cells.append(f"{estimate_text(_mean(values, group), 1, 100)}; {word}")
        return cells

    head = [base.name, *(group.name for group in others)]
    parts = [
        _INTRODUCTION,
        "### What the models can do, on concepts that no training image of theirs showed\n",
    ]
    parts.append(table(("set", "number", "chance", *head), _capability(summary, compared)))
    record = read_json(audited / "run.json", RUN_KEYS)
    rows = read_attack_rows(audited / "rows.parquet")
    parts.append(f"\n### Attack success rate, {record['data']}\n")
    parts.append(table(("ε", *head), _robustness(rows, compared)))
    return "\n".join(parts), [read_json(evaluated / "run.json", RUN_KEYS), record]


_INTRODUCTION = """## CLIP and DiffCLIP on emoji

Trained from scratch on OpenMoji's drawings with their names, 15 % of the concepts held out; noto-emoji is another
artist's drawing of the same held-out concepts. Cells are per cent, the mean over training seeds with Student's t
interval (95 %); behind it how the difference to standard attention, taken seed by seed, lies: higher, lower, or – where
its interval holds 0. Nothing is corrected for the number of comparisons. Zero-shot is over the nine Unicode groups,
of which "People & Body" alone holds 57 % of the images: the mean over the classes is the number to read, a guess has
11 % of it. The linear probe and few-shot learning (5-way, a guess has 20 %) learn from the training emoji; each model's
number is the mean over three seeds of its own. emoji-mmvp has MMVP-VLM's protocol and 45 pairs of held-out emoji that
differ in one thing (a guess has 25 %; a model whose two statements both choose the same image has 0). The number of
epochs was chosen on the test concepts (dev/LOG.md).
"""


def _capability(summary: Mapping[str, Any], compared: Any) -> list[Sequence[str]]:
    lines = []
    frame = pl.DataFrame(summary["results"], infer_schema_length=None)
    shown = frame.filter(~pl.col("metric").is_in(["R@10", "top-5"]))
    # an image has its captions' share of all, so that the chance is the same both ways
    images = dict(
        frame.filter(task="retrieval", setting="text", metric="R@1").select("data", "n").iter_rows()
    )
    for (task, data, *_), its in shown.group_by("task", "data", "setting", "metric", maintain_order=True):
        values = dict(its.select("model", "value").iter_rows())
        first = its.row(0, named=True)
        chance = {"R@1": 100, "R@5": 500}.get(first["metric"], 0) / images.get(str(data), 1)
        number = f"{task}, {heading(first)}"
        lines.append((str(data), number, f"{chance:.1f}" if chance else "", *compared(values)))
    return lines


def _robustness(rows: pl.DataFrame, compared: Any) -> list[Sequence[str]]:
    clean = dict(clean_accuracy(rows).select("model", "value").iter_rows())
    attacked = rates(rows).filter(pl.col("metric") == "asr", pl.col("attack") != "noise")
    lines: list[Sequence[str]] = [("clean accuracy", *compared(clean))]
    for eps in attacked["eps"].unique().sort().to_list():
        its = attacked.filter(pl.col("eps") == eps)
        lines.append((eps_label(eps), *compared(dict(its.select("model", "value").iter_rows()))))
    return lines


def _mean(values: Values, group: Family) -> Estimate:
    missing = [model for model in group.models if model not in values]
    if missing:
        raise UserError(f"{missing[0]} was not measured in both runs: expected the same models")
    return as_share(mean_over_seeds([values[model] for model in group.models]))


def _attention(group: Family, models: Sequence[Mapping[str, Any]]) -> str:
    return next(model["attention"] for model in models if model["name"] == group.models[0])
