"""Figures 2 and 6: attention of CLIP and DiffCLIP for a text."""

from collections.abc import Sequence

import numpy as np
import polars as pl

from antiphase.budgets import eps_label
from antiphase.data.shards import TITLES
from antiphase.studies.cells import Given, Sense, TrainClip, Untrained
from antiphase.studies.cells.relevance import COMBINED, NEGATIVE, POSITIVE
from antiphase.studies.claims import NOT_IN_PAPER, Check, Claim
from antiphase.studies.estimation import SAMPLE, SEED, difference, estimates, mean, over
from antiphase.studies.figures import ESTIMATES, Artefact, Gallery, Panel, Picture, Plot, Table, tables
from antiphase.studies.papers.diffclip.bench import bench, models
from antiphase.studies.papers.diffclip.bench import settings as bench_settings
from antiphase.studies.papers.diffclip.released import listed, released
from antiphase.studies.scale import IN_SHORT
from antiphase.studies.spec import Cell, Profile, RowsByTable, Study

SHOWN = 6
MAPS = {COMBINED: "{}", POSITIVE: "{}, A1 alone", NEGATIVE: "{}, A2 alone"}
_PRECISION, _POINTING, _RIGHT = "mask average precision", "pointing game", "the right one of two"
SCORES = {
    _PRECISION: pl.col("average_precision"),
    _POINTING: pl.col("pointing_game").cast(pl.Float64),
    _RIGHT: pl.col("prefers_own").cast(pl.Float64),
}
_CONSTANT = {_PRECISION: pl.col("object_share"), _POINTING: pl.col("object_share"), _RIGHT: pl.lit(0.5)}
_SHARE = "a map of one value"


def cells(profile: Profile) -> list[Cell]:
    """The maps of both models of the main training set, all seeds."""
    own = bench(profile)
    return [cell for model in models(profile, sets=[own.main]) for cell in own.look(model)]


def settings(profile: Profile) -> dict[str, str]:
    """Return the settings shown on the page."""
    own = bench(profile)
    looked = f"{own.looked_at['data']}, at most {own.looks} images; in Figure 2 for {' and '.join(own.asked)}"
    return {**bench_settings(profile), "maps": looked, "prompt of maps": own.looked_at.get("prompt", "{}")}


def draw(rows: RowsByTable) -> Artefact:
    """Both figures, the two maps of differential attention, and how often maps lie on the object."""
    named = _named(rows["relevance"])
    asked, measured = named.filter(pl.col("asked").is_not_null()), _measured(named)
    galleries = [
        _gallery("figure-2", "Figure 2. Images that show both of two classes", asked, [COMBINED]),
        _gallery("figure-6", "Figure 6. Images and their two largest objects", measured, [COMBINED]),
        _gallery("a1-and-a2", "The two maps of differential attention alone", measured, [POSITIVE, NEGATIVE]),
    ]
    return Artefact(
        tables=[_table(measured.filter(SCORES[_PRECISION].is_not_null()))],
        galleries=[one for one in galleries if one.rows],
    )


def _measured(rows: pl.DataFrame) -> pl.DataFrame:
    """Return the rows of images that are asked for their own objects."""
    return rows.filter(pl.col("asked").is_null())


def _named(rows: pl.DataFrame) -> pl.DataFrame:
    """Add what each map is called, models in the order of their cells."""
    name = pl.col("kind").replace_strict(MAPS, default="{}, " + pl.col("kind"))
    return rows.with_columns(map=name.str.replace("{}", pl.col("series"), literal=True))


