"""POPE: questions about objects in images, half of them about objects that are not there.

Source: "Evaluating Object Hallucination in Large Vision-Language Models", Li et al., EMNLP 2023 (Section 5), and
``main.py`` and ``utils.py`` of https://github.com/RUCAIBox/POPE, whose rules :func:`pope_questions` follows.
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

from antiphase.data.conversations import ASK
from antiphase.data.decoding import Square
from antiphase.data.emoji import emoji_objects, with_article
from antiphase.data.folders import data_root, missing_files
from antiphase.data.images import ImageSet
from antiphase.data.pairs import FilePairs, PairSet, model_images
from antiphase.errors import UserError
from antiphase.evaluation.metrics import Metric, observed, outcome_rows
from antiphase.evaluation.tasks import EvaluationTask, Features, Groups, Protocol, Source
from antiphase.files import digest
from antiphase.models.card import card_of
from antiphase.reading import parse_json
from antiphase.statistics.influence import auc_values, ratio_values
from antiphase.streams import generator, key
from antiphase.vlm.answers import answer_all, with_suffix

SAMPLINGS = ("random", "popular", "adversarial")
"""How the absent objects are chosen, in the paper's order."""

IMAGES, OBJECTS = 500, 3  # of POPE: images, and objects that are there for each
POPE_PAGE = "https://github.com/RUCAIBox/POPE/tree/main/output/coco"
_KEYS = ("question_id", "image", "text", "label")


@dataclass(frozen=True)
class PopeQuestion:
    """A question with its answer.

    Attributes:
        sampling: one of ``SAMPLINGS``.
        number: the question's number within its sampling.
        image: name of the image.
        text: the question.
        yes: whether "yes" is right.
    """

    sampling: str
    number: int
    image: str
    text: str
    yes: bool


@final
@dataclass(frozen=True, eq=False, repr=False, kw_only=True)
class PopeSet:
    """Images with questions.

    Attributes:
        name: of the set.
        pictures: the images.
        names: name of each image in the questions.
        questions: of all samplings.
    """

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
        return {name: at for at, name in enumerate(self.names)}

    def asked(self) -> list[tuple[str, str]]:
        """Return every pair of image and question once: samplings share the questions about objects that are there."""
        return list(dict.fromkeys((one.image, one.text) for one in self.questions))

    def subset(self, limit: int | None) -> "PopeSet":
        """Return the questions about the first ``limit`` images."""
        if limit is None or limit >= len(self.names):
            return self
        kept = self.names[:limit]
        of_these = tuple(one for one in self.questions if one.image in set(kept))
        return replace(self, pictures=self.pictures.take(range(limit)), names=kept, questions=of_these)

    def followed_by(self, suffix: str) -> "PopeSet":
        """Return the same questions with a suffix behind each, see :func:`with_suffix`."""
        return replace(
            self, questions=tuple(replace(one, text=with_suffix(one.text, suffix)) for one in self.questions)
        )

    def fingerprint(self) -> str:
        """Return the SHA-256 of images, questions and answers."""
        told = [
            f"{one.sampling}\x1f{one.number}\x1f{one.image}\x1f{one.text}\x1f{one.yes}"
            for one in self.questions
        ]
        return digest("pope", self.pictures.fingerprint(), *self.names, *told)


EMOJI_POPE = "emoji-pope"


def emoji_pope(root: Path | None = None, progress: bool = True) -> PopeSet:
    """Return POPE's three sets of questions about 500 of the 1,000 test scenes, made by POPE's rules.

    Args:
        root: data folder, where the rendered drawings are cached.
        progress: show a progress bar on stderr during rendering.

    Raises:
        UserError: if a package that draws the objects is missing.
    """
    scenes = emoji_objects("test", root, progress)
    assert scenes.objects is not None
    labelled = {
        f"{scenes.name}-{number}": [one.name for one in objects]
        for number, objects in zip(scenes.ids.tolist(), scenes.objects, strict=True)
    }
    questions = pope_questions(labelled)
    places = {name: at for at, name in enumerate(labelled)}
    names = tuple(dict.fromkeys(one.image for one in questions["random"]))
    every = tuple(one for several in questions.values() for one in several)
    pictures = scenes.take([places[name] for name in names])
    return PopeSet(name=EMOJI_POPE, pictures=pictures, names=names, questions=every)


