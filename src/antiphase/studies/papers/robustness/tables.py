"""Tables 1 to 3: λ_init, four layers on Tiny ImageNet, and adversarial training."""

import polars as pl

from antiphase.budgets import eps_label
from antiphase.studies import figures
from antiphase.studies.claims import NOT_IN_PAPER, Check, Claim, apart, higher
from antiphase.studies.estimation import ASR, CORRECT, estimates, over, peak, trend
from antiphase.studies.figures import IN_255THS, Artefact, Plot, panels
from antiphase.studies.paper_settings import printed_numbers
from antiphase.studies.papers.robustness.bench import EPS, KINDS, SMALL, all_cells, bench, settings
from antiphase.studies.spec import Cell, Profile, RowsByTable, Study

LAMBDAS = (0.5, 0.7, 0.8, 0.85, 0.9, 0.95)
WIDTHS = (8, 4, 2)
BUDGETS = tuple(eps for eps in reversed(EPS) if eps <= 4 / 255)
COLUMNS = (*(f"patch {width}" for width in WIDTHS), *map(eps_label, BUDGETS))
TRAINED = (0.0, 0.25 / 255, 0.5 / 255, 1 / 255)
ACCURACY_MARGIN = 0.005  # half a point
PAPER = {name: printed_numbers("robustness", name) for name in ("table-1", "table-2", "table-3")}
_AT = 1 / 255
_SIDES = {"below": "0.5 to 0.7", "above": "0.85 to 0.95"}


def lambda_cells(profile: Profile) -> list[Cell]:
    """A DiffViT for each λ_init, PGD on each; λ_init = .8 is the model of the other studies."""
    own = bench(profile)
    models = [
        own.train("diffvit", seed) if lam == 0.8 else own.train("diffvit", seed, lambda_init=lam)
        for lam in LAMBDAS
        for seed in own.seeds_of(profile)
    ]
    return all_cells(
        [own.attack(model, SMALL) for model in models], [own.accuracy(model) for model in models]
    )


def draw_lambdas(rows: RowsByTable) -> Artefact:
    """Draw accuracy and ASR by λ_init, the paper's beside them."""
    attacks = rows["attack"].filter((pl.col("eps") - _AT).abs() < 1e-9)
    both = pl.concat(
        estimates(frame, ["lambda_init"], value).sort("lambda_init").with_columns(row=pl.lit(name))
        for name, frame, value in (("accuracy", rows["accuracy"], CORRECT), ("ASR (ε = 1/255)", attacks, ASR))
    ).with_columns(series=pl.lit("DiffViT"))
    paper = PAPER["table-1"].with_columns(series=pl.lit("DiffViT"), x=pl.col("column").cast(pl.Float64))
    drawn = [
        panel
        for (name,), block in both.group_by("row", maintain_order=True)
        for panel in panels(block, "{row}", "lambda_init", ("λ_init", str(name)), paper=paper, percent=True)
    ]
    bands = over(*(panel.points for panel in drawn))
    caption = f"DiffViT of one layer by λ_init. Bands: 95 % over {bands}; dashed: the paper, CIFAR-10."
    lam = pl.col("lambda_init").map_elements(lambda value: f"{value:g}", pl.String)
    title, theirs = "Accuracy and ASR of DiffViT by λ_init", PAPER["table-1"]
    listed = figures.tables(both, title, "table-1", "row", lam, index="λ_init", paper=theirs)
    return Artefact([Plot("table-1", caption, tuple(drawn))], listed)


def lambda_claims(rows: RowsByTable) -> list[Claim]:
    """Claim that ASR and accuracy peak at .8."""
    attacks, clean = rows["attack"], rows["accuracy"]
    where = {"series": "DiffViT", "eps": _AT}
    asr, accuracy = (
        [
            Check(f"{what} at λ_init 0.8 against {_SIDES[side]} on average", estimate)
            for side, estimate in sides
        ]
        for what, sides in (
            ("ASR", peak(attacks, "lambda_init", 0.8, where, ASR)),
            ("accuracy", peak(clean, "lambda_init", 0.8, {"series": "DiffViT"}, CORRECT)),
        )
    )
    rise = trend(attacks.filter(pl.col("lambda_init") < 0.801), "lambda_init", where, ASR)
    fall = trend(attacks.filter(pl.col("lambda_init") > 0.799), "lambda_init", where, -ASR)
    rises = [Check("fitted rise of ASR from λ 0.5 to 0.8", rise)]
    falls = [Check("fitted fall of ASR from λ 0.8 to 0.95", fall)]
    words = "Clean accuracy is highest at λ_init = 0.8."
    return [
        Claim("asr-peaks", "Table 1", "ASR at 1/255 peaks at λ_init = 0.8.", asr),
        Claim("asr-rises", "Table 1", "ASR rises with λ_init up to 0.8.", rises),
        Claim("asr-falls", "Table 1", "ASR falls with λ_init beyond 0.8: over-cancellation.", falls),
        Claim("accuracy-peaks", "Table 1", words, accuracy, ACCURACY_MARGIN),
    ]


