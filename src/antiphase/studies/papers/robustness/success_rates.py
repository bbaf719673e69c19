"""Figure 2: ASR of models with and without differential attention under PGD and adversarial patches."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import polars as pl

from antiphase.data.sources import source_of
from antiphase.studies.claims import Check, Claim, each_data, higher
from antiphase.studies.estimation import (
    ASR,
    CORRECT,
    SEED,
    difference,
    estimates,
    over,
    peak,
    share_above,
    trend,
)
from antiphase.studies.figures import BY_SEED, IN_255THS, Artefact, Panel, Plot, Table, panels, tables
from antiphase.studies.paper_settings import printed_numbers
from antiphase.studies.papers.robustness.bench import (
    EPS,
    all_cells,
    attacked_clips,
    bench,
    clip_settings,
    settings,
    twins,
    vit_and_clip_settings,
)
from antiphase.studies.scale import titled
from antiphase.studies.spec import Cell, Profile, RowsByTable, Study

PAPER = printed_numbers("robustness", "figure-2a").with_columns(
    x=pl.col("column").str.strip_suffix("/255").cast(pl.Float64) / 255
)
MANY_CLASSES = "imagenet"
"""The set on which the paper finds the two CLIPs nearly alike."""

WIDTHS = (2, 4, 8)
CLIP_WIDTHS = {"paper": (8, 16, 32), "laptop": WIDTHS, "smoke": (4, 8)}
RATE = "attack success rate"
_WIDTH = pl.format("width {}", "width")


def draw_rates(
    rows: RowsByTable,
    name: str,
    by: str,
    attack: str = "PGD",
    prefix: str = "asr",
    paper: pl.DataFrame | None = None,
) -> Artefact:
    """Return a panel and a table for each data set: ASR over ``eps`` or ``width``, and the clean accuracy of CLIPs."""
    rates = estimates(rows["attack"], ["data", "series", by], ASR)
    if by == "eps":
        labels, column, style = ("ε", RATE), IN_255THS, {"scale": "eps"}
    else:
        labels, column, style = ("width in pixels", RATE), _WIDTH, {}
    kind = attack.partition(" ")[0]
    drawn = panels(rates, f"{kind}, {{data}}", by, labels, paper=paper, percent=True, **style)
    what = "a patch" if kind == "patches" else attack
    caption = f"Share of images whose prediction {what} changes. Bands: 95 % over {over(rates)}."
    shown = tables(
        rates, f"ASR under {attack}, {{data}}", f"{prefix}-{{data}}", "series", column, paper=paper
    )
    if prefix.endswith("clip"):
        clean = estimates(rows["accuracy"], ["series", "data"], CORRECT)
        shown += tables(clean, "Clean accuracy, zero-shot", "accuracy-clip", "series", "data")
    return Artefact([Plot(name, caption, drawn)], shown)


def levels(rows: RowsByTable) -> list[str]:
    """Return two sentences for each data set: ASR at 1/255 and accuracy of both models, and the paper's ASR."""
    eps, said = 1 / 255, []
    attacks = rows["attack"].filter((pl.col("eps") - eps).abs() < 1e-9)
    rates, right = (
        estimates(frame, ["data", "series"], value)
        for frame, value in ((attacks, ASR), (rows["accuracy"], CORRECT))
    )
    theirs, own = PAPER.filter(column="1/255").select("value", "data").row(0)
    for (data,), block in rates.group_by("data", maintain_order=True):
        asr, clean = (
            dict(frame.select("series", "value").iter_rows()) for frame in (block, right.filter(data=data))
        )
        if asr.keys() & clean.keys() >= {"ViT", "DiffViT"}:
            said.append(
                f"With one layer, PGD at 1/255 changes {asr['ViT']:.1%} of ViT's predictions and {asr['DiffViT']:.1%} "
                f"of DiffViT's on {titled(str(data))}; their clean accuracies are {clean['ViT']:.1%} and "
                f"{clean['DiffViT']:.1%}. The paper reports {theirs:.1%} for its one-layer DiffViT at 1/255 on "
                f"{titled(own)} and no number for ViT"
                f"{'' if data == own else '; models and data differ, so that the two do not compare'}."
            )
    return [sentence.replace("%", " %") for sentence in said]


def _vit_study(
    part: str,
    title: str,
    text: str,
    attacks: Callable[[Profile], list[Cell]],
    draw: Callable[[RowsByTable], Artefact],
    claim: tuple[str, str],
    levels: Mapping[str, Sequence[float]],
) -> Study:
    """Return the study of one-layer ViTs under an attack: their accuracy as well, and one claim."""

    def cells(profile: Profile) -> list[Cell]:
        return all_cells(attacks(profile), [bench(profile).accuracy(model) for model in twins(profile)])

    def claims(rows: RowsByTable) -> list[Claim]:
        name, words = claim
        source = f"Section 5.2, Figure 2({part})"
        return each_data(
            rows["attack"],
            lambda own: [Claim(name, source, words, higher(own, "DiffViT", than="ViT", **levels))],  # pyright: ignore
        )

    return Study(
        f"figure-2{part}", "robustness", f"Figure 2({part})", title, text, cells, draw, claims, settings
    )


