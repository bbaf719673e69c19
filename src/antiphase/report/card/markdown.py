"""A card as a page for a hub: front matter as Hugging Face's model cards have it, then tables."""

import re
from collections.abc import Sequence

import polars as pl

from antiphase.budgets import eps_label
from antiphase.evaluation.rates import with_decisions
from antiphase.report.card.model import Difference, MeanDifference, Model, Rate, RobustnessCard
from antiphase.report.words import attack_label, lambda_range, p_text, percent, points_interval
from antiphase.terminal import safe

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
    return [*_table(head, rows), ""]


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
        lines += [*_table((_label(attack, norm), *map(eps_label, budgets)), rows), ""]
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
    lines = ["## Difference from the twin", "", *_table(head, rows), ""]
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
        lines += [*_table(head, means), ""]
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


def _table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    return [f"| {' | '.join(row)} |" for row in (head, ["---"] * len(head), *rows)]
