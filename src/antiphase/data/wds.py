"""CLIP_benchmark's mirrors of data sets on the Hugging Face hub (clip-benchmark/wds_*): tar files in a folder."""

from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

import torch

from antiphase.data.folders import SPLITS, choose_split
from antiphase.data.hub import local_or_hub
from antiphase.data.images import FileImages
from antiphase.data.members import regular
from antiphase.data.pairs import FilePairs
from antiphase.data.pixels_and_labels import MOST_CLASSES
from antiphase.data.shard_files import members_by_key
from antiphase.data.tar_members import Member, read_index
from antiphase.errors import UserError, one_line

WDS_PAGE = "https://huggingface.co/clip-benchmark"
_IMAGES = ("webp", "png", "jpg", "jpeg")
_RETRIEVAL = "retrieval"
_DIGITS = 18  # of a label; Python refuses to parse numbers with thousands of digits


@dataclass(frozen=True)
class _Sample:
    """One image with its text.

    Attributes:
        file: name of the image in its shard, such as ``0.tar/s0000001.webp``.
        place: shard and key, for error messages.
        text: content of its ``.cls`` or ``.txt`` file.
    """

    file: str
    place: str
    text: str


def wds_images(path: Path, split: str, image_size: int, channels: int) -> FileImages:
    """List a classification set: ``SPLIT/0.tar``, … with KEY.webp, .png or .jpg, and KEY.cls with the class number.

    Images are read from the tar files without unpacking. Class names come from ``classnames.txt``, or are the numbers.
    Templates in ``zeroshot_classification_templates.txt``, if present, give the prompts, with ``{c}`` for the name.

    Source: CLIP_benchmark (https://github.com/LAION-AI/CLIP_benchmark), ``build_wds_dataset``.

    Args:
        path: folder with ``SPLIT/nshards.txt``, or a name on the hub, such as clip-benchmark/wds_food101.
        split: ``train``, ``val`` or ``test``; ``test`` means ``val`` if the set has only that.
        image_size: height and width of the images, in pixels.
        channels: 1 (grey) or 3 (RGB).

    Raises:
        UserError: if the set is missing, has another layout, or has a missing or damaged shard or an invalid sample.
    """
    name, path = f"wds:{path}", local_or_hub(f"wds:{path}", path)
    split, samples = _samples(name, path, split, "cls")
    names = _lines(path / "classnames.txt")
    most = len(names) or MOST_CLASSES
    labels: list[int] = []
    for sample in samples:
        text = sample.text.strip()
        if not text.isdecimal():
            raise UserError(f"{name}: {sample.place}.cls contains {text[:80]!r}, expected a class number")
        if len(text.lstrip("0")) > _DIGITS or int(text) >= most:
            raise UserError(
                f"{name}: {sample.place}.cls contains {text[:80]}, expected a class number from 0 to {most - 1}: "
                "correct it, or download the set again"
            )
        labels.append(int(text))
    names = names or [str(label) for label in range(max(labels) + 1)]
    listed = path / "zeroshot_classification_templates.txt"
    templates = _lines(listed)
    odd = next((template for template in templates if "{c}" not in template), None)
    if odd is not None:
        raise UserError(
            f"{name}: template {odd!r} of {listed} has no placeholder {{c}} for the class name: add it"
        )
    prompts = tuple(tuple(template.replace("{c}", label) for template in templates) for label in names)
    return FileImages(
        name=name,
        split=split,
        class_names=tuple(names),
        ids=torch.arange(len(samples)),
        labels=torch.tensor(labels),
        prompts=prompts if templates else None,
        root=path / split,
        files=tuple(sample.file for sample in samples),
        image_size=image_size,
        channels=channels,
    )


