"""Figure 3: success rates, distances and Lipschitz estimates of ViT and DiffViT by depth."""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import polars as pl

from antiphase.studies.checks import each_data, higher
from antiphase.studies.claims import Check, Claim
from antiphase.studies.estimation import ASR, SEED, estimates, over, peak, share_above, trend
from antiphase.studies.figures import BY_SEED, IN_255THS, Artefact, Panel, Plot, Table, panels, tables
from antiphase.studies.papers.robustness.bench import all_cells, bench, settings, twins
from antiphase.studies.spec import RowsByTable, Study

AT = (1 / 255, 4 / 255)
DEPTH = pl.format("depth {}", "depth")
VALUE = pl.col("value")
PAPERS, STEEPEST = "sampled maximum", "power iteration"
"""The paper's estimator of Lipschitz constants, and one near the supremum, with which its claims are tested again."""

ESTIMATORS = (PAPERS, "sampled mean", STEEPEST, "gradient ascent")
_HIGH = 0.9  # our reading of "saturate at high ASR"
_DISTANCE_MARGIN = 0.05  # in units of the L2 distance


def draw_asr(attacks: pl.DataFrame, name: str, attack: str) -> Artefact:
    """Return ASR over depth at 1/255 and 4/255, for each data set."""
    near = pl.any_horizontal((pl.col("eps") - eps).abs() < 1e-9 for eps in AT)
    rates = estimates(attacks, ["data", "eps", "series", "depth"], ASR).sort("depth", maintain_order=True)
    shown = rates.filter(near).with_columns(budget=IN_255THS)
    title = f"{attack}, ε = {{budget}}, {{data}}"
    drawn = panels(shown, title, "depth", ("depth", "attack success rate"), percent=True)
    caption = f"ASR under {attack} by depth. Bands: 95 % over {over(rates)}."
    key = f"{name}-{{data}}-{{budget}}"
    listed = tables(shown, f"ASR under {title}", key, "series", DEPTH)
    listed = [replace(one, name=one.name.removesuffix("/255")) for one in listed]
    return Artefact([Plot(name, caption, drawn)], listed)


def asr_claims(attacks: pl.DataFrame, attack: str, source: str) -> list[Claim]:
    """Return the paper's claims on ASR by depth."""
    depths = sorted(attacks["depth"].unique())
    small, large = AT
    own = {"series": "DiffViT", "eps": small}
    words = f"fitted fall of ASR(DiffViT) over log2 depth, {depths[0]} to {depths[-1]}, at 1/255"
    falls = Check(words, trend(attacks, "depth", own, -ASR, scale="log2"))
    words = "ASR(DiffViT, depth 1) − mean of the deeper ones, at 1/255"
    highest = [Check(words, estimate) for _, estimate in peak(attacks, "depth", 1, own, ASR)]
    shallow = higher(
        attacks, "DiffViT", than="ViT", eps=small, depth=[depth for depth in depths if depth <= 2]
    )
    deep = higher(attacks, "ViT", than="DiffViT", eps=small, depth=depths[-1])
    high = [
        Check(
            f"ASR({kind}, depth {depths[-1]}) − {_HIGH * 100:.0f} % at 4/255",
            share_above(attacks, {"series": kind, "depth": depths[-1], "eps": large}, ASR, _HIGH),
        )
        for kind in ("ViT", "DiffViT")
    ]
    key, under = attack.lower().replace(" ", "-"), f"Under {attack} at 1/255"
    both = f"Under {attack} at 4/255, ViT and DiffViT both saturate: ASR above 90 % at the largest depth."
    statements: dict[str, tuple[str, Sequence[Check]]] = {
        "falls-with-depth": (f"{under}, DiffViT's ASR falls with depth.", [falls]),
        "highest-at-depth-1": (f"{under}, DiffViT's ASR is highest at depth 1.", highest),
        "fragile-when-shallow": (f"{under}, DiffViT is more fragile than ViT at depths 1 and 2.", shallow),
        "robust-when-deep": (f"{under}, the deepest DiffViT is more robust than ViT.", deep),
        "saturates": (both, high),
    }
    return [Claim(f"{key}-{name}", source, words, checks) for name, (words, checks) in statements.items()]


