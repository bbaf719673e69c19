"""Appendix C: do A1 and A2 carry the same noise?"""

import polars as pl

from antiphase.budgets import eps_label
from antiphase.studies.cells import Given, Sense, TrainClip, Untrained
from antiphase.studies.claims import Check, Claim
from antiphase.studies.estimation import SAMPLE, SEED, difference, estimates, mean, over
from antiphase.studies.figures import ESTIMATES, Artefact, Panel, Plot, tables
from antiphase.studies.papers.diffclip.bench import bench
from antiphase.studies.papers.diffclip.bench import settings as bench_settings
from antiphase.studies.papers.diffclip.released import listed, released
from antiphase.studies.scale import IN_SHORT
from antiphase.studies.spec import Cell, Profile, RowsByTable, Study

NOISE = (8 / 255, 64 / 255)
IMAGES = {"paper": 100, "laptop": 32, "smoke": 2}
TRAINED, UNTRAINED = "DiffCLIP", "DiffCLIP, untrained"
MAPS, CHANGES = "maps", "changes"
CLEAN = "clean"
VALUE = pl.col("value")


def _pairs(profile: Profile) -> list[TrainClip | Given | Untrained]:
    """Return the trained models, and as many with the weights they start from."""
    own = bench(profile)
    trainings = [own.train("diffclip", seed) for seed in profile.seeds_or(own.seeds)]
    given = own.given or (released(profile) if profile.name == "paper" else ())
    differential = [one for one in given if one.factors().get("lambda_init") is not None]
    if own.given:
        return [*differential]  # what these started from is not known
    return [*(differential or trainings), *(Untrained(of=training) for training in trainings)]


def cells(profile: Profile) -> list[Cell]:
    """The branches of every layer of the image tower."""
    own = bench(profile)
    return [
        Sense(
            model=model,
            data=own.home,
            part="branches",
            limit=IMAGES[profile.name],
            settings={"travel": NOISE},
        )
        for model in _pairs(profile)
    ]


def settings(profile: Profile) -> dict[str, str]:
    """Return the settings shown on the page."""
    shown = ("trained on", "model", "training", IN_SHORT)
    given = [one for one in _pairs(profile) if isinstance(one, Given)]
    kept = {name: value for name, value in bench_settings(profile).items() if name in shown}
    kept |= {"models": listed(given)} if given else {}
    noise = ", ".join(f"±{eps_label(eps)}" for eps in NOISE)
    return kept | {"images": f"{IMAGES[profile.name]} of {bench(profile).home}", "noise": f"uniform, {noise}"}


def values(rows: RowsByTable) -> pl.DataFrame:
    """Return every correlation, one row for each layer, head, seed and image.

    Returns:
        Columns ``series, training_seed, layer, head, sample, quantity`` (maps or changes), ``input`` and ``value``.
    """
    branches = rows["branches"]
    kind = pl.col("perturbation").replace_strict({"noise": "noise", "pgd": "PGD"}, return_dtype=pl.String)
    perturbed = pl.format("{} {}", kind, pl.col("eps").map_elements(eps_label, pl.String))
    own = ("series", SEED, "layer", "head", SAMPLE)
    # the clean image is the same in the rows of every perturbation
    clean = branches.filter(pl.col("perturbation") == "noise", pl.col("eps") == pl.col("eps").min())
    parts = [
        (clean, MAPS, pl.lit(CLEAN), "clean_correlation"),
        (branches, MAPS, perturbed, "correlation"),
        (branches, CHANGES, perturbed, "change_correlation"),
    ]
    return pl.concat(
        [
            frame.select(*own, quantity=pl.lit(quantity), input=which, value=pl.col(column))
            for frame, quantity, which, column in parts
        ]
    )


