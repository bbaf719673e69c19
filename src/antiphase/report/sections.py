"""The sections of the findings: tables over depths with intervals over seeds, and the claims they decide."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import polars as pl

from antiphase.evaluation import sensitivity
from antiphase.evaluation.statistics import Estimate, as_difference, as_share, as_size, mean_over_seeds
from antiphase.report.families import Family
from antiphase.report.wording import eps_label, number
from antiphase.sensitivity.depth import crossover

Claims = list[tuple[str, str, str, str]]


@dataclass(frozen=True)
class Depth:
    """The two families of one depth, and which models are twins."""

    layers: int
    differential: Family
    standard: Family
    pairs: tuple[tuple[str, str], ...]


def _seeds(
    values: Mapping[str, float], models: Sequence[str], within: Callable[[Estimate], Estimate] = as_size
) -> Estimate:
    return within(mean_over_seeds([values[model] for model in models]))


def _by_model(frame: pl.DataFrame, **keys: Any) -> dict[str, float]:
    return dict(frame.filter(**keys).select("model", "value").iter_rows())


def _difference(values: Mapping[str, float], pairs: Sequence[tuple[str, str]]) -> Estimate:
    return mean_over_seeds([values[model] - values[against] for model, against in pairs])


def verdict(estimate: Estimate, level: float = 0.0) -> str:
    """Return on which side of a level the interval lies."""
    return "holds" if estimate.low > level else "fails" if estimate.high < level else "undecided"


def estimate_text(estimate: Estimate, digits: int = 3, scale: float = 1.0) -> str:
    """Return the value and its interval."""
    value, low, high = (
        number(scale * each, digits) for each in (estimate.value, estimate.low, estimate.high)
    )
    return f"{value} [{low}, {high}]"


def table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Return a table of Markdown."""
    lines = ["| " + " | ".join(head) + " |", "|" + "---|" * len(head)]
    return "\n".join([*lines, *("| " + " | ".join(row) + " |" for row in rows)])


def alignment(rows: pl.DataFrame, depths: Sequence[Depth]) -> tuple[str, Claims]:
    """Tabulate cosθ, its share below 0 and ρ by layer; claim Figure 5."""
    frame = sensitivity.alignment(rows)
    lines, claims = [], []
    for depth in depths:
        models = depth.differential.models
        for layer in range(depth.layers):
            cells = []
            for site in ("pixels", "tokens"):
                for metric, digits, scale in (("cosine", 3, 1.0), ("below", 0, 100.0), ("rho", 2, 1.0)):
                    values = _by_model(frame, site=site, layer=layer, metric=metric)
                    found = _seeds(values, models, sensitivity.within(metric))
                    cells.append(estimate_text(found, digits, scale))
            lines.append((str(depth.layers), str(layer + 1), *cells))
        share = _seeds(_by_model(frame, site="pixels", layer=0, metric="below"), models, as_share)
        where = f"depth {depth.layers}, layer 1"
        claims.append((
            "Negative gradient alignment dominates: cosθ < 0 in more than half of the cases (Figure 5)", where,
            f"{estimate_text(share, 0, 100)} %", verdict(share, 0.5),
        ))  # fmt: skip
    head = (
        "depth",
        "layer",
        *(f"{name}, {site}" for site in ("pixels", "tokens") for name in ("cosθ", "cosθ < 0, %", "ρ")),
    )
    words = (
        "## Gradient alignment by layer\n\ncosθ and ρ = ‖J2‖/‖J1‖ from inner products averaged over "
        "images and heads; at the "
        "pixels by random directions in forward mode, at the layer's tokens in closed form.\n\n"
    )
    return words + table(head, lines), claims


