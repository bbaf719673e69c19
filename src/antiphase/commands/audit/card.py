"""The content of ``card.json``; ``card.schema.json`` next to this file is its JSON Schema.

Names follow RobustBench's ``model_info`` where they mean the same: ``name``, ``dataset``, ``norm``, ``eps``,
``architecture``, ``additional_data``, ``authors``, ``link`` and ``venue``. Rates are shares in [0, 1], ε is in units of
the [0, 1] pixel range, intervals are 95 % intervals.
"""

import contextlib
import json
import math
import re
from collections.abc import Sequence
from functools import cached_property
from pathlib import Path
from typing import Annotated, Any, Literal

import polars as pl
from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from antiphase.errors import UserError, invalid, shown
from antiphase.evaluation.rates import with_decisions
from antiphase.files import read_bytes, write_json, write_text
from antiphase.report.page import environment
from antiphase.report.table import escaped
from antiphase.statistics.intervals import proportion
from antiphase.terminal import safe

BY_HAND = ("authors", "link", "venue", "additional_data")
"""Fields of a model that its authors fill in; no audit knows them."""

_NEAR = 1e-9  # what JSON and another machine's rounding may change

Share = Annotated[float, Field(ge=0, le=1)]
Signed = Annotated[float, Field(ge=-1, le=1)]
Count = Annotated[int, Field(ge=1)]
Epsilon = Annotated[float, Field(gt=0)]
Digest = Annotated[str, Field(pattern="^[0-9a-f]{64}$")]
Norm = Literal["linf", "l2", "l1", "l0"]


class Part(BaseModel):
    """What all parts of a card share: unknown fields, NaN and infinities are errors."""

    model_config = ConfigDict(
        frozen=True, extra="forbid", allow_inf_nan=False, populate_by_name=True, serialize_by_alias=True
    )


class Rate(Part):
    """A share of images with its Wilson interval."""

    value: Share
    low: Share
    high: Share
    n: Annotated[int, Field(ge=1, description="Images that the share is of.")]

    @property
    def hits(self) -> int:
        return round(self.value * self.n)

    @model_validator(mode="after")
    def _check(self) -> "Rate":
        values = (self.value, self.low, self.high)
        expected = tuple(vars(proportion(min(self.hits, self.n), self.n)).values())[:3]
        if any(abs(one - other) > _NEAR for one, other in zip(values, expected, strict=True)):
            texts = ("{:g} [{:g}, {:g}]".format(*numbers) for numbers in (values, expected))
            raise ValueError(f"{next(texts)} of {self.n} images: expected {next(texts)}")
        return self


class Rates(Part):
    """What one attack does to one model at one ε."""

    attack: str
    norm: Norm
    eps: Epsilon
    asr: Annotated[Rate, Field(description="Attack success rate: broken / all.")]
    asr_correct: Annotated[
        Rate | None, Field(description="Broken / correctly classified; null if no image is classified correctly.")
    ]
    robust_accuracy: Annotated[Rate, Field(description="Correctly classified and not broken / all.")]


class Model(Part):
    """A model, or the twin that it is compared with."""

    name: str
    role: Literal["model", "twin"]
    spec: Annotated[str, Field(description="Specification from which antiphase loads it.")]
    attention: str
    architecture: str | None = None
    parameters: Annotated[int | None, Field(ge=0)] = None
    seed: Annotated[int | None, Field(description="Of the training.")]
    lam: Annotated[list[float], Field(alias="lambda", description="λ of each layer, mean over its heads.")]
    weights: Annotated[Digest, Field(description="SHA-256 of the modules' repr, parameters and buffers.")]
    clean_accuracy: Rate
    rates: Annotated[list[Rates], Field(min_length=1)]
    authors: Annotated[str | None, Field(description="Filled in by hand.")] = None
    link: Annotated[str | None, Field(pattern="^https?://", description="Paper; filled in by hand.")] = None
    venue: Annotated[str | None, Field(description="Filled in by hand.")] = None
    additional_data: Annotated[
        bool | None, Field(description="Whether more data than the data set's own were used; filled in by hand.")
    ] = None

    @model_validator(mode="after")
    def _check(self) -> "Model":
        count, right = self.clean_accuracy.n, self.clean_accuracy.hits
        for place, rates in enumerate(self.rates):
            broken, correct = (rates.asr_correct.hits, rates.asr_correct.n) if rates.asr_correct else (0, 0)
            robust = rates.robust_accuracy
            counts = (rates.asr.n, robust.n, correct, robust.hits)
            if counts != (count, count, right, right - broken):
                names = "asr.n, robust_accuracy.n, asr_correct.n and robust images"
                expected = f"{(count, count, right, right - broken)}, from clean_accuracy and asr_correct"
                raise ValueError(f"rates[{place}]: {names} are {counts}: expected {expected}")
        return self