FIGURE_3A = Study(
    "figure-3a",
    "robustness",
    "Figure 3(a)",
    "ASR under PGD by depth",
    """ASR of ViT and DiffViT under PGD by depth: 1, 2, 4, 8 and 12 layers.

The paper (Section 5.2, Figure 3(a)): at ε = 1/255 DiffViT's ASR is highest at depth 1 and falls with depth, below
ViT's; at 4/255 both saturate at a high ASR. The numbers are only drawn.

The text does not say what sets panels (a) and (b) apart. The caption, "(a) (b) Under PGD and AutoAttack …", suggests
the attack; Section 5.2 cites only Figure 3(a) for both attacks at 1/255, which suggests ε. All four combinations are
drawn: PGD at 1/255 and 4/255 here, AutoAttack at both in ``figure-3b``. "Saturate" is read as an ASR above 90 % at the
largest depth.
""",
    lambda profile: all_cells(
        [bench(profile).attack(model) for model in twins(profile, None)],
        [bench(profile).accuracy(model) for model in twins(profile, None)],
    ),
    lambda rows: draw_asr(rows["attack"], "figure-3a", "PGD"),
    lambda rows: each_data(rows["attack"], lambda own: asr_claims(own, "PGD", "Section 5.2, Figure 3(a)")),
    settings,
)

FIGURE_3B = Study(
    "figure-3b",
    "robustness",
    "Figure 3(b)",
    "ASR under AutoAttack by depth",
    """ASR of ViT and DiffViT under AutoAttack by depth.

The paper (Section 5.2, Figure 3(b)): as under PGD, at ε = 1/255 DiffViT's ASR falls with depth, below ViT's, and both
saturate at 4/255. Its AutoAttack is the ensemble of APGD-CE, APGD-DLR, FAB and Square (Appendix C.2.2), which is the
one from before August 2020; ``laptop`` gives each of them a fifth of its steps, and Square 200 queries instead of
5,000. Whether the paper's panel (b) is AutoAttack or ε = 4/255 is open, see Figure 3(a).
""",
    lambda profile: [bench(profile).ensemble(model, AT) for model in twins(profile, None)],
    lambda rows: draw_asr(rows["attack"], "figure-3b", "AutoAttack"),
    lambda rows: each_data(
        rows["attack"], lambda own: asr_claims(own, "AutoAttack", "Section 5.2, Figure 3(b)")
    ),
    settings,
)


def _reaching(rows: RowsByTable) -> pl.DataFrame:
    """Set the distance of robust images to the largest distance found on the data set, a lower bound."""
    attacks = rows["attack"].with_columns(found=pl.col("prediction") != pl.col("clean_prediction"))
    most = pl.when("found").then("distance").max().over("data")
    return attacks.with_columns(reach=pl.when("found").then("distance").otherwise(most.fill_null(0.0)))


