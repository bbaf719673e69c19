"""POPE: is an object in the image? Questions, half of them about objects that are not there, and the score of answers.

Source: "Evaluating Object Hallucination in Large Vision-Language Models", Li et al., EMNLP 2023 (Section 5), and
``main.py``, ``utils.py`` and ``evaluate.py`` of https://github.com/RUCAIBox/POPE.
"""

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import final

import numpy as np
import polars as pl
import torch
from jaxtyping import Float, Int64
from torch import Tensor, nn

from antiphase.data.captions import row_pairs
from antiphase.data.conversations import ASK
from antiphase.data.decoding import Square
from antiphase.data.emoji import emoji_objects, with_article
from antiphase.data.folders import data_root, missing_files
from antiphase.data.images import ImageSet, PairSet, model_images
from antiphase.errors import UserError
from antiphase.evaluation.features import FeatureStore
from antiphase.evaluation.metrics import Metric, observed, outcome_rows
from antiphase.evaluation.tasks import EvaluationTask, Groups, Protocol, Source
from antiphase.files import digest
from antiphase.models.card import card_of
from antiphase.reading import parse_json
from antiphase.statistics.intervals import auc_values, ratio_values
from antiphase.streams import generator, key
from antiphase.vlm.answers import answer_all, with_suffix

SAMPLINGS = ("random", "popular", "adversarial")
"""How the absent objects are chosen, in the paper's order."""

IMAGES, OBJECTS = 500, 3  # of POPE: images, and objects that are there for each
EMOJI_POPE = "emoji-pope"
POPE_PAGE = "https://github.com/RUCAIBox/POPE/tree/main/output/coco"
NO, YES, UNPARSED = 0, 1, 2
"""The column ``prediction``: the last says neither, which the script counts as yes."""
_LONGEST = 16  # tokens of an answer; the script reads the first sentence


@dataclass(frozen=True)
class PopeQuestion:
    """A question of one of ``SAMPLINGS``: its number there, the image's name, the text, and whether yes is right."""

    sampling: str
    number: int
    image: str
    text: str
    yes: bool


@final
@dataclass(frozen=True, eq=False, repr=False, kw_only=True)
class PopeSet:
    """Images with questions; ``names`` are the images' names in the questions."""

    name: str
    pictures: PairSet
    names: tuple[str, ...]
    questions: tuple[PopeQuestion, ...]

    def __len__(self) -> int:
        return len(self.questions)

    def __repr__(self) -> str:
        return f"<PopeSet {self.name}: {len(self.names):,} images, {len(self):,} questions>"

    def position(self) -> dict[str, int]:
        """Return the position of each image by its name."""
        return {name: position for position, name in enumerate(self.names)}

    def asked(self) -> list[tuple[str, str]]:
        """Return every pair of image and question once: samplings share the questions about objects that are there."""
        return list(dict.fromkeys((question.image, question.text) for question in self.questions))

    def subset(self, limit: int | None) -> "PopeSet":
        """Return the questions about the first ``limit`` images."""
        if limit is None or limit >= len(self.names):
            return self
        names = self.names[:limit]
        questions = tuple(question for question in self.questions if question.image in set(names))
        return replace(self, pictures=self.pictures.take(range(limit)), names=names, questions=questions)

    def followed_by(self, suffix: str) -> "PopeSet":
        """Return the same questions with a suffix behind each, see :func:`~antiphase.vlm.answers.with_suffix`."""
        questions = tuple(replace(one, text=with_suffix(one.text, suffix)) for one in self.questions)
        return replace(self, questions=questions)

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
    """Make the three sets of questions for labelled images by POPE's rules.

    Images with at least three labels are drawn. Each gets three pairs of questions: about the next object in the order
    of its labels, answer yes, and about an object that is not there, answer no. The absent object is

    - *random*: drawn from all objects of the drawn images;
    - *popular*: the most frequent one over the drawn images;
    - *adversarial*: the one that occurs most often together with the object just asked about;

    which is neither in the image nor was asked about before. Ties go to the object met first. If none is left, it is
    drawn, as for *random*.

    Args:
        labelled: objects of each image by its name.
        images: how many images.
        seed: of the draws.
    """
    able = [name for name, objects in labelled.items() if len(objects) >= OBJECTS]
    if len(able) < images:
        raise UserError(f"POPE of {images} images: {len(able)} have {OBJECTS} objects or more; ask for fewer")
    order = torch.randperm(len(able), generator=generator(seed, "pope", "images"))[:images].tolist()
    chosen = {able[position]: list(labelled[able[position]]) for position in order}
    frequency = Counter(name for objects in chosen.values() for name in objects)
    together: dict[str, Counter[str]] = {name: Counter() for name in frequency}
    for objects in chosen.values():
        for name in objects:
            together[name].update(other for other in objects if other != name)
    sets: dict[str, list[PopeQuestion]] = {sampling: [] for sampling in SAMPLINGS}
    for sampling, questions in sets.items():
        for image, objects in chosen.items():
            used = set(objects)
            for present in objects[:OBJECTS]:
                free = [name for name in frequency if name not in used]
                if not free:
                    expected = "expected some that it does not show"
                    raise UserError(f"POPE: {image} shows all {len(frequency)} objects; {expected}")
                counts = {"popular": frequency, "adversarial": together[present]}.get(sampling, Counter())
                drawn = free[key(seed, "pope", sampling, image, present) % len(free)]
                absent = next((name for name, _ in counts.most_common() if name not in used), drawn)
                used.add(absent)
                for name, yes in ((present, True), (absent, False)):
                    text = ASK.format(with_article(name))
                    questions.append(PopeQuestion(sampling, len(questions) + 1, image, text, yes))
    return sets