def _clip_study(
    part: str,
    title: str,
    text: str,
    attacks: Callable[[Profile], list[Cell]],
    draw: Callable[[RowsByTable], Artefact],
    claim: tuple[str, str],
    many: tuple[str, str, str, str],
    by: str,
) -> Study:
    """Return the study of CLIPs under an attack: a claim for sets of few classes, another for ImageNet."""

    def cells(profile: Profile) -> list[Cell]:
        own = bench(profile)
        return all_cells(attacks(profile), [own.clip_accuracy(*pair) for pair in attacked_clips(profile)])

    def claims(rows: RowsByTable) -> list[Claim]:
        source, own = f"Section 5.2, Figure 2({part})", rows["attack"]
        names, values = (own[column].unique(maintain_order=True).to_list() for column in ("data", by))
        few = [name for name in names if name != MANY_CLASSES]
        checks = higher(own, "DiffCLIP", than="CLIP", **{by: values, "data": few})  # pyright: ignore
        made = [Claim(claim[0], source, f"{few_classes(names)} {claim[1]}", checks)]
        if MANY_CLASSES in names:
            name, words, first, second = many
            checks = higher(own, first, than=second, **{by: values, "data": MANY_CLASSES})
            made.append(Claim(name, source, words, checks))
        return made

    return Study(
        f"figure-2{part}", "robustness", f"Figure 2({part})", title, text, cells, draw, claims, clip_settings
    )


def few_classes(names: Sequence[str]) -> str:
    """Name the sets of few classes, for a statement.

    >>> few_classes(["openmoji", "imagenet"])
    "On a set of few classes (OpenMoji's drawings, 9),"
    """
    few = [f"{titled(name)}, {source_of(name).classes}" for name in names if name != MANY_CLASSES]
    return f"On a set of few classes ({'; '.join(few)}),"


FIGURE_2A = _vit_study(
    "a",
    "ASR under PGD with one layer",
    """ASR of ViT and DiffViT of one layer under PGD, over ε.

The paper (Section 5.2, Figure 2(a)): on CIFAR-10 and CIFAR-100 DiffViT has the higher ASR at every ε; on CIFAR-10 its
ASR at .25, .5 and 1/255 is .3310, .6367 and .8498 (Table 3). The other points and the values of ε are only drawn:
here .5 to 8/255.
""",
    lambda profile: [bench(profile).attack(model) for model in twins(profile)],
    lambda rows: replace(draw_rates(rows, "figure-2a", "eps", paper=PAPER), notes=levels(rows)),
    ("fragile-at-depth-1", "With one layer, DiffViT has a higher ASR than ViT under PGD for ε up to 2/255."),
    {"eps": [eps for eps in EPS if eps <= 2 / 255]},
)

FIGURE_2B = _clip_study(
    "b",
    "ASR of CLIPs under PGD",
    """ASR of CLIP and DiffCLIP under PGD on the cosine, over ε.

The paper (Section 5.2, Figure 2(b); the authors' CLIP and DiffCLIP, COCO and ImageNet) says that on COCO DiffCLIP is
the more vulnerable one at every budget, and slightly so on ImageNet. The numbers are only drawn. PGD lowers the cosine
of the image to the prompt "a photo of <class>" (Appendix C.2.1); an image of COCO has the class of its largest object;
the paper does not say how it chose one. 1,000 of the 40,000 and 50,000 images are attacked, with one random start.
There is one model of each kind: intervals are over images.

The hub name of the released CLIP is inferred and unverified; ``--baseline FILE`` replaces it.
""",
    lambda profile: [bench(profile).clip_attack(*pair, EPS) for pair in attacked_clips(profile)],
    lambda rows: draw_rates(rows, "figure-2b", "eps", "PGD on the cosine", "asr-clip"),
    ("clip-fragile-few-classes", "DiffCLIP has a higher ASR than CLIP under PGD at every ε."),
    ("clip-fragile-imagenet", "On ImageNet DiffCLIP has a slightly higher ASR.", "DiffCLIP", "CLIP"),
    "eps",
)