class _Compared(Part):
    attack: str
    norm: Norm
    eps: Epsilon
    difference: Signed
    low: Signed
    high: Signed


class Difference(_Compared):
    """ASR of a model minus that of its twin on the same images."""

    model: str
    against: str
    p_value: Annotated[Share, Field(description="Exact McNemar test.")]


class MeanDifference(_Compared):
    """Mean of the differences over pairs of training seeds, with Student's t interval over the seeds."""

    family: str
    against_family: str
    seeds: Annotated[int, Field(ge=2)]


class DataSet(Part):
    """The images."""

    dataset: Annotated[str, Field(description="Source of images, as --data takes it.")]
    split: str
    n: Count
    images: Annotated[str | None, Field(description="Size, and how files were resized and cropped.")] = None
    fingerprint: Annotated[Digest, Field(description="SHA-256 of images, labels and ids.")]


class Attack(Part):
    """How the models were attacked."""

    name: str
    autoattack: Annotated[bool, Field(description="Whether it is AutoAttack.")]
    norm: Norm
    eps: Annotated[list[Epsilon], Field(min_length=1)]
    seed: Annotated[int, Field(ge=0, description="Of the attack's random draws.")]
    settings: Annotated[dict[str, Any], Field(description="All settings, defaults included, by attack.")]


class RobustnessCard(Part):
    """What an audit found.

    ``options`` are those of the command, from which ``antiphase verify`` repeats it. ``authors``, ``link``, ``venue``
    and ``additional_data`` are filled in by hand; ``verify`` checks everything else.
    """

    model_config = ConfigDict(json_schema_extra={"$schema": "https://json-schema.org/draft/2020-12/schema"})

    version: Literal[1] = 1
    name: str
    command: Literal["audit", "attack", "quickstart"]
    options: dict[str, Any]
    data: DataSet
    attack: Attack
    models: Annotated[list[Model], Field(min_length=1)]
    differences: list[Difference]
    mean_differences: list[MeanDifference]
    versions: Annotated[dict[str, str], Field(description="Of antiphase, torch and others.")]
    hardware: str
    date: Annotated[str | None, Field(description="When the audit ended, ISO 8601 in UTC.")] = None
    warnings: Annotated[list[str], Field(description="Reasons to doubt the numbers.")]

    @model_validator(mode="after")
    def _check(self) -> "RobustnessCard":
        for model in self.models:
            if model.clean_accuracy.n != self.data.n:
                raise ValueError(f"data.n {self.data.n}: {model.name} has {model.clean_accuracy.n} images")
        for place, row in enumerate(self.differences):
            cells = [(name, row.attack, row.norm, row.eps) for name in (row.model, row.against)]
            model, against = (self.cells[cell].asr.value if cell in self.cells else math.nan for cell in cells)
            if not abs(model - against - row.difference) <= _NEAR:
                why = f"does not fit the ASR of {row.model} and {row.against}"
                raise ValueError(f"differences[{place}].difference {row.difference:g} {why}")
        return self

    @cached_property
    def cells(self) -> dict[tuple[str, str, str, float], Rates]:
        rows = ((model.name, row) for model in self.models for row in model.rates)
        return {(name, row.attack, row.norm, row.eps): row for name, row in rows}


CARD = "card.json"


def read_card(path: str | Path) -> RobustnessCard:
    """Read a card, or that of a run directory; a UserError names the field that is wrong or does not fit the others."""
    file = Path(path, CARD) if Path(path).is_dir() else Path(path)
    text = read_bytes(file, f"expected {CARD} or the directory of an audit")
    try:
        return RobustnessCard.model_validate_json(text, strict=True)
    except ValidationError as error:
        raise invalid(error, f"card {shown(str(path))}: ") from None


_NOT_THE_AUDIT = ("out", "quiet", "batch_size", "fail_under")  # options that affect no number


def write_card(result: Any, directory: Path) -> Path:
    """Write ``card.json`` and ``CARD.md`` next to a run; what was filled in by hand for the same weights stays."""
    card, path, before = card_of_run(result), directory / CARD, {}
    with contextlib.suppress(UserError):  # there is no card yet, or none that can be read
        before = {model.weights: model.model_dump(include=set(BY_HAND)) for model in read_card(path).models}
    models = [model.model_copy(update=before.get(model.weights)) for model in card.models]
    card = card.model_copy(update={"models": models})
    write_json(path, card.model_dump(mode="json"))
    write_text(directory / "CARD.md", card_markdown(card))
    return path