def draw_distances(rows: RowsByTable) -> Artefact:
    """Draw ASR over the distance for every depth of DiffViT and ViT, and the mean distance by depth."""
    attacks = _reaching(rows)
    drawn: list[Panel] = []
    listed: list[Table] = []
    for (data,), block in attacks.group_by("data", maintain_order=True):
        for kind in ("DiffViT", "ViT"):
            own = block.filter(series=kind)
            curves = []
            for reach in np.linspace(0.0, float(own["reach"].quantile(0.99) or 1.0), 25).tolist():
                within = (pl.col("found") & (pl.col("distance") <= reach)).cast(pl.Float64)
                curves.append(estimates(own, ["depth"], within).with_columns(x=pl.lit(reach)))
            points = (
                pl.concat(curves).sort("depth", maintain_order=True).drop(BY_SEED)
            )  # too many lines to tell apart
            labels = ("L2 distance", "attack success rate")
            drawn += panels(points.with_columns(series=DEPTH), f"{kind}, {data}", "x", labels, percent=True)
        means = estimates(block, ["data", "series", "depth"], pl.col("reach"), kind="size")
        means = means.sort("depth", maintain_order=True)
        drawn += panels(means, "mean distance, {data}", "depth", ("depth", "L2 distance"))
        style = {"percent": False, "digits": 3}
        listed += tables(means, "Mean L2 distance, {data}", "cw-mean-{data}", "series", DEPTH, **style)
        listed += _farthest(block, str(data))
    lost = 1.0 - float(attacks["found"].cast(pl.Float64).mean() or 0.0)  # type: ignore[arg-type]
    caption = (
        f"Carlini and Wagner's L2 attack. Bands: 95 % over {over(*(panel.points for panel in drawn))}. "
        f"No adversarial example was found for {lost * 100:.1f} % of the images."
    )
    return Artefact([Plot("figure-3c", caption, tuple(drawn))], listed)


def _farthest(block: pl.DataFrame, data: str) -> list[Table]:
    """Return the distance at which every image is broken: the largest over images, averaged over seeds."""
    some = block.filter(pl.col("found").all().over("series", "depth"))  # undefined if an image is robust
    if some.is_empty():
        return []
    far = some.group_by(["series", "depth", SEED], maintain_order=True).agg(pl.max("reach"), n=pl.len())
    mean = far.group_by(["series", "depth"], maintain_order=True).agg(
        value=pl.mean("reach"),
        low=pl.min("reach"),
        high=pl.max("reach"),
        n=pl.first("n").cast(pl.Int64),
        seeds=pl.len().cast(pl.Int64),
    )
    title = f"L2 distance at which ASR reaches 100 %: mean over seeds, {data}"
    style = {"percent": False, "digits": 3, "brackets": "least and largest"}
    mean = mean.sort("depth", maintain_order=True)
    return tables(mean, title, f"cw-all-{data}", "series", DEPTH, **style)


def _distance_claims(attacks: pl.DataFrame) -> list[Claim]:
    depths = sorted(attacks["depth"].unique())
    statements = {
        "cw-needs-more-when-deep": (
            "Deeper DiffViTs require larger L2 perturbations under Carlini and Wagner's attack.",
            depths,
        ),
        "cw-needs-more-at-each-depth": (
            "Among DiffViTs of more than one layer, too, the deeper ones require larger L2 perturbations.",
            depths[1:] if len(depths) > 2 else depths,
        ),
    }
    made = []
    for name, (words, among) in statements.items():
        own = attacks.filter(pl.col("depth").is_in(among))
        rise = trend(own, "depth", {"series": "DiffViT"}, pl.col("reach"), scale="log2")
        check = Check(f"fitted rise of mean L2(DiffViT) over log2 depth, {among[0]} to {among[-1]}", rise, "")
        made.append(Claim(name, "Section 5.2, Figure 3(c)", words, [check], _DISTANCE_MARGIN))
    return made


FIGURE_3C = Study(
    "figure-3c",
    "robustness",
    "Figure 3(c)",
    "L2 distances of CW by depth",
    """ASR of Carlini and Wagner's attack over the L2 distance of its examples, by depth.

The paper (Section 5.2, Figure 3(c)): deeper DiffViTs need larger perturbations to reach an ASR of 100 %. The numbers
are only drawn. Its implementation (kkew3/pytorch-cw2) searches 5 constants over 1,000 steps each; ``laptop`` searches 4
over 50. Distances are in units of the [0, 1] pixel; that implementation's box is (−1, 1), where the same change is
twice as long, and the paper does not say which it draws. An image without an example nearer than 10 counts as robust.
The distance at which ASR reaches 100 % exists only if every image is broken, so the claims are of the mean distance.
""",
    lambda profile: [bench(profile).nearest(model) for model in twins(profile, None)],
    draw_distances,
    lambda rows: each_data(_reaching(rows), _distance_claims),
    settings,
)