def pope_questions(
    labelled: Mapping[str, Sequence[str]], *, images: int = IMAGES, seed: int = 0
) -> dict[str, list[PopeQuestion]]:
    """Make the three sets of questions for labelled images by POPE's rules.

    Images with at least three labels are drawn. Each gets that many pairs of questions: about the next object in
    the order of its labels, answer yes, and about an object that is not there, answer no. The absent object is

    - *random*: drawn from all objects of the drawn images;
    - *popular*: the most frequent one over the drawn images;
    - *adversarial*: the one that occurs most often together with the object just asked about;

    which is neither in the image nor was asked about before. Ties go to the object met first. If none is left, it is
    drawn, as for *random*.

    Args:
        labelled: objects of each image by its name.
        images: how many images.
        seed: of the draws.

    Raises:
        UserError: fewer images have enough objects, or too few objects are left to ask about.
    """
    able = [name for name, own in labelled.items() if len(own) >= OBJECTS]
    if len(able) < images:
        raise UserError(
            f"POPE of {images} images: {len(able)} have {OBJECTS} objects or more; expected as many as are asked for"
        )
    order = torch.randperm(len(able), generator=generator(seed, "pope", "images"))[:images].tolist()
    chosen = {able[at]: list(labelled[able[at]]) for at in order}
    frequency = Counter(name for own in chosen.values() for name in own)
    together: dict[str, Counter[str]] = {name: Counter() for name in frequency}
    for own in chosen.values():
        for one in own:
            together[one].update(other for other in own if other != one)
    ranked = {
        "random": lambda present: [],
        "popular": lambda present: [name for name, _ in frequency.most_common()],
        "adversarial": lambda present: [name for name, _ in together[present].most_common()],
    }
    every = list(frequency)
    found: dict[str, list[PopeQuestion]] = {}
    for sampling, candidates in ranked.items():
        questions: list[PopeQuestion] = []
        for image, own in chosen.items():
            used = set(own)
            for present in own[:OBJECTS]:
                free = [name for name in every if name not in used]
                if not free:
                    raise UserError(
                        f"POPE: {image} shows all {len(every)} objects; expected some that it does not show"
                    )
                at = key(seed, "pope", sampling, image, present) % len(free)
                absent = next((name for name in candidates(present) if name not in used), free[at])
                used.add(absent)
                for name, yes in ((present, True), (absent, False)):
                    text = ASK.format(with_article(name))
                    questions.append(PopeQuestion(sampling, len(questions) + 1, image, text, yes))
        found[sampling] = questions
    return found


def load_pope(folder: Path | None = None, name: str = "pope") -> PopeSet:
    """Read POPE's published files and find the images of COCO's validation split of 2014.

    A file has a JSON object on each line, with ``question_id``, ``image``, ``text`` and ``label`` ("yes" or "no").

    Args:
        folder: with ``coco_pope_random.json``, ``_popular`` and ``_adversarial`` (any of them, and any word in the
            place of ``coco``); None: ``pope`` below the data folder. The images are in it, or in COCO's folder below
            the data folder.
        name: of the set in tables.

    Raises:
        UserError: files or images are missing, the files are of several sets or contradict each other, or naming the
            line that is invalid.
    """
    place = data_root() / "pope" if folder is None else folder
    files = {sampling: sorted(place.glob(f"*pope_{sampling}.json")) for sampling in SAMPLINGS}
    sets = {file.name.rpartition("pope_")[0] for several in files.values() for file in several}
    if len(sets) > 1:
        names = ", ".join(sorted(f"{one}pope" for one in sets))
        raise UserError(
            f"pope: {place} has files of {len(sets)} sets of questions, {names}: give a folder for each"
        )
    if not sets:
        raise UserError(
            f"pope: no {place / 'coco_pope_random.json'}: download POPE's three files into that folder ({POPE_PAGE}), "
            "or give another folder, pope:PATH"
        )
    questions = tuple(
        question
        for sampling, found in files.items()
        for file in found
        for question in read_pope(file, sampling)
    )
    told: dict[tuple[str, str], bool] = {}
    for one in questions:
        if told.setdefault((one.image, one.text), one.yes) != one.yes:
            raise UserError(
                f"{place}: {one.text!r} of {one.image} is answered yes in one file and no in another: correct it"
            )
    names = tuple(dict.fromkeys(question.image for question in questions))
    root = _images(place, names)
    pictures = FilePairs(
        name=name,
        split="val",
        ids=torch.arange(len(names)),
        captions=tuple((one,) for one in names),
        root=root,
        files=names,
    )
    return PopeSet(name=name, pictures=pictures, names=names, questions=questions)