def card_of_run(result: Any) -> RobustnessCard:
    """Return the card of a run."""
    run, twins = result.record, result.twins
    options, settings = run["options"], run["settings"]
    models = [family.name for family in result.families if not {*family.models} <= twins]
    against = [family.name for family in result.families if {*family.models} & twins]
    means = result.mean_comparisons.rename({"n": "seeds"})
    data = {"dataset": run["data"], "split": options["split"], "n": run["n"], "images": run.get("images")}
    attack = {"name": settings["attack"], "autoattack": settings["attack"] == "autoattack", "norm": settings["norm"]}
    attack |= {"eps": sorted(options["eps"]), "seed": settings["attack seed"]}
    attack["settings"] = {name: settings[name] for name in settings if name not in ("attack", "norm", "ε")}
    content = {name: run[name] for name in ("versions", "hardware", "date", "warnings")}
    content |= {"name": " against ".join(", ".join(side) for side in (models, against) if side), "command": result.kind}
    content["options"] = {name: value for name, value in options.items() if name not in _NOT_THE_AUDIT}
    content |= {"data": data | {"fingerprint": run["data_fingerprint"]}, "attack": attack}
    content["models"] = [_model(model, result, twins) for model in result.models]
    content["differences"] = result.comparisons.drop("n", "decided").to_dicts()
    content["mean_differences"] = means.select(*MeanDifference.model_fields).to_dicts()
    return RobustnessCard.model_validate(content)


def _model(model: dict[str, Any], result: Any, twins: set[str]) -> dict[str, Any]:
    name, run = model["name"], result.record
    rates: dict[Any, dict[str, Any]] = {}
    for row in result.rates.filter(model=name).iter_rows(named=True):
        cell = {key: row[key] for key in ("attack", "norm", "eps")}
        rate = {key: row[key] for key in Rate.model_fields}
        rates.setdefault(tuple(cell.values()), cell | {"asr_correct": None})[row["metric"]] = rate
    about = {key: model[key] for key in ("name", "attention", "seed", "lambda")} | run["architectures"][name]
    about |= {"role": "twin" if name in twins else "model", "spec": run["models"][name]}
    about |= {"weights": run["fingerprints"][name], "rates": list(rates.values())}
    return about | {"clean_accuracy": result.accuracy.filter(model=name).drop("model").row(0, named=True)}


_PLAIN = re.compile(r"[\w:/.,#?=+@ -]+")
_METRICS = dict(asr="ASR", asr_correct="ASR, correctly classified only", robust_accuracy="Robust accuracy")


def card_markdown(card: RobustnessCard) -> str:
    """Return ``CARD.md``; its front matter has the models' numbers as a ``model-index``, which the hub shows."""

    def linked(model: Model) -> str:
        name = _escaped(model.name)
        return f"[{name}]({model.link})" if model.link and not re.search(r"[\s()<>]", model.link) else name

    attacks: dict[tuple[str, str], dict[float, None]] = {}
    for _, attack, norm, eps in sorted(card.cells, key=lambda cell: cell[-1]):
        attacks.setdefault((attack, norm), {})[eps] = None
    values = {"card": card, "metrics": _METRICS, "attacks": attacks, "rates": card.cells}
    values |= {"escaped": _escaped, "linked": linked, "differential": any(one.lam for one in card.models)}
    values["quoted"] = lambda text: json.dumps(safe(text), ensure_ascii=False)  # as YAML
    # what could end the code or a cell is escaped
    values["code"] = lambda text: f"`{text}`" if _PLAIN.fullmatch(text) else _escaped(text)
    values["differences"] = _decided(card.differences, n=card.data.n)
    values["mean_differences"] = _decided(card.mean_differences)
    return environment().get_template("CARD.md").render(values)


def _decided(differences: Sequence[Any], **more: int) -> list[tuple[Any, str]]:
    if not differences:
        return []
    frame = pl.DataFrame([row.model_dump() | more for row in differences]).rename({"seeds": "n"}, strict=False)
    words = ({1: "higher", -1: "lower", 0: "no"}[sign] for sign in with_decisions(frame)["decided"])
    return list(zip(differences, words, strict=True))


def _escaped(text: str) -> str:
    return escaped(safe(text))
