"""Sets as CLIP_benchmark mirrors them on the Hugging Face hub (clip-benchmark/wds_*): tar files in a folder."""

from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

import torch
from webdataset.tariterators import base_plus_ext

from antiphase.data.folders import SPLITS, choose_split
from antiphase.data.hub import local_or_hub
from antiphase.data.images import FileImages
from antiphase.data.pairs import FilePairs
from antiphase.data.tar_members import Member, read_index
from antiphase.errors import UserError

WDS_PAGE = "https://huggingface.co/clip-benchmark"
_IMAGES = ("webp", "png", "jpg", "jpeg")
_RETRIEVAL = "retrieval"
_MOST_CLASSES = 1_000_000  # of a set without names
_DIGITS = 18  # of a label; Python refuses to read a number of thousands


@dataclass(frozen=True)
class _Sample:
    """One image with the text that goes with it.

    Attributes:
        file: the image's name in its shard, as ``0.tar/s0000001.webp``.
        place: shard and key, for messages.
        text: what its ``.cls`` or ``.txt`` says.
    """

    file: str
    place: str
    text: str


def wds_images(path: Path, split: str, image_size: int, channels: int) -> FileImages:
    """Return a classification set: ``SPLIT/0.tar``, … with KEY.webp, .png or .jpg and KEY.cls, the label's number.

    Images are read from the tar files, which are not unpacked. The classes have the names in ``classnames.txt``,
    their numbers where there is none; with ``zeroshot_classification_templates.txt`` they have its templates as
    prompts, ``{c}`` standing for the name.

    Source: CLIP_benchmark (https://github.com/LAION-AI/CLIP_benchmark), ``build_wds_dataset``.

    Args:
        path: the folder with ``SPLIT/nshards.txt``, or its name on the hub, such as clip-benchmark/wds_food101.
        split: ``train``, ``val`` or ``test``; ``test`` means ``val`` where that is what is held out.
        image_size: height and width of the images.
        channels: 1 or 3.

    Raises:
        UserError: it is not there in this layout, a shard is missing or damaged, or a sample is no good.
    """
    name, path = f"wds:{path}", local_or_hub(f"wds:{path}", path)
    split, samples = _samples(name, path, split, "cls")
    names = _lines(path / "classnames.txt")
    most = len(names) or _MOST_CLASSES
    labels: list[int] = []
    for sample in samples:
        text = sample.text.strip()
        if not text.isdecimal():
            raise UserError(f"{name}: {sample.place}.cls says {text[:80]!r}, expected the number of a class")
        if len(text.lstrip("0")) > _DIGITS or int(text) >= most:
            raise UserError(
                f"{name}: {sample.place}.cls says {text[:80]}, expected the number of a class, 0 to {most - 1}: "
                "correct it, or fetch the set again"
            )
        labels.append(int(text))
    names = names or [str(label) for label in range(max(labels) + 1)]
    listed = path / "zeroshot_classification_templates.txt"
    templates = _lines(listed)
    odd = next((template for template in templates if "{c}" not in template), None)
    if odd is not None:
        raise UserError(
            f"{name}: template {odd!r} of {listed} has no {{c}} for the name of the class: add it"
        )
    prompts = tuple(tuple(template.replace("{c}", label) for template in templates) for label in names)
    return FileImages(
        name=name, split=split, class_names=tuple(names), ids=torch.arange(len(samples)),
        labels=torch.tensor(labels), prompts=prompts if templates else None, root=path / split,
        files=tuple(sample.file for sample in samples), image_size=image_size, channels=channels,
    )  # fmt: skip


