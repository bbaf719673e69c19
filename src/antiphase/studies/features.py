"""Features of images and vectors of texts on disk, so that a model meets each image once, whatever is asked of it."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

import torch
import torch.nn.functional as F
from jaxtyping import Float
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from antiphase.data import ImageSet, PairSet
from antiphase.data.prefetch import in_threads
from antiphase.data.preprocess import model_images
from antiphase.errors import UserError
from antiphase.files import digest, replacing
from antiphase.models.card import card_of
from antiphase.models.image_towers import image_tower
from antiphase.models.zeroshot import as_dual_encoder, zero_shot_classifier
from antiphase.models.zoo import fingerprint
from antiphase.progress import progress_bar
from antiphase.studies.shards import Shard

Precision = Literal["float32", "bf16"]

_PART = 1024  # images or texts in a file: what a killed run loses at most
_VERSION = 1


@dataclass(frozen=True)
class FeatureStore:
    """A folder of features: one sub-folder for each model and data set, in files of 1,024 rows.

    What is there is read, what is not is computed and written, each part by one of the processes: a killed
    extraction goes on at the part where it was.

    Attributes:
        folder: made if missing.
        batch_size: images through the model at once; affects nothing but rounding.
        precision: of the forward passes; float32, or bf16 where it is fast.
        progress: whether to show a bar on stderr.
        shard: which process this is.
    """

    folder: Path
    batch_size: int = 256
    precision: Precision = "float32"
    progress: bool = True
    shard: Shard = field(default_factory=Shard)
    _known: dict[int, tuple[nn.Module, str]] = field(default_factory=dict, repr=False)

    def image_features(self, model: nn.Module, data: ImageSet | PairSet) -> Float[Tensor, "n width"]:
        """Return the features of all images before the projection, in float32 on the CPU.

        Raises:
            UserError: an image cannot be read, or a feature is not finite; parts that are done are kept.
        """
        tower = image_tower(model)
        place = next(model.parameters()).device
        identity = digest(
            "images",
            str(_VERSION),
            self._fingerprint(model),
            data.fingerprint(),
            repr(tower.square),
            self.precision,
        )

        def compute(rows: range) -> Tensor:
            batches = [rows[at : at + self.batch_size] for at in range(0, len(rows), self.batch_size)]
            ready = in_threads(
                lambda some: model_images(data, some, tower.square, tower.channels), batches, ahead=1
            )
            return torch.cat([self._forward(tower.features, images.to(place)) for images in ready])

        return self._parts(identity, len(data), compute, f"{card_of(model).name}: {data.name} ({data.split})")

    def project(self, model: nn.Module, features: Float[Tensor, "n width"]) -> Float[Tensor, "n embed"]:
        """Return unit vectors in the space that is common with texts.

        Raises:
            UserError: the model encodes no text.
        """
        as_dual_encoder(model)
        project = image_tower(model).project
        assert project is not None
        place = next(model.parameters()).device
        with torch.no_grad():
            parts = [F.normalize(project(part.to(place)), dim=-1).cpu() for part in features.split(_PART)]
        return torch.cat(parts)

    def text_vectors(self, model: nn.Module, texts: Sequence[str], title: str) -> Float[Tensor, "n embed"]:
        """Return unit vectors of texts, in float32 on the CPU."""
        encoder = as_dual_encoder(model)
        identity = digest("texts", str(_VERSION), self._fingerprint(model), *texts, self.precision)

        def compute(rows: range) -> Tensor:
            batches = [rows[at : at + self.batch_size] for at in range(0, len(rows), self.batch_size)]
            parts = [self._forward(encoder.encode_text, [texts[row] for row in some]) for some in batches]
            return F.normalize(torch.cat(parts), dim=-1)

        return self._parts(identity, len(texts), compute, f"{card_of(model).name}: {title}")

    def class_vectors(
        self, model: nn.Module, prompts: Sequence[Sequence[str]], title: str
    ) -> Float[Tensor, "embed classes"]:
        """Return the zero-shot weights, one unit vector a column: the mean over a class's prompts, normalised."""
        told = ["\x1f".join(texts) for texts in prompts]
        identity = digest("classes", str(_VERSION), self._fingerprint(model), *told)
        rows = self._parts(
            identity, len(prompts),
            lambda rows: zero_shot_classifier(
                model, [title] * len(rows), prompts=[prompts[row] for row in rows]
            ).weights.T.cpu(),
            f"{card_of(model).name}: {title}",
        )  # fmt: skip
        return rows.T

    def _fingerprint(self, model: nn.Module) -> str:
        """Return a model's fingerprint, which takes a second to make for a large one."""
        known = self._known.setdefault(
            id(model), (model, "")
        )  # the model is held, so that its id stays its own
        if not known[1]:
            self._known[id(model)] = (model, fingerprint(model))
        return self._known[id(model)][1]

    def _forward(self, function: Callable[..., Tensor], inputs: Tensor | list[str]) -> Tensor:
        kind = inputs.device.type if isinstance(inputs, Tensor) else "cpu"
        with torch.no_grad(), torch.autocast(kind, torch.bfloat16, enabled=self.precision == "bf16"):
            return function(inputs).float().cpu()

    def _parts(self, identity: str, count: int, compute: Callable[[range], Tensor], title: str) -> Tensor:
        folder = self.folder / identity[:24]
        rows = [range(at, min(at + _PART, count)) for at in range(0, count, _PART)]
        paths = [folder / f"{number:05d}.safetensors" for number in range(len(rows))]
        if missing := [number for number, path in enumerate(paths) if not _whole(path, len(rows[number]))]:
            mine = [number for number in missing if number % self.shard.count == self.shard.rank]
            with progress_bar(title, len(mine), self.progress and self.shard.first) as advance:
                for number in mine:
                    _write(paths[number], compute(rows[number]), title)
                    advance(1)
        self.shard.wait()
        return torch.cat(list(_read(paths)))


def _whole(path: Path, count: int) -> bool:
    try:
        return len(load_file(path)["rows"]) == count
    except (OSError, SafetensorError, KeyError):
        return False


def _read(paths: Sequence[Path]) -> Iterator[Tensor]:
    for path in paths:
        yield load_file(path)["rows"]


def _write(path: Path, rows: Tensor, title: str) -> None:
    if not rows.isfinite().all():
        raise UserError(f"{title}: the model gives features that are not finite; expected a trained model")
    with replacing(path) as temporary:
        save_file({"rows": rows.contiguous()}, temporary)