def emoji_pope(root: Path | None = None, progress: bool = True) -> PopeSet:
    """Return POPE's three sets of questions about 500 of the 1,000 test scenes of ``emoji-objects``."""
    scenes = emoji_objects("test", root, progress)
    assert scenes.objects is not None
    labelled = {
        f"{scenes.name}-{number}": [one.name for one in objects]
        for number, objects in zip(scenes.ids.tolist(), scenes.objects, strict=True)
    }
    sets = pope_questions(labelled)
    names = tuple(dict.fromkeys(question.image for question in sets["random"]))
    order = list(labelled)
    pictures = scenes.take([order.index(name) for name in names])
    questions = tuple(question for several in sets.values() for question in several)
    return PopeSet(name=EMOJI_POPE, pictures=pictures, names=names, questions=questions)


def load_pope(folder: Path | None = None, name: str = "pope") -> PopeSet:
    """Read POPE's published files and find the images of COCO's validation split of 2014.

    A file has a JSON object on each line, with ``question_id``, ``image``, ``text`` and ``label`` ("yes" or "no").
    ``folder`` has ``coco_pope_random.json``, ``_popular`` and ``_adversarial`` (any of them, and any word in the place
    of ``coco``); None: ``pope`` below the data folder. The images are in it, or in COCO's folder below the data folder.
    """
    place = data_root() / "pope" if folder is None else folder
    files = [
        (sampling, file) for sampling in SAMPLINGS for file in sorted(place.glob(f"*pope_{sampling}.json"))
    ]
    sets = sorted({f"{file.name.rpartition('pope_')[0]}pope" for _, file in files})
    if len(sets) > 1:
        several = f"files of {len(sets)} sets of questions, {', '.join(sets)}"
        raise UserError(f"pope: {place} has {several}: give a folder for each")
    if not sets:
        fix = f"download POPE's three files into that folder ({POPE_PAGE}), or give another folder, pope:PATH"
        raise UserError(f"pope: no {place / 'coco_pope_random.json'}: {fix}")
    answers: dict[tuple[str, str], bool] = {}
    questions = [question for sampling, file in files for question in _read(file, sampling, answers)]
    names = tuple(dict.fromkeys(question.image for question in questions))
    places = (place, place / "val2014", data_root() / "coco" / "val2014", data_root() / "val2014")
    root = next((one for one in places if not missing_files(one, names)), None)
    if root is None:
        absent = missing_files(places[-1], names)
        fault = f"is missing, as are {len(absent) - 1:,} more of {len(names):,} images"
        fix = f"unpack COCO's val2014 there, or put the images into {place}"
        raise UserError(f"pope: {places[-2] / absent[0]} {fault}: {fix}")
    pictures = row_pairs(name, "val", root, [(image, (image,), None) for image in names])
    return PopeSet(name=name, pictures=pictures, names=names, questions=tuple(questions))


