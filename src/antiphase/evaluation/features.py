"""Features of images and vectors of texts on disk, so that a model meets each image once, whatever is asked of it."""

import itertools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn

from antiphase import files, modules, processes, store, terminal
from antiphase.data import ImageSet, PairSet
from antiphase.data.decoding import in_threads
from antiphase.data.images import content_key, model_images
from antiphase.errors import UserError
from antiphase.models import checkpoints, image_towers
from antiphase.models.card import card_of
from antiphase.models.zeroshot import as_dual_encoder, zero_shot_classifier
from antiphase.models.zoo import fingerprint
from antiphase.precision import Precision, autocast

_PART = 256  # images or texts in a file: what a killed run loses at most, and what processes share
_VERSION = "1"

Compute = Callable[[Sequence[range]], Iterator[Tensor]]  # from the rows of parts to the parts, in order


@dataclass(frozen=True)
class FeatureStore:
    """A folder of float32 features by model and data set, in files of 256 rows; what is missing is computed."""

    folder: Path  # made if missing
    batch_size: int = 256  # images through the model at once; affects nothing but rounding
    precision: Precision = "float32"  # of the forward passes; bf16 where it is fast
    progress: bool = True  # whether to show a bar on stderr
    process: processes.Process = field(default_factory=processes.Process)
    _fingerprints: dict[nn.Module, str] = field(default_factory=dict, repr=False)

    def image_features(self, model: nn.Module, data: ImageSet | PairSet) -> Float[Tensor, "n width"]:
        """Return the features of all images before the projection."""
        tower, device = image_towers.image_tower(model), modules.device_of(model)

        def compute(parts: Sequence[range]) -> Iterator[Tensor]:
            batches = [self._batches(rows) for rows in parts]
            ready = in_threads(  # across the parts, so that the model need not wait between them
                lambda batch: model_images(data, batch, tower.square, tower.channels),
                itertools.chain(*batches),
                ahead=2,
            )
            for part in batches:
                yield torch.cat([self._forward(tower.features, next(ready).to(device), device) for _ in part])

        about = ("images", content_key(data), repr(tower.square), self.precision)
        return self._stored(model, about, len(data), compute, f"{data.name} ({data.split})")

    def project(self, model: nn.Module, features: Float[Tensor, "n width"]) -> Float[Tensor, "n embed"]:
        """Return unit vectors in the space that is common with texts."""
        as_dual_encoder(model)
        project, device = image_towers.image_tower(model).project, modules.device_of(model)
        assert project is not None
        with torch.no_grad():
            parts = [F.normalize(project(part.to(device)), dim=-1).cpu() for part in features.split(_PART)]
        return torch.cat(parts)

    def text_vectors(self, model: nn.Module, texts: Sequence[str], title: str) -> Float[Tensor, "n embed"]:
        """Return unit vectors of texts."""
        encode, device = as_dual_encoder(model).encode_text, modules.device_of(model)

        def vectors(rows: range) -> Tensor:
            batches = [[texts[row] for row in batch] for batch in self._batches(rows)]
            return F.normalize(torch.cat([self._forward(encode, batch, device) for batch in batches]), dim=-1)

        about = ("texts", *texts, self.precision)
        return self._stored(model, about, len(texts), lambda parts: map(vectors, parts), title)

    def class_vectors(
        self, model: nn.Module, prompts: Sequence[Sequence[str]], title: str
    ) -> Float[Tensor, "embed classes"]:
        """Return the zero-shot weights, one unit vector a column: the mean over a class's prompts, normalised."""

        def vectors(rows: range) -> Tensor:
            texts = [prompts[row] for row in rows]
            return zero_shot_classifier(model, [title] * len(texts), prompts=texts).weights.T.cpu()

        about = ("classes", *map("\x1f".join, prompts))
        return self._stored(model, about, len(prompts), lambda parts: map(vectors, parts), title).T

    def _batches(self, rows: range) -> list[range]:
        return [rows[start : start + self.batch_size] for start in range(0, len(rows), self.batch_size)]

    def _forward(self, function: Callable[..., Tensor], inputs: Any, device: torch.device) -> Tensor:
        with torch.no_grad(), autocast(device, self.precision):
            return function(inputs).float().cpu()

    def _stored(self, model: nn.Module, about: Sequence[str], n: int, compute: Compute, title: str) -> Tensor:
        """Return all rows of what the kind and the settings in ``about`` identify; compute the missing parts."""
        self._fingerprints[model] = self._fingerprints.get(model) or fingerprint(model)  # a second for a large model
        kind, *settings = about
        identity = files.digest(kind, _VERSION, self._fingerprints[model], *settings)
        folder = self.folder / files.digest(identity, str(_PART))[:24]
        rows = [range(start, min(start + _PART, n)) for start in range(0, n, _PART)]
        paths = [folder / f"{number:05d}.safetensors" for number in range(len(rows))]

        def whole(number: int) -> bool:
            try:
                return len(checkpoints.read_weights(paths[number])["rows"]) == len(rows[number])
            except (UserError, KeyError):
                return False

        mine = self.process.share(store.missing(range(len(rows)), whole, self.process))
        title = f"{card_of(model).name}: {title}"
        if mine:
            total = sum(len(rows[number]) for number in mine)
            with terminal.progress_bar(title, total, self.progress and self.process.first) as advance:
                for number, part in zip(mine, compute([rows[number] for number in mine]), strict=True):
                    if not part.isfinite().all():
                        raise UserError(f"{title}: features that are not finite; expected a trained model")
                    checkpoints.write_tensors({"rows": part.contiguous()}, paths[number])
                    advance(len(part))
        self.process.wait()
        return torch.cat([checkpoints.read_weights(path)["rows"] for path in paths])
