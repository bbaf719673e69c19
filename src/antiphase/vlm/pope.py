"""POPE: is an object in the image? Questions, half of them about objects that are not there, and the score of answers.

Source: "Evaluating Object Hallucination in Large Vision-Language Models", Li et al., EMNLP 2023 (Section 5), and
``main.py``, ``utils.py`` and ``evaluate.py`` of https://github.com/RUCAIBox/POPE.
"""

import re
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain, permutations
from pathlib import Path
from typing import Any, final

import numpy as np
import polars as pl
import torch
from jaxtyping import Float, Int64
from torch import Tensor, nn

from antiphase.data import captions, decoding, emoji, folders
from antiphase.data.conversations import ask
from antiphase.data.images import ImageSet, PairSet, model_images
from antiphase.errors import UserError
from antiphase.evaluation.features import FeatureStore
from antiphase.evaluation.metrics import Metric, finite, observed, outcome_rows
from antiphase.evaluation.rates import ROW_SCHEMA, Families, Pairs
from antiphase.evaluation.tasks import Groups, Protocol, Source, make_task
from antiphase.files import digest, read_json_lines
from antiphase.models.card import card_of
from antiphase.statistics.intervals import Estimate, as_difference, as_share, auc_values, ratio_values
from antiphase.statistics.seeds_by_images import crossed_mean
from antiphase.streams import generator, key
from antiphase.vlm.answers import answer_all

SAMPLINGS = ("random", "popular", "adversarial")  # how absent objects are chosen, in the paper's order

IMAGES, OBJECTS = 500, 3  # of POPE: images, and objects that are there for each
EMOJI_POPE = "emoji-pope"
POPE_PAGE = "https://github.com/RUCAIBox/POPE/tree/main/output/coco"
NO, YES, UNPARSED = 0, 1, 2  # predictions; the last is neither, which the script counts as yes
_AGAIN = "download it again"
_LONGEST = 16  # tokens of an answer; the script reads the first sentence
ASKED_SCHEMA = ROW_SCHEMA | {"image": pl.Int64, "question": pl.String, "samplings": pl.List(pl.String)}
"""Rows of an attack on answers: a sample is an image with a question, ``samplings`` are those of POPE that ask it."""
ALL = "all"
METRICS = ("false yes", "false no", "accuracy")  # of absent objects, of present ones, of right answers


@dataclass(frozen=True)
class PopeQuestion:
    """A question of one of ``SAMPLINGS``: its number there, the image's name, the text, and whether yes is right."""

    sampling: str
    number: int
    image: str
    text: str
    yes: bool


@final
@dataclass(frozen=True, eq=False, repr=False)
class PopeSet:
    """Images with questions; ``names`` are the images' names in the questions."""

    name: str
    pictures: PairSet
    names: tuple[str, ...]
    questions: tuple[PopeQuestion, ...]

    def __len__(self) -> int:
        return len(self.questions)

    def position(self) -> dict[str, int]:
        return {name: position for position, name in enumerate(self.names)}

    def asked(self) -> list[tuple[str, str]]:
        """Return every pair of image and question once: samplings share the questions about objects that are there."""
        return list(dict.fromkeys((question.image, question.text) for question in self.questions))

    def subset(self, limit: int | None) -> "PopeSet":
        if limit is None or limit >= len(self.names):
            return self
        names = self.names[:limit]
        questions = tuple(question for question in self.questions if question.image in set(names))
        return PopeSet(self.name, self.pictures.take(range(limit)), names, questions)

    def followed_by(self, suffix: str) -> "PopeSet":
        """Return the same questions with a suffix behind each, on a line of its own, unless it is empty."""
        last = f"\n{suffix}" if suffix else ""
        return replace(self, questions=tuple(replace(one, text=one.text + last) for one in self.questions))

    def fingerprint(self) -> str:
        """Return the SHA-256 of images, questions and answers."""
        lines = [f"{q.sampling}\x1f{q.number}\x1f{q.image}\x1f{q.text}\x1f{q.yes}" for q in self.questions]
        return digest("pope", self.pictures.fingerprint(), *self.names, *lines)


def load_questions(name: str, limit: int | None = None, progress: bool = True) -> PopeSet:
    """Return the questions of ``pope``, ``pope:FOLDER`` or ``emoji-pope`` about at most ``limit`` images."""
    folder = name.partition(":")[2]
    if name == EMOJI_POPE:
        return emoji_pope(progress=progress).subset(limit)
    return load_pope(Path(folder).expanduser() if folder else None, name).subset(limit)


