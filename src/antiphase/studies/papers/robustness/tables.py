"""Tables 1 to 3: λ_init, four layers on Tiny ImageNet, and adversarial training."""

from functools import partial
from itertools import product
from typing import Any

import polars as pl

from antiphase.studies import IN_255THS, Artefact, Cell, Panel, Profile, RowsByTable, figures, panels, paper_settings
from antiphase.studies.claims import Check, apart, higher, no_worse, on_average
from antiphase.studies.estimation import ASR, CORRECT, estimates, gaps, peak, trend
from antiphase.studies.papers.declarations import Checks
from antiphase.studies.papers.robustness.bench import EPS, KINDS, PAPER, SMALL, bench, measured, vit_study
from antiphase.terminal import eps_label

LAMBDAS = (0.5, 0.7, 0.8, 0.85, 0.9, 0.95)
WIDTHS = (8, 4, 2)
BUDGETS = tuple(eps for eps in reversed(EPS) if eps <= 4 / 255)
COLUMNS = (*(f"patch {width}" for width in WIDTHS), *map(eps_label, BUDGETS))
TRAINED = (0.0, 0.25 / 255, 0.5 / 255, 1 / 255)
PRINTED = {name: paper_settings.printed_numbers("robustness", name) for name in ("table-1", "table-2", "table-3")}
_AT = 1 / 255
_HARMLESS = 0.005  # our reading of "without harming classification accuracy"
_CONVERGES = "ASR(DiffViT) − ASR(ViT), at 1/255 − at 4/255"
_SIDES = {"below": "0.5 to 0.7", "above": "0.85 to 0.95"}


def _lambda_cells(profile: Profile) -> list[Cell]:
    sizes = bench(profile)
    changes: list[Any] = [{} if lam == 0.8 else {"lambda_init": lam} for lam in LAMBDAS]
    models = [sizes.train("diffvit", seed, **changed) for changed in changes for seed in sizes.seeds_of(profile)]
    return measured(models, partial(sizes.attack, eps=SMALL), sizes.accuracy)


def _draw_lambdas(rows: RowsByTable) -> Artefact:
    attacks = rows["attack"].filter((pl.col("eps") - _AT).abs() < 1e-9)
    both = pl.concat(
        estimates(frame, ["data", "lambda_init"], value)
        .sort("lambda_init", maintain_order=True)
        .with_columns(row=pl.lit(name))
        for name, frame, value in (("accuracy", rows["accuracy"], CORRECT), ("ASR (ε = 1/255)", attacks, ASR))
    ).with_columns(series=pl.lit("DiffViT"))
    paper = PRINTED["table-1"]
    points = paper.with_columns(series=pl.lit("DiffViT"), x=pl.col("column").cast(pl.Float64))
    drawn = list[Panel]()
    for (name,), block in both.group_by("row", maintain_order=True):
        drawn += panels(block, "{row}, {data}", "lambda_init", ("λ_init", str(name)), paper=points, percent=True)
    lam = pl.col("lambda_init").map_elements(lambda value: f"{value:g}", pl.String)
    title = "Accuracy and ASR of DiffViT by λ_init, {data}"
    listed = figures.tables(both, title, "table-1-{data}", "row", lam, index="λ_init", paper=paper)
    return Artefact([PAPER.plot("table-1", drawn)], listed)


def _lambda_checks(rows: RowsByTable) -> Checks:
    attacks, lam = rows["attack"], pl.col("lambda_init")
    where = {"series": "DiffViT", "eps": _AT}

    def peaks(words: str, frame: pl.DataFrame, where: dict, value: pl.Expr) -> list[Check]:
        sides = peak(frame, "lambda_init", 0.8, where, value)
        return [Check(f"{words} at λ_init 0.8 against {_SIDES[side]} on average", estimate) for side, estimate in sides]

    rise = trend(attacks.filter(lam < 0.801), "lambda_init", where, ASR)
    fall = trend(attacks.filter(lam > 0.799), "lambda_init", where, -ASR)
    return {
        "asr-peaks": peaks("ASR", attacks, where, ASR),
        "asr-rises": [Check("fitted rise of ASR from λ 0.5 to 0.8", rise)],
        "asr-falls": [Check("fitted fall of ASR from λ 0.8 to 0.95", fall)],
        "accuracy-peaks": peaks("accuracy", rows["accuracy"], {"series": "DiffViT"}, CORRECT),
    }


TABLE_1 = vit_study("table-1", _lambda_cells, _draw_lambdas, _lambda_checks)


def _four_layer_cells(profile: Profile) -> list[Cell]:
    sizes = bench(profile)
    data = "tiny-imagenet" if profile.name == "paper" else None
    depth = max(depth for depth in sizes.depths if depth <= 4)
    models = [sizes.train(kind, seed, data, depth=depth) for kind in KINDS for seed in sizes.seeds_of(profile, depth)]
    return measured(models, sizes.attack, *(partial(sizes.patch, width=width) for width in WIDTHS), sizes.accuracy)