def explanation(rows: pl.DataFrame, depths: Sequence[Depth]) -> tuple[str, Claims]:
    """Take the relative sensitivity of each layer apart; claim Section 4.1."""
    lines, claims = [], []
    for depth in depths:
        frame = sensitivity.explanation(rows, list(depth.pairs))
        models = depth.differential.models
        for layer in range(depth.layers):
            cells = [
                estimate_text(
                    _seeds(
                        _by_model(frame, site="pixels", layer=layer, metric=metric),
                        models,
                        sensitivity.within(metric),
                    )
                )
                for metric in ("relative", "by_gamma", "by_rho", "by_cosine")
            ]
            lines.append((str(depth.layers), str(layer + 1), *cells))
            values = _by_model(frame, site="pixels", layer=layer, metric="relative")
            relative = _seeds(values, models, sensitivity.within("relative"))
            claims.append((
                "Differential attention's map has the larger gradient: ‖J_DA‖ > ‖J_base‖ (Section 4.1)",
                f"depth {depth.layers}, layer {layer + 1}", f"ln ratio {estimate_text(relative)}", verdict(relative),
            ))  # fmt: skip
    words = (
        "## What makes a layer more sensitive than its twin's\n\nln(‖J_DA‖/‖J_base‖) at the pixels, "
        "and its three parts, which add "
        "up to it exactly: the positive map's own gradient (γ), the second map's size (ρ), and the angle (cosθ).\n\n"
    )
    return words + table(("depth", "layer", "ln ratio", "by γ", "by ρ", "by cosθ"), lines), claims


def lipschitz(rows: pl.DataFrame, depths: Sequence[Depth]) -> tuple[str, Claims]:
    """Tabulate every estimator's local Lipschitz constants; claim Figures 3d and 4."""
    frame = sensitivity.means(rows, ["model", "of", "layer", "estimator"], ["value"])
    maps = frame.filter(of="map").group_by(["model", "estimator"], maintain_order=True).agg(pl.mean("value"))
    lines, claims = [], []
    names = ("sampled mean", "sampled maximum", "power iteration", "local maximum", "gradient ascent")
    for depth in depths:
        for group in (depth.differential, depth.standard):
            for of, own in (("maps, mean of layers", maps), ("logits", frame.filter(of="logits"))):
                cells = [
                    estimate_text(_seeds(_by_model(own, estimator=name), group.models)) for name in names
                ]
                lines.append((str(depth.layers), group.name, of, *cells))
        for name in ("sampled mean", "gradient ascent"):
            found = _difference(_by_model(maps, estimator=name), depth.pairs)
            claims.append((
                f"Layers of differential attention have the larger local Lipschitz constant (Figure 4), by {name}",
                f"depth {depth.layers}, mean of layers", estimate_text(found), verdict(found),
            ))  # fmt: skip
    first, last = depths[0], depths[-1]
    if first is not last and len(first.pairs) == len(last.pairs):
        values = _by_model(maps, estimator="sampled mean")
        growth = mean_over_seeds(
            [
                values[b] - values[a]
                for a, b in zip(first.differential.models, last.differential.models, strict=True)
            ]
        )
        claims.append((
            "The mean over the layers of a DiffViT's Lipschitz estimates rises with depth (Figure 3d)",
            f"depth {last.layers} − depth {first.layers}", estimate_text(growth), verdict(growth),
        ))  # fmt: skip
    words = (
        f"## Local Lipschitz constants\n\nMeans over {rows['sample'].n_unique()} images, L2 → L2, L∞ ball of "
        f"{eps_label(rows['eps'][0])}; maps by the pixels, root mean square over the heads. The "
        "sampled mean is the paper's.\n\n"
    )
    return words + table(("depth", "model", "of", *names), lines), claims


