"""Tables 1, 2, 4, 5 and Figures 1, 3, 4, 5: CLIP and DiffCLIP by task and data set, and the paper's numbers."""

from collections.abc import Sequence
from functools import partial
from itertools import product
from typing import Any

import polars as pl

from antiphase.data.shards import TITLES
from antiphase.evaluation.metrics import CLASSES_ALIKE, task_metrics
from antiphase.evaluation.mmvp import PAPER_PATTERNS
from antiphase.evaluation.tasks import find_task
from antiphase.statistics.decisions import mcnemar_exact
from antiphase.studies import BY_SEED, ESTIMATES, Artefact, Check, Given, Panel, Table, TrainClip, panels, tables
from antiphase.studies.estimation import SAMPLE, SEED, STRATUM, difference, estimates
from antiphase.studies.paper_settings import printed_numbers
from antiphase.studies.papers.declarations import Checks, filled
from antiphase.studies.papers.diffclip.bench import PAPER, SHIFTED, VARIANTS, bench, clip_study, measured, models
from antiphase.studies.spec import Cell, Profile, RowsByTable, Study

VALUE = pl.col("value")
AVERAGE = "Avg."
KEYS = ["task", "pretraining", "series", "data"]  # what the numbers of this paper are told apart by


def published(study: str) -> pl.DataFrame:
    """Return the paper's numbers of a study: ``KEYS``, ``value`` and ``sd``."""
    return printed_numbers("diffclip", f"diffclip-{study}").rename({"column": "data"}).select(*KEYS, "value", "sd")


def estimated(observed: pl.DataFrame) -> pl.DataFrame:
    """Return the mean of every task, model and data set."""
    return estimates(observed, KEYS, VALUE)


def model_table(
    name: str,
    title: str,
    means: pl.DataFrame,
    paper: pl.DataFrame,
    column: str | pl.Expr = "data",
    digits: int = 1,
    level: pl.DataFrame | None = None,
) -> list[Table]:
    """Return a table with models down, then :func:`levels`, and data sets across, the paper's numbers beside ours."""
    row = pl.coalesce(pl.format("{}, {}", "series", "pretraining"), "series")
    if level is not None:
        whole = level.group_by("task", "series", maintain_order=True).agg(pl.mean("value"), data=pl.lit(AVERAGE))
        level = pl.concat([level, whole], how="diagonal").with_columns(n=pl.lit(0, pl.Int64))
        shown = level.join(means.select("task", "data").unique(), on=["task", "data"], maintain_order="left")
        means = pl.concat([means, shown], how="diagonal")
    return tables(means, title, name, row, column, paper=paper, index="model, trained on", digits=digits)


def bars(
    means: pl.DataFrame, title: str, y: str, paper: pl.DataFrame, column: str, ticks: Sequence[str], **style: Any
) -> tuple[Panel, ...]:
    """Return panels of bars: one group for each tick, one bar for each series in it."""
    places = {tick: float(place) for place, tick in enumerate(ticks)}
    x = pl.col(column).replace_strict(places, default=None, return_dtype=pl.Float64)
    points, printed = (frame.with_columns(x=x).drop_nulls("x") for frame in (means, paper))
    printed = printed.filter(pl.col("series").is_in(points["series"].unique().implode()))
    style = {"kind": "bar", "ticks": tuple(ticks), "percent": True, **style}
    return panels(points.drop(BY_SEED, strict=False), title, "x", ("", y), paper=printed, **style)


def gains(
    observed: pl.DataFrame,
    tasks: Sequence[str],
    first: str = "DiffCLIP",
    second: str = "CLIP",
    data: str = AVERAGE,
    told: bool = False,
) -> list[Check]:
    """Return the checks that the first series has the higher number, for each training set and task.

    Training sets that only one of the two was trained on are left out, unless there is no other.
    """
    sets = compared(observed, first, second) or observed["pretraining"].unique(maintain_order=True)
    checks = []
    for name, task in product(sets, tasks):
        some = observed.filter(pretraining=name, task=task, data=data)
        words = f"{task}: {first} − {second}, trained on {name}" + f", {data}" * told
        checks.append(Check(words, difference(some, {"series": first}, {"series": second}, VALUE)))
    return checks


