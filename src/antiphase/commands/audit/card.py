"""The content of ``card.json``; ``card.schema.json`` next to this file is its JSON Schema.

Names follow RobustBench's ``model_info`` where they mean the same: ``name``, ``dataset``, ``norm``, ``eps``,
``architecture``, ``additional_data``, ``authors``, ``link`` and ``venue``. Rates are shares in [0, 1], ε is in units of
the [0, 1] pixel range, intervals are 95 % intervals.
"""

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal

import polars as pl
from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from antiphase.budgets import eps_label
from antiphase.errors import UserError, invalid, shown
from antiphase.evaluation.rates import with_decisions
from antiphase.files import write_json, write_text
from antiphase.report.table import markdown_table
from antiphase.report.words import attack_label, lambda_range, p_text, percent, points_interval
from antiphase.statistics.intervals import proportion
from antiphase.terminal import safe

SCHEMA = Path(__file__).with_name("card.schema.json")
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
    """Return the JSON Schema of a card; ``card.schema.json`` holds the same.

    >>> sorted(schema()["required"])[:4]
    ['attack', 'command', 'data', 'differences']
    """
    return RobustnessCard.model_json_schema()


CARD = "card.json"


def read_card(path: str | Path) -> RobustnessCard:
    """Read a card and check that its numbers fit each other.

    Args:
        path: of the card, or of the run directory that holds it.

    Raises:
        UserError: the file is missing or no card, or a number in it does not fit the others; names the field.
    """
    file = Path(path)
    file = file / CARD if file.is_dir() else file
    try:
        text = file.read_text(encoding="utf-8")
    except (OSError, ValueError) as error:
        why = getattr(error, "strerror", None) or "is no text"
        raise UserError(
            f"card {shown(str(path))}: cannot be read ({why}); expected {CARD} or the directory of an audit"
        ) from None
    try:
        return RobustnessCard.model_validate_json(text, strict=True)
    except ValidationError as error:
        raise invalid(error, f"card {shown(str(path))}: ") from None


_NOT_THE_AUDIT = ("out", "quiet", "batch_size", "independent")  # options that affect no number
_ESTIMATE = ("value", "low", "high", "n")


def write_card(result: Any, directory: Path) -> Path | None:
    """Write ``card.json`` and ``CARD.md`` into the directory of an audit or attack.

    What was filled in by hand in a card of the same weights stays.

    Returns:
        The path of ``card.json``; None for a run that does not say with which options it was made.
    """
    card = card_of_run(result)
    if card is None:
        return None
    path = directory / CARD
    card = _with_notes_of(path, card)
    write_json(path, card.content())
    write_text(directory / "CARD.md", card_markdown(card))
    return path


def card_of_run(result: Any) -> RobustnessCard | None:
    """Return the card of a run; None where :func:`write_card` writes none."""
    run = result.record
    options = run.get("options", {})
    if not options or "fingerprints" not in run:
        return None
    twins = {against for _, against in result.pairs} - {model for model, _ in result.pairs}
    settings = run["settings"]
    means = result.mean_comparisons.rename({"value": "difference", "n": "seeds"})
    content = {
        "name": " against ".join(_names(result, twins)),
        "command": result.kind,
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
        "models": [_model(model, result, twins) for model in result.models],
        "differences": result.comparisons.drop("n", "decided").to_dicts(),
        "mean_differences": means.select(*MeanDifference.model_fields).to_dicts(),
        "versions": run["versions"],
        "hardware": run["hardware"],
        "warnings": run["warnings"],
    }
    return RobustnessCard.model_validate(content)


def _names(result: Any, twins: set[str]) -> list[str]:
    """Return the audited models and their twins, each as one text; families of training seeds by their name."""
    names = {model["name"] for model in result.models}
    sides = (
        [family.name for family in result.families if side & set(family.models)]
        for side in (names - twins, twins)
    )
    return [", ".join(side) for side in sides if side]


