"""What a family of models of several depths says of the robustness paper's claims, as a page of Markdown.

Every number is computed from the stored rows of a sensitivity run and of an audit of the same models; every
verdict follows from an interval over training seeds (Student's t, 95 %): a claim holds where the interval lies
on its side, fails where it lies on the other, and is undecided where it does neither.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import polars as pl

from antiphase.errors import UserError
from antiphase.evaluation.rates import rates
from antiphase.files import write_text
from antiphase.report import sections
from antiphase.report.families import families
from antiphase.report.sensitivity import read_rows
from antiphase.report.stored import RUN_KEYS, read_json


def write_findings(sense: Path, audit: Path, out: Path) -> Path:
    """Write the page from a sensitivity run and an audit of the same pairs of models.

    Args:
        sense: directory of ``antiphase sense … --against … --parts alignment,depth,lipschitz``.
        audit: directory of ``antiphase audit`` of the same models.
        out: file to write.

    Raises:
        UserError: if a part is missing, or the models are not pairs with two or more seeds of each depth.
    """
    summary = read_json(sense / "summary.json", ("models", "pairs"))
    rows = read_rows(sense)
    if missing := {"alignment", "lipschitz", "depth"} - set(rows):
        raise UserError(
            f"{sense} has no {min(missing)}: run antiphase sense with --parts alignment,depth,lipschitz"
        )
    depths = _depths(summary, rows["alignment"])
    attacked = rates(pl.read_parquet(audit / "rows.parquet"))
    found = [
        sections.alignment(rows["alignment"], depths), sections.explanation(rows["alignment"], depths),
        sections.lipschitz(rows["lipschitz"], depths), sections.depth(rows["depth"], depths),
        sections.asr(attacked, depths),
    ]  # fmt: skip
    claims = [claim for _, its in found for claim in its]
    runs = [read_json(directory / "run.json", RUN_KEYS) for directory in (sense, audit)]
    page = _PAGE.format(
        claims=sections.table(("claim", "where", "mean over seeds [95 %]", "verdict"), claims),
        sections="\n\n".join(text for text, _ in found),
        about="\n".join(
            f"- `{_short(run['command'])}`: {run['data']}, {run['n']} images, {run['hardware']}"
            for run in runs
        ),
    )
    write_text(out, page)
    return out


_PAGE = """# Findings

Made by `antiphase findings` from stored rows; nothing here is written by hand. Intervals are Student's t over
training seeds (95 %), for these images; where a table gives images, they are over the images.

## The robustness paper's claims, on these models

{claims}

{sections}

## The runs

{about}
"""


def _short(command: str) -> str:
    return " ".join(
        part.rsplit("/", 1)[-1] if part.startswith("/") and "," not in part else part
        for part in command.split()
    )


def _depths(summary: Mapping[str, Any], alignment: pl.DataFrame) -> list[sections.Depth]:
    groups = families(summary["models"])
    layers = dict(alignment.group_by("model").agg(pl.col("layer").n_unique()).iter_rows())
    owner = {model: group for group in groups for model in group.models}
    found: dict[int, sections.Depth] = {}
    for model, against in summary["pairs"]:
        group, twin = owner[model], owner[against]
        depth = layers[model]
        pairs = (*found[depth].pairs, (model, against)) if depth in found else ((model, against),)
        found[depth] = sections.Depth(depth, group, twin, pairs)
    short = [depth.layers for depth in found.values() if len(depth.pairs) < 2]
    if short or not found:
        raise UserError(
            f"depth {min(short, default=0)}: expected pairs of twins with two seeds or more of each depth"
        )
    return [found[depth] for depth in sorted(found)]
