"""Which defence lets a DiffViT keep its accuracy and lose its higher ASR: regularisers and adversarial trainings."""

from dataclasses import replace
from itertools import product
from typing import Any

import polars as pl

from antiphase.commands.audit.advice import measured
from antiphase.studies import ASR, CORRECT, SEED, Check, TrainVit, apart, estimates, on_average
from antiphase.studies.figures import IN_255THS, SIZE, Artefact, Table, panels, tables
from antiphase.studies.own.variants import DIFFVIT, PAPER, VIT, seeds_of, shown_settings, trained
from antiphase.studies.papers.declarations import Checks
from antiphase.studies.papers.robustness.bench import EPS, RobustnessBench, bench
from antiphase.studies.papers.robustness.layers import cosine
from antiphase.studies.spec import Cell, Profile, RowsByTable

PENALTIES = ("map-jacobian", "alignment", "lambda-rho", "jasmin", "input-gradient")
ADVERSARIAL = ("fast", "free", "trades")
BY_ARCHITECTURE: dict[str, dict[str, Any]] = {
    "lambda-max": {"lambda_init": 0.4, "lambda_max": 0.4},
    "temperature": {"temperature": 2.0},
}
DEFENCES = (*PENALTIES, *ADVERSARIAL, *BY_ARCHITECTURE)
CHOSEN = {"map-jacobian": 0.1, "alignment": 0.1, "lambda-rho": 10.0, "jasmin": 0.01, "input-gradient": 0.01}
CHOSEN |= {"fast": 1 / 255, "free": 0.5 / 255, "trades": 1.0}
"""Strengths that ``benchmarks/defence_strengths.py`` chose on held-out training images; of fast and free adversarial
training the ε, of TRADES its β at ε = 2/255."""
TRAINED = {DIFFVIT: ("natural", *DEFENCES), VIT: ("natural", "fast")}
PROBED = 2  # training seeds under further attacks
AUTOATTACK_EPS = tuple(eps / 255 for eps in (1, 2, 4))
AT = 2 / 255


def defended(sizes: RobustnessBench, kind: str, name: str, seed: int, data: str, strength: float) -> TrainVit:
    """Return a training with a defence; ``natural`` is that of the other studies."""
    model = trained(sizes, kind, seed, data, "uniform")
    if name == "natural":
        return model
    fields: dict[str, Any] = {"called": f"{kind}, {name}"}
    if name in BY_ARCHITECTURE:
        return replace(model, sizes={**model.sizes, **BY_ARCHITECTURE[name]}, **fields)
    if name in ADVERSARIAL:
        eps = AT if name == "trades" else strength
        fields["adversary"] = {"eps": eps, "variant": "free" if name == "free" else "fast"}
    if name not in ("fast", "free"):
        fields["recipe"] = {**model.recipe, "defences": {name: strength}}
    return replace(model, **fields)


def cells(profile: Profile) -> list[Cell]:
    """Return accuracy, PGD and AutoAttack of every model, and further attacks and gradients of the first seeds."""
    sizes, made = bench(profile), list[Cell]()
    for data, (kind, names), seed in product(sizes.data, TRAINED.items(), seeds_of(profile)):
        for name in names:
            model = defended(sizes, kind, name, seed, data, CHOSEN.get(name, 0.0))
            made += [sizes.attack(model), sizes.accuracy(model), sizes.attack(model, AUTOATTACK_EPS, "autoattack")]
            if seed < PROBED and kind == DIFFVIT:
                made.append(sizes.attack(model, (AT,), objective="margin", restarts=10))
                made.append(sizes.attack(model, (AT,), "square", queries=1000))
                made.append(sizes.attack(model, (1.0,)))
                made.append(sizes.sense_of(model, "alignment"))
    return made


def split_series(rows: pl.DataFrame) -> pl.DataFrame:
    """Return rows with the columns ``model`` and ``defence`` in place of the series' two parts."""
    parts = pl.col("series").str.split(", ")
    return rows.with_columns(model=parts.list.first(), defence=parts.list.get(1, null_on_oob=True).fill_null("natural"))


def evaluated(rows: RowsByTable) -> tuple[pl.DataFrame, pl.DataFrame, pl.DataFrame]:
    """Return PGD over ε, AutoAttack, and the further attacks, with whether an image is right under attack."""
    robust = (pl.col("clean_prediction") == pl.col("label")) & ~pl.col("success")
    attacks = rows["attack"].with_columns(robust=robust.cast(pl.Float64))
    over_eps = (pl.col("attack") == "pgd") & (pl.col("restarts").fill_null(1) == 1) & (pl.col("eps") < 0.5)
    whole = pl.col("attack") == "autoattack"
    return attacks.filter(over_eps), attacks.filter(whole), attacks.filter(~over_eps & ~whole)


