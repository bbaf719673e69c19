"""Image–caption pairs in tar files of img2dataset's layout, as a stream that can be resumed at any step."""

import contextlib
import glob
import itertools
import os
import re
import tarfile
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple, final
from urllib.parse import urlparse

import torch
from jaxtyping import UInt8
from torch import Tensor
from webdataset.gopen import gopen, gopen_schemes
from webdataset.shardlists import expand_urls
from webdataset.tariterators import base_plus_ext

from antiphase import arguments, terminal
from antiphase.data.archives import CAPTION_SUFFIX, IMAGE_SUFFIXES, Header, members_by_key
from antiphase.data.decoding import decode_whole, in_threads, or_error
from antiphase.data.folders import choose_split, data_root
from antiphase.data.images import PairBatch, check_batch_size, still_there
from antiphase.errors import UserError, one_line
from antiphase.files import digest, read_json, write_text
from antiphase.streams import generator, key

# Conceptual Captions, the training sets of the DiffCLIP paper: shards of 10,000 links each, in the data folder
CC3M, CC12M = "shards:cc3m/{00000..00331}.tar", "shards:cc12m/{00000..01242}.tar"
TITLES = {CC3M: "CC3M", CC12M: "CC12M"}
# page of the links, columns of the file, which has no header line
_LINKS = {
    "CC3M": ("https://ai.google.com/research/ConceptualCaptions/download", r"caption\turl"),
    "CC12M": ("https://storage.googleapis.com/conceptual_12m/cc12m.tsv", r"url\tcaption"),
}
# The shorter side is resized to 224 pixels (DiffCLIP, Section 4.1); img2dataset's default adds a border instead.
_HOW_TO_GET = (
    r"to get {title}, save the links of {page} as {name}.tsv; then sed -i '1s/^/{columns}\n/' {name}.tsv; "
    "img2dataset --url_list {name}.tsv --input_format tsv --url_col url --caption_col caption --output_format "
    "webdataset --output_folder {root}/{name} --resize_mode keep_ratio --image_size 224 --processes_count 16 "
    "--thread_count 64"
)
BUFFER = 1000  # samples
_READ_BYTES = 1 << 20  # large reads, since each one releases Python's lock


class Shard(NamedTuple):
    """One tar file: its base name, with the parent folders that make it unique, and its path (``local``) or URL."""

    name: str
    place: str
    local: bool


class RawSample(NamedTuple):
    """An encoded image with its caption; ``key`` is the common prefix of its members, ``suffix`` the image's."""

    shard: str
    key: str
    suffix: str
    image: bytes
    caption: str


