"""The result of an audit or attack: headlines, tables, figures and page from the stored rows.

A headline compares two models (or two families, averaged over their training seeds) under the first attack of the run,
and quotes one ε. It depends on which differences are decided, see :mod:`antiphase.statistics.decisions`:

- If some are, the title says on which side of zero they lie. The quoted ε is the one of them nearest to the middle of
  the list (the smaller of two), not the one with the largest difference.
- If none is, the title says what is not decided, and the quoted ε is the middle one (the lower of two).
"""

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from functools import cached_property, partial
from pathlib import Path
from statistics import fmean
from typing import Any

import polars as pl

from antiphase.commands.result import Result, combined_rows
from antiphase.commands.sense.result import sensitivity_sections
from antiphase.errors import UserError
from antiphase.evaluation.rates import (
    COMPARISON_SCHEMA,
    ROW_SCHEMA,
    by_seed,
    clean_accuracy,
    compare,
    family_comparisons,
    family_results,
    over_images,
    rates,
    with_decisions,
)
from antiphase.registry import QUESTIONS, find
from antiphase.report.figure import Family, families, rate_figure, seed_counts
from antiphase.report.gallery import gallery_markup, read_gallery
from antiphase.report.page import Headline, Panel, Plot, Rate, Section, environment, text
from antiphase.report.table import Field, Table, spread
from antiphase.report.words import (
    attack_condition,
    attack_label,
    lambda_range,
    p_text,
    percent,
    percent_range,
    points,
    points_range,
)
from antiphase.statistics.decisions import LEAST_SEEDS
from antiphase.statistics.intervals import as_share, mean_over_seeds
from antiphase.terminal import eps_label

# metric: (name, name on a tab, definition)
_RATES = {
    "asr": ("Attack success rate", "ASR", "broken / all"),
    "asr_correct": (
        "Attack success rate on correctly classified images",
        "ASR, correct only",
        "correct and broken / correct",
    ),
    "robust_accuracy": ("Robust accuracy", "Robust accuracy", "correct and not broken / all"),
}
_PAIR, _FAMILIES = ["model", "against"], ["family", "against_family"]
_words = partial(text, "audit.txt")