def _read(file: Path, sampling: str, answers: dict[tuple[str, str], bool]) -> list[PopeQuestion]:
    """Return the questions of a file, and note the answer of each by image and text."""
    questions: dict[int, PopeQuestion] = {}
    try:
        lines = file.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(f"cannot read {file} ({error}): give an existing, readable file of POPE") from error
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        try:
            record = parse_json(line)
            index, image, text, label = (record[name] for name in ("question_id", "image", "text", "label"))
            if [type(index), type(image), type(text)] != [int, str, str]:
                raise TypeError("not of the expected types")
        except (ValueError, KeyError, TypeError) as error:
            fault = f"expected JSON with question_id, image, text, label ({error})"
            raise UserError(f"line {number} of {file}: {fault}: download it again") from error
        fault = "" if label in ("yes", "no") else f"label {label!r}: expected yes or no"
        if index in questions:
            fault = f"duplicate question_id {index}"
        elif not fault and answers.setdefault((image, text), label == "yes") != (label == "yes"):
            fault = f"{text!r} of {image} is answered both yes and no"
        if fault:
            raise UserError(f"line {number} of {file}: {fault}: correct it, or download it again")
        questions[index] = PopeQuestion(sampling, index, image, text, label == "yes")
    if not questions:
        raise UserError(f"{file} has no questions: download it again")
    return list(questions.values())


@final
@dataclass(frozen=True, eq=False, repr=False, kw_only=True)
class AskedImages(ImageSet):
    """Pairs of an image and a question, each once, as a set of the classes no and yes; label 1 where yes is right."""

    pictures: PairSet
    square: Square  # the model's preprocessing
    questions: tuple[str, ...]  # different ones
    which: Int64[Tensor, " n"]  # of each pair, the position of its question
    places: Int64[Tensor, " n"]  # of each pair, the position of its image
    samplings: tuple[tuple[str, ...], ...]  # of each pair, those of POPE that ask it

    @property
    def image_shape(self) -> tuple[int, int, int]:
        return 3, self.square.size, self.square.size

    def asked(self) -> list[str]:
        """Return the question of each pair."""
        return [self.questions[position] for position in self.which.tolist()]

    def images(self, positions: Sequence[int] | Tensor) -> Float[Tensor, "b c h w"]:
        distinct, inverse = self.places[torch.as_tensor(positions)].unique(return_inverse=True)
        return model_images(self.pictures, distinct.tolist(), self.square)[inverse]

    def take(self, positions: Sequence[int] | Tensor) -> "AskedImages":
        rows = torch.as_tensor(positions)
        columns = {name: getattr(self, name)[rows] for name in ("ids", "labels", "which", "places")}
        return replace(self, **columns, samplings=tuple(self.samplings[row] for row in rows.tolist()))

    def fingerprint(self) -> str:
        columns = [repr(column.tolist()) for column in (self.ids, self.labels, self.which, self.places)]
        square, questions = repr(self.square), repr(self.questions)
        return digest("asked", self.pictures.fingerprint(), square, questions, *columns)


def asked_images(pope: PopeSet, square: Square) -> AskedImages:
    """Return every pair of image and question once; its id depends on the image's name and the question alone."""
    asking: dict[tuple[str, str], list[PopeQuestion]] = {}
    for question in pope.questions:
        asking.setdefault((question.image, question.text), []).append(question)
    questions = tuple(dict.fromkeys(text for _, text in asking))
    position, number = pope.position(), {text: place for place, text in enumerate(questions)}
    return AskedImages(
        name=pope.name,
        split="test",
        class_names=("no", "yes"),
        ids=torch.tensor([key(image, text) & (2**53 - 1) for image, text in asking]),
        labels=torch.tensor([int(several[-1].yes) for several in asking.values()]),
        pictures=pope.pictures,
        square=square,
        questions=questions,
        which=torch.tensor([number[text] for _, text in asking]),
        places=torch.tensor([position[image] for image, _ in asking]),
        samplings=tuple(tuple(one.sampling for one in several) for several in asking.values()),
    )


def says_yes(answer: str) -> bool:
    """Return whether POPE's script counts an answer as yes: everything that does not deny.

    It looks for ``No``, ``no`` and ``not`` before the first full stop. So "NO" and "No!" count as yes.

    >>> [says_yes(answer) for answer in ("No, there is not.", "Yes. There is no doubt.", "NO", "")]
    [False, True, True, True]
    """
    words = answer.partition(".")[0].replace(",", "").split(" ")
    return not {"No", "no", "not"} & set(words)


