"""Figures 2 and 6: attention of CLIP and DiffCLIP for a text."""

from collections.abc import Sequence

import numpy as np
import polars as pl

from antiphase.data.shards import TITLES
from antiphase.studies.cells.relevance import COMBINED, NEGATIVE, POSITIVE
from antiphase.studies.claims import Check, Claim
from antiphase.studies.estimation import SAMPLE, SEED, difference, estimates
from antiphase.studies.figures import Artefact, Gallery, Picture, Table
from antiphase.studies.papers.diffclip import bench
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
    own = bench.bench(profile)
    return [cell for model in bench.models(profile, sets=[own.main]) for cell in own.look(model)]


def settings(profile: Profile) -> dict[str, str]:
    """Return the settings shown on the page."""
    own = bench.bench(profile)
    looked = f"{own.looked_at['data']}, at most {own.looks} images; in Figure 2 for {' and '.join(own.asked)}"
    return {**bench.settings(profile), "maps": looked, "prompt of maps": own.looked_at.get("prompt", "{}")}


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