FIGURE_2C = _vit_study(
    "c",
    "ASR under patches with one layer",
    """ASR of ViT and DiffViT of one layer under adversarial patches, by their width.

The paper (Section 5.2, Figure 2(c)): on CIFAR-10 and CIFAR-100 DiffViT has the higher ASR at every width; the numbers
are only drawn. ε = 1 inside a square at a random place (Appendix C.2.1); the widths 2, 4 and 8 are those of Table 2.
""",
    lambda profile: [bench(profile).patch(model, width) for width in WIDTHS for model in twins(profile)],
    lambda rows: draw_rates(rows, "figure-2c", "width", "patches", "patches"),
    ("fragile-to-patches", "With one layer, DiffViT has a higher ASR than ViT under patches of every width."),
    {"width": WIDTHS},
)

FIGURE_2D = _clip_study(
    "d",
    "ASR of CLIPs under patches",
    """ASR of CLIP and DiffCLIP under adversarial patches, by their width.

The paper (Section 5.2, Figure 2(d); the authors' CLIP and DiffCLIP, COCO and ImageNet) says that on COCO DiffCLIP is
the more vulnerable one at every patch size, and that on ImageNet "CLIP marginally outperforms DiffCLIP", which is read
here as CLIP having the slightly higher ASR. The numbers are only drawn and the widths not given: 8, 16 and 32 of 224
pixels here, 2, 4 and 8 of 64, as in Table 2. ε = 1 in a square at a random place, objective as in Figure 2(b). 1,000
of the 40,000 and 50,000 images are attacked, with one random start.

The hub name of the released CLIP is inferred and unverified; ``--baseline FILE`` replaces it.
""",
    lambda profile: [
        bench(profile).clip_attack(*pair, (1.0,), "patch", width=width)
        for pair in attacked_clips(profile)
        for width in CLIP_WIDTHS[profile.name]
    ],
    lambda rows: draw_rates(rows, "figure-2d", "width", "patches", "patches-clip"),
    ("clip-fragile-to-patches", "DiffCLIP has a higher ASR than CLIP under patches of every width."),
    (
        "clip-above-on-imagenet",
        "On ImageNet CLIP has the slightly higher ASR under patches.",
        "CLIP",
        "DiffCLIP",
    ),
    "width",
)


AT = (1 / 255, 4 / 255)
DEPTH = pl.format("depth {}", "depth")
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


RUNS = (0, 1, 2)  # attack seeds, one random start each
RESTARTS = 3
AVERAGE, WORST = f"average of {len(RUNS)} runs", f"worst of {RESTARTS} restarts"
_EQUAL = 0.01  # our reading of "equal or higher": at most 1 point lower
_SOURCE = "Appendix D.3, Figure 6"
_IS_VIT = pl.col("series").is_in(["ViT", "DiffViT"])
_BY_PROTOCOL = pl.format("{}, {}", "series", "protocol")


def restart_cells(profile: Profile) -> list[Cell]:
    """PGD three times with one start, and once with three restarts, on ViTs of every depth and on CLIPs."""
    own = bench(profile)
    protocols: list[dict[str, Any]] = [*({"seed": seed} for seed in RUNS), {"restarts": RESTARTS}]
    return all_cells(
        [own.attack(model, **protocol) for model in twins(profile, None) for protocol in protocols],
        [
            own.clip_attack(*pair, EPS, **protocol)
            for pair in attacked_clips(profile)
            for protocol in protocols
        ],
    )


def by_protocol(attacks: pl.DataFrame) -> pl.DataFrame:
    """Return a row for each protocol, model, ε and image: ``success`` is the share of runs, ``cell`` lists them."""
    protocol = pl.when(pl.col("restarts").is_null()).then(pl.lit(AVERAGE)).otherwise(pl.lit(WORST))
    keys = ["protocol", "data", "series", "depth", SEED, "eps", "sample"]
    named = attacks.with_columns(protocol=protocol)
    origins = pl.col("cell").unique().sort()
    return named.group_by(keys, maintain_order=True).agg(pl.col("success").cast(pl.Float64).mean(), origins)


def draw_restarts(rows: RowsByTable) -> Artefact:
    """Draw ASR over ε with one layer and of CLIPs, and ASR over depth, by both protocols."""
    attacks = by_protocol(rows["attack"])
    rates = estimates(attacks, ["data", "series", "depth", "protocol", "eps"], ASR).drop(BY_SEED)
    rates = rates.sort("depth", "protocol", maintain_order=True)
    shallow = rates.filter(~_IS_VIT | (pl.col("depth") == 1)).with_columns(
        kind=pl.when(_IS_VIT.any().over("data")).then(pl.lit("PGD, depth 1")).otherwise(pl.lit("PGD")),
        series=_BY_PROTOCOL,
    )
    style = {"scale": "eps", "percent": True}
    drawn = panels(shallow, "{kind}, {data}", "eps", ("ε", "attack success rate"), **style)
    model = pl.when(_IS_VIT).then(pl.format("{}, depth {}", "series", "depth")).otherwise("series")
    row, title = pl.format("{}, {}", model, "protocol"), "ASR under PGD by protocol, {data}"
    listed = tables(rates, title, "restarts-{data}", row, IN_255THS)
    caption = (
        f"ASR under PGD, as the {AVERAGE} with one random start each, and as the share of images that at least one of "
        f"{RESTARTS} restarts breaks. Bands: 95 % over {over(rates)}."
    )
    named = attacks.filter(_IS_VIT).with_columns(series=_BY_PROTOCOL)
    return Artefact(
        [Plot("figure-6", caption, drawn), *draw_asr(named, "figure-6-depth", "PGD").plots], listed
    )