def compared(observed: pl.DataFrame, first: str = "DiffCLIP", second: str = "CLIP") -> list[str]:
    """Return the training sets that both series were trained on."""
    rows = observed.filter(pl.col("series").is_in([first, second]))
    shared = rows.filter(pl.col("series").n_unique().over("pretraining") == 2)
    return shared["pretraining"].unique(maintain_order=True).to_list()


def levels(rows: pl.DataFrame) -> pl.DataFrame:
    """Return what a constant answer and answers at random reach: ``task``, ``data``, ``series`` and ``value``."""
    entries: list[tuple[Any, ...]] = []
    for (task, data), block in rows.group_by("task", "data", maintain_order=True):
        metrics = task_metrics(str(task), block)
        shown = [metric for metric in metrics if find_task(str(task)).stands_for(str(data), metric.name)]
        for metric in shown:
            named = task if metric is shown[0] else f"{task}, {metric.setting}"
            label = f"{metric.setting} retrieval" if task == "retrieval" else named
            entries += [(label, data, "constant answer", metric.constant), (label, data, "chance", metric.chance)]
    schema: dict[str, Any] = dict.fromkeys(("task", "data", "series"), pl.String)
    return pl.DataFrame(entries, schema | {"value": pl.Float64}, orient="row").drop_nulls()


MODEL = ["pretraining", "series", SEED]
_TOP = 5  # of retrieval: R@5


def observations(rows: pl.DataFrame) -> pl.DataFrame:
    """Return one row for each observation: a hit or a share, with what it is of.

    The task of retrieval becomes ``image retrieval`` (R@5 of captions that look for their image) and ``text
    retrieval``; a second prompt ensemble or objective becomes a task of its own. Zero-shot and probe count the classes
    of :data:`~antiphase.evaluation.metrics.CLASSES_ALIKE` alike; MMVP's pairs are left as they are. The captions of an
    image are one sample, so are the rows of an image under several seeds; few-shot has one for each seed and episode.
    """
    task, setting, unit = pl.col("task"), pl.col("setting"), pl.col("unit").cast(pl.String)
    among = [*MODEL, "task", "data"]
    retrieved = task == "retrieval"
    named = pl.when(setting != setting.first().over(among)).then(pl.format("{}, {}", task, setting))
    episode = pl.when(task == "few-shot").then(pl.format("{}/{}", "seed", "unit"))
    image = pl.when(retrieved).then(pl.col("group").cast(pl.String))
    hit = (pl.col("rank") < pl.when(retrieved).then(_TOP).otherwise(1)).cast(pl.Float64)
    if "pattern" not in rows.columns:
        rows = rows.with_columns(pattern=pl.lit(None, pl.String))
    observed = rows.with_columns(pretraining=pretraining()).select(
        *MODEL,
        *("data", "seed", "group", "pattern"),
        image.otherwise(episode.otherwise(unit)).alias(SAMPLE),
        task=pl.when(retrieved).then(pl.format("{} retrieval", setting)).otherwise(named.otherwise(task)),
        value=pl.coalesce("score", hit),
        stratum=pl.lit(""),
        classes=task.is_in(["zero-shot", "probe"]) & pl.col("data").is_in(list(CLASSES_ALIKE)),
    )
    order = observed.select(among).unique(maintain_order=True).with_row_index("order")
    captions = pl.col("task") == "image retrieval"
    parts = (
        alike(observed.filter("classes"), among, "group"),
        clustered(observed.filter(captions), among),
        observed.filter(~pl.col("classes") & ~captions),
    )
    together = pl.concat(parts).join(order, on=among, maintain_order="left")
    return together.sort("order", maintain_order=True).drop("order", "classes")