def pope_questions(
    labelled: Mapping[str, Sequence[str]], *, images: int = IMAGES, seed: int = 0
) -> dict[str, list[PopeQuestion]]:
    """Make the three sets of questions for labelled images, the objects of each by its name, by POPE's rules.

    Images with at least three labels are drawn. Each gets three pairs of questions: about the next of its labels,
    answer yes, and about an object that is neither there nor was asked about before, answer no: *random*, drawn from
    all; *popular*, the most frequent; or *adversarial*, the one that occurs most often together with the object just
    asked about. Ties go to the object met first; if none is left, one is drawn.
    """
    able = [name for name, objects in labelled.items() if len(objects) >= OBJECTS]
    if len(able) < images:
        raise UserError(f"POPE of {images} images: {len(able)} have {OBJECTS} objects or more; ask for fewer")
    order = torch.randperm(len(able), generator=generator(seed, "pope", "images"))[:images].tolist()
    chosen = {able[position]: list(labelled[able[position]]) for position in order}
    frequency = Counter(name for objects in chosen.values() for name in objects)
    together: dict[str, Counter[str]] = {name: Counter() for name in frequency}
    for objects in chosen.values():
        for name, other in permutations(objects, 2):
            together[name][other] += name != other
    sets: dict[str, list[PopeQuestion]] = {sampling: [] for sampling in SAMPLINGS}
    for sampling, questions in sets.items():
        for image, objects in chosen.items():
            used = set(objects)
            for present in objects[:OBJECTS]:
                if not (free := [name for name in frequency if name not in used]):
                    raise UserError(f"POPE: {image} shows all {len(frequency)} objects; expected some absent")
                counts = {"popular": frequency, "adversarial": together[present]}.get(sampling, Counter())
                drawn = free[key(seed, "pope", sampling, image, present) % len(free)]
                absent = next((name for name, _ in counts.most_common() if name not in used), drawn)
                used.add(absent)
                for name in (present, absent):
                    questions.append(PopeQuestion(sampling, len(questions) + 1, image, ask(name), name == present))
    return sets


def emoji_pope(root: Path | None = None, progress: bool = True) -> PopeSet:
    """Return POPE's three sets of questions about 500 of the 1,000 test scenes of ``emoji-objects``."""
    scenes = emoji.emoji_objects("test", root, progress)
    assert scenes.objects is not None
    pairs = zip(scenes.ids.tolist(), scenes.objects, strict=True)
    labelled = {f"{scenes.name}-{number}": [one.name for one in objects] for number, objects in pairs}
    questions = tuple(chain(*pope_questions(labelled).values()))
    names, order = tuple(dict.fromkeys(question.image for question in questions)), list(labelled)
    return PopeSet(EMOJI_POPE, scenes.take([order.index(name) for name in names]), names, questions)


def load_pope(folder: Path | None = None, name: str = "pope") -> PopeSet:
    """Read POPE's files in a folder (None: ``pope`` below the data folder), and find their images or COCO's.

    The layout is described in docs/data.md. A file's name may have any word in the place of ``coco``.
    """
    place = folders.data_root() / "pope" if folder is None else folder
    files = [(name, file) for name in SAMPLINGS for file in sorted(place.glob(f"*pope_{name}.json"))]
    sets = sorted({f"{file.name.rpartition('pope_')[0]}pope" for _, file in files})
    if len(sets) > 1:
        raise UserError(f"pope: {place} has files of several sets, {', '.join(sets)}: give a folder for each")
    if not sets:
        fix = f"download POPE's three files into that folder ({POPE_PAGE}), or give another, pope:PATH"
        raise UserError(f"pope: no {place / 'coco_pope_random.json'}: {fix}")
    answers: dict[tuple[str, str], str] = {}
    questions: dict[tuple[str, int], PopeQuestion] = {}
    for sampling, file in files:
        for line, record in enumerate(records := read_json_lines(file, _AGAIN), 1):
            values: Any = [record.get(key) for key in ("image", "text", "question_id", "label")]
            (image, text, index, label), fault = values, ""
            if (type(image), type(text), type(index)) != (str, str, int) or label not in ("yes", "no"):
                fault = "expected question_id, image, text, and the label yes or no"
            elif (sampling, index) in questions:
                fault = f"duplicate question_id {index}"
            elif answers.setdefault((image, text), label) != label:
                fault = f"{text!r} of {image} is answered both yes and no"
            if fault:
                raise UserError(f"line {line} of {file}: {fault}: correct it, or {_AGAIN}")
            questions[sampling, index] = PopeQuestion(sampling, index, image, text, label == "yes")
        if not records:
            raise UserError(f"{file} has no questions: {_AGAIN}")
    names = tuple(dict.fromkeys(question.image for question in questions.values()))
    places = (place, place / "val2014", folders.data_root() / "coco" / "val2014", folders.data_root() / "val2014")
    root = min(places, key=lambda one: len(folders.missing_files(one, names)))
    if absent := folders.missing_files(root, names):
        fault = f"{root / absent[0]} is missing; missing images: {len(absent):,} of {len(names):,}"
        raise UserError(f"pope: {fault}: put them into {place}, or unpack COCO's val2014 as {places[2]}")
    pictures = captions.row_pairs(name, "val", root, [(image, (image,), None) for image in names])
    return PopeSet(name, pictures, names, tuple(questions.values()))