TABLE_1 = Study(
    "table-1",
    "robustness",
    "Table 1",
    "ASR and accuracy by λ_init",
    """Clean accuracy and ASR of DiffViT when λ_init varies.

The paper (Table 1; CIFAR-10, one layer, PGD at ε = 1/255): ASR rises up to λ_init = .8 and falls beyond.

As in DiffCLIP's code, which the paper follows (Appendix C.1), each head's output is multiplied by 1 − λ_init: a change
of λ_init changes this factor, too. The paper does not say whether its DiffViT has the factor.
""",
    lambda_cells,
    draw_lambdas,
    lambda_claims,
    settings,
)


def four_layer_cells(profile: Profile) -> list[Cell]:
    """Patches of three widths and PGD at every ε."""
    own = bench(profile)
    data = "tiny-imagenet" if profile.name == "paper" else None
    depth = max(depth for depth in own.depths if depth <= 4)
    models = [
        own.train(kind, seed, data, depth=depth) for kind in KINDS for seed in own.seeds_of(profile, depth)
    ]
    patches = [own.patch(model, width) for width in WIDTHS for model in models]
    return all_cells(
        [own.attack(model) for model in models], patches, [own.accuracy(model) for model in models]
    )


def draw_four_layers(rows: RowsByTable) -> Artefact:
    """Show the paper's table, its numbers beside ours."""
    patch = pl.format("patch {}", "width")
    named = rows["attack"].with_columns(column=pl.when(attack="patch").then(patch).otherwise(IN_255THS))
    rates = estimates(named.filter(pl.col("column").is_in(COLUMNS)), ["series", "column"], ASR)
    rates = rates.sort("series", pl.col("column").cast(pl.Enum(COLUMNS)))
    title = "ASR under PGD with four layers"
    return Artefact(
        tables=figures.tables(rates, title, "table-2", "series", "column", paper=PAPER["table-2"])
    )


def four_layer_claims(rows: RowsByTable) -> list[Claim]:
    """Claim that DiffViT is more fragile under patches and small ε."""
    attacks = rows["attack"].rename({"width": "patch"})
    patches, pgd = (attacks.filter(attack=name) for name in ("patch", "pgd"))
    words = "With four layers, DiffViT has the higher ASR"
    by_width = higher(patches, "DiffViT", than="ViT", patch=WIDTHS)
    by_patch = [Check(check.what, check.estimate) for check in by_width]
    small = higher(pgd, "DiffViT", than="ViT", eps=[0.5 / 255, 1 / 255])
    return [
        Claim("fragile-to-patches-at-depth-4", "Table 2", f"{words} under patches.", by_patch),
        Claim("fragile-at-depth-4", "Table 2", f"{words} at 0.5/255 and 1/255.", small),
    ]


TABLE_2 = Study(
    "table-2",
    "robustness",
    "Table 2",
    "ASR with four layers, patches and PGD",
    """ASR of ViT and DiffViT of four layers on Tiny ImageNet, patches and small perturbations.

The paper (Table 2, Appendix D.1) gives neither epochs nor sizes for Tiny ImageNet: here CIFAR-10's 100 epochs, 192
wide, patches of 8 of 64 pixels. A patch has ε = 1 inside (Appendix C.2.1). ``laptop`` has Fashion-MNIST in its place.
""",
    four_layer_cells,
    draw_four_layers,
    four_layer_claims,
    settings,
)


def adversarial_cells(profile: Profile) -> list[Cell]:
    """Natural and adversarial trainings of both kinds, PGD at the paper's three ε."""
    own = bench(profile)
    models = [
        own.train(kind, seed, adversary=eps)
        for kind in reversed(KINDS)
        for eps in TRAINED
        for seed in own.seeds_of(profile)
    ]
    return all_cells(
        [own.attack(model, SMALL) for model in models], [own.accuracy(model) for model in models]
    )


