"""The answers of README from results/ alone: a second implementation, without antiphase.

`python tests/oracles/findings.py` prints them. Intervals are those of docs/concepts/intervals.md; of a mean over
groups of images the images' variances are added up by group, without its factor n/(n − 1). Strata of margins are the
20 quantiles of all margins of both twins.
"""

from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import polars as pl
from scipy import stats

ROOT = Path(__file__).resolve().parents[2]
EPS = (0.5, 1.0, 2.0, 4.0, 8.0)
DEPTHS = (1, 2, 4, 8, 12)
STARTS = ("", " N(0, 0.02)")  # initial weights, as labels of cells end


@dataclass(frozen=True)
class Difference:
    """An estimate in points with its 95 % interval; `groups` if it is a mean over groups of images."""

    label: str
    estimate: float
    low: float
    high: float
    groups: bool = False
    opposed: float = 1.0  # p of "it is at least 0"
    against: bool | None = None  # whether it contradicts a claim of several differences; None: it is one alone
    effect: float | None = None  # that the paper prints

    @property
    def verdict(self):
        if self.high < 0 if self.against is None else self.against:
            return "contradicted"
        if self.effect is not None and self.high < self.effect:
            return "smaller than claimed"
        if self.low > 0:
            return "holds"
        return "absent" if self.effect is None and self.low > -2 and self.high < 2 else "undecided"


def as_claim(*differences, effects=()):
    """The differences that one claim needs, of which those contradict it that do by Holm's correction."""
    against, refused = set(), True
    for rank, one in enumerate(sorted(differences, key=lambda difference: difference.opposed)):
        refused = refused and one.opposed <= 0.025 / (len(differences) - rank)
        against |= {one.label} if refused else set()
    printed = effects or [None] * len(differences)
    return [
        replace(one, against=one.label in against, effect=effect)
        for one, effect in zip(differences, printed, strict=True)
    ]


def interval(label, *groups):
    """Mean over training seeds (rows) and images (columns); of several matrices, their unweighted mean."""
    share, seeds = 1 / len(groups), len(groups[0])
    by_seed = sum(share * x.mean(1) for x in groups)
    seed_part = by_seed.var(ddof=1) / seeds
    image_part = rest_part = image_df = 0.0
    for x in groups:
        images = x.shape[1]
        residuals = x - x.mean(1, keepdims=True) - x.mean(0) + x.mean()
        part = share**2 * x.mean(0).var(ddof=1) / images
        image_part += part
        image_df += part**2 / (images - 1)
        rest_part += share**2 * (residuals**2).sum() / ((seeds - 1) * (images - 1)) / (seeds * images)
    variance = max(seed_part + image_part - rest_part, seed_part, image_part)
    df = variance**2 / (seed_part**2 / (seeds - 1) + image_df)
    half = stats.t.ppf(0.975, df) * variance**0.5
    mean = by_seed.mean()
    opposed = stats.t.cdf(mean / variance**0.5, df)
    return Difference(label, 100 * mean, 100 * (mean - half), 100 * (mean + half), len(groups) > 1, opposed)


def by_seed_and_image(rows, column, image):
    """A column of rows as a matrix: training seeds by images, the mean of several rows of an image."""
    means = rows.group_by("trained", image).agg(pl.col(column).cast(pl.Float64).mean())
    rows = means.sort("trained", image)
    return rows[column].to_numpy().reshape(rows["trained"].n_unique(), -1)


def read(name, *columns):
    """Columns of a table, with the label of the cell and the model and the training seed that it names."""
    cells = pl.read_parquet(ROOT / "results/cells.parquet").select(
        "cell",
        pl.col("label").alias("of"),
        pl.col("label").str.extract(r"seed (\d+)(?:$|,)").cast(pl.Int32).alias("trained"),
        pl.col("label")
        .str.extract(r" o[fn] ((?:(?:larger |DINT )?(?:Diff)?(?:ViT|CLIP)|V2).*?)(?: on (?:openm|em)oji)? seed")
        .alias("twin"),
    )
    rows = pl.read_parquet(ROOT / f"results/{name}.parquet", columns=["cell", *columns])
    return rows.join(cells, on="cell").filter(pl.col("twin").is_not_null())


