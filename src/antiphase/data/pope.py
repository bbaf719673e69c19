"""POPE: questions about objects in images, half of them about objects that are not there.

Source: "Evaluating Object Hallucination in Large Vision-Language Models", Li et al., EMNLP 2023 (Section 5), and
``main.py`` and ``utils.py`` of https://github.com/RUCAIBox/POPE, whose rules :func:`pope_questions` follows.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import final

import torch

from antiphase.data.folders import data_root, missing_files
from antiphase.data.pairs import FilePairs, PairSet
from antiphase.errors import UserError
from antiphase.files import digest
from antiphase.reading import parse_json
from antiphase.streams import generator, key

SAMPLINGS = ("random", "popular", "adversarial")
"""How the absent objects are chosen, in the paper's order."""

ASK = "Is there {} in the image?"
"""POPE's question, with a place for an object and its article.

POPE's program turns every "a" of the question into "an" before a vowel ("in the imange"); this is what the published
files say.
"""

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


def with_suffix(question: str, suffix: str) -> str:
    """Return a question with a suffix on a line of its own; an empty suffix changes nothing."""
    return f"{question}\n{suffix}" if suffix else question


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


def with_article(noun: str) -> str:
    """Return a noun with its indefinite article, chosen by its first letter as in POPE.

    >>> with_article("owl"), with_article("fish")
    ('an owl', 'a fish')
    """
    return f"{'an' if noun[0] in 'aeiou' else 'a'} {noun}"
