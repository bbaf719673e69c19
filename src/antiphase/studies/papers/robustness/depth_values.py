"""The factors of equation (5) of each model, per training seed, image and perturbation, in natural logarithms."""

import polars as pl

from antiphase.budgets import eps_label
from antiphase.sensitivity.depth import crossover
from antiphase.statistics.intervals import Estimate
from antiphase.studies.estimation import ASR, SAMPLE, SEED, difference
from antiphase.studies.papers.robustness.layer_values import PERTURBATIONS
from antiphase.studies.papers.robustness.show import against
from antiphase.studies.spec import RowsByTable

ALPHA, KEPT, LIPSCHITZ, BOUND, OBSERVED = "ᾱ", "signal kept", "L̄", "ᾱ·L̄", "observed"
QUANTITIES = (ALPHA, KEPT, LIPSCHITZ, BOUND, OBSERVED)
VALUE = pl.col("value")
SMALL = 1 / 255
_MODEL = ["data", "depth", "series", SEED, "perturbation", SAMPLE]


def layers(rows: RowsByTable) -> pl.DataFrame:
    """Return the logarithms of α, of the kept signal, of L and of the growth of every block.

    Args:
        rows: ``depth`` of both models, ``branches`` of DiffViT. ViT subtracts nothing: α = 1 by definition.

    Returns:
        Columns ``data, depth, series, training_seed, perturbation, sample, stage`` (from 1) and ``QUANTITIES``.
    """

    def norm(of: str) -> pl.Expr:
        return pl.col(of).pow(2).sum().sqrt()

    paths = _labelled(rows["depth"]).filter(pl.col("stage") > 0)  # stage 0 is the embedding, no layer of F
    shares = (
        _labelled(rows["branches"])
        .group_by(*_MODEL, stage=pl.col("layer") + 1)
        .agg(
            share=(norm("moved") / norm("positive")).log(),
            kept=(norm("clean_moved") / norm("clean_positive")).log(),
        )
    )
    both = paths.join(shares, on=[*_MODEL, "stage"], how="left", maintain_order="left")
    standard = pl.col("attention") == "softmax"
    factors = {
        ALPHA: pl.when(standard).then(0.0).otherwise("share"),
        KEPT: pl.when(standard).then(0.0).otherwise("kept"),
        LIPSCHITZ: pl.col("lipschitz").log(),
        OBSERVED: pl.col("gain").log(),
    }
    found = both.select(*_MODEL, "stage", **factors).drop_nulls(
        ALPHA
    )  # models whose branches are not measured yet
    return found.with_columns((pl.col(ALPHA) + pl.col(LIPSCHITZ)).alias(BOUND))


def per_layer(found: pl.DataFrame) -> pl.DataFrame:
    """Return the logarithms of geometric means over the layers of each model, one row for each quantity.

    Args:
        found: of :func:`layers`.

    Returns:
        Columns ``data, depth, series, training_seed, perturbation, sample, quantity, value``.
    """
    means = found.group_by(_MODEL, maintain_order=True).agg(pl.mean(*QUANTITIES))
    found = means.unpivot(QUANTITIES, index=_MODEL, variable_name="quantity")
    constant = (pl.col("series") == "ViT") & pl.col("quantity").is_in([ALPHA, KEPT])  # 1: not an estimate
    return found.filter(~constant)


def by_stage(found: pl.DataFrame) -> pl.DataFrame:
    """Return the logarithms of the products over the first d layers: what equation (5) allows, and what is observed.

    Args:
        found: of :func:`layers`.

    Returns:
        Columns as those of :func:`per_layer`, and ``stage``.
    """
    sums = found.sort("stage").with_columns(pl.col(QUANTITIES).cum_sum().over(_MODEL, order_by="stage"))
    return sums.unpivot(QUANTITIES, index=[*_MODEL, "stage"], variable_name="quantity")


def small(found: pl.DataFrame) -> pl.DataFrame:
    """Return the rows of the perturbations of 1/255."""
    return found.filter(pl.col("perturbation").str.ends_with(f" {eps_label(SMALL)}"))


def titled(found: pl.DataFrame) -> list[tuple[str, pl.DataFrame]]:
    """Return the rows of each perturbation, and of each data set if there are several, with a title."""
    keys = ["perturbation", *(["data"] if found["data"].n_unique() > 1 else [])]
    groups = found.group_by(keys, maintain_order=True)
    return [(", ".join(map(str, key)), block) for key, block in groups]


def crossovers(rows: RowsByTable, values: pl.DataFrame) -> dict[str, str]:
    """Return where DiffViT falls below ViT, as equation (5) predicts and as the growth and the attacks show.

    Args:
        rows: with ``attack``.
        values: of :func:`per_layer`.
    """
    found = {}
    for title, block in titled(small(values)):
        for quantity, what in ((BOUND, "predicted by equation (5)"), (OBSERVED, "seen in the growth")):
            apart = {depth: _apart(block, quantity, depth) for depth in sorted(block["depth"].unique())}
            found[f"Crossover {what}, {title}"] = _depth(apart)
    attacks = rows["attack"]
    for data in attacks["data"].unique(maintain_order=True):
        own = attacks.filter(data=data)
        apart = {
            depth: against(own, "DiffViT", "ViT", ASR, depth=depth, eps=SMALL)
            for depth in sorted(own["depth"].unique())
        }
        found[f"Crossover seen in the success rate of PGD at 1/255, {data}"] = _depth(apart)
    return found


def _apart(block: pl.DataFrame, quantity: str, depth: int) -> Estimate | None:
    where = {"depth": depth, "quantity": quantity}
    return difference(block, {"series": "DiffViT", **where}, {"series": "ViT", **where}, VALUE)


def _depth(apart: dict[int, Estimate | None]) -> str:
    ends = {depth: (each.low, each.high) for depth, each in apart.items() if each is not None}
    found = crossover(ends)
    return f"depth {found}" if found is not None else f"none among depths {', '.join(map(str, ends))}"


def _labelled(rows: pl.DataFrame) -> pl.DataFrame:
    """Name each perturbation with its ε."""
    kind = pl.col("perturbation").replace_strict(PERTURBATIONS, return_dtype=pl.String)
    eps = pl.col("eps").map_elements(eps_label, pl.String)
    return rows.with_columns(perturbation=pl.format("{}, {}", kind, eps))
