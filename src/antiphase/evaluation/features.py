"""Features of images and vectors of texts on disk, so that a model meets each image once, whatever is asked of it."""

import itertools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn

from antiphase.data import ImageSet, PairSet
from antiphase.data.decoding import in_threads
from antiphase.data.pairs import content_key, model_images
from antiphase.errors import UserError
from antiphase.files import digest
from antiphase.models.card import card_of
from antiphase.models.checkpoints import read_weights, write_tensors
from antiphase.models.image_towers import image_tower
from antiphase.models.zeroshot import as_dual_encoder, zero_shot_classifier
from antiphase.models.zoo import fingerprint
from antiphase.modules import device_of
from antiphase.precision import Precision, autocast
from antiphase.processes import Process
from antiphase.progress import progress_bar
from antiphase.store import missing

_PART = 256  # images or texts in a file: what a killed run loses at most, and what processes share
_VERSION = 1

Compute = Callable[[Sequence[range]], Iterator[Tensor]]  # from the rows of parts to the parts, in order


@dataclass(frozen=True)
class FeatureStore:
    """A folder of features: one sub-folder for each model and data set, in files of 256 rows.

    What is there is read, what is not is computed and written, each part by one of the processes: a killed
    extraction resumes at the part where it was killed.

    Attributes:
        folder: made if missing.
        batch_size: images through the model at once; affects nothing but rounding.
        precision: of the forward passes; float32, or bf16 where it is fast.
        progress: whether to show a bar on stderr.
        process: which process this is.
    """

    folder: Path
    batch_size: int = 256
    precision: Precision = "float32"
    progress: bool = True
    process: Process = field(default_factory=Process)
    _known: dict[int, tuple[nn.Module, str]] = field(default_factory=dict, repr=False)

    def image_features(self, model: nn.Module, data: ImageSet | PairSet) -> Float[Tensor, "n width"]:
        """Return the features of all images before the projection, in float32 on the CPU.

        Raises:
            UserError: an image cannot be read, or a feature is not finite; parts that are done are kept.
        """
        tower = image_tower(model)
        place = device_of(model)
        identity = digest(
            "images",
            str(_VERSION),
            self._fingerprint(model),
            content_key(data),
            repr(tower.square),
            self.precision,
        )

        def compute(parts: Sequence[range]) -> Iterator[Tensor]:
            batches = [self._batches(rows) for rows in parts]
            ready = in_threads(  # across the parts, so that the model need not wait between them
                lambda some: model_images(data, some, tower.square, tower.channels),
                itertools.chain(*batches),
                ahead=2,
            )
            for of_part in batches:
                yield torch.cat(
                    [self._forward(tower.features, next(ready).to(place), place) for _ in of_part]
                )

        return self._parts(identity, len(data), compute, f"{card_of(model).name}: {data.name} ({data.split})")

    def project(self, model: nn.Module, features: Float[Tensor, "n width"]) -> Float[Tensor, "n embed"]:
        """Return unit vectors in the space that is common with texts.

        Raises:
            UserError: the model encodes no text.
        """
        as_dual_encoder(model)
        project = image_tower(model).project
        assert project is not None
        place = device_of(model)
        with torch.no_grad():
            parts = [F.normalize(project(part.to(place)), dim=-1).cpu() for part in features.split(_PART)]
        return torch.cat(parts)

    def text_vectors(self, model: nn.Module, texts: Sequence[str], title: str) -> Float[Tensor, "n embed"]:
        """Return unit vectors of texts, in float32 on the CPU."""
        encoder = as_dual_encoder(model)
        place = device_of(model)
        identity = digest("texts", str(_VERSION), self._fingerprint(model), *texts, self.precision)

        def compute(parts: Sequence[range]) -> Iterator[Tensor]:
            for rows in parts:
                some = [
                    self._forward(encoder.encode_text, [texts[row] for row in batch], place)
                    for batch in self._batches(rows)
                ]
                yield F.normalize(torch.cat(some), dim=-1)

        return self._parts(identity, len(texts), compute, f"{card_of(model).name}: {title}")

    def class_vectors(
        self, model: nn.Module, prompts: Sequence[Sequence[str]], title: str
    ) -> Float[Tensor, "embed classes"]:
        """Return the zero-shot weights, one unit vector a column: the mean over a class's prompts, normalised."""
        told = ["\x1f".join(texts) for texts in prompts]
        identity = digest("classes", str(_VERSION), self._fingerprint(model), *told)

        def compute(parts: Sequence[range]) -> Iterator[Tensor]:
            for rows in parts:
                own = [prompts[row] for row in rows]
                yield zero_shot_classifier(model, [title] * len(own), prompts=own).weights.T.cpu()

        return self._parts(identity, len(prompts), compute, f"{card_of(model).name}: {title}").T

    def _batches(self, rows: range) -> list[range]:
        return [rows[at : at + self.batch_size] for at in range(0, len(rows), self.batch_size)]

    def _fingerprint(self, model: nn.Module) -> str:
        """Return a model's fingerprint, which takes a second to make for a large one."""
        if id(model) not in self._known:  # the model is held, so that its id stays its own
            self._known[id(model)] = (model, fingerprint(model))
        return self._known[id(model)][1]

    def _forward(
        self, function: Callable[..., Tensor], inputs: Tensor | list[str], place: torch.device
    ) -> Tensor:
        with torch.no_grad(), autocast(place, self.precision):
            return function(inputs).float().cpu()

    def _parts(self, identity: str, count: int, compute: Compute, title: str) -> Tensor:
        folder = self.folder / digest(identity, str(_PART))[:24]
        rows = [range(at, min(at + _PART, count)) for at in range(0, count, _PART)]
        paths = [folder / f"{number:05d}.safetensors" for number in range(len(rows))]
        parts = range(len(rows))
        mine = self.process.share(missing(parts, lambda n: _whole(paths[n], len(rows[n])), self.process))
        if mine:
            total = sum(len(rows[number]) for number in mine)
            with progress_bar(title, total, self.progress and self.process.first) as advance:
                for number, part in zip(mine, compute([rows[number] for number in mine]), strict=True):
                    _write(paths[number], part, title)
                    advance(len(part))
        self.process.wait()
        return torch.cat([read_weights(path)["rows"] for path in paths])


def _whole(path: Path, count: int) -> bool:
    try:
        return len(read_weights(path)["rows"]) == count
    except (UserError, KeyError):
        return False


def _write(path: Path, rows: Tensor, title: str) -> None:
    if not rows.isfinite().all():
        raise UserError(f"{title}: the model gives features that are not finite; expected a trained model")
    write_tensors({"rows": rows.contiguous()}, path)