def _gallery(name: str, title: str, named: pl.DataFrame, kinds: Sequence[str]) -> Gallery:
    """Show some images, a row for each: the image, then the maps of the first seed for its first and second query."""
    first = named.filter(pl.col(SEED) == pl.col(SEED).min(), pl.col("kind").is_in(list(kinds)))
    samples = first[SAMPLE].unique(maintain_order=True).to_list()
    chosen = samples[:: -(-len(samples) // SHOWN)] if samples else []
    sheet: list[tuple[Picture, ...]] = []
    for _, block in first.filter(pl.col(SAMPLE).is_in(chosen)).group_by(SAMPLE, maintain_order=True):
        texts = block["text"].unique(maintain_order=True).to_list()
        maps = [
            Picture(f"{text}: {row['map']}", _image(row), _map(row))
            for text in texts
            for row in block.filter(text=text).iter_rows(named=True)
        ]
        sheet.append((Picture("; ".join(texts), maps[0].image), *maps))
    sources = map(str, named["trained_on"].unique(maintain_order=True).drop_nulls())
    origin = ", ".join(TITLES.get(source, source) for source in sources)
    words = f"{title}: relevance of each patch to the text above it, models trained on {origin}, first training seed."
    return Gallery(name, words, tuple(sheet))


def _image(row: dict[str, object]) -> np.ndarray:
    shape = (row["image_height"], row["image_width"], 3)
    return np.frombuffer(row["image"], np.uint8).reshape(shape)  # type: ignore[arg-type]


def _map(row: dict[str, object]) -> np.ndarray:
    return np.array(row["relevance"], np.float64).reshape(row["height"], row["width"])  # type: ignore[arg-type]


def _table(scored: pl.DataFrame) -> Table:
    """Return the measures of every map, and those of a map of one value."""
    one = scored.filter(map=scored["map"][0]).with_columns(map=pl.lit(_SHARE))
    parts = [
        estimates(frame.filter(SCORES[title].is_not_null()), ["map"], scores[title]).with_columns(
            column=pl.lit(title)
        )
        for frame, scores in ((scored, SCORES), (one, _CONSTANT))
        for title in SCORES
    ]
    known = (pl.col("row") == _SHARE) & (pl.col("column") == _RIGHT)  # half, without an interval
    cells = (
        pl.concat(parts)
        .rename({"map": "row"})
        .with_columns(pl.when(~known).then(pl.col("low", "high")), paper=pl.lit(None, pl.Float64))
    )
    return Table("attention-on-object", "How well maps find the object", "map", cells)


def claims(rows: RowsByTable) -> list[Claim]:
    """Claim that DiffCLIP's maps focus on the object that is asked for, and A1's more than A2's."""
    scored = _measured(rows["relevance"])

    def check(title: str, first: tuple[str, str], second: tuple[str, str]) -> Check:
        words = (MAPS[kind].format(series) for series, kind in (first, second))
        one, two = ({"series": series, "kind": kind} for series, kind in (first, second))
        found = difference(scored.filter(SCORES[title].is_not_null()), one, two, SCORES[title])
        return Check("{}: {} − {}".format(title, *words), found)

    combined = (("DiffCLIP", COMBINED), ("CLIP", COMBINED))
    return [
        Claim(
            "more-focused",
            "Figures 2 and 6, Appendix A",
            "DiffCLIP's maps are more focused on the object than CLIP's, by mask average precision.",
            [check(_PRECISION, *combined)],
        ),
        Claim(
            "query-relevant",
            "Figure 2",
            "DiffCLIP prefers the object that is asked for to the other one more often than CLIP.",
            [check(_RIGHT, *combined)],
        ),
        Claim(
            "first-map-on-object",
            "Appendix C",
            "DiffCLIP's A1 highlights the object more than its A2 does.",
            [check(_PRECISION, ("DiffCLIP", POSITIVE), ("DiffCLIP", NEGATIVE))],
        ),
    ]


ATTENTION = Study(
    "diffclip-attention",
    "diffclip",
    "Figures 2 and 6",
    "What is attended to for a text",
    """Attention of CLIP and DiffCLIP for a text.

The paper (Figures 2 and 6) matches images against two queries each ("Mug", "Lamp"; "Flower", "Dog") and says that CLIP
allocates attention to irrelevant background where DiffCLIP centres on the object that is asked about; Appendix C, that
A1 highlights the object and A2 captures the background. It does not say which
models the maps are of; here those trained on CC12M. It prints no number: Appendix A holds that a map cannot be
measured against a mask without choosing a threshold.

Three measures need none. *Mask average precision* uses the values of a map as scores for the pixels of the object; the
*pointing game* tests whether the largest value lies on it; and *the right one of two* tests whether the mean of the map
is larger on the object that is asked for than on the other one. All are computed on images that were not hand-picked.
Masks are COCO's own segmentations; the queries of an image are its two categories of the largest area. A constant map
has the share of the object in the first two and half in the third. Figure 2 is drawn from images that show both of two
classes, the nearest that COCO has to the paper's second row; Figure 6 from images spread evenly over those measured.
Maps are relevance after Chefer et al. (ICCV 2021) through all layers: for differential attention the signed A1 − λ·A2,
and A1 and A2 alone.
""",
    cells,
    draw,
    claims,
    settings,
)


NOISE = (8 / 255, 64 / 255)
IMAGES = {"paper": 100, "laptop": 32, "smoke": 2}
TRAINED, UNTRAINED = "DiffCLIP", "DiffCLIP, untrained"
IN_MAPS, IN_CHANGES = "maps", "changes"
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


def correlation_cells(profile: Profile) -> list[Cell]:
    """The branches of every layer of the image tower."""
    own, images = bench(profile), IMAGES[profile.name]
    return [
        Sense(model=model, data=own.home, part="branches", limit=images, settings={"travel": NOISE})
        for model in _pairs(profile)
    ]


def correlation_settings(profile: Profile) -> dict[str, str]:
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
        (clean, IN_MAPS, pl.lit(CLEAN), "clean_correlation"),
        (branches, IN_MAPS, perturbed, "correlation"),
        (branches, IN_CHANGES, perturbed, "change_correlation"),
    ]
    return pl.concat(
        [
            frame.select(*own, quantity=pl.lit(quantity), input=which, value=pl.col(column))
            for frame, quantity, which, column in parts
        ]
    )


def draw_correlations(rows: RowsByTable) -> Artefact:
    """The correlation of the maps and of their changes over the layers, trained and untrained."""
    found = estimates(values(rows), ["quantity", "series", "input", "layer"], VALUE, kind="difference")
    found = found.sort("layer", maintain_order=True).with_columns(x=pl.col("layer") + 1.0)
    titles = {IN_MAPS: "A1 and A2", IN_CHANGES: "ΔA1 and ΔA2"}
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
        for quantity in (IN_MAPS, IN_CHANGES)
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


def correlation_claims(rows: RowsByTable) -> list[Claim]:
    """What noise cancellation would need, averaged over layers and heads."""
    found = values(rows)
    trained, untrained = found.filter(series=TRAINED), {"series": UNTRAINED, "quantity": IN_CHANGES}
    maps, changes = trained.filter(quantity=IN_MAPS), trained.filter(quantity=IN_CHANGES)
    alike, louder, shared, learned = (
        [Check("r, clean", mean(maps.filter(input=CLEAN), {}, VALUE), "")],
        [],
        [],
        [],
    )
    for noise in (f"noise {eps_label(eps)}" for eps in NOISE):
        own, words = {"input": noise}, f"r of the changes, trained − untrained, {noise}"
        louder.append(Check(f"r({noise}) − r(clean)", difference(maps, own, {"input": CLEAN}, VALUE), ""))
        shared.append(Check(f"r of the changes, {noise}", mean(changes.filter(input=noise), {}, VALUE), ""))
        pair = ({"series": TRAINED, "quantity": IN_CHANGES, **own}, {**untrained, **own})
        learned.append(Check(words, difference(found, *pair, VALUE), ""))
    statements = {
        "maps-share": (
            NOT_IN_PAPER,
            "The two maps of the trained DiffCLIP are alike on clean images: r > 0.",
            alike,
        ),
        "noise-raises-correlation": (
            "a summary of the paper",
            "The two maps of the trained DiffCLIP are more alike on noisy images than on clean ones.",
            louder,
        ),
        "noise-is-shared": (
            "Appendix C",
            "Noise changes the two maps of the trained DiffCLIP alike, so that the subtraction cancels a part of it.",
            shared,
        ),
        "training-shares-noise": (
            NOT_IN_PAPER,
            "Training makes noise change the two maps more alike.",
            learned,
        ),
    }
    return [Claim(name, source, words, checks) for name, (source, words, checks) in statements.items()]


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
    correlation_cells,
    draw_correlations,
    correlation_claims,
    correlation_settings,
)