def of_maps(rows: RowsByTable) -> pl.DataFrame:
    """Return the rows of attention maps; the logits' are left out."""
    return rows["lipschitz"].filter(pl.col("of") == "map")


def in_order(maps: pl.DataFrame) -> pl.DataFrame:
    """Return the rows of the estimators that are drawn, in the order of ``ESTIMATORS``."""
    return pl.concat([maps.filter(estimator=name) for name in ESTIMATORS])


def draw_lipschitz(rows: RowsByTable) -> Artefact:
    """Draw a panel for each estimator: the mean over layers, by depth."""
    maps = in_order(of_maps(rows))
    means = estimates(maps, ["data", "estimator", "series", "depth"], VALUE, kind="size")
    means = means.sort("depth", maintain_order=True)
    title = "{estimator}, {data}" if maps["data"].n_unique() > 1 else "{estimator}"
    words = "Local Lipschitz estimate, mean over layers, {estimator}, {data}"
    style = {"percent": False, "digits": 4}
    caption = (
        "Local Lipschitz estimates of the attention maps (L2 to L2, root mean square over heads), averaged over the "
        f"layers. The paper's estimator is the sampled maximum. Bands: 95 % over {over(means)}."
    )
    return Artefact(
        [Plot("figure-3d", caption, panels(means, title, "depth", ("depth", "Lipschitz estimate")))],
        tables(means, words, "lipschitz-{data}-{estimator}", "series", DEPTH, **style),
    )


def _lipschitz_claims(maps: pl.DataFrame) -> list[Claim]:
    depths = sorted(maps["depth"].unique())

    def rises(estimator: str) -> list[Check]:
        rise = trend(maps, "depth", {"series": "DiffViT", "estimator": estimator}, VALUE, "log2")
        return [Check(f"rise of L(DiffViT) from depth {depths[0]} to {depths[-1]}, {estimator}", rise, "")]

    return [
        Claim(
            "lipschitz-rises",
            "Section 5.3, Figure 3(d)",
            "DiffViT's local Lipschitz estimate, averaged over layers, rises with depth (sampled maximum).",
            rises(PAPERS),
        ),
        Claim(
            "lipschitz-rises-truly",
            "Section 5.3, with an estimator near the supremum",
            "DiffViT's local Lipschitz constant, averaged over layers, rises with depth (power iteration).",
            rises(STEEPEST),
        ),
        Claim(
            "lipschitz-above-vit",
            "Section 5.3, Figure 4",
            "At every depth DiffViT's layers have a higher mean Lipschitz estimate than ViT's (sampled maximum).",
            higher(
                maps, "DiffViT", than="ViT", value=VALUE, what="L", unit="", depth=depths, estimator=PAPERS
            ),
        ),
    ]


FIGURE_3D = Study(
    "figure-3d",
    "robustness",
    "Figure 3(d)",
    "Lipschitz estimates by depth",
    """Local Lipschitz estimates averaged over all attention layers, by depth.

The paper (Section 5.3, Figure 3(d)) samples ξ uniformly with ‖ξ‖∞ ≤ 8/255 to estimate the local Lipschitz constant of
equation (4), which is a supremum, and averages "across all layers of each model": "deeper DiffViT models consistently
yield higher per-layer Lipschitz values". So the paper's estimator is read as the largest of the sampled slopes, and
"mean" as the mean over layers (and images); the number of samples is not given (100 here). The mean over ξ is shown
too. Both are far below the supremum: they concentrate on ‖J‖_F/√D. Power iteration (the operator norm at x) and
gradient ascent in the ball come closer to it.
""",
    lambda profile: [bench(profile).sense_of(model, "lipschitz") for model in twins(profile, None)],
    draw_lipschitz,
    lambda rows: each_data(of_maps(rows), _lipschitz_claims),
    settings,
)