class Attacks:
    """Success of PGD: training seeds by images, for a model and ε."""

    def __init__(self):
        rows = read("attack-pgd", "attack_seed", "eps", "sample", "success").filter(attack_seed=0)
        rows = rows.with_columns(eps=(pl.col("eps") * 255).round(2))
        rows = rows.filter(pl.col("eps").min().over("cell") > 0.25)  # Tables 1 and 3 begin at 0.25
        rows = rows.filter(~pl.col("of").str.contains("restarts"))  # Figure 6, and further attacks on defended models
        self.rows = rows.partition_by("twin", "eps", as_dict=True)

    def success(self, kind, eps, seeds=None):
        return by_seed_and_image(self.rows[kind, eps], "success", "sample")[:seeds]

    def gap(self, first, second, eps, seeds=None):
        one, two = self.success(first, eps, seeds), self.success(second, eps, seeds)
        seeds = min(len(one), len(two))  # seeds 0, 1, … of both
        return one[:seeds] - two[:seeds]

    def over_eps(self, first, second, seeds=None):
        gaps = [self.gap(first, second, eps, seeds) for eps in EPS]
        mean = interval("mean over ε", sum(gaps) / len(EPS))
        return [mean, *(interval(f"{eps:g}/255", x) for eps, x in zip(EPS, gaps, strict=True))]


def over_depth(attacks, start):
    """The gap of the twins at each depth, and its fall, for initial weights."""
    pairs = {depth: [f"{kind} depth {depth}{start}" for kind in ("DiffViT", "ViT")] for depth in DEPTHS}
    if any((name, 1.0) not in attacks.rows for pair in pairs.values() for name in pair):
        return []
    limit = 8 if start else None  # with one layer there are more
    by_eps = {eps: {depth: attacks.gap(*pair, eps, limit) for depth, pair in pairs.items()} for eps in EPS}
    gaps = {depth: sum(by_depth[depth] for by_depth in by_eps.values()) / len(EPS) for depth in DEPTHS}
    seeds = min(map(len, gaps.values()))  # the fit uses the seeds that every depth has
    x = np.log2(DEPTHS) - np.mean(np.log2(DEPTHS))
    fall = -(x / (x**2).sum()) * np.log2(max(DEPTHS))
    labels = {"depth makes the difference smaller, mean over ε": gaps}
    labels |= {f"at {eps:g}/255": by_depth for eps, by_depth in by_eps.items()}
    fits = {
        label: sum(weight * by_depth[depth][:seeds] for weight, depth in zip(fall, DEPTHS, strict=True))
        for label, by_depth in labels.items()
    }
    return [*(interval(f"depth {d}", gap) for d, gap in gaps.items()), *map(interval, fits, fits.values())]


def fragile(attacks):
    differences = []
    for start in STARTS:
        seeds = 8 if start else None  # from N(0, 0.02), studies have 8 training seeds
        for depth in (1, 4):
            differences += attacks.over_eps(f"DiffViT depth {depth}{start}", f"ViT depth {depth}{start}", seeds)
        differences += over_depth(attacks, start)
        for depth in (1, 4):
            mean, *_ = attacks.over_eps(f"larger DiffViT depth {depth}{start}", f"larger ViT depth {depth}{start}")
            differences.append(replace(mean, label=f"depth {depth}"))
        for variant in ("DiffViT V2", "DINT ViT"):
            differences += attacks.over_eps(f"{variant} depth 1{start}", f"ViT depth 1{start}", seeds=8)
    twins = ["ViT depth 1", "DiffViT depth 1"]
    accuracy = read("accuracy", "label", "prediction").filter(pl.col("twin").is_in(twins))
    right = accuracy.group_by("twin").agg((pl.col("label") == pl.col("prediction")).mean())
    asr = [attacks.success(twin, 1.0).mean() for twin in twins]
    return differences, [100 * share for share in (*asr, *right["label"])]


LADDER = ("ViT", "ViT, norm and factor", "DiffViT, λ frozen at 0", "DiffViT")
BARE = ("DiffViT, λ frozen at 0, no norm or factor", "DiffViT, no norm or factor")


def why(attacks):
    """Parts of the difference in ASR of small and larger models, from both initial weights, where there are rows."""
    twins = (f"{LADDER[0]} depth 1", *LADDER[1:3], f"{LADDER[3]} depth 1")
    differences, shape = parts(attacks, twins, BARE)
    for size, start in ((size, start) for size in ("", "larger ") for start in STARTS):
        ladder, bare = (tuple(f"{size}{name} depth 1{start}" for name in names) for names in (LADDER, BARE))
        if (size or start) and all((name, 1.0) in attacks.rows for name in (*ladder, *bare)):
            differences += parts(attacks, ladder, bare)[0]
    differences += [cosine(twin) for twin in (twins[-1], f"{LADDER[-1]}, N(0, 0.02)")]
    for start in STARTS:  # Diff Transformer V2: its subtraction alone
        differences += attacks.over_eps(f"DiffViT V2 depth 1{start}", f"V2, λ = 0 depth 1{start}")
    return differences, shape