def pretraining() -> pl.Expr:
    """Return what the models of rows were trained on, as the paper calls it."""
    return pl.col("trained_on").fill_null("released").replace(TITLES)


def alike(observed: pl.DataFrame, among: Sequence[str], strata: str) -> pl.DataFrame:
    """Let every stratum count alike in the plain mean.

    With m_g the mean of stratum g of n_g rows among n, G strata and b = 1/G·Σ_g m_g, a value v of stratum g becomes
    b + s_g·n/(G·n_g)·(v − m_g): the mean over all rows is b, and rows differ by what they differ by within their
    stratum. s_g = √(k/(k − 1)) for k samples in the stratum makes up for the mean that was taken from few. The column
    ``stratum`` names them for the degrees of freedom, those of an average over strata in it as well.
    """
    keys = [*among, strata]
    mean, size, samples = pl.mean("value").over(keys), pl.len().over(keys), pl.col(SAMPLE).n_unique().over(keys)
    stretch = (samples / (samples - 1).clip(1)).sqrt()
    whole, count = pl.len().over(among), pl.col(strata).n_unique().over(among)
    centre = (mean / size).sum().over(among) / count
    value = centre + stretch * whole / (count * size) * (VALUE - mean)
    return observed.with_columns(value.alias("value"), pl.format("{} {}", strata, STRATUM).alias(STRATUM))


def averaged(observed: pl.DataFrame, over: str = "data", name: str = AVERAGE) -> pl.DataFrame:
    """Return the observations of the mean over data sets, or tasks, which count alike, of models measured on all."""
    among = [column for column in (*MODEL, "task", "data") if column != over]
    every = [column for column in among if column not in ("series", SEED)]
    count = pl.col(over).n_unique()
    whole = observed.filter(count.over(among) == count.over(every))
    samples = whole.group_by([*among, over, SAMPLE], maintain_order=True)  # may have rows of several seeds
    means = samples.agg(pl.first("seed", "group", "pattern", STRATUM), pl.mean("value")).select(observed.columns)
    means = means.with_columns(pl.format("{} {}", over, SAMPLE).alias(SAMPLE))
    return alike(means, among, over).with_columns(pl.lit(name).alias(over))


def with_average(observed: pl.DataFrame) -> pl.DataFrame:
    """Add the mean over data sets of the tasks that were measured on several, behind them."""
    several = observed.filter(pl.col("data").n_unique().over(["pretraining", "task"]) > 1)
    return pl.concat([observed, averaged(several)]) if len(several) else observed


def clustered(observed: pl.DataFrame, among: Sequence[str]) -> pl.DataFrame:
    """Let every caption count alike where an image's captions are averaged into one sample.

    With c of n captions of k images an image's own, a value v becomes m + c·k/n·(v − m), m the mean over all captions.
    """
    captions, mean = pl.len().over([*among, SAMPLE]), pl.mean("value").over(among)
    per_image = pl.len().over(among) / pl.col(SAMPLE).n_unique().over(among)
    return observed.with_columns(value=mean + captions / per_image * (VALUE - mean))


PROBES = {"probe": "Linear probe, accuracy", "few-shot": "Few-shot (5-way 5-shot), accuracy"}
RETRIEVAL = ("image retrieval", "text retrieval")
_EVALUATION, _TRAINING = "over evaluation seeds", "over training seeds"


def _draw_table_1(rows: RowsByTable) -> Artefact:
    means, level = estimated(with_average(observations(rows["evaluate"]))), levels(rows["evaluate"])
    listed: list[Table] = []
    for task, title in PROBES.items():
        name, block = f"diffclip-table-1-{task}", means.filter(task=task)
        listed += model_table(name, title, block, published("table-1"), level=level)
    return Artefact(tables=listed)


def _checks_of_table_1(rows: RowsByTable) -> Checks:
    observed = observations(rows["evaluate"])
    checks = {f"{task}-average": gains(averaged(observed), [task]) for task in PROBES}
    for task in PROBES:
        block = observed.filter(task=task)
        sets = block["data"].unique(maintain_order=True)
        checks[f"{task}-almost-every"] = [one for data in sets for one in gains(block, [task], data=data, told=True)]
    return checks