def read_pope(file: Path, sampling: str) -> list[PopeQuestion]:
    """Return the questions of one of POPE's files.

    Raises:
        UserError: naming the line that is invalid, has the id of another, or asks the same of the same image with
            another answer.
    """
    questions: list[PopeQuestion] = []
    answers: dict[tuple[str, str], bool] = {}
    ids: set[int] = set()
    try:
        lines = file.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(f"cannot read {file} ({error}): give an existing, readable file of POPE") from error
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        try:
            told = parse_json(line)
            index, image, text, label = (told[name] for name in _KEYS)
            if not (isinstance(index, int) and isinstance(image, str) and isinstance(text, str)):
                raise TypeError("not of the expected types")
        except (ValueError, KeyError, TypeError) as error:
            raise UserError(
                f"line {number} of {file}: expected JSON with {', '.join(_KEYS)} ({error}): download it again"
            ) from error
        if label not in ("yes", "no"):
            raise UserError(
                f"line {number} of {file}: label {label!r}: expected yes or no: download it again"
            )
        if index in ids:
            raise UserError(f"line {number} of {file}: duplicate question_id {index}: download it again")
        ids.add(index)
        yes = label == "yes"
        if answers.setdefault((image, text), yes) != yes:
            raise UserError(
                f"line {number} of {file}: {text!r} of {image} is answered both yes and no: correct it"
            )
        questions.append(PopeQuestion(sampling, index, image, text, yes))
    if not questions:
        raise UserError(f"{file} has no questions: download it again")
    return questions


def _images(place: Path, names: tuple[str, ...]) -> Path:
    """Return the folder of the images."""
    places = (place, place / "val2014", data_root() / "coco" / "val2014", data_root() / "val2014")
    absent: list[str] = []
    for each in places:
        if not (absent := missing_files(each, names)):
            return each
    raise UserError(
        f"pope: {places[-2] / absent[0]} is missing, as are {len(absent) - 1:,} more of {len(names):,} images: unpack "
        f"COCO's val2014 there, or put the images into {place}"
    )


ANSWERS = ("no", "yes")


@final
@dataclass(frozen=True, eq=False, repr=False, kw_only=True)
class AskedImages(ImageSet):
    """Pairs of an image and a question, each once; label 1 where yes is right.

    Attributes:
        pictures: the images, decoded on demand.
        square: the model's preprocessing.
        questions: the different questions.
        which: of each pair, the position of its question.
        places: of each pair, the position of its image.
        samplings: of each pair, those of POPE that ask it.
    """

    pictures: PairSet
    square: Square
    questions: tuple[str, ...]
    which: Int64[Tensor, " n"]
    places: Int64[Tensor, " n"]
    samplings: tuple[tuple[str, ...], ...]

    @property
    def image_shape(self) -> tuple[int, int, int]:
        return 3, self.square.size, self.square.size

    def asked(self) -> list[str]:
        """Return the question of each pair."""
        return [self.questions[one] for one in self.which.tolist()]

    def images(self, positions: Sequence[int] | Tensor) -> Float[Tensor, "b c h w"]:
        places = self.places[torch.as_tensor(positions)].tolist()
        distinct = sorted(set(places))
        at = torch.tensor([distinct.index(place) for place in places])
        return model_images(self.pictures, distinct, self.square)[at]

    def take(self, positions: Sequence[int] | Tensor) -> "AskedImages":
        at = torch.as_tensor(positions)
        return replace(
            self,
            ids=self.ids[at],
            labels=self.labels[at],
            which=self.which[at],
            places=self.places[at],
            samplings=tuple(self.samplings[one] for one in at.tolist()),
        )

    def fingerprint(self) -> str:
        told = [repr(part.tolist()) for part in (self.ids, self.labels, self.which, self.places)]
        return digest("asked", self.pictures.fingerprint(), repr(self.square), repr(self.questions), *told)