@final
@arguments.validated
@dataclass(frozen=True)
class ShardStream:
    """Pairs from tar files in img2dataset's layout: KEY.jpg, .png, .webp or .jpeg, KEY.txt, optionally KEY.json.

    The shards are distributed over ``lanes``. Every batch takes as many samples from each lane, and the process of
    rank r reads the lanes r, r + world, …, so that a batch does not depend on the number of processes. Within a lane,
    the shards are permuted and pass through a shuffle buffer of ``buffer`` samples, both keyed by (seed, epoch, lane,
    pass); a lane that ends before the epoch starts again. An epoch has ``samples // batch_size`` steps: lanes of
    different sizes omit a few samples of the longer ones and repeat some of the shorter ones.
    """

    name: str
    shards: tuple[Shard, ...]
    samples: arguments.Count
    lanes: int
    buffer: arguments.Count = BUFFER

    def __post_init__(self) -> None:
        if not 1 <= self.lanes <= len(self.shards):
            raise UserError(f"{self.name}: lanes {self.lanes}: expected 1 to {len(self.shards)}, its shards")

    def steps_per_epoch(self, batch_size: int) -> int:
        check_batch_size(self.name, batch_size, self.samples)
        if batch_size % self.lanes:
            raise UserError(f"batch size {batch_size}: expected a multiple of {self.lanes}, see --lanes")
        return self.samples // batch_size

    def batches(
        self, batch_size: int, *, seed: int, epoch: int, first: int = 0, rank: int = 0, world: int = 1
    ) -> Iterator[PairBatch]:
        """Yield this process's share of each batch, see ``PairSet.batches``; earlier steps are read, not decoded.

        ``bad`` lists broken images, which make the batch smaller, and unusable entries, which the next sample replaces.
        """
        steps = self.steps_per_epoch(batch_size)
        if self.lanes % world:
            raise UserError(f"lanes {self.lanes}: expected a multiple of the {world} processes: use --lanes")
        bad: list[str] = []  # lines about what was read since the step before
        lanes = [self._lane(number, seed, epoch, bad) for number in range(rank, self.lanes, world)]
        return self._batches(lanes, bad, batch_size, range(min(first, steps), steps))

    def fingerprint(self) -> str:
        """Return the SHA-256 of the shards' names and sizes (or URLs), samples, lanes and buffer."""
        with still_there(self.name):
            lines = [f"{Path(one.place).stat().st_size} {one.name}" if one.local else one.place for one in self.shards]
        return digest("shards", f"{self.samples} {self.lanes} {self.buffer}", *lines)

    def _batches(
        self, lanes: list[Iterator[RawSample]], bad: list[str], batch_size: int, steps: range
    ) -> Iterator[PairBatch]:
        size = batch_size // self.lanes
        for lane in lanes:
            deque(itertools.islice(lane, size * steps.start), maxlen=0)
        bad.clear()

        def read(step: int) -> Iterator[tuple[RawSample, list[str]]]:
            samples = [sample for lane in lanes for sample in itertools.islice(lane, size)]
            lines = itertools.chain([bad.copy()], itertools.repeat([]))  # behind the first sample
            bad.clear()
            return zip(samples, lines, strict=False)

        @or_error
        def decode(sample: RawSample) -> UInt8[Tensor, "3 height width"]:
            name = f"{sample.shard}/{sample.key}.{sample.suffix}"
            return decode_whole(sample.image, name, "repair it, or remove it from the shard")

        samples = itertools.chain.from_iterable(in_threads(read, steps, ahead=4, workers=1))
        decoded = in_threads(lambda one: (*one, decode(one[0])), samples, ahead=2 * size * len(lanes))
        while outcomes := list(itertools.islice(decoded, size * len(lanes))):
            good = [(sample, image) for sample, _, image in outcomes if isinstance(image, Tensor)]
            ids = torch.tensor([key("shard", sample.shard, sample.key) for sample, _ in good], dtype=torch.int64)
            images, captions = [image for _, image in good], [(sample.caption,) for sample, _ in good]
            unusable = (*outcomes[0][1], *(str(image) for *_, image in outcomes if isinstance(image, UserError)))
            yield PairBatch(ids, images, captions, batch_size, unusable)

    def _lane(self, number: int, seed: int, epoch: int, bad: list[str]) -> Iterator[RawSample]:
        shards = self.shards[number :: self.lanes]
        for turn in itertools.count():
            keys, sample = (number, epoch, turn), None
            order = torch.randperm(len(shards), generator=generator(seed, "shards", *keys)).tolist()
            samples = itertools.chain.from_iterable(read_shard(shards[row], bad.append) for row in order)
            for sample in shuffled(samples, self.buffer, generator(seed, "shard buffer", *keys)):
                yield sample
            if sample is None:
                fault = f"lane {number} has no usable sample in its {len(shards)} shards"
                fault += f", first {shards[0].name}" + f"; {bad[-1]}" * bool(bad)
                raise UserError(f"{self.name}: {fault}: repair or remove them, or use fewer lanes")


def shuffled(samples: Iterator[RawSample], buffer: int, random: torch.Generator) -> Iterator[RawSample]:
    """Shuffle the samples with a buffer of the given size."""
    pool = list(itertools.islice(samples, buffer))
    for sample in samples:
        place = int(torch.randint(buffer, (1,), generator=random))
        yield pool[place]
        pool[place] = sample
    yield from (pool[place] for place in torch.randperm(len(pool), generator=random).tolist())