TABLE_1 = clip_study(
    "diffclip-table-1",
    lambda profile: measured(profile, dict.fromkeys(PROBES, bench(profile).probed)),
    _draw_table_1,
    _checks_of_table_1,
)


def _draw_table_2(rows: RowsByTable) -> Artefact:
    means, level = estimated(with_average(observations(rows["evaluate"]))), levels(rows["evaluate"])
    paper, listed = published("table-2"), []
    for task in RETRIEVAL:
        name, title = f"diffclip-table-2-{task.split()[0]}", f"{task.capitalize()}, R@5"
        listed += model_table(name, title, means.filter(task=task), paper, level=level)
    prompts = pl.col("task").str.strip_prefix("zero-shot")
    named = pl.when(prompts != "").then(pl.format("{} prompts", prompts)).otherwise(pl.lit(""))
    rest, column = means.filter(~pl.col("task").is_in(RETRIEVAL)), pl.format("{}{}", "data", named)
    name, title = "diffclip-table-2-zero-shot", "Zero-shot, accuracy"
    return Artefact(tables=listed + model_table(name, title, rest, paper, column, level=level))


def _checks_of_table_2(rows: RowsByTable) -> Checks:
    mean = averaged(observations(rows["evaluate"]))
    return {"retrieval": gains(mean, RETRIEVAL), "zero-shot": gains(mean, ["zero-shot"])}


TABLE_2 = clip_study(
    "diffclip-table-2",
    lambda profile: measured(profile, {"retrieval": bench(profile).retrieved, "zero-shot": [bench(profile).home]}),
    _draw_table_2,
    _checks_of_table_2,
)


def _spread_study(number: int, task: str) -> Study:
    name = f"diffclip-table-{number}"
    paper = published(f"table-{number}")

    def draw(rows: RowsByTable) -> Artefact:
        observed = observations(rows["evaluate"])
        every = estimated(with_average(observed))
        means = model_table(name, f"{PROBES[task]}, mean", every, paper, level=levels(rows["evaluate"]))
        printed = paper.select(*KEYS, over=pl.lit(_EVALUATION), value="sd")
        none, row = pl.lit(None, pl.Float64), pl.format("{}, {}, {}", "series", "pretraining", "over")
        told = (f"{PROBES[task]}, standard deviation", f"{name}-spread", row, "data")
        deviations, style = spread(observed).with_columns(low=none, high=none), {"digits": 2, "paper": printed}
        return Artefact(tables=means + tables(deviations, *told, index="model, trained on", **style))

    def checks(rows: RowsByTable) -> Checks:
        return {f"{task}-over-seeds": gains(averaged(observations(rows["evaluate"])), [task])}

    return clip_study(name, lambda profile: measured(profile, {task: bench(profile).probed}), draw, checks)


def spread(observed: pl.DataFrame) -> pl.DataFrame:
    """Return the standard deviations of the accuracy over training seeds, and over evaluation seeds as the paper's.

    The latter is the root of the mean square over training seeds. A kind with one seed has none.
    """
    count = pl.len().cast(pl.Int64)
    means = observed.group_by([*KEYS, SEED, "seed"], maintain_order=True).agg(VALUE.mean(), n=count)
    means = pl.concat([means, _average(means)])
    by_model = means.group_by([*KEYS, SEED], maintain_order=True).agg(VALUE.mean(), pl.sum("n"), deviation=VALUE.std())
    both = {_EVALUATION: pl.col("deviation").pow(2).mean().sqrt(), _TRAINING: VALUE.std()}
    deviations = by_model.group_by(KEYS, maintain_order=True).agg(pl.sum("n"), seeds=count, **both)
    index = [*KEYS, "n", "seeds", "place"]
    long = deviations.with_row_index("place").unpivot(list(both), index=index, variable_name="over")
    return long.sort("place", "over", maintain_order=True).drop("place").drop_nulls("value")