def asked_images(pope: PopeSet, square: Square) -> AskedImages:
    """Return every pair of image and question of a set once.

    The id of a pair depends on the image's name and the question alone.

    Args:
        pope: images and questions; several samplings may ask the same.
        square: the model's preprocessing.
    """
    samplings: dict[tuple[str, str], list[str]] = {}
    truth: dict[tuple[str, str], bool] = {}
    for one in pope.questions:
        samplings.setdefault((one.image, one.text), []).append(one.sampling)
        truth[one.image, one.text] = one.yes
    pairs, position = pope.asked(), pope.position()
    questions = tuple(dict.fromkeys(text for _, text in pairs))
    number = {text: at for at, text in enumerate(questions)}
    return AskedImages(
        name=pope.name,
        split="test",
        class_names=ANSWERS,
        ids=torch.tensor([key(image, text) & (2**53 - 1) for image, text in pairs]),
        labels=torch.tensor([int(truth[pair]) for pair in pairs]),
        pictures=pope.pictures,
        square=square,
        questions=questions,
        which=torch.tensor([number[text] for _, text in pairs]),
        places=torch.tensor([position[image] for image, _ in pairs]),
        samplings=tuple(tuple(samplings[pair]) for pair in pairs),
    )


NO, YES, UNPARSED = 0, 1, 2
"""The column ``prediction``: the last says neither, which the script counts as yes."""

_NEGATIONS = frozenset({"No", "no", "not"})


def says_yes(answer: str) -> bool:
    """Return whether POPE's script counts an answer as yes: everything that does not deny.

    It keeps the text before the first full stop, drops the commas, splits at single spaces, and looks for the words
    ``No``, ``no`` and ``not``. So "NO" and "No!" count as yes, as does every answer about something else; see
    :func:`is_parsed`.

    >>> [says_yes(answer) for answer in ("No, there is not.", "Yes. There is no doubt.", "NO", "")]
    [False, True, True, True]
    """
    return not _NEGATIONS & set(_first_sentence(answer).split(" "))


def is_parsed(answer: str) -> bool:
    """Return whether an answer says yes or no in the script's own terms, rather than counting as yes by default.

    A denial is one that the script sees; a yes is the word "yes", in any case, before the first full stop.

    >>> [is_parsed(answer) for answer in ("no", "YES!", "NO", "There is a dog.")]
    [True, True, False, False]
    """
    return not says_yes(answer) or re.search(r"\byes\b", _first_sentence(answer), re.IGNORECASE) is not None


def join_answers(questions: Sequence[PopeQuestion], answers: Mapping[tuple[str, str], str]) -> list[str]:
    """Return the answer to each question, found by image and text.

    POPE's script pairs the lines of two files by their order, which is wrong as soon as one is sorted differently.

    Args:
        questions: in any order.
        answers: by image and text of the question.

    Raises:
        UserError: a question has no answer.
    """
    missing = [one for one in questions if (one.image, one.text) not in answers]
    if missing:
        raise UserError(
            f"{len(missing):,} of {len(questions):,} questions have no answer, the first is {missing[0].text!r} of "
            f"{missing[0].image}: expected an answer for every image and question"
        )
    return [answers[one.image, one.text] for one in questions]


