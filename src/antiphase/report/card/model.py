"""The content of ``card.json``; ``schema.json`` next to this file is its JSON Schema.

Names follow RobustBench's ``model_info`` where they mean the same: ``name``, ``dataset``, ``norm``, ``eps``,
``architecture``, ``additional_data``, ``authors``, ``link`` and ``venue``. Rates are shares in [0, 1], ε is in units of
the [0, 1] pixel range, intervals are 95 % intervals.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, model_validator

from antiphase.statistics.intervals import proportion

SCHEMA = Path(__file__).with_name("schema.json")
BY_HAND = ("authors", "link", "venue", "additional_data")
"""Fields of a model that its authors fill in; no audit knows them."""

_NEAR = 1e-9  # what JSON and another machine's rounding may change

Share = Annotated[float, Field(ge=0, le=1)]
Signed = Annotated[float, Field(ge=-1, le=1)]
Count = Annotated[int, Field(ge=1)]
Epsilon = Annotated[float, Field(gt=0)]
Digest = Annotated[str, Field(pattern="^[0-9a-f]{64}$")]
Norm = Literal["linf", "l2"]


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

    @model_validator(mode="after")
    def _check(self) -> "Rate":
        hits = min(round(self.value * self.n), self.n)
        expected = proportion(hits, self.n)
        odd = [
            name
            for name in ("value", "low", "high")
            if abs(getattr(self, name) - getattr(expected, name)) > _NEAR
        ]
        if odd:
            name = "value" if len(odd) > 1 else odd[0]  # both ends agree with each other, not with it
            raise ValueError(
                f"{name} {getattr(self, name):g} does not fit the rest: {hits} of {self.n} is "
                f"{expected.value:g} [{expected.low:g}, {expected.high:g}]"
            )
        return self


class Rates(Part):
    """What one attack does to one model at one ε."""

    attack: str
    norm: Norm
    eps: Epsilon
    asr: Annotated[Rate, Field(description="Attack success rate: broken / all.")]
    asr_correct: Annotated[
        Rate | None,
        Field(description="Broken / correctly classified; null if no image is classified correctly."),
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
        bool | None,
        Field(description="Whether more data than the data set's own were used; filled in by hand."),
    ] = None

    @model_validator(mode="after")
    def _check(self) -> "Model":
        clean = self.clean_accuracy
        right = round(clean.value * clean.n)
        for at, rates in enumerate(self.rates):
            where, correct, robust = f"rates[{at}]", rates.asr_correct, rates.robust_accuracy
            if rates.asr.n != clean.n or robust.n != clean.n:
                raise ValueError(f"{where}: is of other images than clean_accuracy.n {clean.n}")
            if (correct.n if correct else 0) != right:
                raise ValueError(
                    f"{where}.asr_correct.n: expected {right}, the images of clean_accuracy {clean.value:g}"
                )
            held = right - (round(correct.value * correct.n) if correct else 0)
            if round(robust.value * robust.n) != held:
                raise ValueError(
                    f"{where}.robust_accuracy.value {robust.value:g} does not fit asr_correct: expected "
                    f"{held}/{robust.n}"
                )
        return self


class Difference(Part):
    """ASR of a model minus that of its twin on the same images."""

    model: str
    against: str
    attack: str
    norm: Norm
    eps: Epsilon
    difference: Signed
    low: Signed
    high: Signed
    p_value: Annotated[Share, Field(description="Exact McNemar test.")]


class MeanDifference(Part):
    """Mean of the differences over pairs of training seeds, with Student's t interval over the seeds."""

    family: str
    against_family: str
    attack: str
    norm: Norm
    eps: Epsilon
    difference: Signed
    low: Signed
    high: Signed
    seeds: Annotated[int, Field(ge=2)]


class DataSet(Part):
    """The images."""

    dataset: Annotated[str, Field(description="Source of images, as --data takes it.")]
    split: str
    n: Count
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
    warnings: Annotated[list[str], Field(description="Reasons to doubt the numbers.")]

    @model_validator(mode="after")
    def _check(self) -> "RobustnessCard":
        for model in self.models:
            if model.clean_accuracy.n != self.data.n:
                raise ValueError(f"data.n {self.data.n}: {model.name} has {model.clean_accuracy.n} images")
        asr = {
            (model.name, at.attack, at.norm, at.eps): at.asr.value
            for model in self.models
            for at in model.rates
        }
        for at, one in enumerate(self.differences):
            sides = [asr.get((name, one.attack, one.norm, one.eps)) for name in (one.model, one.against)]
            if None in sides or abs(sides[0] - sides[1] - one.difference) > _NEAR:  # type: ignore[operator]
                raise ValueError(
                    f"differences[{at}].difference {one.difference:g} does not fit the ASR of {one.model} and "
                    f"{one.against}"
                )
        return self

    def content(self) -> dict[str, Any]:
        """Return the card as JSON holds it."""
        return self.model_dump(mode="json")


def schema() -> Mapping[str, Any]:
    """Return the JSON Schema of a card; ``schema.json`` holds the same.

    >>> sorted(schema()["required"])[:4]
    ['attack', 'command', 'data', 'differences']
    """
    return RobustnessCard.model_json_schema()