def _average(means: pl.DataFrame) -> pl.DataFrame:
    """Return the mean accuracy over the data sets under each seed, of models that were measured on all."""
    model = [name for name in (*KEYS, SEED) if name != "data"]
    seeds, sets = (means.select(*model, name).unique(maintain_order=True) for name in ("seed", "data"))
    grid = seeds.join(sets, on=model, maintain_order="left")
    every = grid.join(means, on=[*model, "seed", "data"], how="left", maintain_order="left").with_columns(
        VALUE.fill_null(VALUE.mean().over([*model, "data"])), pl.col("n").fill_null(0)
    )
    most = means["data"].n_unique()
    mean = every.group_by([*model, "seed"], maintain_order=True).agg(VALUE.mean(), pl.sum("n"), sets=pl.len())
    return mean.filter((pl.col("sets") == most) & (most > 1)).with_columns(data=pl.lit(AVERAGE)).select(means.columns)


TABLE_4 = _spread_study(4, "probe")
TABLE_5 = _spread_study(5, "few-shot")

UNDER_SHIFT = "zero-shot, shifted"
TASKS = ("probe", "few-shot", "image retrieval", "text retrieval", "zero-shot", UNDER_SHIFT)
SHIFT_AVERAGE = "Avg. shifted"
EXCEPTION = "State and Condition"
DYNAMIC, VISION_ONLY = "DiffCLIP*", "DiffCLIP†"
_ALL = "six tasks"


def _task_cells(profile: Profile, some: Sequence[TrainClip | Given]) -> list[Cell]:
    sizes = bench(profile)
    sets = dict.fromkeys(PROBES, sizes.probed) | {"retrieval": sizes.retrieved}
    return measured(profile, sets | {"zero-shot": (sizes.home, *sizes.shifted)}, some)


def six_tasks(rows: pl.DataFrame) -> pl.DataFrame:
    """Return the observations of the six tasks, each a mean over its data sets."""
    return averaged(_named_by_shift(observations(rows)).filter(pl.col("task").is_in(TASKS)))


def _named_by_shift(frame: pl.DataFrame) -> pl.DataFrame:
    shifted = (pl.col("task") == "zero-shot") & pl.col("data").is_in(SHIFTED)
    return frame.with_columns(task=pl.when(shifted).then(pl.lit(UNDER_SHIFT)).otherwise("task"))


def _draw_tasks(rows: RowsByTable, number: int, words: str) -> Artefact:
    name, paper = f"diffclip-figure-{number}", published(f"figure-{number}")
    mean = six_tasks(rows["evaluate"])
    means, gained = estimated(mean), _gained(mean)
    paper_means, paper_gains = paper.filter(data=AVERAGE), paper.filter(data="gain")
    drawn: list[Panel] = []
    for trained_on in means["pretraining"].unique(maintain_order=True):
        points, printed, differences, printed_gains = (
            frame.filter(pretraining=trained_on) for frame in (means, paper_means, gained, paper_gains)
        )
        drawn += bars(points, f"trained on {trained_on}", "accuracy or R@5", printed, "task", TASKS)
        drawn += bars(differences, "difference to CLIP", "points", printed_gains, "task", TASKS, level=0.0)
    listed = model_table(name, words, means, paper, "task", level=_named_by_shift(levels(rows["evaluate"])))
    listed += model_table(f"{name}-gains", "Differences to CLIP, points", gained, paper_gains, "task")
    return Artefact([PAPER.plot(name, drawn, columns=1, samples="samples")], listed)