def open_shards(
    path: str,
    *,
    samples: int | None = None,
    lanes: int | None = None,
    buffer: int = BUFFER,
    split: str = "train",
    root: str | os.PathLike[str] | None = None,
    progress: bool = True,
) -> ShardStream:
    """Open a stream of shards of training pairs; ``samples`` are counted, and ``lanes`` at most 8, unless given."""
    name, folder = f"shards:{path}", data_root(root)
    choose_split(name, split, ("train",))
    shards = find_shards(path, folder)
    samples = count_samples(name, shards, folder, progress=progress) if samples is None else samples
    lanes = next(count for count in (8, 4, 2, 1) if count <= len(shards)) if lanes is None else lanes
    return ShardStream(name, shards, samples, lanes, buffer)


def read_shard(shard: Shard, report: Callable[[str], None]) -> Iterator[RawSample]:
    """Yield a shard's usable samples up to damaged data; ``report`` gets one line for each thing that is skipped."""
    damage: list[str] = []
    last = lacking = None
    for _, group in itertools.groupby(_files(shard, damage), lambda file: base_plus_ext(file[0])[0]):
        contents: dict[str, bytes] = {}
        for name, content in group:
            if contents.setdefault(name, content) is not content:
                report(f"{shard.name}: {name} is in it twice, the first is taken")
        for name, kinds in members_by_key(contents).items():
            if lacking:
                report(lacking)
            lacking, name = None, name.encode(errors="surrogateescape").decode(errors="replace")
            suffix = next((suffix for suffix in IMAGE_SUFFIXES if suffix in kinds), None)
            caption = contents.get(kinds.get(CAPTION_SUFFIX, ""), b"").decode(errors="replace").strip()
            if suffix and caption:
                last = name
                yield RawSample(shard.name, name, suffix, contents[kinds[suffix]], caption)
            else:
                lack = f"caption (.{CAPTION_SUFFIX})" if suffix else f"image (.{', .'.join(IMAGE_SUFFIXES)})"
                lacking = f"{shard.name}: {name} has no {lack}"
    if damage:
        where = f"after {last}" if last else "from its start"
        report(f"{shard.name} is cut short or damaged {where} ({damage[0]}): the rest of it is left out")
    elif lacking:  # in a damaged shard this is the truncated sample
        report(lacking)


def _files(shard: Shard, damage: list[str]) -> Iterator[tuple[str, bytes]]:
    """Yield name and content of the files of a shard up to damaged data, whose reason is added to ``damage``."""
    try:
        path = Path(shard.place)
        stream: Any = path.open("rb", _READ_BYTES) if shard.local else gopen(shard.place)
        # closing raises if a command failed
        with contextlib.closing(stream), tarfile.open(fileobj=stream, mode="r|*", tarinfo=Header) as archive:
            for member in archive:
                if member.isreg() and base_plus_ext(member.name)[0] is not None:
                    yield member.name, archive.extractfile(member).read()  # pyright: ignore
                archive.members = []  # pyright: ignore[reportAttributeAccessIssue]
            for rest in iter(partial(archive.fileobj.read, _READ_BYTES), b""):  # pyright: ignore
                if rest.strip(b"\0"):
                    raise tarfile.ReadError("a header is damaged")
    except Exception as error:  # openers of URLs may raise anything
        code = re.search(r": exit (-?\d+) ", str(error))  # of the command that webdataset calls
        reason = getattr(error, "strerror", None) or one_line(error)
        damage.append(f"the command ended with exit code {code[1]}" if code else reason)