@final
@dataclass(frozen=True, eq=False, repr=False, kw_only=True)
class AskedImages(ImageSet):
    """Pairs of an image and a question, each once, as a set of the classes no and yes; label 1 where yes is right."""

    pictures: PairSet
    square: decoding.Square  # the model's preprocessing
    questions: tuple[str, ...]  # different ones
    which: Int64[Tensor, " n"]  # of each pair, the position of its question
    places: Int64[Tensor, " n"]  # of each pair, the position of its image
    samplings: tuple[tuple[str, ...], ...]  # of each pair, those of POPE that ask it

    @property
    def image_shape(self) -> tuple[int, int, int]:
        return 3, self.square.size, self.square.size

    def asked(self) -> list[str]:
        return [self.questions[position] for position in self.which.tolist()]

    def images(self, positions: Sequence[int] | Tensor) -> Float[Tensor, "b c h w"]:
        distinct, inverse = self.places[torch.as_tensor(positions)].unique(return_inverse=True)
        return model_images(self.pictures, distinct.tolist(), self.square)[inverse]

    def fingerprint(self) -> str:
        columns = [repr(column.tolist()) for column in (self.ids, self.labels, self.which, self.places)]
        square, questions = repr(self.square), repr(self.questions)
        return digest("asked", self.pictures.fingerprint(), square, questions, *columns)


def asked_images(pope: PopeSet, square: decoding.Square) -> AskedImages:
    """Return every pair of image and question once; its id depends on the image's name and the question alone."""
    samplings: dict[tuple[str, str], list[str]] = {}
    for question in pope.questions:
        samplings.setdefault((question.image, question.text), []).append(question.sampling)
    answers = {(question.image, question.text): question.yes for question in pope.questions}
    images, texts = zip(*samplings, strict=True)
    questions, position = list(dict.fromkeys(texts)), pope.position()
    about: dict[str, Any] = {"name": pope.name, "split": "test", "class_names": ("no", "yes")}
    about |= {"pictures": pope.pictures, "square": square, "questions": tuple(questions)}
    about["ids"] = torch.tensor([key(image, text) & (2**53 - 1) for image, text in samplings])
    about["labels"] = torch.tensor([int(answers[pair]) for pair in samplings])
    about["which"] = torch.tensor(list(map(questions.index, texts)))
    about["places"] = torch.tensor([position[image] for image in images])
    return AskedImages(**about, samplings=tuple(map(tuple, samplings.values())))


def says_yes(answer: str) -> bool:
    """Return whether POPE's script counts an answer as yes: everything that does not deny.

    It looks for ``No``, ``no`` and ``not`` before the first full stop. So "NO" and "No!" count as yes.
    """
    return not {"No", "no", "not"} & set(answer.partition(".")[0].replace(",", "").split(" "))


def is_parsed(answer: str) -> bool:
    """Return whether an answer has a denial that the script sees, or "yes" in any case, before its first full stop."""
    sentence = answer.partition(".")[0].replace(",", "")
    return not says_yes(answer) or re.search(r"\byes\b", sentence, re.IGNORECASE) is not None