def _gained(mean: pl.DataFrame) -> pl.DataFrame:
    rows: list[tuple[Any, ...]] = []
    for (task, trained_on), block in mean.group_by("task", "pretraining", maintain_order=True):
        for series in block["series"].unique(maintain_order=True):
            one = difference(block, {"series": series}, {"series": "CLIP"}, VALUE)
            if series != "CLIP" and one is not None:
                seeds = block.filter(series=series)[SEED].n_unique()
                rows.append((task, trained_on, series, "gain", one.value, one.low, one.high, one.n, seeds))
    return pl.DataFrame(rows, dict.fromkeys(KEYS, pl.String) | ESTIMATES, orient="row")


FIGURE_1 = clip_study(
    "diffclip-figure-1",
    lambda profile: _task_cells(profile, models(profile, sets=bench(profile).trained_on[:1])),
    partial(_draw_tasks, number=1, words="CLIP and DiffCLIP on six tasks"),
    lambda rows: {"better-in-six-tasks": gains(six_tasks(rows["evaluate"]), TASKS)},
)


def _shifted(observed: pl.DataFrame) -> pl.DataFrame:
    return averaged(observed.filter(pl.col("data").is_in(SHIFTED)), name=SHIFT_AVERAGE)


def _draw_shift(rows: RowsByTable) -> Artefact:
    paper, observed = published("figure-3"), observations(rows["evaluate"]).filter(task="zero-shot")
    several = observed.filter(pl.col("data").is_in(SHIFTED))["data"].n_unique() > 1
    means = estimated(pl.concat([observed, _shifted(observed)]) if several else observed)
    ticks = means["data"].unique(maintain_order=True).to_list()
    drawn = bars(means, "trained on {pretraining}", "zero-shot accuracy", paper, "data", ticks)
    level = levels(rows["evaluate"])
    shift = level.filter(pl.col("data").is_in(SHIFTED)).group_by("task", "series", maintain_order=True)
    level = pl.concat([level, shift.agg(pl.mean("value"), data=pl.lit(SHIFT_AVERAGE))], how="diagonal")
    listed = model_table("diffclip-figure-3", "Zero-shot under shifts, accuracy", means, paper, level=level)
    return Artefact([PAPER.plot("diffclip-figure-3", drawn)], listed)


FIGURE_3 = clip_study(
    "diffclip-figure-3",
    lambda profile: measured(profile, {"zero-shot": (bench(profile).home, *bench(profile).shifted)}),
    _draw_shift,
    lambda rows: {
        "better-under-shift": gains(_shifted(observations(rows["evaluate"])), ["zero-shot"], data=SHIFT_AVERAGE)
    },
)


def by_pattern(rows: RowsByTable) -> pl.DataFrame:
    """Return the observations with the pattern in the place of the data set."""
    return observations(rows["evaluate"]).filter(task="mmvp").with_columns(data=pl.col("pattern"))


def pattern_means(observed: pl.DataFrame) -> dict[str, pl.DataFrame]:
    """Return the observations of the mean over the paper's seven patterns, where they are there, and over all."""
    names = observed["data"].unique(maintain_order=True).to_list()
    means = {}
    for some in (_paper_patterns(observed), names):
        mean = alike(observed.filter(pl.col("data").is_in(some)), [*KEYS[:-1], SEED], "group")
        means[f"mean of {len(some)}"] = mean.with_columns(data=pl.lit(f"mean of {len(some)}"))
    return means


def _draw_patterns(rows: RowsByTable) -> Artefact:
    name, paper, observed = "diffclip-figure-4", published("figure-4"), by_pattern(rows)
    chosen = observed.filter(pl.col("data").is_in(_paper_patterns(observed)))
    means = estimated(pl.concat([observed, *pattern_means(observed).values()]))
    ticks = means["data"].unique(maintain_order=True).to_list()
    drawn = bars(means, "trained on {pretraining}", "pairs right", paper, "data", ticks)
    level = means.select("task", "data", series=pl.lit("chance"), value=pl.lit(0.25)).unique(maintain_order=True)
    listed = model_table(name, "MMVP-VLM, pairs solved", means, paper, level=level)
    return Artefact([PAPER.plot(name, drawn, columns=1, samples="pairs")], listed, notes=_exact_tests(chosen))


