"""A card from the stored files of a run."""

from pathlib import Path
from typing import Any

import polars as pl

from antiphase.commands.run_folder import held_by
from antiphase.errors import UserError
from antiphase.files import write_json, write_text
from antiphase.report.card.markdown import card_markdown
from antiphase.report.card.model import BY_HAND, RobustnessCard
from antiphase.report.card.reading import CARD, read_card
from antiphase.report.runs.stored import StoredRun, read_json, read_run

_NOT_THE_AUDIT = ("out", "quiet", "batch_size", "independent")  # options that affect no number
_ESTIMATE = ("value", "low", "high", "n")


def write_card(directory: Path) -> Path | None:
    """Write ``card.json`` and ``CARD.md`` into the directory of an audit or attack.

    What was filled in by hand in a card of the same weights stays.

    Returns:
        The path of ``card.json``; None for a run of POPE, whose answers have no clean class, and for one that does not
        say with which options it was made.

    Raises:
        UserError: a file of the run is missing or cannot be read.
    """
    card = card_of_run(directory)
    if card is None:
        return None
    path = directory / CARD
    card = _with_notes_of(path, card)
    write_json(path, card.content())
    write_text(directory / "CARD.md", card_markdown(card))
    return path


def card_of_run(directory: Path) -> RobustnessCard | None:
    """Return the card of a run; None where :func:`write_card` writes none.

    Raises:
        UserError: a file of the run is missing or cannot be read.
    """
    if "pope" in read_json(directory / "summary.json", ("models",)):
        return None
    stored = read_run(directory)
    run = stored.run
    options = run.get("options", {})
    if not options or "fingerprints" not in run:
        return None
    twins = {against for _, against in stored.pairs} - {model for model, _ in stored.pairs}
    settings = run["settings"]
    found = {
        "name": " against ".join(_names(stored, twins)),
        "command": held_by(directory) or "audit",
        "options": {name: value for name, value in options.items() if name not in _NOT_THE_AUDIT},
        "data": {
            "dataset": run["data"],
            "split": options["split"],
            "n": run["n"],
            "fingerprint": run["data_fingerprint"],
        },
        "attack": {
            "name": settings["attack"],
            "autoattack": settings["attack"] == "autoattack",
            "norm": settings["norm"],
            "eps": sorted(options["eps"]),
            "seed": settings["attack seed"],
            "settings": {
                name: value for name, value in settings.items() if name not in ("attack", "norm", "ε")
            },
        },
        "models": [_model(model, stored, twins) for model in stored.models],
        "differences": stored.comparisons.drop("n", "decided").to_dicts(),
        "mean_differences": [
            {
                "family": one["family"],
                "against_family": one["against_family"],
                "attack": one["attack"],
                "norm": one["norm"],
                "eps": one["eps"],
                "difference": one["value"],
                "low": one["low"],
                "high": one["high"],
                "seeds": one["n"],
            }
            for one in stored.mean_comparisons.iter_rows(named=True)
        ],
        "versions": run["versions"],
        "hardware": run["hardware"],
        "warnings": run["warnings"],
    }
    return RobustnessCard.model_validate(found)


def _names(stored: StoredRun, twins: set[str]) -> list[str]:
    """Return the audited models and their twins, each as one text; families of training seeds by their name."""
    sides = []
    for members in (
        (model["name"] not in twins for model in stored.models),
        (model["name"] in twins for model in stored.models),
    ):
        named = {model["name"] for model, inside in zip(stored.models, members, strict=True) if inside}
        sides.append(", ".join(family.name for family in stored.families if named & set(family.models)))
    return [side for side in sides if side]


def _model(model: dict[str, Any], stored: StoredRun, twins: set[str]) -> dict[str, Any]:
    name, run = model["name"], stored.run
    about = run.get("architectures", {}).get(name, {})
    (accuracy,) = stored.accuracy.filter(pl.col("model") == name).to_dicts()
    own = stored.results.filter(pl.col("model") == name)
    rates = []
    for (attack, norm, eps), part in own.group_by(["attack", "norm", "eps"], maintain_order=True):
        by_metric = {
            row["metric"]: {key: row[key] for key in _ESTIMATE} for row in part.iter_rows(named=True)
        }
        rates.append({"attack": attack, "norm": norm, "eps": eps, "asr_correct": None, **by_metric})
    return {
        "name": name,
        "role": "twin" if name in twins else "model",
        "spec": run["models"][name],
        "attention": model["attention"],
        **about,
        "seed": model["seed"],
        "lambda": model["lambda"],
        "weights": run["fingerprints"][name],
        "clean_accuracy": {key: accuracy[key] for key in _ESTIMATE},
        "rates": rates,
    }


def _with_notes_of(path: Path, card: RobustnessCard) -> RobustnessCard:
    try:
        before = {model.weights: model for model in read_card(path).models} if path.exists() else {}
    except UserError:
        before = {}
    kept = [
        model.model_copy(update={name: getattr(before[model.weights], name) for name in BY_HAND})
        if model.weights in before
        else model
        for model in card.models
    ]
    return card.model_copy(update={"models": kept})