def wds_pairs(path: Path, split: str) -> FilePairs:
    """List a retrieval set: as :func:`wds_images`, but with KEY.txt, one caption per line, instead of labels.

    Args:
        path: folder with ``SPLIT/nshards.txt``, or a name on the hub, such as clip-benchmark/wds_flickr8k.
        split: ``train``, ``val`` or ``test``; ``test`` means ``val`` if the set has only that.

    Raises:
        UserError: as :func:`wds_images`.
    """
    name, path = f"wds:{path}", local_or_hub(f"wds:{path}", path)
    split, samples = _samples(name, path, split, "txt")
    captions = [tuple(filter(None, map(str.strip, sample.text.splitlines()))) for sample in samples]
    kept = [row for row, said in enumerate(captions) if said]
    mute = [sample.file for sample, said in zip(samples, captions, strict=True) if not said]
    return FilePairs(
        name=name,
        split=split,
        ids=torch.tensor(kept, dtype=torch.int64),
        captions=tuple(captions[row] for row in kept),
        root=path / split,
        skipped=tuple(f"{file} has no caption" for file in mute),
        files=tuple(samples[row].file for row in kept),
    )


def has_captions(path: Path) -> bool:
    """Return whether ``dataset_type.txt`` marks a set as one for retrieval."""
    folder = local_or_hub(f"wds:{path}", path)
    return " ".join(_lines(folder / "dataset_type.txt")).lower() == _RETRIEVAL


def _samples(name: str, path: Path, split: str, suffix: str) -> tuple[str, list[_Sample]]:
    """Return the split's own name, and its samples in order."""
    here = tuple(part for part in SPLITS if (path / part / "nshards.txt").is_file())
    if not here:
        raise UserError(
            f"{name}: no nshards.txt in {path}/train, /val or /test: download one of the sets of {WDS_PAGE} with "
            f"'hf download --repo-type dataset clip-benchmark/NAME --local-dir {path}'"
        )
    split = choose_split(name, split, here)
    if has_captions(path) and suffix != "txt":
        raise UserError(f"{name} has captions, not labels (see dataset_type.txt): use it for retrieval")
    if not has_captions(path) and suffix == "txt":
        raise UserError(
            f"{name} has labels, not captions (no dataset_type.txt with {_RETRIEVAL!r}): use it for classification"
        )
    shards = " ".join(_lines(path / split / "nshards.txt"))
    if not shards.isdecimal() or not int(shards):
        raise UserError(
            f"{path / split / 'nshards.txt'} contains {shards!r}, expected a number of shards: download it again"
        )
    samples = [
        sample
        for number in range(int(shards))
        for sample in _shard(name, path / split / f"{number}.tar", suffix)
    ]
    if not samples:
        raise UserError(f"{name} ({split}): no images in its {shards} shards: download them again")
    return split, samples


def _shard(name: str, tar: Path, suffix: str) -> list[_Sample]:
    index = read_index(tar)
    samples: list[_Sample] = []
    with tar.open("rb") as file:
        for key, kinds in members_by_key(index).items():
            image = next((kinds[kind] for kind in _IMAGES if kind in kinds), None)
            if image is None or suffix not in kinds:
                lack = f".{suffix}" if image else f"image (.{', .'.join(_IMAGES)})"
                raise UserError(
                    f"{name}: {key} in {tar} has no {lack}: download it again, or use another set"
                )
            text = _read(file, index[kinds[suffix]]).decode(errors="replace")
            samples.append(_Sample(f"{tar.name}/{image}", f"{tar.name}/{key}", text))
    return samples


def _read(file: BinaryIO, member: Member) -> bytes:
    file.seek(member.offset)
    return file.read(member.size)


def _lines(path: Path) -> list[str]:
    """Return the stripped, non-empty lines of a text file; none if the file is missing."""
    try:
        lines = regular(path).read_text(encoding="utf-8").splitlines()
    except FileNotFoundError:
        return []
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(f"cannot read {path} ({one_line(error)}): download it again") from error
    return [line.strip() for line in lines if line.strip()]