def wds_pairs(path: Path, split: str) -> FilePairs:
    """Return a retrieval set: as :func:`wds_images`, with KEY.txt, one caption a line, and no labels.

    Args:
        path: the folder with ``SPLIT/nshards.txt``, or its name on the hub, such as clip-benchmark/wds_food101.
        split: ``train``, ``val`` or ``test``; ``test`` means ``val`` where that is what is held out.

    Raises:
        UserError: it is not there in this layout, a shard is missing or damaged, or a sample is no good.
    """
    name, path = f"wds:{path}", local_or_hub(f"wds:{path}", path)
    split, samples = _samples(name, path, split, "txt")
    captions = [tuple(filter(None, map(str.strip, sample.text.splitlines()))) for sample in samples]
    kept = [row for row, said in enumerate(captions) if said]
    mute = [sample.file for sample, said in zip(samples, captions, strict=True) if not said]
    return FilePairs(
        name=name, split=split, ids=torch.tensor(kept, dtype=torch.int64),
        captions=tuple(captions[row] for row in kept), root=path / split,
        skipped=tuple(f"{file} has no caption" for file in mute),
        files=tuple(samples[row].file for row in kept),
    )  # fmt: skip


def has_captions(path: Path) -> bool:
    """Return whether a folder of this layout is for retrieval, as its ``dataset_type.txt`` says, not for classes."""
    folder = local_or_hub(f"wds:{path}", path)
    return " ".join(_lines(folder / "dataset_type.txt")).lower() == _RETRIEVAL


def _samples(name: str, path: Path, split: str, suffix: str) -> tuple[str, list[_Sample]]:
    """Return the split's own name, and its samples in order of shard and place."""
    here = tuple(part for part in SPLITS if (path / part / "nshards.txt").is_file())
    if not here:
        raise UserError(
            f"{name}: there is no nshards.txt in {path}/train, /val or /test: fetch one of the sets of {WDS_PAGE} with "
            f"'hf download --repo-type dataset clip-benchmark/NAME --local-dir {path}'"
        )
    split = choose_split(name, split, here)
    if has_captions(path) and suffix != "txt":
        raise UserError(f"{name} has captions, not labels, as its dataset_type.txt says: it is for retrieval")
    if not has_captions(path) and suffix == "txt":
        raise UserError(
            f"{name} has labels, not captions, as no dataset_type.txt says {_RETRIEVAL!r}: it is for "
            "classification"
        )
    shards = " ".join(_lines(path / split / "nshards.txt"))
    if not shards.isdecimal() or not int(shards):
        raise UserError(
            f"{path / split / 'nshards.txt'} says {shards!r}, expected a number of shards: fetch it again"
        )
    samples = [
        sample
        for number in range(int(shards))
        for sample in _shard(name, path / split / f"{number}.tar", suffix)
    ]
    if not samples:
        raise UserError(f"{name} ({split}): there are no images in its {shards} shards: fetch them again")
    return split, samples


def _shard(name: str, tar: Path, suffix: str) -> list[_Sample]:
    index = read_index(tar)
    members: dict[str, dict[str, str]] = {}
    for member in index:
        key, kind = base_plus_ext(member)
        if key is not None and kind is not None:
            members.setdefault(key, {})[kind.lower()] = member
    samples: list[_Sample] = []
    with tar.open("rb") as file:
        for key, kinds in members.items():
            image = next((kinds[kind] for kind in _IMAGES if kind in kinds), None)
            if image is None or suffix not in kinds:
                lack = f".{suffix}" if image else f"image (.{', .'.join(_IMAGES)})"
                raise UserError(f"{name}: {key} in {tar} has no {lack}: fetch it again, or use another set")
            text = _read(file, index[kinds[suffix]]).decode(errors="replace")
            samples.append(_Sample(f"{tar.name}/{image}", f"{tar.name}/{key}", text))
    return samples


def _read(file: BinaryIO, member: Member) -> bytes:
    file.seek(member.offset)
    return file.read(member.size)


def _lines(path: Path) -> list[str]:
    """Return the lines of a text that are not blank, stripped; none where there is no such file."""
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except FileNotFoundError:
        return []
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(f"cannot read {path} ({' '.join(str(error).split())}): fetch it again") from error
    return [line.strip() for line in lines if line.strip()]