def draw(rows: RowsByTable) -> Artefact:
    """The correlation of the maps and of their changes over the layers, trained and untrained."""
    found = estimates(values(rows), ["quantity", "series", "input", "layer"], VALUE, kind="difference")
    found = found.sort("layer", maintain_order=True).with_columns(x=pl.col("layer") + 1.0)
    titles = {MAPS: "A1 and A2", CHANGES: "ΔA1 and ΔA2"}
    panels = [
        Panel(
            f"{titles[str(quantity)]}, {series}",
            "layer",
            "correlation",
            block.select(*ESTIMATES, "x", series="input"),
            level=0.0,
        )
        for (quantity, series), block in found.group_by(["quantity", "series"], maintain_order=True)
    ]
    caption = (
        "Pearson's correlation of the entries of A1 and A2 (row means subtracted) on clean and on perturbed images, "
        "and of the changes that the perturbation makes, layer by layer of the image tower. Where they correlate, the "
        f"subtraction cancels a part of the perturbation. Bands: 95 % over {over(found)}."
    )
    row, layer = pl.format("{}, {}", "series", "input"), pl.format("layer {}", pl.col("layer") + 1)
    listed = [
        table
        for quantity in (MAPS, CHANGES)
        for table in tables(
            found.filter(quantity=quantity),
            f"Correlation of {titles[quantity]} by layer",
            f"map-correlation-{quantity}",
            row,
            layer,
            percent=False,
            digits=3,
        )
    ]
    return Artefact([Plot("map-correlation", caption, tuple(panels))], listed)


def claims(rows: RowsByTable) -> list[Claim]:
    """What noise cancellation would need, averaged over layers and heads."""
    found = values(rows)
    noises = [f"noise {eps_label(eps)}" for eps in NOISE]

    def apart(first: dict[str, str], second: dict[str, str], what: str) -> Check:
        return Check(what, difference(found, first, second, VALUE), "")

    trained, changed = {"series": TRAINED}, found.filter(series=TRAINED, quantity=CHANGES)
    return [
        Claim(
            "maps-share",
            "not in the paper",
            "The two maps of the trained DiffCLIP are alike on clean images: r > 0.",
            [
                Check(
                    "r, clean", mean(found.filter(series=TRAINED, quantity=MAPS, input=CLEAN), {}, VALUE), ""
                )
            ],
        ),
        Claim(
            "noise-raises-correlation",
            "a summary of the paper",
            "The two maps of the trained DiffCLIP are more alike on noisy images than on clean ones.",
            [
                apart(
                    trained | {"quantity": MAPS, "input": noise},
                    trained | {"quantity": MAPS, "input": CLEAN},
                    f"r({noise}) − r(clean)",
                )
                for noise in noises
            ],
        ),
        Claim(
            "noise-is-shared",
            "Appendix C",
            "Noise changes the two maps of the trained DiffCLIP alike, so that the subtraction cancels a part of it.",
            [
                Check(f"r of the changes, {noise}", mean(changed.filter(input=noise), {}, VALUE), "")
                for noise in noises
            ],
        ),
        Claim(
            "training-shares-noise",
            "not in the paper",
            "Training makes noise change the two maps more alike.",
            [
                apart(
                    {"series": TRAINED, "quantity": CHANGES, "input": noise},
                    {"series": UNTRAINED, "quantity": CHANGES, "input": noise},
                    f"r of the changes, trained − untrained, {noise}",
                )
                for noise in noises
            ],
        ),
    ]


MAP_CORRELATION = Study(
    "map-correlation",
    "diffclip",
    "Appendix C",
    "Do the two maps share their noise?",
    """Do A1 and A2 carry the same noise? Correlation of the two maps on clean and noisy images, trained and untrained.

The paper does not measure this. It says (Appendix C) that A2 "is learned … to capture more diffuse, high-entropy
patterns often corresponding to noise", which the subtraction then removes. A published summary of it names the check:
"measure correlation between A1 and A2 attention maps across different input types (clean vs. noisy images …). If
correlation is consistently high for noisy inputs but low for clean inputs, this would support the core
noise-cancellation hypothesis." Here, for every layer and head of the image tower:

- the correlation of the maps, of the clean image and of the image with noise: Pearson's r of the entries of A1 and A2
  after each row's mean is subtracted (every row sums to 1, so that its mean would count as agreement);
- the correlation of the changes ΔA1 and ΔA2 that the noise makes. Only this one says whether the subtraction cancels
  the noise: maps can look alike and still change in different ways.

Noise is uniform within ±8/255 and ±64/255; PGD's perturbations of the same sizes, against the zero-shot classes, are
shown for comparison. "Untrained" is DiffCLIP with the weights that its training starts from. Under ``paper`` the
released DiffCLIP is the trained one; its initial weights are not published, so that others are drawn. Text towers are
left out.
""",
    cells,
    draw,
    claims,
    settings,
)