class AuditResult(Result):
    """Attack success rates of models and their paired differences."""

    needs = ("rows.parquet", "summary.json", "run.json")
    keys = ("models", "comparisons")
    settings_title = "Attack"

    @classmethod
    def of_files(cls, files: Mapping[str, bytes]) -> type[Result]:
        """Return the class of attacks on answers, where questions were asked."""
        if "questions.json" in files:
            return find(QUESTIONS, next(iter(QUESTIONS)), "questions").result
        return cls

    @cached_property
    def rows(self) -> pl.DataFrame:
        """A row for each model, ε and image.

        Raises:
            UserError: they lack a column, are none, or are of other models than the summary.
        """
        rows, again = self.frame("rows"), "expected the rows of a finished run; run it again"
        if missing := [name for name in ROW_SCHEMA if name not in rows.columns]:
            raise UserError(f"rows.parquet has no column {missing[0]!r}: {again}")
        if rows.is_empty():
            raise UserError(f"rows.parquet has no rows: {again}")
        if odd := {model["name"] for model in self.models} ^ set(rows["model"]):
            raise UserError(f"model {min(odd)!r} is not in both summary.json and rows.parquet: run it again")
        return rows

    @property
    def models(self) -> list[dict[str, Any]]:
        """What the summary says of each model."""
        return self.summary["models"]

    @cached_property
    def families(self) -> list[Family]:
        """Models that differ in their training seed alone."""
        return families(self.models)

    @cached_property
    def colors(self) -> dict[str, str]:
        """The colour of each model and of each family."""
        return {name: family.color for family in self.families for name in (family.name, *family.models)}

    @cached_property
    def pairs(self) -> list[tuple[str, str]]:
        """(model, twin) by name."""
        return list(
            dict.fromkeys((entry["model"], entry["against"]) for entry in self.summary["comparisons"])
        )

    @cached_property
    def rates(self) -> pl.DataFrame:
        """Every rate, see :func:`antiphase.evaluation.rates.rates`."""
        return rates(self.rows)

    @cached_property
    def accuracy(self) -> pl.DataFrame:
        """Clean accuracy of every model."""
        return clean_accuracy(self.rows)

    @cached_property
    def comparisons(self) -> pl.DataFrame:
        """Paired differences, with ``decided``: 1, −1 or 0."""
        frames = [compare(self.rows, *pair) for pair in self.pairs]
        return with_decisions(pl.concat([pl.DataFrame(schema=COMPARISON_SCHEMA), *frames]))

    @cached_property
    def mean_rates(self) -> pl.DataFrame:
        """Rates averaged over the training seeds of each family that has several."""
        return family_results(self.rates, by_seed(self.models))

    @cached_property
    def mean_comparisons(self) -> pl.DataFrame:
        """Differences averaged over pairs of training seeds, with intervals over the seeds and over the images."""
        means = family_comparisons(self.comparisons.drop("decided"), by_seed(self.models))
        frames = [means.clear().with_columns(image_low=pl.lit(0.0), image_high=pl.lit(0.0))]
        for sides, mean in means.group_by(_FAMILIES, maintain_order=True):
            images = over_images(self.rows, self._members(*map(str, sides)))
            frames.append(mean.join(images, on=["attack", "norm", "eps"], how="left"))
        return with_decisions(pl.concat(frames))

    def _members(self, family: str, against: str) -> list[tuple[str, str]]:
        """Return the pairs of models of two families."""
        owner = {model: group.name for group in self.families for model in group.models}
        return [(one, two) for one, two in self.pairs if (owner[one], owner[two]) == (family, against)]

    @cached_property
    def _averaged(self) -> set[tuple[str, str]]:
        """The pairs of models that are part of a mean."""
        sides = self.mean_comparisons.select(_FAMILIES).unique().rows()
        return {pair for side in sides for pair in self._members(*side)}

    # what is shown

    def headlines(self) -> list[Headline]:
        means = self.mean_comparisons.rename({"value": "difference"})
        headlines = [
            self._headline((str(family), str(against)), self._members(str(family), str(against)), frame)
            for (family, against), frame in means.group_by(_FAMILIES, maintain_order=True)
        ]
        headlines += [
            self._headline(pair, [pair], frame)
            for (model, against), frame in self.comparisons.group_by(_PAIR, maintain_order=True)
            if (pair := (str(model), str(against))) not in self._averaged
        ]
        return headlines or [self._headline_alone()]

    def _headline(
        self, names: tuple[str, str], pairs: list[tuple[str, str]], frame: pl.DataFrame
    ) -> Headline:
        """Compare two models, or two families over pairs of their models, from the differences at each ε."""
        quoted = _quoted(self._first(frame))
        sides = list(zip(*pairs, strict=True))
        accuracy = dict(self.accuracy.select("model", "value").iter_rows())
        shown = tuple(self._rate(*side, quoted["eps"]) for side in zip(names, sides, strict=True))
        values = quoted | {
            "model": names[0],
            "against": names[1],
            "rates": shown,
            "clean": [fmean(accuracy[model] for model in models) for models in sides],
            "signs": [(*attack, len(rows), *_decided(rows)) for attack, rows in _attacks(frame)],
            "seeds": 0 if "p_value" in quoted else quoted["n"],
            "least_seeds": LEAST_SEEDS,
            "images": self.accuracy["n"].max(),
            "condition": attack_condition(*self._attack, _steps(self.record["settings"], self._attack[0])),
        }
        return Headline(_words("title", **values), _words("lead", **values), shown, _what(quoted["eps"]))

    def _headline_alone(self) -> Headline:
        model = self.models[0]["name"]
        frame = self._first(self.rates.filter(model=model, metric="asr")).sort("eps")
        middle = frame.row((len(frame) - 1) // 2, named=True)
        rate = self._rate(model, (model,), middle["eps"])
        title, lead = (_words(part, **middle, rate=rate) for part in ("title_alone", "lead_alone"))
        return Headline(title, lead, (rate,), _what(middle["eps"]))

    def _rate(self, name: str, models: tuple[str, ...], eps: float) -> Rate:
        """Return the attack success rate of a model, or its mean over the models of a family."""
        frame = self._first(self.rates.filter(pl.col("model").is_in(models), metric="asr", eps=eps))
        if len(models) > 1:
            mean = as_share(mean_over_seeds(frame["value"].to_list()))
            value, low, high = mean.value, mean.low, mean.high
        else:
            value, low, high = frame.select("value", "low", "high").row(0)
        return Rate(name, self.colors[name], percent(value), percent_range(low, high))

    @property
    def _attack(self) -> tuple[str, str]:
        """The first attack and its norm."""
        return self.rates.select("attack", "norm").row(0)

    def _first(self, frame: pl.DataFrame) -> pl.DataFrame:
        return _of(frame, self._attack)

    def differences(self, other: Result) -> pl.DataFrame:
        rows, pairs = combined_rows(self, other)
        return pl.concat([compare(rows, *pair) for pair in pairs])

    def sections(self) -> list[Section]:
        seeds, single = seed_counts(self.families), any(len(group.models) == 1 for group in self.families)
        bands = _words("bands", n=self.record["n"], seeds=seeds, single=single)
        plots = [
            Plot(metric, self.rate_figure(metric), _words(metric, bands=bands), beside=metric == "asr")
            for metric in ("asr", "robust_accuracy")
        ]
        panels = [
            Panel(f"rate-{metric}", tab, self.rate_tables(metric), title, formula)
            for metric, (title, tab, formula) in _RATES.items()
        ]
        nested_up = str(self.record["settings"].get("budgets", "")).startswith("nested up")
        further = [
            ("differences", "Paired differences", "Differences", self.difference_tables()),
            ("norms", "Minimal perturbations", "", self._norm_tables()),
            ("broken", "Images broken by each attack", "", self._broken_tables()),
            ("lambda", "λ of each layer", "λ", self.lambda_tables()),
        ]
        sections = [
            Section("figures", "", plots=plots),
            Section("models", "Models", tables=[self.models_table()]),
            Section(
                "rates",
                "Rates under attack",
                _words("rates", seeds=seeds),
                panels=panels,
                in_navigation="Rates",
            ),
            *(
                Section(
                    name,
                    title,
                    _words(name, seeds=seeds, nested_up=nested_up),
                    tables=tables,
                    in_navigation=short,
                )
                for name, title, short, tables in further
                if tables
            ),
            *sensitivity_sections(self, self.pairs, self.families),
        ]
        if "gallery.safetensors" in self.files:
            with self.unpacked() as folder:
                gallery = read_gallery(folder / "gallery.safetensors")
            sections.append(Section("gallery", "Gallery", markup=gallery_markup(gallery, self.colors)))
        return sections

    def console(self) -> list[Any]:
        from rich.text import Text

        titles = [Text(f"{headline.title}.\n", "bold") for headline in self.headlines()]
        tables = [self.models_table(), *self.all_tables(), *self._norm_tables()]
        # single models are left out where their family has a mean
        short = (
            replace(table, rows=tuple(row for row in table.rows if row[0].kind != "member"))
            for table in tables
        )
        return [*titles, *(table.console() for table in short)]

    @property
    def reading(self) -> str:
        """How to read the page."""
        template = environment().get_template("how_to_read_rates.html")
        return template.render(seeds=seed_counts(self.families))

    def write_report(self, folder: Path) -> Path:
        """Write ``report.html``, ``asr.svg``, ``.png`` and ``.pdf``, ``card.json`` and ``CARD.md``."""
        from antiphase.commands.audit.card import write_card

        write_card(self, folder)
        return super().write_report(folder)

    def rate_figure(self, metric: str) -> Any:
        """Draw one rate over ε, a panel for each attack and norm."""
        means = self.mean_rates.rename({"family": "model"})
        lines = pl.concat([self.rates, means]).filter(metric=metric).rename({"model": "name"})
        panels = [(attack_label(*attack), _RATES[metric][0], block) for attack, block in _attacks(lines)]
        return rate_figure(panels, self.families)

    # tables

    def all_tables(self) -> list[Table]:
        return [*self.rate_tables("asr"), *self.difference_tables()]

    def models_table(self) -> Table:
        """Tabulate name, attention, training seed, clean accuracy and range of λ of each model."""
        about = [{"model": model["name"], **model} for model in self.models]
        frame = pl.DataFrame(about, infer_schema_length=None).select("model", "attention", "seed")
        frame = frame.join(self.accuracy, on="model", how="left", maintain_order="left")
        rows = [
            (
                self._name(row["model"]),
                Field(row["attention"], kind="word"),
                Field("–" if row["seed"] is None else str(row["seed"])),
                _rate_field(row),
                Field(lambda_range(model["lambda"])),
            )
            for row, model in zip(frame.iter_rows(named=True), self.models, strict=True)
        ]
        columns = ("model", "attention", "seed", "clean accuracy, %", "λ")
        return Table("models", "Accuracy on clean images", columns, tuple(rows), frame.write_csv())

    def rate_tables(self, metric: str) -> list[Table]:
        """Tabulate one rate for each attack and norm: models and families down, ε across."""
        tables = []
        for attack, block in _attacks(self.rates.filter(metric=metric)):
            means = _of(self.mean_rates.filter(metric=metric), attack)
            rows = []
            for family in self.families:
                mean = means.filter(family=family.name)
                kind = "name" if mean.is_empty() else "member"
                rows += [(self._name(model, kind=kind), block.filter(model=model)) for model in family.models]
                if not mean.is_empty():
                    rows.append((self._name(family.name, f", mean of {len(family.models)}", "mean"), mean))
            tables.append(_by_eps(metric, attack, rows, block, _rate_field))
        return tables

    def difference_tables(self) -> list[Table]:
        """Tabulate the paired differences of ASR for each attack and norm, likewise."""
        tables = []
        for attack, block in _attacks(self.comparisons):
            rows = []
            for (model, against), frame in block.group_by(_PAIR, maintain_order=True):
                kind = "member" if (model, against) in self._averaged else "name"
                rows.append((self._name(str(model), f" − {against}", kind), frame))
            means = _of(self.mean_comparisons.rename({"value": "difference"}), attack)
            for (family, against), mean in means.group_by(_FAMILIES, maintain_order=True):
                words = f" − {against}, mean of {mean['n'].max()}"
                rows.append((self._name(str(family), words, "mean"), mean))
            tables.append(_by_eps("differences", attack, rows, block, _difference_field))
        return tables

    def lambda_tables(self) -> list[Table]:
        """Tabulate λ by layer, if a model has one."""
        frame = pl.DataFrame(
            [
                {"model": model["name"], "layer": layer, "lambda": value}
                for model in self.models
                for layer, value in enumerate(model["lambda"], start=1)
            ]
        )
        title = "λ, mean over the heads of each layer"
        return self._by_model(
            "lambda", title, frame, "layer", "layer {}".format, lambda row: Field(f"{row['lambda']:.3f}")
        )

    def _norm_tables(self) -> list[Table]:
        """Tabulate the ε at which the ASR reaches each level."""
        frame = pl.DataFrame(self.summary.get("norms", []), infer_schema_length=None)
        title = "" if frame.is_empty() else attack_label(frame["attack"][0], frame["norm"][0])
        return self._by_model("norms", title, frame, "level", "{:.0%}".format, _norm_field)

    def _by_model(self, name: str, title: str, frame: pl.DataFrame, *how: Any) -> list[Table]:
        """Tabulate a frame with a line for each model; nothing where it has no rows."""
        if frame.is_empty():
            return []
        blocks = frame.group_by(["model"], maintain_order=True)
        return [
            spread(name, title, [(self._name(str(model)), rows) for (model,), rows in blocks], frame, *how)
        ]

    def _broken_tables(self) -> list[Table]:
        """Tabulate how many images each attack of an ensemble broke: a row for each model and attack."""
        broken = self.rows.filter(pl.col("felled_by") != pl.col("attack"))
        keys = ["model", "felled_by", "eps"]
        counts = (
            broken.group_by(keys, maintain_order=True).len("n").cast({"n": pl.Int64}).sort("model", "eps")
        )
        rows = [
            (Field(f"{model}: {attack}", kind="name"), block)
            for (model, attack), block in counts.group_by(["model", "felled_by"], maintain_order=True)
        ]
        title = "In the order in which the attacks run"
        table = spread("felled", title, rows, counts, "eps", eps_label, lambda row: Field(str(row["n"])))
        return [table] if rows else []

    def _name(self, name: str, more: str = "", kind: str = "name") -> Field:
        return Field(f"{name}{more}", color=self.colors[name], kind=kind)


def _what(eps: float) -> str:
    return f"attack success rate at ε = {eps_label(eps)}"


def _decided(frame: pl.DataFrame) -> tuple[list[float], list[float]]:
    """Return the ε at which the difference is decided to be above zero, and below."""
    above, below = (frame.filter(decided=sign)["eps"].sort().to_list() for sign in (1, -1))
    return above, below


def _quoted(frame: pl.DataFrame) -> dict[str, Any]:
    """Return the row of the ε that a headline quotes."""
    rows = frame.sort("eps").rows(named=True)
    middle = (len(rows) - 1) // 2
    decided = [place for place, row in enumerate(rows) if row["decided"]]
    return rows[min(decided, key=lambda place: abs(place - middle), default=middle)]


def _steps(settings: Mapping[str, Any], attack: str) -> int | None:
    """Return the number of steps of an attack; runs stored before November 2026 have its settings as a text."""
    of_attack = settings.get(attack, settings)
    if isinstance(of_attack, str):
        number = re.search(r"\bsteps (\d+)", of_attack)
        return int(number[1]) if number else None
    return of_attack.get("steps")


def _attacks(frame: pl.DataFrame) -> Iterator[tuple[tuple[str, str], pl.DataFrame]]:
    """Yield the rows of each (attack, norm)."""
    for (attack, norm), block in frame.group_by(["attack", "norm"], maintain_order=True):
        yield (str(attack), str(norm)), block


def _of(frame: pl.DataFrame, attack: tuple[str, str]) -> pl.DataFrame:
    return frame.filter(attack=attack[0], norm=attack[1])


def _by_eps(
    name: str,
    attack: tuple[str, str],
    rows: list[tuple[Field, pl.DataFrame]],
    block: pl.DataFrame,
    field: Callable[[Mapping[str, Any]], Field],
) -> Table:
    """Tabulate frames with one row for each ε: a line for each of them, a column for each ε."""
    name = "-".join((name, *attack))
    return spread(name, attack_label(*attack), rows, block, "eps", eps_label, field)


def _rate_field(entry: Mapping[str, Any]) -> Field:
    return Field(percent(entry["value"]), (percent_range(entry["low"], entry["high"]),))


def _difference_field(entry: Mapping[str, Any]) -> Field:
    """Grey the difference out if it is not decided."""
    over = points_range(entry["low"], entry["high"])
    if "p_value" in entry:
        notes = (over, p_text(entry["p_value"]))
    else:
        notes = (f"{points_range(entry['image_low'], entry['image_high'])} images", f"{over} seeds")
    return Field(points(entry["difference"]), notes, kind="" if entry["decided"] else "undecided")


def _norm_field(entry: Mapping[str, Any]) -> Field:
    if entry["eps"] is None:
        return Field("not reached")
    high = "∞" if entry["high"] is None else f"{entry['high']:.4g}"
    return Field(f"{entry['eps']:.4g}", (f"{entry['low']:.4g} to {high}",))