def _paper_patterns(observed: pl.DataFrame) -> list[str]:
    """Return the paper's seven patterns, where they are there; otherwise all."""
    names = observed["data"].unique(maintain_order=True).to_list()
    return [name for name in names if name in PAPER_PATTERNS] or names


def _exact_tests(observed: pl.DataFrame) -> list[str]:
    """Return the exact McNemar p of DiffCLIP against CLIP over the pairs, for each training seed."""
    twins, notes = ("CLIP", "DiffCLIP"), []
    for (trained_on,), block in observed.group_by("pretraining", maintain_order=True):
        wide = block.pivot("series", index=[SEED, SAMPLE], values="value").drop_nulls().sort(SEED, SAMPLE)
        if set(twins) <= set(wide.columns):
            seeds = wide.partition_by(SEED, maintain_order=True)
            p = [mcnemar_exact(*(pairs[name].to_numpy() > 0.5 for name in twins)) for pairs in seeds]
            values = {"trained_on": trained_on, "pairs": wide[SAMPLE].n_unique()}
            p = ", ".join(f"{one:.2g}" for one in p)
            notes.append(filled(PAPER.words["notes"]["mcnemar"], p=p, **values))
    return notes


def _pattern_checks(rows: RowsByTable) -> Checks:
    observed = by_pattern(rows)
    (title, mean), *_ = pattern_means(observed).items()
    names = _paper_patterns(observed)
    told = partial(gains, observed, ["mmvp"], told=True)
    checks = {
        "fine-grained": gains(mean, ["mmvp"], data=title),
        "by-pattern": [check for name in names if name != EXCEPTION for check in told(data=name)],
    }
    if EXCEPTION in names:
        checks["worse-in-state-and-condition"] = told(first="CLIP", second="DiffCLIP", data=EXCEPTION)
    return checks


def _pattern_words(rows: RowsByTable) -> dict[str, str]:
    (title, _), *_ = pattern_means(observed := by_pattern(rows)).items()
    return {"mean": title, "but": " but state and condition" * (EXCEPTION in _paper_patterns(observed))}


FIGURE_4 = clip_study(
    "diffclip-figure-4",
    lambda p: measured(p, {"mmvp": [bench(p).alike]}, models(p, sets=[bench(p).main])),
    _draw_patterns,
    _pattern_checks,
    fill=_pattern_words,
)


def _variant_checks(rows: RowsByTable) -> Checks:
    mean = six_tasks(rows["evaluate"])
    whole = averaged(mean, "task", _ALL)
    kept, all_three = [], ("CLIP", "DiffCLIP", VISION_ONLY)
    for (name,), block in whole.group_by("pretraining", maintain_order=True):
        ends = block.filter(pl.col("series").is_in(all_three))
        ends = ends.filter(pl.col("series").n_unique().over(SEED) == len(all_three))
        ends = ends.with_columns(end=pl.col("series") != VISION_ONLY)
        words = f"DiffCLIP† − mean of CLIP and DiffCLIP, six tasks, trained on {name}"
        kept.append(Check(words, difference(ends, {"end": False}, {"end": True}, VALUE)))
    three = ["zero-shot", "text retrieval", UNDER_SHIFT]
    return {
        "dynamic-above-clip": gains(mean, three, DYNAMIC),
        "dynamic-above-fixed": gains(mean, three[:2], DYNAMIC, "DiffCLIP"),
        "dynamic-behind-under-shift": gains(mean, three[2:], "DiffCLIP", DYNAMIC),
        "vision-only-above-clip": gains(mean, TASKS, VISION_ONLY),
        "vision-only-keeps-most": kept + gains(whole, (_ALL,), "DiffCLIP"),
    }


FIGURE_5 = clip_study(
    "diffclip-figure-5",
    lambda profile: _task_cells(profile, models(profile, VARIANTS, [bench(profile).main])),
    partial(_draw_tasks, number=5, words="Variants on six tasks"),
    _variant_checks,
)