def is_parsed(answer: str) -> bool:
    """Return whether an answer says yes or no in the script's own terms, rather than counting as yes by default.

    A denial is one that the script sees; a yes is the word "yes", in any case, before the first full stop.

    >>> [is_parsed(answer) for answer in ("no", "YES!", "NO", "There is a dog.")]
    [True, True, False, False]
    """
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
    """Return POPE's metrics, each as a value for every question whose mean is the metric.

    They are accuracy, precision, recall, F1, AUC (of the probability of yes), yes and unparsed (shares), but for those
    that are undefined. Precision, recall, F1 and AUC are linearised
    (:func:`~antiphase.statistics.intervals.ratio_values`).
    """
    said, truth, unparsed = (column.to_numpy() for column in answer_columns(rows))
    both, yes, right = (said & truth).astype(float), said.astype(float), truth.astype(float)
    values = {"accuracy": (said == truth).astype(float)}
    if said.any():
        values["precision"] = ratio_values(both, yes)
    if truth.any():
        values["recall"] = ratio_values(both, right)
    if (said | truth).any():
        values["F1"] = ratio_values(2 * both, yes + right)
    if truth.any() and not truth.all():
        values["AUC"] = auc_values(rows["score"].fill_nan(0.0).to_numpy(), truth)
    return values | {"yes": yes, "unparsed": unparsed.astype(float)}


def _measure(model: nn.Module, source: Source, protocol: Protocol, store: FeatureStore) -> pl.DataFrame:
    """Return a row for each question: ``unit`` is its number, ``group`` its image.

    ``score`` is the probability of yes as the first token, among yes and no; ``rank`` is 0 if the more probable of the
    two is right, else 1 (at ½, no).
    """
    pope = source.test
    assert isinstance(pope, PopeSet)
    position, asked = pope.position(), pope.asked()
    words = answer_all(
        model,
        pope.pictures,
        [(position[image], text) for image, text in asked],  # pyright: ignore[reportGeneralTypeIssues]
        max_new_tokens=_LONGEST,
        batch_size=store.batch_size,
        suffix=protocol.suffix,
        first_token=True,
        title=f"{card_of(model).name}: questions of {pope.name}" if store.progress else "",
    )
    answers = dict(zip(asked, words, strict=True))
    ids = dict(zip(pope.names, pope.pictures.ids.tolist(), strict=True))
    frames = []
    for sampling in SAMPLINGS:
        pairs = [(one, answers[one.image, one.text]) for one in pope.questions if one.sampling == sampling]  # pyright: ignore
        columns = {
            "unit": [question.number for question, _ in pairs],
            "group": [ids[question.image] for question, _ in pairs],
            "prediction": [_prediction(answer.text) for _, answer in pairs],
            "rank": [int((answer.yes > 0.5) != question.yes) for question, answer in pairs],
            "score": [answer.yes for _, answer in pairs],
        }
        frames += [outcome_rows(setting=sampling, seed=0, **columns)] if pairs else []
    return pl.concat(frames)


def _prediction(answer: str) -> int:
    if not says_yes(answer):
        return NO
    return YES if is_parsed(answer) else UNPARSED


def _metrics(setting: str, rows: pl.DataFrame, groups: Groups | None) -> list[Metric]:
    columns = answer_columns(rows)
    said, truth = columns["said_yes"], columns["truth"]
    counted = {"precision": said, "recall": truth, "F1": said | truth}
    metrics = []
    for name, values in pope_values(rows).items():
        observations = observed(rows.with_columns(value=pl.Series(values)), pl.col("value"))
        if name in counted:
            observations = observations.with_columns(counted=counted[name])
        metrics.append(Metric(setting, name, observations, clustered=True, tested=name == "accuracy"))
    return metrics


_HEADINGS = {"yes": "answers yes", "unparsed": "unparsed answers"}
TASK = EvaluationTask(
    name="pope",
    title="POPE",
    summary="POPE's questions about objects that are in the image or not",
    notes="Half of the questions are about objects that are not in the image, drawn at random, by frequency, or by how "
    "often they occur with an object that is. Accuracy, precision, recall and F1 are of the answers in words, scored "
    "as by the authors’ script: without “no” or “not” in its first sentence, an answer counts as yes. Unparsed is the "
    "share that say neither yes nor no. AUC is of the probability of yes as the first token: it does not depend on "
    "where a model draws the line between yes and no. The questions about one image are a cluster: intervals and p are "
    "over images.",
    serves=lambda source: isinstance(source.test, PopeSet),
    measure=_measure,
    metrics=_metrics,
    heading=lambda setting, metric: f"{setting}: {_HEADINGS.get(metric, metric)}",
    scores=lambda metric: metric not in ("yes", "unparsed"),
    stands_for=lambda data, metric: metric == "accuracy",
    fields=("suffix",),
    answers=True,
    default_data="pope",
    paper_data=("pope",),
)
