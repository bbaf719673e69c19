"""Images with the questions of POPE that they are asked, as a set of the two classes no and yes."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import final

import torch
from jaxtyping import Float, Int64
from torch import Tensor

from antiphase.data.decoding import Square
from antiphase.data.images import ImageSet
from antiphase.data.pairs import PairSet, model_images
from antiphase.data.pope import PopeSet
from antiphase.files import digest
from antiphase.streams import key

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