def find_shards(pattern: str, root: Path | None = None) -> tuple[Shard, ...]:
    """Return the shards of a pattern in order, such as ``cc3m/{00000..00331}.tar``; ``::`` joins several.

    It is a path, a folder, a glob or a URL. Relative paths are of the working directory, else of ``root``.
    """
    try:
        places = expand_urls(pattern)
    except (AssertionError, ValueError) as error:  # unset variable, unbalanced braces
        raise UserError(f"shards {pattern!r}: {error}: correct the pattern") from error
    existing, missing = _existing(places, Path())
    if root is not None and not any(local for _, local in existing):
        existing, missing = _existing(places, root)
    fix = "correct the pattern, such as 'shards:/data/cc3m/{00000..00331}.tar', or download them"
    if title := TITLES.get(f"shards:{pattern}"):
        page, columns = _LINKS[title]
        fix = _HOW_TO_GET.format(root=root or Path(), title=title, name=title.lower(), page=page, columns=columns)
    if not existing:
        raise UserError(f"no shard matches {pattern!r} in {Path.cwd()} or {root}: {fix}")
    if missing:
        fault = f"{len(missing)} of the {len(existing) + len(missing)} shards of {pattern!r} are missing"
        raise UserError(f"{fault}, the first is {missing[0]}: {fix}")
    names = _names([place for place, _ in existing], pattern)
    return tuple(Shard(name, *shard) for name, shard in zip(names, existing, strict=True))


def _existing(places: Sequence[str], base: Path) -> tuple[list[tuple[str, bool]], list[str]]:
    """Return the files and URLs, with whether each is a file, and the paths below ``base`` that have none."""
    existing: list[tuple[str, bool]] = []
    missing: list[str] = []
    for place in places:
        scheme, path = urlparse(place).scheme, base / Path(place).expanduser()
        if scheme in gopen_schemes:
            existing.append((place, False))
        elif scheme and not Path(place).exists():
            raise UserError(f"shard {place!r}: {scheme}: URLs are not supported: use 'pipe:COMMAND'")
        else:
            matches = glob.glob(str(path / "*.tar" if path.is_dir() else path))
            files = [str(path)] if path.is_file() else [*filter(os.path.isfile, sorted(matches))]
            existing += ((file, True) for file in files)
            missing += [] if files else [str(path)]
    return existing, missing


def _names(places: list[str], pattern: str) -> list[str]:
    """Return the shortest unique suffixes of the paths; of a URL or command, of the tar file's path in it."""
    if twice := [place for place in places if places.count(place) > 1]:
        raise UserError(f"shards of {pattern!r}: duplicate {twice[0]}: give each shard once")
    ends: list[list[str]] = []
    for place in places:
        words = place.split() if place.startswith("pipe:") else [place]
        tar = next((word for word in reversed(words) if ".tar" in word), place)
        ends.append((urlparse(tar).path if urlparse(tar).scheme else tar).split("/"))
    suffixes = (["/".join(end[-depth:]) for end in ends] for depth in range(1, max(map(len, ends)) + 1))
    return next((names for names in suffixes if len(set(names)) == len(names)), places)


def count_samples(name: str, shards: Sequence[Shard], root: Path, *, progress: bool = True) -> int:
    """Count the samples in local shards by img2dataset's ``NNNNN_stats.json`` (``successes``), or by reading them."""
    if remote := [shard.name for shard in shards if not shard.local]:
        raise UserError(f"{name}: {remote[0]} is remote: give the total of all shards with --samples")
    total = 0
    with terminal.progress_bar("Counting samples", len(shards), progress) as advance:
        for shard in shards:
            total += _sample_count(shard, root)
            advance(1)
    if not total:
        raise UserError(f"{name}: no samples in its {len(shards)} shards: expected KEY.jpg with KEY.txt")
    return total


def _sample_count(shard: Shard, root: Path) -> int:
    path = Path(shard.place).absolute()
    if (stats := path.with_name(f"{path.stem}_stats.json")).exists():
        count = read_json(stats).get("successes")
        if type(count) is not int or count < 0:
            raise UserError(f"{stats}: expected a field 'successes', a count: correct or delete the file")
        return count
    status = path.stat()
    kept = root / "shards" / digest(f"{path} {status.st_size} {status.st_mtime_ns}")[:16]
    with contextlib.suppress(OSError, ValueError):
        return int(kept.read_text())
    count = sum(1 for _ in read_shard(shard, lambda line: None))
    with contextlib.suppress(OSError):  # the cache is optional
        write_text(kept, str(count))
    return count