def draw_defences(rows: RowsByTable, name: str) -> Artefact:
    """Draw robust against clean accuracy, and tables of accuracy, robust accuracy and ASR."""
    pgd, autoattack, _ = map(split_series, evaluated(rows))
    keys = ["data", "model", "defence"]
    clean = estimates(split_series(rows["accuracy"]), keys, CORRECT)
    robust = estimates(autoattack, [*keys, "eps"], pl.col("robust"))
    points = robust.filter((pl.col("eps") - AT).abs() < 1e-9)
    size = pl.col("defence").replace_strict({one["defence"]: one.get("times", 1.0) for one in measured()}, default=1.0)
    points = points.join(clean.select(*keys, x=pl.col("value") * 100), on=keys).with_columns(size.alias(SIZE))
    labels = ("clean accuracy (%)", "robust accuracy, AutoAttack at 2/255")
    drawn = panels(points.with_columns(series="defence"), "{model}, {data}", "x", labels, percent=True)
    listed = tables(clean, "Clean accuracy, {data}", f"{name}-accuracy-{{data}}", "defence", "model", index="defence")
    title = "Robust accuracy of {model} under AutoAttack, {data}"
    listed += tables(robust, title, f"{name}-robust-{{model}}-{{data}}", "defence", IN_255THS, index="defence")
    rates = estimates(pgd, [*keys, "eps"], ASR)
    title = "ASR of {model} under PGD, {data}"
    listed += tables(rates, title, f"{name}-asr-{{model}}-{{data}}", "defence", IN_255THS, index="defence")
    return Artefact([PAPER.plot("defence", drawn)], listed)


def draw(rows: RowsByTable) -> Artefact:
    """Draw what all defences do; tables of the further attacks and of the gradients, too."""
    main, listed = draw_defences(rows, "defence"), list[Table]()
    further = split_series(evaluated(rows)[2])
    words = pl.when(pl.col("attack") == "square").then(pl.lit("Square")).when(pl.col("eps") == 1.0)
    named = further.with_columns(how=words.then(pl.lit("PGD, any pixel")).otherwise(pl.lit("PGD, margin, 10 restarts")))
    more = estimates(named, ["data", "defence", "how"], ASR)
    title = "ASR of DiffViT under further attacks at 2/255, and without a bound, {data}"
    listed += tables(more, title, "defence-further-{data}", "defence", "how", index="defence")
    aligned = split_series(rows["alignment"]).filter(site="pixels")
    aligned = aligned.group_by("data", "defence", "cell", SEED, "sample", maintain_order=True)
    sums = aligned.agg(pl.mean("cross", "first", "second", "moved"))
    keys = ["data", "defence"]
    angle = estimates(sums.with_columns(value=cosine().over(keys)), keys, pl.col("value"), "number")
    size = estimates(sums, keys, pl.col("moved").sqrt(), "size")
    means = [angle.with_columns(quantity=pl.lit("cosθ")), size.with_columns(quantity=pl.lit("‖J‖ of the map"))]
    title = "Gradients of DiffViT's maps at the pixels, {data}"
    style: dict[str, Any] = {"index": "defence", "percent": False, "digits": 3}
    listed += tables(pl.concat(means), title, "defence-gradients-{data}", "defence", "quantity", **style)
    return Artefact(main.plots, [*main.tables, *listed])


def checks(rows: RowsByTable) -> Checks:
    """Check of each defence whether it lowers DiffViT's ASR, and lifts its robust accuracy above the natural ViT's."""
    claims = {key: some for name in DEFENCES for key, some in defence_checks(rows, DIFFVIT, name).items()}
    return claims | {"fast-gap-remains": gap_remains(rows, DIFFVIT, "fast")}


def defence_checks(rows: RowsByTable, kind: str, name: str, prefix: str = "", eps: float = AT) -> Checks:
    """Check whether a defence lowers the ASR of a model, and lifts its robust accuracy above the natural ViT's."""
    pgd, autoattack, _ = evaluated(rows)
    one, levels = f"{kind}, {name}", {"unit": "points", "eps": eps}
    above: dict[str, Any] = {"what": f"robust accuracy({one}) − robust accuracy({VIT})", **levels}
    return {
        f"{prefix}{name}-lowers-asr": on_average(pgd, kind, than=one, eps=EPS),
        f"{prefix}{name}-reaches-vit": apart(autoattack, "series", one, VIT, pl.col("robust"), **above),
    }


def gap_remains(rows: RowsByTable, kind: str, name: str) -> list[Check]:
    """Check that a model has a higher ASR than a ViT that was trained alike."""
    return on_average(evaluated(rows)[0], f"{kind}, {name}", than=f"{VIT}, {name}", eps=EPS)


DEFENCE = PAPER.study("defence", cells, draw, checks, shown_settings, by_data=True)