def restart_claims(rows: RowsByTable) -> list[Claim]:
    """Claim that restarts raise the ASR and leave every comparison unchanged."""
    return each_data(by_protocol(rows["attack"]), _restart_claims)


def _restart_claims(attacks: pl.DataFrame) -> list[Claim]:
    worst = attacks.filter(protocol=WORST)
    words = "Random restarts raise the ASR of every model, averaged over the five ε."
    raised = Claim("restarts-raise-asr", _SOURCE, words, _raised(attacks))
    vits = worst.filter(_IS_VIT)
    return [raised, *(_clip_claims(worst) if vits.is_empty() else _vit_claims(vits))]


def _raised(attacks: pl.DataFrame) -> list[Check]:
    checks = []
    for series, depth in attacks.select("series", "depth").unique(maintain_order=True).iter_rows():
        known = f", depth {depth}" if series in ("ViT", "DiffViT") else ""
        one, three = ({"series": series, "protocol": which} for which in (AVERAGE, WORST))
        estimate = difference(attacks.filter(pl.col("depth").eq_missing(depth)), three, one, ASR)
        checks.append(Check(f"ASR({series}{known}, {WORST}) − ASR({AVERAGE})", estimate))
    return checks


def _vit_claims(worst: pl.DataFrame) -> list[Claim]:
    depths = sorted(worst["depth"].unique())
    shallow, small = ([eps for eps in EPS if eps <= most / 255] for most in (2, 1))
    everywhere = [
        check for depth in depths for check in higher(worst, "DiffViT", than="ViT", eps=small, depth=depth)
    ]
    return [
        Claim(
            "fragile-with-restarts",
            _SOURCE,
            "With restarts, one-layer DiffViT stays above ViT for ε up to 2/255.",
            higher(worst, "DiffViT", than="ViT", eps=shallow, depth=1),
        ),
        Claim(
            "fragile-with-restarts-everywhere",
            _SOURCE,
            "With restarts, DiffViT stays above ViT at every depth for ε up to 1/255.",
            everywhere,
        ),
        *asr_claims(worst, "PGD with restarts", _SOURCE),
    ]


def _clip_claims(worst: pl.DataFrame) -> list[Claim]:
    checks = []
    for check in higher(worst, "DiffCLIP", than="CLIP", eps=EPS):
        one, (pair, _, eps) = check.estimate, check.what.rpartition(" at ")
        raised = one and replace(one, value=one.value + _EQUAL, low=one.low + _EQUAL, high=one.high + _EQUAL)
        checks.append(Check(f"{pair} + {_EQUAL * 100:.0f} point at {eps}", raised))
    words = "With restarts, DiffCLIP's ASR equals or exceeds CLIP's at every ε."
    # a difference of 0 is as claimed, so none is called absent
    return [Claim("clip-fragile-with-restarts", _SOURCE, words, checks, margin=0.0)]


FIGURE_6 = Study(
    "figure-6",
    "robustness",
    "Figure 6",
    "ASR under PGD with random restarts",
    """ASR under PGD with random restarts, for every model of Figures 2(a), 2(b) and 3(a).

The paper (Appendix D.3, Figure 6): its main results are "the average ASR over multiple runs"; here PGD has "three
random initializations per input". ASR rises, "as expected from a stronger optimization procedure"; "in all settings, DA
exhibits higher sensitivity for small perturbations, and the depth-dependent trends … are fully preserved"; DiffCLIP has
"equal or higher ASR compared to CLIP across all perturbation budgets". The numbers are only drawn.

Both numbers are shown: the average over three runs of PGD with one random start each (attack seeds 0, 1 and 2), and the
share of images that at least one of three restarts breaks. The other figures attack once, with seed 0, and vary the
training seed instead, which the paper does not. Two statements of D.3 exclude each other at 1/255 and large depth: that
DiffViT is the more sensitive model in all settings, and that it is the more robust one where it is deep (Section 5.2).
Both are tested. "Equal" is read as at most 1 point lower.
""",
    restart_cells,
    draw_restarts,
    restart_claims,
    vit_and_clip_settings,
)