def cosine(twin):
    """cos θ of the two maps' gradients, −E⟨g₁, g₂⟩ / √(E‖g₁‖²·E‖g₂‖²); the delta method gives each image a value."""
    rows = read("margin", "inner", "positive", "negative", "sample").filter(pl.col("positive").is_not_null(), twin=twin)
    inner, one, two = (by_seed_and_image(rows, name, "sample") for name in ("inner", "positive", "negative"))
    means = [x.mean(1, keepdims=True) for x in (inner, one**2, two**2)]
    value = means[0] / np.sqrt(means[1] * means[2])
    moved = inner / means[0] - one**2 / means[1] / 2 - two**2 / means[2] / 2 + 1
    return interval("cos θ", -value * moved / 100)


def parts(attacks, ladder, bare, strata=20):
    """Parts of the difference in ASR; at equal margins means: standardised to the margins of both twins."""
    rows = read("margin", "margin", "norm1", "right1", "sample")
    bare_rows = pl.col("norm1").is_null()  # without gradients: of another study, if the model has rows with them, too
    rows = rows.filter(~bare_rows | bare_rows.all().over("twin"))
    slopes = rows.filter(~bare_rows, twin=ladder[-1])
    rows = rows.filter(pl.col("trained").is_in(slopes["trained"].unique().to_list())).partition_by("twin", as_dict=True)
    margins = {kind: by_seed_and_image(rows[kind,], "margin", "sample") for kind in ladder + bare}
    seeds = len(margins[ladder[0]])
    twins = [margins[ladder[0]], margins[ladder[-1]]]
    edges = np.quantile(np.concatenate(twins).ravel(), np.linspace(0, 1, strata + 1)[1:-1])
    places = [np.searchsorted(edges, m, side="right") for m in twins]
    target = np.bincount(np.concatenate(places).ravel(), minlength=strata) / np.concatenate(places).size

    def equal_margins(kind, hits):
        """For each seed and image a value whose mean is Σ target · (rate in the stratum)."""
        place = np.searchsorted(edges, margins[kind], side="right")
        count = np.bincount(place.ravel(), minlength=strata)
        rate = np.bincount(place.ravel(), hits.ravel(), minlength=strata) / count
        weight = target / count * place.size
        return weight[place] * (hits - rate[place]) + (rate[places[0]] + rate[places[1]]) / 2

    # κ: the gradient is κ times as long as if its parts through the two maps stood at a right angle
    ratio = slopes.with_columns(kappa=pl.col("norm1") / pl.col("right1"))
    kappa = by_seed_and_image(ratio, "kappa", "sample")
    fab = read("attack-fab-t", "distance", "sample").filter(twin=ladder[-1])
    least = by_seed_and_image(fab, "distance", "sample") * 255
    differences, of_all = [], {}
    for eps in (0.5, 1.0, 2.0, 4.0):
        hits = {kind: attacks.success(kind, eps, seeds) for kind in ladder + bare}
        vit, norm, frozen, diffvit, *others = (equal_margins(kind, hits[kind]) for kind in hits)
        whole = hits[ladder[-1]] - hits[ladder[0]]
        angle = equal_margins(ladder[-1], (least <= eps) * 1.0 - (least * kappa <= eps))
        of_eps = {"whole": whole, "margins": whole - (diffvit - vit), "equal margins": diffvit - vit}
        of_eps |= {"norm and factor": norm - vit, "heads": frozen - norm}
        of_eps |= {"subtraction": diffvit - frozen, "angle": angle}
        of_eps |= {"heads first": others[0] - vit, "then subtraction": others[1] - others[0]}
        of_eps |= {"then norm and factor": diffvit - others[1]}
        of_eps |= {"without subtraction": hits[ladder[2]] - hits[ladder[0]]}
        of_eps |= {"wider heads": hits[bare[0]] - hits[ladder[0]], "subtracted": hits[ladder[3]] - hits[ladder[2]]}
        differences += [interval(f"{eps:g}/255 {part}", x) for part, x in of_eps.items()]
        of_all = {part: [*of_all.get(part, []), x] for part, x in of_eps.items()}
    differences += [interval(f"mean over ε {part}", sum(values) / len(values)) for part, values in of_all.items()]
    return differences, list(least.shape)