def answer_columns(rows: pl.DataFrame) -> pl.DataFrame:
    """Return what rows of the task say: columns ``said_yes``, ``truth`` and ``unparsed``, of booleans."""
    return rows.select(
        said_yes=pl.col("prediction") != NO,
        truth=(pl.col("score").fill_nan(0.0) > 0.5) == (pl.col("rank") == 0),  # NaN > 0.5 is true in polars
        unparsed=pl.col("prediction") == UNPARSED,
    )


def pope_values(rows: pl.DataFrame) -> dict[str, Float[np.ndarray, " questions"]]:
    """Return POPE's metrics that are defined, each as a value for every question whose mean is the metric.

    Ratios and AUC (of the probability of yes) are linearised (:func:`~antiphase.statistics.intervals.ratio_values`).
    """
    prediction, truth, unparsed = (column.to_numpy() for column in answer_columns(rows))
    hits, yes, positives = (prediction & truth).astype(float), prediction.astype(float), truth.astype(float)
    values = {"accuracy": (prediction == truth).astype(float)}
    if prediction.any():
        values["precision"] = ratio_values(hits, yes)
    if truth.any():
        values["recall"] = ratio_values(hits, positives)
    if (prediction | truth).any():
        values["F1"] = ratio_values(2 * hits, yes + positives)
    if truth.any() and not truth.all():
        values["AUC"] = auc_values(rows["score"].fill_nan(0.0).to_numpy(), truth)
    return values | {"yes": yes, "unparsed": unparsed.astype(float)}


def _measure(model: nn.Module, source: Source, protocol: Protocol, store: FeatureStore) -> pl.DataFrame:
    """Return a row for each question: ``unit`` is its number, ``group`` its image.

    ``score`` is the probability of yes as the first token, among yes and no; ``rank`` is 0 if the more probable of the
    two is right, else 1 (at ½, no).
    """
    pope: PopeSet = source.test.followed_by(protocol.suffix)
    position, pairs, questions = pope.position(), pope.asked(), pope.questions
    places = [(position[image], text) for image, text in pairs]
    title = f"{card_of(model).name}: questions of {pope.name}" if store.progress else ""
    how = {"max_new_tokens": _LONGEST, "batch_size": store.batch_size, "title": title}
    words = dict(zip(pairs, answer_all(model, pope.pictures, places, **how), strict=True))  # pyright: ignore
    answers = [words[question.image, question.text] for question in questions]
    about = {"setting": [one.sampling for one in questions], "unit": [one.number for one in questions]}
    about["group"] = [int(pope.pictures.ids[position[one.image]]) for one in questions]
    rank = [int((answer.yes > 0.5) != one.yes) for one, answer in zip(questions, answers, strict=True)]
    predictions = [says_yes(one.text) + (not is_parsed(one.text)) for one in answers]  # NO, YES or UNPARSED
    return outcome_rows(**about, prediction=predictions, rank=rank, score=[one.yes for one in answers])


def _metrics(setting: str, rows: pl.DataFrame, groups: Groups | None) -> list[Metric]:
    columns = answer_columns(rows)
    prediction, truth = columns["said_yes"], columns["truth"]
    counted = {"precision": prediction, "recall": truth, "F1": prediction | truth}
    metrics = []
    for name, values in pope_values(rows).items():
        observations = observed(rows.with_columns(value=pl.Series(values)), pl.col("value"))
        if name in counted:
            observations = observations.with_columns(counted=counted[name])
        metrics.append(Metric(setting, name, observations, clustered=True, tested=name == "accuracy"))
    return metrics


def _doubts(name: str, rows: pl.DataFrame, source: Source, protocol: Protocol) -> list[str]:
    if not answer_columns(rows)["unparsed"].all():
        return []
    fault = f"{name}: none of {len(rows):,} answers about {source.name} says yes or no, and all count as yes"
    return [f'{fault}; ask for it, such as --suffix "Answer yes or no."']


_HEADINGS = {"yes": "answers yes", "unparsed": "unparsed answers"}
TASK = make_task(
    "pope",
    serves=lambda source: isinstance(source.test, PopeSet),
    measure=_measure,
    metrics=_metrics,
    heading=lambda setting, metric: f"{setting}: {_HEADINGS.get(metric, metric)}",
    scores=lambda metric: metric not in ("yes", "unparsed"),
    doubts=_doubts,
    stands_for=lambda data, metric: metric == "accuracy",
)


