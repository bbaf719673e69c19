"""The defences that help, beyond DiffViTs of one layer: on ViT and V2, with four layers, certified, and by transfer."""

from dataclasses import replace
from functools import partial
from itertools import product

import polars as pl

from antiphase.studies import ASR, Artefact, Certified, Check, TrainVit, Transfer, apart, estimates, higher, tables
from antiphase.studies.own import defence
from antiphase.studies.own.variants import DIFFVIT, PAPER, V2, VIT, seeds_of, shown_settings
from antiphase.studies.papers.declarations import Checks
from antiphase.studies.papers.robustness import success_rates
from antiphase.studies.papers.robustness.bench import RobustnessBench, bench
from antiphase.studies.spec import Cell, Profile, RowsByTable

# lowered DiffViT's ASR in the study defence; free training, which did too, is left out
HELPFUL = ("fast", "trades", "input-gradient")
OF_V2 = (*HELPFUL, "map-jacobian")
DEEP, DEEP_SEEDS = 4, 5  # layers, and training seeds of the laptop profile, of which each takes ten minutes
SIGMA = 0.12  # the least of Cohen, Rosenfeld and Kolter's on CIFAR-10
CERTIFIED, DRAWS = 100, 1000  # images, and noisy copies of each


def _made(sizes: RobustnessBench, kind: str, name: str, seed: int, data: str, **more: int) -> TrainVit:
    model = defence.defended(sizes, kind, name, seed, data, defence.CHOSEN.get(name, 0.0))
    return replace(model, sizes={**model.sizes, **more})


def _alike_cells(profile: Profile) -> list[Cell]:
    """Return PGD, accuracy and AutoAttack of ViT, DiffViT and V2 with each defence."""
    sizes, made = bench(profile), list[Cell]()
    trained = {VIT: HELPFUL, DIFFVIT: HELPFUL, V2: OF_V2}
    for data, seed, (kind, names) in product(sizes.data, seeds_of(profile), trained.items()):
        for name in ("natural", *names):
            model = _made(sizes, kind, name, seed, data)
            made += [sizes.attack(model), sizes.accuracy(model)]
            made.append(sizes.attack(model, defence.AUTOATTACK_EPS, "autoattack"))
    return made


def _alike_checks(rows: RowsByTable) -> Checks:
    claims = {key: some for name in OF_V2 for key, some in defence.defence_checks(rows, V2, name, "v2-").items()}
    claims |= {f"v2-{name}-gap-remains": defence.gap_remains(rows, V2, name) for name in HELPFUL}
    return claims | {f"{name}-gap-remains": defence.gap_remains(rows, DIFFVIT, name) for name in HELPFUL[1:]}


_draw_alike = partial(defence.draw_defences, name="defence-alike")
DEFENCE_ALIKE = PAPER.study("defence-alike", _alike_cells, _draw_alike, _alike_checks, shown_settings, by_data=True)


def _deep_cells(profile: Profile) -> list[Cell]:
    """Return PGD, accuracy and AutoAttack of ViT and DiffViT of four layers, natural and fast."""
    sizes, seeds, made = bench(profile), seeds_of(profile, DEEP_SEEDS), list[Cell]()
    for data, seed, kind, name in product(sizes.data, seeds, (VIT, DIFFVIT), ("natural", "fast")):
        model = _made(sizes, kind, name, seed, data, depth=DEEP)
        made += [sizes.attack(model), sizes.accuracy(model), sizes.attack(model, success_rates.AT, "autoattack")]
    return made


DEFENCE_DEEP = PAPER.study(
    "defence-deep",
    _deep_cells,
    lambda rows: Artefact([], defence.draw_defences(rows, "defence-deep").tables),
    lambda rows: {
        **defence.defence_checks(rows, DIFFVIT, "fast", eps=success_rates.AT[0]),
        "fast-gap-remains": defence.gap_remains(rows, DIFFVIT, "fast"),
    },
    partial(shown_settings, depths=(DEEP,), count=DEEP_SEEDS),
    by_data=True,
)


def _certified_cells(profile: Profile) -> list[Cell]:
    """Return certified radii of the models of the study of defences, and PGD on them and on the undefended DiffViT."""
    sizes, made = bench(profile), list[Cell]()
    for data, (kind, names), seed in product(sizes.data, defence.TRAINED.items(), seeds_of(profile)):
        natural = _made(sizes, kind, "natural", seed, data)
        for name in names:
            model = _made(sizes, kind, name, seed, data)
            limit = min(CERTIFIED, sizes.images)
            made.append(Certified(model=model, data=data, limit=limit, sigma=SIGMA, samples=DRAWS))
            if kind == DIFFVIT and name != "natural":
                shown = {"surrogate": natural, "eps": defence.AT, "settings": dict(sizes.attacks.get("pgd", {}))}
                made.append(sizes.attack(model, (defence.AT,)))
                made.append(Transfer(model=model, data=data, limit=sizes.images, **shown))
    return made


# the radius where the smoothed model is right, else 0: its mean is the average certified radius
_RADIUS = pl.when(pl.col("prediction") == pl.col("label")).then("radius").otherwise(0.0)


def _both(rows: RowsByTable) -> pl.DataFrame:
    """Return images that one run of PGD made at 2/255: on the model itself, or on the undefended one."""
    attacks = rows["attack"].with_columns(made_on=pl.lit("itself"))
    transfers = rows["transfer"].with_columns(made_on=pl.lit("undefended"))
    return pl.concat([attacks.select(set(attacks.columns) & set(transfers.columns)), transfers], how="diagonal")


def _draw_certified(rows: RowsByTable) -> Artefact:
    radii = estimates(defence.split_series(rows["certified"]), ["data", "model", "defence"], _RADIUS, kind="size")
    title = "Average certified L2 radius, {data}"
    style = {"index": "defence", "percent": False, "digits": 3}
    listed = tables(radii, title, "defence-certified-{data}", "defence", "model", **style)
    rates = estimates(defence.split_series(_both(rows)), ["data", "defence", "made_on"], ASR)
    title = "ASR of DiffViT under PGD at 2/255 by the model that the images were made on, {data}"
    return Artefact([], listed + tables(rates, title, "defence-transfer-{data}", "defence", "made_on", index="defence"))


def _certified_checks(rows: RowsByTable) -> Checks:
    radii, attacks = rows["certified"], _both(rows)
    claims: dict[str, list[Check]] = {"transfer-breaks-less": []}
    for name in HELPFUL:
        how = {"value": _RADIUS, "what": "average certified radius", "unit": ""}
        claims[f"{name}-certifies-more"] = higher(radii, f"{DIFFVIT}, {name}", than=DIFFVIT, **how)
    for name in defence.DEFENCES:
        some, words = attacks.filter(series=f"{DIFFVIT}, {name}"), f"ASR of {DIFFVIT}, {name}: own images − transferred"
        claims["transfer-breaks-less"] += apart(some, "made_on", "itself", "undefended", ASR, words, "points")
    return claims


DEFENCE_CERTIFIED = PAPER.study(
    "defence-certified", _certified_cells, _draw_certified, _certified_checks, shown_settings, by_data=True
)