def _draw_four_layers(rows: RowsByTable) -> Artefact:
    patch = pl.format("patch {}", "width")
    named = rows["attack"].with_columns(column=pl.when(attack="patch").then(patch).otherwise(IN_255THS))
    rates = estimates(named.filter(pl.col("column").is_in(COLUMNS)), ["data", "series", "column"], ASR)
    rates = rates.sort("series", pl.col("column").cast(pl.Enum(COLUMNS)), maintain_order=True)
    title, paper = "ASR under PGD with four layers, {data}", PRINTED["table-2"]
    return Artefact(tables=figures.tables(rates, title, "table-2-{data}", "series", "column", paper=paper))


def _four_layer_checks(rows: RowsByTable) -> Checks:
    attacks = rows["attack"].rename({"width": "patch"})
    patches, pgd = (attacks.filter(attack=name) for name in ("patch", "pgd"))
    return {
        "fragile-to-patches-at-depth-4": higher(patches, "DiffViT", than="ViT", patch=WIDTHS),
        "fragile-at-depth-4": on_average(pgd, "DiffViT", than="ViT", eps=EPS),
        "small-eps-at-depth-4": higher(pgd, "DiffViT", than="ViT", eps=[0.5 / 255, _AT]),
        **eps_checks(pgd),
    }


def eps_checks(pgd: pl.DataFrame) -> Checks:
    """Check that DiffViT is further above ViT at 1/255 than at smaller and larger ε, and than at 4/255."""
    return {
        "gap-largest-at-1": [
            Check(f"ASR(DiffViT) − ASR(ViT), at 1/255 − mean of the ε {side} it", estimate)
            for side, estimate in peak(gaps(pgd), "eps", _AT, {}, pl.col("value"))
        ],
        "converges-at-4": apart(gaps(pgd), "eps", _AT, 4 / 255, pl.col("value"), _CONVERGES, "points"),
    }


TABLE_2 = vit_study("table-2", _four_layer_cells, _draw_four_layers, _four_layer_checks)


def _adversarial_cells(profile: Profile) -> list[Cell]:
    sizes = bench(profile)
    pairs = product(reversed(KINDS), TRAINED)
    models = [sizes.train(kind, seed, adversary=eps) for kind, eps in pairs for seed in sizes.seeds_of(profile)]
    return measured(models, partial(sizes.attack, eps=SMALL), sizes.accuracy)


def _by_training(natural: str, hostile: str) -> pl.Expr:
    eps = pl.col("train_eps").map_elements(eps_label, pl.String)
    return pl.when(pl.col("train_eps") > 0).then(pl.format(hostile + "{}", eps)).otherwise(pl.lit(natural))


def _draw_adversarial(rows: RowsByTable) -> Artefact:
    asr = estimates(rows["attack"], ["data", "series", "train_eps", "eps"], ASR)
    clean = estimates(rows["accuracy"], ["data", "series", "train_eps"], CORRECT)
    clean = clean.with_columns(column=pl.lit("accuracy"))
    both = pl.concat([clean, asr.with_columns(column=pl.format("ASR {}", IN_255THS))], how="diagonal")
    row = pl.format("{}, {}", "series", _by_training("natural", "adversarial ε = "))
    title, paper = "Accuracy and ASR after adversarial training, {data}", PRINTED["table-3"]
    curves = asr.with_columns(model="series", series=_by_training("natural", "trained at "))
    labels = ("ε of the attack", "attack success rate")
    drawn = panels(curves, "{model}, {data}", "eps", labels, scale="eps", percent=True)
    listed = figures.tables(both, title, "table-3-{data}", row, "column", paper=paper)
    return Artefact([PAPER.plot("table-3", drawn)], listed)


def _adversarial_checks(rows: RowsByTable) -> Checks:
    attacks, clean = rows["attack"], rows["accuracy"].filter(series="DiffViT")

    def lowered(kind: str) -> list[Check]:
        words = f"ASR({kind}, natural) − ASR(adversarially trained),"
        less = partial(apart, attacks.filter(series=kind), "train_eps", 0.0)
        return [check for eps in TRAINED[1:] for check in less(eps, ASR, words, "points", eps=eps)]

    def kept(first: float, second: float) -> list[Check]:
        one, other = ("natural" if eps == 0 else eps_label(eps) for eps in (first, second))
        words = f"accuracy(DiffViT, {one}) − accuracy({other})"
        return apart(clean, "train_eps", first, second, CORRECT, words, "points")

    falls = trend(clean.filter(pl.col("train_eps") > 0), "train_eps", {"series": "DiffViT"}, -CORRECT, scale="log2")
    raised = f"ASR(DiffViT, trained at {eps_label(TRAINED[1])}) − ASR(natural),"
    line = Check("accuracy(DiffViT, fitted line at 0.25/255) − accuracy(1/255)", falls)
    return {
        "training-lowers-asr": lowered("DiffViT"),
        "training-lowers-asr-of-vit": lowered("ViT"),
        "small-eps-raises-larger-asr": apart(
            attacks.filter(series="DiffViT"), "train_eps", TRAINED[1], 0.0, ASR, raised, "points", eps=TRAINED[2:]
        ),
        "small-eps-is-free": kept(TRAINED[1], 0.0),
        "small-eps-harmless": [no_worse(check, _HARMLESS) for check in kept(TRAINED[1], 0.0)],
        "large-eps-costs": [line, *kept(0.0, TRAINED[3])],
    }


TABLE_3 = vit_study("table-3", _adversarial_cells, _draw_adversarial, _adversarial_checks)