def _model(model: dict[str, Any], result: Any, twins: set[str]) -> dict[str, Any]:
    name, run = model["name"], result.record
    (accuracy,) = result.accuracy.filter(model=name).to_dicts()
    rates = []
    blocks = result.rates.filter(model=name).group_by(["attack", "norm", "eps"], maintain_order=True)
    for (attack, norm, eps), block in blocks:
        by_metric = {
            row["metric"]: {key: row[key] for key in _ESTIMATE} for row in block.iter_rows(named=True)
        }
        rates.append({"attack": attack, "norm": norm, "eps": eps, "asr_correct": None, **by_metric})
    return {
        "name": name,
        "role": "twin" if name in twins else "model",
        "spec": run["models"][name],
        "attention": model["attention"],
        **run.get("architectures", {}).get(name, {}),
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


_MARKS = re.compile(r"[\\`*~|$\[\]]|(?<![^\W_])_|_(?![^\W_])")  # "_" only where it is not inside a word
_PLAIN = re.compile(r"[\w:/.,#?=+@ -]+")
_METRICS = {
    "asr": "ASR",
    "asr_correct": "ASR, correctly classified only",
    "robust_accuracy": "Robust accuracy",
}


def card_markdown(card: RobustnessCard) -> str:
    """Return the content of ``CARD.md``.

    The front matter has each model's numbers as a ``model-index``, which the hub shows; twins are in the tables only.
    """
    attack, version = card.attack, _escaped(card.versions["antiphase"])
    lines = [
        f"# Robustness of {_escaped(card.name)}",
        "",
        f"Attacked with {_label(attack.name, attack.norm)} on {card.data.n:,} images of {_code(card.data.dataset)} "
        f"({_escaped(card.data.split)}) by [antiphase](https://github.com/antiphase/antiphase) {version}. "
        "Numbers are per cent with 95 % intervals over the images; ε is in units of the [0, 1] pixel range.",
        "",
        *_models(card),
        *(line for metric in _METRICS for line in _rates(card, metric)),
        *_differences(card),
        "## How it was measured",
        "",
        *_bullets(card),
        "",
        "`card.json` has all numbers and the options. Where models and data are, this measures again and compares:",
        "",
        "    antiphase verify card.json",
        "",
    ]
    return _front_matter(card) + "\n".join(lines)


def _front_matter(card: RobustnessCard) -> str:
    from huggingface_hub import EvalResult
    from huggingface_hub.repocard_data import eval_results_to_model_index
    from huggingface_hub.utils import yaml_dump

    index = []
    for model in card.models:
        if model.role == "twin":
            continue
        numbers: list[tuple[str, str, float]] = [("accuracy", "Clean accuracy", model.clean_accuracy.value)]
        for at in model.rates:
            where = f"{attack_label(at.attack, at.norm)}, ε = {eps_label(at.eps)}"
            numbers += [
                ("robust_accuracy", f"Robust accuracy, {where}", at.robust_accuracy.value),
                ("attack_success_rate", f"ASR, {where}", at.asr.value),
            ]
        results = [
            EvalResult(
                task_type="image-classification",
                dataset_type=card.data.dataset,
                dataset_name=card.data.dataset,
                dataset_split=card.data.split,
                metric_type=kind,
                metric_name=name,
                metric_value=value,
            )
            for kind, name, value in numbers
        ]
        index += eval_results_to_model_index(model.name, results)
    tags = ["robustness", "adversarial-robustness"]
    tags += ["differential-attention"] if any(model.lam for model in card.models) else []
    front = {
        "library_name": "antiphase",
        "pipeline_tag": "image-classification",
        "tags": tags,
        "metrics": ["accuracy"],
        "model-index": index,
    }
    return f"---\n{yaml_dump(front, sort_keys=False)}---\n\n"


def _models(card: RobustnessCard) -> list[str]:
    head = (
        "Model",
        "",
        "Attention",
        "Architecture",
        "Parameters",
        "Training seed",
        "λ by layer",
        "Clean accuracy",
    )
    rows = [
        (
            _linked(model),
            "twin" if model.role == "twin" else "",
            _escaped(model.attention),
            _escaped(model.architecture or "–"),
            "–" if model.parameters is None else f"{model.parameters:,}",
            "–" if model.seed is None else str(model.seed),
            lambda_range(model.lam),
            _rate(model.clean_accuracy),
        )
        for model in card.models
    ]
    return [markdown_table(head, rows), ""]


def _linked(model: Model) -> str:
    name = _escaped(model.name)
    return f"[{name}]({model.link})" if model.link and not re.search(r"[\s()<>]", model.link) else name


def _rates(card: RobustnessCard, metric: str) -> list[str]:
    lines = [f"## {_METRICS[metric]}", ""]
    attacks = dict.fromkeys((at.attack, at.norm) for model in card.models for at in model.rates)
    for attack, norm in attacks:
        budgets = sorted({at.eps for model in card.models for at in model.rates if at.attack == attack})
        rows = []
        for model in card.models:
            found = {
                at.eps: getattr(at, metric) for at in model.rates if (at.attack, at.norm) == (attack, norm)
            }
            rows.append((_escaped(model.name), *(_rate(found.get(eps)) for eps in budgets)))
        lines += [markdown_table((_label(attack, norm), *map(eps_label, budgets)), rows), ""]
    return lines


def _differences(card: RobustnessCard) -> list[str]:
    if not card.differences:
        return []
    rows = [
        (
            f"{_escaped(one.model)} − {_escaped(one.against)}",
            _label(one.attack, one.norm),
            eps_label(one.eps),
            points_interval(one.difference, one.low, one.high),
            p_text(one.p_value),
            decided,
        )
        for one, decided in zip(card.differences, _decided(card.differences, n=card.data.n), strict=True)
    ]
    head = ("ASR, paired", "Attack", "ε", "Difference", "McNemar", "Decided (Holm)")
    lines = ["## Difference from the twin", "", markdown_table(head, rows), ""]
    if card.mean_differences:
        means = [
            (
                f"{_escaped(one.family)} − {_escaped(one.against_family)}",
                _label(one.attack, one.norm),
                eps_label(one.eps),
                points_interval(one.difference, one.low, one.high),
                str(one.seeds),
                decided,
            )
            for one, decided in zip(card.mean_differences, _decided(card.mean_differences), strict=True)
        ]
        head = ("Mean over training seeds", "Attack", "ε", "Difference", "Seeds", "Decided (Holm)")
        lines += [markdown_table(head, means), ""]
    return lines


def _decided(differences: Sequence[Difference | MeanDifference], **more: int) -> list[str]:
    """Say of each difference what the report decides; they come in the order of its tables."""
    frame = pl.DataFrame([one.model_dump() | more for one in differences])
    if "seeds" in frame.columns:
        frame = frame.rename({"difference": "value", "seeds": "n"})
    return [{1: "higher", -1: "lower", 0: "no"}[sign] for sign in with_decisions(frame)["decided"]]


def _bullets(card: RobustnessCard) -> list[str]:
    settings = [
        f"{name}: {', '.join(f'{key} {value}' for key, value in found.items()) if isinstance(found, dict) else found}"
        for name, found in card.attack.settings.items()
    ]
    versions = ", ".join(f"{name} {version}" for name, version in card.versions.items())
    lines = [*map(_escaped, settings), f"data, SHA-256: `{card.data.fingerprint}`"]
    lines += [f"weights of {_escaped(model.name)}, SHA-256: `{model.weights}`" for model in card.models]
    lines += [f"versions: {_escaped(versions)}", f"hardware: {_escaped(card.hardware)}"]
    return [f"- {line}" for line in lines] + [f"- **Note:** {_escaped(warning)}" for warning in card.warnings]


def _rate(rate: Rate | None) -> str:
    return "–" if rate is None else f"{percent(rate.value)} [{percent(rate.low)}, {percent(rate.high)}]"


def _label(attack: str, norm: str) -> str:
    return _escaped(attack_label(attack, norm))


def _escaped(text: str) -> str:
    r"""Return text that Markdown shows as it is, in one line.

    >>> print(_escaped("<b>|[a](b)|\n# _c_ d_e"))
    &lt;b>\|\[a\](b)\| # \_c\_ d_e
    """
    text = _MARKS.sub(r"\\\g<0>", safe(" ".join(text.split())))
    return text.replace("&", "&amp;").replace("<", "&lt;")


def _code(text: str) -> str:
    """Return text as code, or escaped if it could end the code or a cell."""
    return f"`{text}`" if _PLAIN.fullmatch(text) else _escaped(text)