def trained(attacks):
    """Robust accuracy under AutoAttack at 2/255 above that of a ViT without defence; ASR above and below."""
    names = {  # as labels of cells say it
        "fast": "DiffViT, fast depth 1 trained at ε 1/255",
        "trades": "DiffViT, trades depth 1 trained at ε 2/255",
        "input-gradient": "DiffViT, input-gradient depth 1",
    }
    rows = read("attack-autoattack", "eps", "sample", "success", "label", "clean_prediction")
    rows = rows.filter((pl.col("eps") * 255 - 2).abs() < 1e-4)
    rows = rows.with_columns(robust=(pl.col("label") == pl.col("clean_prediction")) & ~pl.col("success"))
    robust = {
        twin: by_seed_and_image(block, "robust", "sample")
        for (twin,), block in rows.partition_by("twin", as_dict=True).items()
    }
    natural = robust["ViT depth 1"]
    differences = [interval(f"2/255 {name}", robust[twin] - natural) for name, twin in names.items()]
    smooth = attacks.over_eps("DiffViT depth 1", "DiffViT, map-jacobian depth 1")
    fast = [f"{kind}, fast depth 1 trained at ε 1/255" for kind in ("DiffViT", "ViT")]
    return [*differences, *smooth, *attacks.over_eps(*fast)], []


def helps(attacks):
    rows = read("evaluate", "data", "group", "rank", "score", "setting", "task", "unit")
    rows = rows.filter(pl.col("twin").is_in(["CLIP", "DiffCLIP"])).with_columns(  # not DiffCLIP* or DiffCLIP†
        first=pl.col("rank") == 0, fifth=pl.col("rank") < 5, differential=pl.col("twin") == "DiffCLIP"
    )

    def gap(column, **chosen):
        part = rows.filter(**chosen)
        yes, no = (by_seed_and_image(part.filter(differential=d), column, "unit") for d in (True, False))
        return yes - no

    def by_class(column, **chosen):  # the nine Unicode groups, or the three patterns
        groups = rows.filter(**chosen)["group"].unique().sort()
        return [gap(column, group=group, **chosen) for group in groups]

    def by_set(column, **chosen):
        return [gap(column, data=data, **chosen) for data in ("openmoji", "noto-emoji")]

    maps = read("relevance", "average_precision", "kind", "sample").filter(kind="relevance")
    maps = maps.filter(~pl.col("of").str.contains(" for ")).partition_by("twin", as_dict=True)
    diffclip, clip = (by_seed_and_image(maps[t,], "average_precision", "sample") for t in ("DiffCLIP", "CLIP"))
    return [
        *as_claim(
            interval(
                "probe",
                *by_class("first", task="probe", data="openmoji"),
                *by_class("first", task="probe", data="noto-emoji"),
            ),
            interval("zero-shot", *by_class("first", task="zero-shot", data="openmoji")),
            interval(
                "zero-shot, shifted",
                *by_class("first", task="zero-shot", data="noto-emoji"),
                *by_class("first", task="zero-shot", data="blobmoji"),
            ),
            interval("few-shot", *by_set("score", task="few-shot")),
            interval("image retrieval", *by_set("fifth", task="retrieval", setting="image")),
            interval("text retrieval", *by_set("fifth", task="retrieval", setting="text")),
            effects=[1.0, 0.8, None, 0.7, 1.2, 1.8],  # with CC3M, Tables 1 and 2
        ),
        interval("mmvp", *by_class("score", task="mmvp")),
        interval("mask average precision", diffclip - clip),
        *attacks.over_eps("DiffCLIP", "CLIP"),
        *as_claim(*patches()),
    ], []


def patches():
    """Differences under patches; the label of a cell names the width."""
    rows = read("attack-patch", "sample", "success").with_columns(width=pl.col("of").str.extract(r"width (\d+)"))
    blocks = rows.filter(pl.col("twin").is_in(["CLIP", "DiffCLIP"])).partition_by("twin", "width", as_dict=True)
    widths = sorted({width for _, width in blocks}, key=int)
    success = {key: by_seed_and_image(block, "success", "sample") for key, block in blocks.items()}
    return [interval(f"width {w}", success["DiffCLIP", w] - success["CLIP", w]) for w in widths]


def answers():
    """The differences and the other numbers of each answer, by its question."""
    attacks = Attacks()
    return {
        "Is differential attention more fragile?": fragile(attacks),
        "Why?": why(attacks),
        "Can it be trained not to be?": trained(attacks),
        "Does it help a CLIP?": helps(attacks),
    }


if __name__ == "__main__":
    for question, (differences, numbers) in answers().items():
        print(question, *(f"{number:.1f}" for number in numbers))
        for d in differences:
            print(f"  {d.label:28} {d.estimate:+.3f} [{d.low:.3f}, {d.high:.3f}]  {d.verdict}")
