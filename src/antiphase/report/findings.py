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
from antiphase.report.clip_findings import clip_section
from antiphase.report.families import families
from antiphase.report.sensitivity import read_rows
from antiphase.report.stored import RUN_KEYS, read_attack_rows, read_json
from antiphase.report.twin_findings import twin_section


def write_findings(
    sense: Path,
    audit: Path,
    out: Path,
    encoders: tuple[Path, Path] | None = None,
    untrained: Path | None = None,
) -> Path:
    """Write the page from a sensitivity run and an audit of the same pairs of models.

    Args:
        sense: directory of ``antiphase sense … --against … --parts alignment,depth,lipschitz``.
        audit: directory of ``antiphase audit`` of the same models.
        out: file to write.
        encoders: directories of ``antiphase evaluate`` and of ``antiphase audit`` of one family of CLIPs and
            others of DiffCLIPs, for a section on them; None leaves it out.
        untrained: directory of ``antiphase evaluate … --against …`` of models with random weights, the same.

    Raises:
        UserError: if a part is missing, or the models are not pairs with two or more seeds of each depth.
    """
    summary = read_json(sense / "summary.json", ("models", "pairs"))
    rows = read_rows(sense)
    if missing := {"alignment", "lipschitz", "depth"} - set(rows):
        raise UserError(
            f"{sense} has no {min(missing)}: run antiphase sense with --parts alignment,depth,lipschitz"
        )
    attacked = read_attack_rows(audit / "rows.parquet")
    attack, norm = attacked.filter(pl.col("attack") != "noise").select("attack", "norm").row(0)
    attacked = rates(attacked.filter(attack=attack, norm=norm))  # without its control
    depths = _depths(summary, rows["alignment"], set(attacked["model"]))
    found = [
        sections.alignment(rows["alignment"], depths), sections.explanation(rows["alignment"], depths),
        sections.lipschitz(rows["lipschitz"], depths), sections.travel(rows["depth"], depths),
        sections.asr(attacked, depths),
    ]  # fmt: skip
    order: dict[str, int] = {}  # what is claimed of several depths stands together
    for _, its in found:
        for claim in its:
            order.setdefault(claim[0], len(order))
    claims = sorted((claim for _, its in found for claim in its), key=lambda claim: order[claim[0]])
    runs = [read_json(directory / "run.json", RUN_KEYS) for directory in (sense, audit)]
    parts = [text for text, _ in found]
    if encoders is not None:
        text, more = clip_section(*encoders)
        parts.append(text)
        runs += more
    if untrained is not None:
        text, more = twin_section(untrained, _UNTRAINED)
        parts.append(text)
        runs += more
    page = _PAGE.format(
        claims=sections.table(("claim", "where", "mean over seeds [95 %]", "verdict"), claims),
        sections="\n\n".join(parts),
        about="\n".join(
            f"- `{_short(run['command'])}`: {_several(run['data'])}, {_several(run['n'])} images, {run['hardware']}"
            for run in runs
        ),
    )
    write_text(out, page)
    return out


_UNTRAINED = "The suite on the papers' ViT-B/16 with random weights: what nothing learned looks like"

_PAGE = """# Findings

Made by `antiphase findings` from stored rows; nothing here is written by hand. Intervals are Student's t over
training seeds (95 %), for these images; where a table gives images, they are over the images.

## The robustness paper's claims, on these models

Each verdict is at 95 % by itself, and nothing is corrected for their number: of twenty claims on the edge one falls on
a side by chance.

{claims}

{sections}

## The runs

{about}
"""


def _several(value: Any) -> str:
    return " and ".join(map(str, value)) if isinstance(value, list) else str(value)


def _short(command: str) -> str:
    return " ".join(
        part.rsplit("/", 1)[-1] if part.startswith("/") and "," not in part else part
        for part in command.split()
    )


def _depths(summary: Mapping[str, Any], alignment: pl.DataFrame, attacked: set[str]) -> list[sections.Depth]:
    owner = {model: group for group in families(summary["models"]) for model in group.models}
    layers = dict(alignment.group_by("model").agg(pl.col("layer").n_unique()).iter_rows())
    found: dict[int, list[tuple[str, str]]] = {}
    for model, against in summary["pairs"]:
        found.setdefault(layers[model], []).append((model, against))
    for depth, pairs in found.items():
        members = [{owner[model].name for model in side} for side in zip(*pairs, strict=True)]
        if len(pairs) < 2 or max(map(len, members)) > 1:
            raise UserError(
                f"depth {depth}: expected twins of one family and its own, with two seeds or more of each depth"
            )
        for model in (model for pair in pairs for model in pair):
            if model not in attacked:
                raise UserError(f"{model} is not in the audit: expected the same models in both runs")
            if layers[model] != depth:
                raise UserError(f"{model} has {layers[model]} layers: expected {depth}, as its twin has")
    if not found:
        raise UserError("no pair of twins: run antiphase sense with --against")
    return [
        sections.Depth(depth, owner[pairs[0][0]], owner[pairs[0][1]], tuple(pairs))
        for depth, pairs in sorted(found.items())
    ]
