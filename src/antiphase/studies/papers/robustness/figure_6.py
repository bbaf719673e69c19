"""ASR under PGD with random restarts.

The paper (Appendix D.3, Figure 6): three restarts raise the ASR, as a stronger attack must, and leave the comparison
unchanged: DiffViT stays above ViT for small perturbations. Its main results are averages over runs with one start each;
here a sample counts as broken if any of its restarts succeeds.

| profile | models | cost |
|---|---|---|
| paper | 12, CIFAR-10 and CIFAR-100 | not run |
| laptop | 6, Fashion-MNIST | 7 core-minutes, 4 of them training |

antiphase study run figure-6 --profile laptop
"""

import polars as pl

from antiphase.studies.artefact import Artefact, Panel, Plot
from antiphase.studies.claims import Check, Claim
from antiphase.studies.estimation import ASR, estimates, over
from antiphase.studies.papers.robustness.bench import EPS, all_cells, bench, settings, twins
from antiphase.studies.papers.robustness.clip_attacks import clip_attack, lineup
from antiphase.studies.papers.robustness.show import apart, each_data, eps_name, more_fragile, table_of
from antiphase.studies.spec import Cell, Profile, RowsByTable, Study

RUNS = (0, 1, 2)  # attack seeds, one random start each
RESTARTS = 3


def cells(profile: Profile) -> list[Cell]:
    """PGD three times with one start, and once with three restarts, on ViTs of every depth and on CLIPs."""
    own = bench(profile)
    protocols: list[dict[str, int]] = [*({"seed": seed} for seed in RUNS), {"restarts": RESTARTS}]
    return all_cells(
        [own.attack(model, **protocol) for model in twins(profile, own.depths) for protocol in protocols],
        [
            clip_attack(profile, model, data, EPS, **protocol)
            for model, data in lineup(profile) for protocol in protocols
        ],
    )  # fmt: skip


def _with_tries(rows: RowsByTable) -> pl.DataFrame:
    return rows["attack"].with_columns(tries=pl.col("restarts").cast(pl.Int64).fill_null(1))


def draw(rows: RowsByTable) -> Artefact:
    """ASR over ε, one start and three."""
    found = estimates(_with_tries(rows), ["data", "series", "tries", "eps"], ASR)
    panels, tables = [], []
    for (data,), block in found.group_by("data", maintain_order=True):
        name = (
            pl.when(tries=1).then(pl.col("series")).otherwise(pl.format("{}, {} restarts", "series", "tries"))
        )
        points = block.select("value", "low", "high", "n", "seeds", series=name, x=pl.col("eps"))
        panels.append(Panel(f"PGD, {data}", "ε", "attack success rate", points, scale="eps", percent=True))
        column = pl.col("eps").map_elements(eps_name, pl.String)
        tables.append(
            table_of(block, name, column, f"restarts-{data}", f"ASR under PGD with restarts, {data}")
        )
    caption = f"ASR under PGD with one random start and with three. Bands: 95 % over {over(found)}."
    return Artefact([Plot("figure-6", caption, tuple(panels))], tables)


def claims(rows: RowsByTable) -> list[Claim]:
    """Claim that restarts raise the ASR and leave the comparison unchanged."""
    return each_data(_with_tries(rows), _claims)


def _claims(attacks: pl.DataFrame) -> list[Claim]:
    raised = [
        Check(
            f"ASR({kind}, {RESTARTS} restarts) − ASR(one start) at {eps_name(eps)}",
            apart(attacks, "tries", RESTARTS, 1, ASR, {"series": kind, "eps": eps}),
        )
        for kind in ("ViT", "DiffViT") for eps in EPS if 1 / 255 <= eps <= 4 / 255
    ]  # fmt: skip
    small = [eps for eps in EPS if eps <= 2 / 255]
    return [
        Claim("restarts-raise-asr", "Appendix D.3, Figure 6", "Random restarts raise the ASR of both models.", raised),
        Claim("fragile-with-restarts", "Appendix D.3, Figure 6",
              "With restarts, DiffViT stays above ViT for ε up to 2/255.",
              more_fragile(attacks, small, tries=RESTARTS)),
    ]  # fmt: skip


study = Study(
    "figure-6",
    "robustness",
    "Figure 6",
    "ASR under PGD with random restarts",
    __doc__,
    cells,
    draw,
    claims,
    settings,
)