def answer_rates(rows: pl.DataFrame) -> pl.DataFrame:
    """Return the rates of each image without an attack (ε = 0) and under each ε, from rows of ``ASKED_SCHEMA``.

    Columns are ``model, attack, sampling`` (``ALL`` for every question once), ``eps, image, metric, value``, a mean
    over the questions about one image. An answer is wrong under an attack if it was wrong before or the attack changes
    it, as in robust accuracy. *False yes* is the hallucination rate.
    """
    wrong = pl.col("clean_prediction") != pl.col("label")
    smallest = pl.col("eps") == pl.col("eps").min().over("model", "attack")
    clean = rows.filter(smallest).with_columns(eps=pl.lit(0.0), wrong=wrong)
    attacked = rows.with_columns(wrong=wrong | pl.col("success"))
    columns = ["model", "attack", "eps", "image", "label", pl.col("wrong").cast(pl.Float64), "samplings"]
    every = pl.concat([clean.select(columns), attacked.select(columns)])
    by_sampling = every.explode("samplings").rename({"samplings": "sampling"})
    every = pl.concat([every.drop("samplings").with_columns(sampling=pl.lit(ALL)), by_sampling])
    keys = ["model", "attack", "sampling", "eps", "image"]
    parts = {
        "false yes": (every.filter(label=0), pl.col("wrong")),
        "false no": (every.filter(label=1), pl.col("wrong")),
        "accuracy": (every, 1 - pl.col("wrong")),
    }
    frames = [
        some.group_by(keys, maintain_order=True).agg(value=value.mean()).with_columns(metric=pl.lit(metric))
        for metric, (some, value) in parts.items()
    ]
    return pl.concat(frames)


def summarise_answers(rows: pl.DataFrame, families: Families, pairs: Pairs) -> dict[str, Any]:
    """Return every rate with its interval, and how much more each rate moves for a model than for its twin.

    ``families`` are models of a name that differ in the training seed alone; intervals are over the images of one, or
    over seeds and images (:func:`~antiphase.statistics.seeds_by_images.crossed_mean`). ``pairs`` are models and their
    twins. ``results`` have ``family, attack, sampling, eps, metric``, and ``differences`` have ``model, twin``
    (families), the same keys and ``what``: ``level`` at ε, or ``move`` from ε = 0 to ε; both have ``value, low, high,
    n, seeds``.
    """
    keys = ("attack", "sampling", "eps", "metric")
    orders = {"attack": rows["attack"].unique(maintain_order=True), "metric": METRICS}
    orders["sampling"] = (ALL, *SAMPLINGS)
    ordered = [pl.col(name).cast(pl.Enum(order)) for name, order in orders.items()]
    rates = answer_rates(rows).sort(*ordered, "eps", "image").partition_by(*keys, "model", as_dict=True)
    values: dict[Any, dict[str, np.ndarray]] = {}
    for (*cell, model), part in rates.items():
        values.setdefault(tuple(cell), {})[model] = part["value"].to_numpy()

    def entry(cell: Any, several: Sequence[np.ndarray], convert: Callable[[Estimate], Estimate]) -> dict[str, Any]:
        estimate = convert(crossed_mean(np.stack(several)))
        numbers = {name: getattr(estimate, name) for name in ("value", "low", "high", "n")}
        return dict(zip(keys, cell, strict=True)) | finite(numbers) | {"seeds": len(several)}

    results = [
        {"family": name} | entry(cell, [by_model[model] for model in models if model in by_model], as_share)
        for name, models in families.items()
        for cell, by_model in values.items()
    ]
    family_of = {model: name for name, models in families.items() for model in models}
    twins: dict[tuple[str, str], list[tuple[str, str]]] = {}
    for model, twin in pairs:
        twins.setdefault((family_of[model], family_of[twin]), []).append((model, twin))
    differences = []
    for (model, twin), members in twins.items():
        clean: list[np.ndarray] = []  # at the smallest ε, 0
        for cell, by_model in values.items():
            gaps = {"level": [by_model[one] - by_model[other] for one, other in members]}
            if cell[2]:
                gaps["move"] = [after - before for after, before in zip(gaps["level"], clean, strict=True)]
            else:
                clean = gaps["level"]
            for kind, several in gaps.items():
                differences.append({"model": model, "twin": twin, "what": kind} | entry(cell, several, as_difference))
    return {"results": results, "differences": differences}