def _by_training(natural: str, hostile: str) -> pl.Expr:
    eps = pl.col("train_eps").map_elements(eps_label, pl.String)
    return pl.when(pl.col("train_eps") > 0).then(pl.format(hostile + "{}", eps)).otherwise(pl.lit(natural))


def draw_adversarial(rows: RowsByTable) -> Artefact:
    """Show the paper's table with ViT below, and ASR over ε for each training."""
    asr = estimates(rows["attack"], ["series", "train_eps", "eps"], ASR)
    clean = estimates(rows["accuracy"], ["series", "train_eps"], CORRECT)
    both = pl.concat(
        [
            clean.with_columns(column=pl.lit("accuracy")),
            asr.with_columns(column=pl.format("ASR {}", IN_255THS)),
        ],
        how="diagonal",
    )
    row = pl.format("{}, {}", "series", _by_training("natural", "adversarial ε = "))
    title, paper = "Accuracy and ASR after adversarial training", PAPER["table-3"]
    listed = figures.tables(both, title, "table-3", row, "column", paper=paper)
    curves = asr.with_columns(model="series", series=_by_training("natural", "trained at "))
    style = {"scale": "eps", "percent": True}
    drawn = panels(curves, "{model}", "eps", ("ε of the attack", "attack success rate"), **style)
    caption = f"ASR under PGD by the ε of adversarial training. Bands: 95 % over {over(asr)}."
    return Artefact([Plot("table-3", caption, drawn)], listed)


def adversarial_claims(rows: RowsByTable) -> list[Claim]:
    """Claim that small ε lower the ASR at no cost in accuracy, and larger ε cost accuracy."""
    attacks, clean = rows["attack"], rows["accuracy"]

    def lowered(kind: str) -> list[Check]:
        what = f"ASR({kind}, natural) − ASR(adversarially trained),"
        own = attacks.filter(series=kind)
        return [
            check
            for eps in TRAINED[1:]
            for check in apart(own, "train_eps", 0.0, eps, ASR, what, "points", eps=eps)
        ]

    def kept(first: float, second: float) -> list[Check]:
        words = ["natural" if eps == 0 else eps_label(eps) for eps in (first, second)]
        what, own = f"accuracy(DiffViT, {words[0]}) − accuracy({words[1]})", clean.filter(series="DiffViT")
        return apart(own, "train_eps", first, second, CORRECT, what, "points")

    hostile = clean.filter(pl.col("train_eps") > 0)
    falls = trend(hostile, "train_eps", {"series": "DiffViT"}, -CORRECT, scale="log2")
    line = Check("accuracy(DiffViT, fitted line at 0.25/255) − accuracy(1/255)", falls)
    source = "Appendix D.2, Table 3"
    return [
        Claim(
            "training-lowers-asr",
            source,
            "Adversarial training of DiffViT lowers its ASR at the ε it was trained for.",
            lowered("DiffViT"),
        ),
        Claim(
            "training-lowers-asr-of-vit",
            NOT_IN_PAPER,
            "Adversarial training of ViT lowers its ASR at the ε it was trained for.",
            lowered("ViT"),
        ),
        Claim(
            "small-eps-is-free",
            source,
            "Adversarial training at 0.25/255 raises DiffViT's clean accuracy, as the paper's table has it.",
            kept(TRAINED[1], 0.0),
            ACCURACY_MARGIN,
        ),
        Claim(
            "large-eps-costs",
            source,
            "Beyond ε = 0.5/255 adversarial training costs DiffViT clean accuracy.",
            [line, *kept(0.0, TRAINED[3])],
            ACCURACY_MARGIN,
        ),
    ]


TABLE_3 = Study(
    "table-3",
    "robustness",
    "Table 3",
    "Adversarial training",
    """Accuracy and ASR of DiffViT after adversarial training, by its ε; of ViT as well, which the paper left out.

The paper (Table 3, Appendix D.2; CIFAR-10, one layer) says nothing of how the training was done beyond its ε: PGD
(Madry et al., 2018) with a warm-up of ε here, see ``antiphase.training.adversarial``.

The text says that adversarial training with small perturbations "successfully reduced ASR without harming
classification accuracy". In the table the model trained at .25/255 has a lower ASR at .25/255 alone and a higher one at
.5 and 1/255, and its accuracy is 8 points above the natural one. The claims here are of the ε of the training.
""",
    adversarial_cells,
    draw_adversarial,
    adversarial_claims,
    settings,
)