def pope_rows(
    sampling: str,
    questions: Sequence[PopeQuestion],
    answers: Sequence[str],
    yes: Sequence[float],
    images: Sequence[int],
) -> pl.DataFrame:
    """Return a row of ``ROW_SCHEMA`` for each question.

    ``unit`` is the question's number, ``group`` its image, ``prediction`` one of ``NO``, ``YES`` and ``UNPARSED``.
    ``score`` is the probability of yes as the first token, among yes and no; ``rank`` is 0 if the more probable of the
    two is right, else 1 (at ½, no).

    Args:
        sampling: becomes the setting.
        questions: of this sampling.
        answers: in words, one for each.
        yes: probabilities of yes.
        images: id of each question's image.
    """
    said = [(YES if is_parsed(text) else UNPARSED) if says_yes(text) else NO for text in answers]
    wrong = [int((probability > 0.5) != one.yes) for one, probability in zip(questions, yes, strict=True)]
    return outcome_rows(
        setting=sampling,
        seed=0,
        unit=[one.number for one in questions],
        group=list(images),
        prediction=said,
        rank=wrong,
        score=list(yes),
    )


def read_rows(rows: pl.DataFrame) -> pl.DataFrame:
    """Return what rows of :func:`pope_rows` say: columns ``said_yes``, ``truth`` and ``unparsed``, of booleans."""
    return rows.select(
        said_yes=pl.col("prediction") != NO,
        truth=(pl.col("score").fill_nan(0.0) > 0.5) == (pl.col("rank") == 0),  # NaN > 0.5 is true in polars
        unparsed=pl.col("prediction") == UNPARSED,
    )


def pope_values(rows: pl.DataFrame) -> dict[str, Float[np.ndarray, " questions"]]:
    """Return POPE's metrics, each as a value for every question whose mean is the metric.

    Precision, recall, F1 and AUC are no means of questions, so that their values are linearised
    (:func:`~antiphase.statistics.influence.ratio_values`). What is undefined is left out, such as the precision of a
    model that never says yes.

    Args:
        rows: as of :func:`pope_rows`.

    Returns:
        By name: accuracy, precision, recall, F1, AUC (of the probability of yes), yes and unparsed (shares).
    """
    told = read_rows(rows)
    said, truth = told["said_yes"].to_numpy(), told["truth"].to_numpy()
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
    return values | {"yes": yes, "unparsed": told["unparsed"].to_numpy().astype(float)}


def _first_sentence(answer: str) -> str:
    return answer.partition(".")[0].replace(",", "")


_LONGEST = 16  # tokens of an answer; the script reads the first sentence


def _measure(model: nn.Module, source: Source, protocol: Protocol, store: Features) -> pl.DataFrame:
    pope = source.test
    assert isinstance(pope, PopeSet)
    places, asked = pope.position(), pope.asked()
    title = f"{card_of(model).name}: questions of {pope.name}" if store.progress else ""
    found = answer_all(
        model,
        pope.pictures,
        [(places[image], text) for image, text in asked],
        max_new_tokens=_LONGEST,
        batch_size=store.batch_size,
        suffix=protocol.suffix,
        first_token=True,
        title=title,
    )
    answers = dict(zip(asked, found, strict=True))
    groups = dict(zip(pope.names, pope.pictures.ids.tolist(), strict=True))
    rows = []
    for sampling in SAMPLINGS:
        questions = [one for one in pope.questions if one.sampling == sampling]
        if questions:
            texts = join_answers(questions, {both: answer.text for both, answer in answers.items()})
            yes = [answers[one.image, one.text].yes for one in questions]
            rows.append(pope_rows(sampling, questions, texts, yes, [groups[one.image] for one in questions]))
    return pl.concat(rows)


def _metrics(setting: str, rows: pl.DataFrame, groups: Groups | None) -> list[Metric]:
    told = read_rows(rows)
    among = {"precision": told["said_yes"], "recall": told["truth"], "F1": told["said_yes"] | told["truth"]}
    found = []
    for name, values in pope_values(rows).items():
        its = observed(rows.with_columns(value=pl.Series(values)), pl.col("value"))
        its = its.with_columns(counted=among[name]) if name in among else its
        found.append(Metric(setting, name, its, clustered=True, tested=name == "accuracy"))
    return found


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
    passes=6.0,
)
_HEADINGS = {"yes": "answers yes", "unparsed": "unparsed answers"}