def travel(rows: pl.DataFrame, depths: Sequence[Depth]) -> tuple[str, Claims]:
    """Tabulate gains, α and cancellation by block; claim Section 4.2."""
    frame = sensitivity.means(rows, ["model", "perturbation", "eps", "stage"], ["gain", "lipschitz", "alpha"])
    cancelled = sensitivity.cancellation(rows)
    lines, claims = [], []
    eps = float(rows["eps"].min())  # pyright: ignore
    for depth in depths:
        for stage in range(depth.layers + 1):
            for kind in ("noise", "pgd"):
                at = {"perturbation": kind, "eps": eps, "stage": stage}
                cells = []
                for group in (depth.differential, depth.standard):
                    cells += [
                        estimate_text(_seeds(_by_model(frame, metric=metric, **at), group.models), digits)
                        for metric, digits in (("gain", 2), ("alpha", 3))
                    ]
                own = _by_model(cancelled, **at)
                cells.append(estimate_text(_seeds(own, depth.differential.models)) if own else "–")
                lines.append((str(depth.layers), str(stage), kind, *cells))
                if stage:
                    both = _seeds(own, depth.differential.models)
                    below = Estimate(1 - both.value, 1 - both.high, 1 - both.low, both.n)
                    claims.append((
                        "Subtraction cancels what a perturbation does to both maps (Section 4.2)",
                        f"depth {depth.layers}, block {stage}, {kind}", f"cancellation {estimate_text(both)}",
                        verdict(below),
                    ))  # fmt: skip
    reached = sensitivity.bounds(rows)
    final = [
        (str(depth.layers), kind, *(
            estimate_text(_seeds(_by_model(reached, perturbation=kind, eps=eps), group.models), 5)
            for group in (depth.differential, depth.standard)
        ))
        for depth in depths for kind in ("noise", "pgd")
    ]  # fmt: skip
    words = (
        f"## A perturbation's way through the depth\n\nε = {eps_label(eps)}; block 0 is the "
        "embedding. Gain ‖Δ(d)‖/‖Δ(d−1)‖, α(d) = "
        "gain over the block's operator norm (Theorem 4 takes standard attention's to be near 1; a small one is no "
        "sign of cancellation, since few perturbations lie along the direction that a block "
        "stretches most), cancellation ‖ΔA1 − λΔA2‖/√(‖ΔA1‖² + λ²‖ΔA2‖²) (below 1: cancels).\n\n"
    )
    head = (
        "depth",
        "block",
        "perturbation",
        "gain, DiffViT",
        "α, DiffViT",
        "gain, ViT",
        "α, ViT",
        "cancellation",
    )
    bound = table(("depth", "perturbation", "DiffViT", "ViT"), final)
    after = "\n\nOf the product bound ∏ L(d)·‖ξ‖ (equation 5 with α = 1), this share happened:\n\n"
    return words + table(head, lines) + after + bound, claims


def asr(frame: pl.DataFrame, depths: Sequence[Depth]) -> tuple[str, Claims]:
    """Tabulate the attack success rate by depth; claim Section 5.2 and the crossover."""
    lines, claims = [], []
    for eps in frame["eps"].unique().sort().to_list():
        apart: dict[int, tuple[float, float]] = {}
        for depth in depths:
            values = _by_model(frame, metric="asr", eps=eps)
            found = as_difference(_difference(values, depth.pairs))
            apart[depth.layers] = (found.low, found.high)
            both = (_seeds(values, group.models, as_share) for group in (depth.differential, depth.standard))
            texts = (estimate_text(each, 1, 100) for each in (*both, found))
            lines.append((eps_label(eps), str(depth.layers), *texts))
            if depth.layers == 1:
                claims.append((
                    "A single layer of differential attention is the more fragile one (Section 5.2)",
                    f"depth {depth.layers}, ε = {eps_label(eps)}", f"{estimate_text(found, 1, 100)} points",
                    verdict(found),
                ))  # fmt: skip
        if len(depths) < 2:
            continue
        at = crossover(apart)
        deepest = depths[-1]
        found = as_difference(_difference(_by_model(frame, metric="asr", eps=eps), deepest.pairs))
        claims.append((
            "Deep differential models are the more robust ones, after a crossover (Corollary 1; Figure 3)",
            f"depth {deepest.layers}, ε = {eps_label(eps)}",
            f"{estimate_text(found, 1, 100)} points; crossover {f'at depth {at}' if at else 'not seen'}",
            "holds" if at else "fails" if found.low > 0 else "undecided",
        ))  # fmt: skip
    words = f"## Attack success rate by depth\n\n{frame['attack'][0].upper()}, in percent of the images.\n\n"
    return words + table(("ε", "depth", "DiffViT", "ViT", "difference, points"), lines), claims
