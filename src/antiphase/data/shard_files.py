"""Find the tar files that match a pattern, and count their samples."""

import contextlib
import glob
import tarfile
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar
from urllib.parse import urlparse
from urllib.request import url2pathname

from webdataset.gopen import gopen_schemes
from webdataset.shardlists import expand_urls
from webdataset.tariterators import base_plus_ext

from antiphase.data.conceptual import how_to_get
from antiphase.data.members import regular
from antiphase.errors import UserError
from antiphase.files import digest, write_json
from antiphase.progress import progress_bar
from antiphase.reading import parse_json

IMAGE_SUFFIXES = ("jpg", "png", "webp", "jpeg")
CAPTION_SUFFIX = "txt"
_TEXT_SUFFIXES = (CAPTION_SUFFIX, "cls", "json")
COMPRESSED = (b"\x1f\x8b", b"BZh", b"\xfd7zXZ")  # first bytes of gzip, bzip2, xz
T = TypeVar("T")
_LEAST_BYTES = 2048  # of a sample: image and caption, each with a header and a block of 512 bytes


@dataclass(frozen=True)
class Shard:
    """One tar file.

    Attributes:
        name: its base name, with as many parent folders as needed to be unique.
        place: its path, or a URL that webdataset opens.
        local: whether ``place`` is a path.
    """

    name: str
    place: str
    local: bool


def find_shards(patterns: str | Sequence[str], root: Path | None = None) -> tuple[Shard, ...]:
    """Return the shards of one or more patterns in order.

    Args:
        patterns: patterns with braces, such as ``cc3m/{00000..00331}.tar``; ``::`` joins several. Each is a path, a
            folder (all its ``*.tar``), a path with ``*``, or an http(s), s3, gs, hf or pipe URL.
        root: data folder. Relative paths are searched for in the working directory; if it has none of them, in the
            data folder.

    Raises:
        UserError: if nothing matches, a named file is missing or repeated, or a URL scheme is not supported.
    """
    listed = [patterns] if isinstance(patterns, str) else list(patterns)
    shown = ", ".join(map(repr, listed))
    places = [place for pattern in listed for place in _expanded(pattern)]
    found, missing = _found(places, Path())
    if root is not None and not any(local for _, local in found):
        found, missing = _found(places, root)
    how = how_to_get(listed[0], str(root or "."))
    if not found:
        relative = any(_is_local(place) and not Path(place).expanduser().is_absolute() for place in places)
        where = f" in {Path.cwd()} or {root}" if relative and root is not None else ""
        wanted = "expected tar files in img2dataset's layout, such as 'shards:/data/cc3m/{00000..00331}.tar'"
        raise UserError(f"no shard matches {shown}{where}: {how or wanted}")
    if missing:
        raise UserError(
            f"{len(missing)} of the {len(found) + len(missing)} shards of {shown} are missing, the first is "
            f"{missing[0]}: {how or 'correct the pattern, or download them'}"
        )
    names = _names([place for place, _ in found], shown)
    return tuple(Shard(name, place, local) for name, (place, local) in zip(names, found, strict=True))


def _found(places: Sequence[str], base: Path) -> tuple[list[tuple[str, bool]], list[str]]:
    """Return the files and URLs, with whether each is a file, and the paths below ``base`` that have none."""
    found: list[tuple[str, bool]] = []
    missing: list[str] = []
    for place in places:
        if not _is_local(place):
            found.append((place, False))
            continue
        path = place if place.startswith("file:") else str(base / Path(place).expanduser())
        files = _local_files(path)
        found += [(str(file), True) for file in files]
        missing += [] if files else [path]
    return found, missing


def count_samples(name: str, shards: Sequence[Shard], root: Path, *, progress: bool = True) -> int:
    """Return the number of samples in local shards.

    It is read from img2dataset's ``NNNNN_stats.json`` next to each shard (``successes``), otherwise from webdataset's
    ``sizes.json`` in its folder (shard name to count), otherwise the members of the tar file are counted. Counts are
    cached in ``root/shards`` by size and modification time.

    Sources: img2dataset (https://github.com/rom1504/img2dataset), ``logger.write_stats``; webdataset.

    Args:
        name: name of the source in error messages.
        shards: shards to count.
        root: data folder.
        progress: show a progress bar on stderr while members are counted.

    Raises:
        UserError: if a shard is remote, a list of counts is damaged or larger than a shard allows, or there are no
            samples.
    """
    remote = next((shard for shard in shards if not shard.local), None)
    if remote is not None:
        raise UserError(
            f"{name}: the number of samples in {remote.name} is unknown, because it is remote: "
            "give the total of all shards with --samples"
        )
    noted: dict[Path, int] = {}
    by_folder: dict[Path, list[Path]] = {}
    for path in (Path(shard.place).absolute() for shard in shards):
        by_folder.setdefault(path.parent, []).append(path)
    for folder, paths in by_folder.items():
        sizes = _read_counts(folder / "sizes.json", None)
        for path in paths:
            stats = _read_counts(path.with_name(f"{path.stem}_stats.json"), "successes")
            count = stats.get("successes", sizes.get(path.name))
            if count is not None:
                _check_room(name, path, count)
                noted[path] = count
    rest = {folder: [path for path in paths if path not in noted] for folder, paths in by_folder.items()}
    total = sum(noted.values()) + _counted({f: paths for f, paths in rest.items() if paths}, root, progress)
    if not total:
        raise UserError(
            f"{name}: no samples in its {len(shards)} shards: expected KEY.jpg, .png, .webp or .jpeg with KEY.txt"
        )
    return total


def _expanded(pattern: str) -> list[str]:
    try:
        return expand_urls(pattern)
    except (AssertionError, ValueError) as error:  # unset variable, unbalanced braces
        raise UserError(f"shards {pattern!r}: {error}: correct the pattern") from error


def _is_local(place: str) -> bool:
    scheme = urlparse(place).scheme
    if scheme in gopen_schemes or scheme == "s3":
        return False
    if scheme in ("", "file") or Path(place).exists():
        return True
    raise UserError(
        f"shard {place!r}: {scheme}: URLs are not supported: use 'pipe:COMMAND' with a command that writes the tar "
        "file to its standard output"
    )


def _local_files(place: str) -> list[Path]:
    path = Path(url2pathname(urlparse(place).path) if place.startswith("file:") else place)
    if path.is_dir():
        return sorted(filter(Path.is_file, path.glob("*.tar")))
    if path.is_file():
        return [path]
    found = map(Path, sorted(glob.glob(str(path)))) if glob.has_magic(place) else ()
    return list(filter(Path.is_file, found))


def _names(places: list[str], shown: str) -> list[str]:
    """Return the shortest unique suffixes of the paths."""
    ends = [_tar_path(place).split("/") for place in places]
    for depth in range(1, max(map(len, ends)) + 1):
        names = ["/".join(end[-depth:]) for end in ends]
        if len(set(names)) == len(names):
            return names
    twice = next((place for place in places if places.count(place) > 1), None)
    if twice is not None:
        raise UserError(f"shards of {shown}: duplicate {twice}: give each shard once")
    return places


def _tar_path(place: str) -> str:
    """Return the path of the tar file in a URL or command.

    >>> _tar_path("https://host/a/00003.tar?key=1"), _tar_path("pipe:aws s3 cp s3://b/00003.tar -")
    ('/a/00003.tar', '/00003.tar')
    """
    if place.startswith("pipe:"):
        place = next((word for word in reversed(place.split()) if ".tar" in word), place)
    return urlparse(place).path if urlparse(place).scheme else place


def _read_counts(path: Path, field: str | None) -> dict[str, int]:
    """Read counts from a JSON object, of one field or of all; empty if there is no file."""
    try:
        text = regular(path).read_text(encoding="utf-8")
    except FileNotFoundError:
        return {}
    except OSError as error:
        raise UserError(f"cannot read {path} ({error.strerror}): make it readable") from error
    try:
        value = parse_json(text)
        if not isinstance(value, dict):
            raise TypeError(f"it is a {type(value).__name__}")
        counts = {str(key): value[key] for key in (value if field is None else [field])}
        if any(type(count) is not int or count < 0 for count in counts.values()):
            raise TypeError("a count is not a non-negative integer")
    except (ValueError, KeyError, TypeError) as error:
        wanted = f"a field {field!r}" if field else "shard names and counts"
        raise UserError(
            f"{path}: expected a JSON object with {wanted} ({error}): correct or delete it"
        ) from error
    return counts


def _check_room(name: str, path: Path, count: int) -> None:
    """Refuse a count that is too large for the size of the shard, since an epoch would repeat its samples."""
    with path.open("rb") as file:
        if file.read(8).startswith(COMPRESSED):
            return
    room = path.stat().st_size // _LEAST_BYTES
    if count > room:
        raise UserError(
            f"{name}: {count:,} samples stated for {path.name}, but its size allows at most {room:,}: correct or "
            f"delete {path.stem}_stats.json or sizes.json next to it, or give the total of all shards with --samples"
        )


def _counted(folders: dict[Path, list[Path]], root: Path, progress: bool) -> int:
    total = 0
    progress = progress and bool(folders)
    with progress_bar("Counting samples", sum(map(len, folders.values())), progress) as advance:
        for folder, paths in folders.items():
            kept = root / "shards" / f"{digest(str(folder))[:16]}.json"
            known = _kept_counts(kept)
            before = dict(known)
            for path in paths:
                stamp = [path.stat().st_size, path.stat().st_mtime_ns]
                if known.get(path.name, [])[:2] != stamp:
                    known[path.name] = [*stamp, _count_members(path)]
                total += known[path.name][2]
                advance(1)
            if known != before:
                with contextlib.suppress(OSError):  # the cache is optional
                    write_json(kept, {"folder": str(folder), "shards": known})
    return total


def members_by_key(names: Iterable[str]) -> dict[str, dict[str, str]]:
    """Return the names of a tar file's members by key and suffix, as webdataset does, also for keys that have dots.

    >>> members_by_key(["a/1.jpg", "a/1.txt", "b.v2.jpg", "b.v2.TXT"])
    {'a/1': {'jpg': 'a/1.jpg', 'txt': 'a/1.txt'}, 'b.v2': {'jpg': 'b.v2.jpg', 'txt': 'b.v2.TXT'}}
    """
    found: dict[str, dict[str, str]] = {}
    for name in names:
        key, suffix = base_plus_ext(name)
        if key is not None and suffix is not None:
            found.setdefault(key, {})[suffix.lower()] = name
    return {key: kinds for first, own in found.items() for key, kinds in split_dotted(first, own).items()}


def split_dotted(key: str, members: Mapping[str, T]) -> dict[str, dict[str, T]]:
    """Return members by their whole keys, where webdataset took ``0001.jpg`` of ``v1.0001.jpg`` for the suffix."""
    if members.keys() & {*IMAGE_SUFFIXES, *_TEXT_SUFFIXES}:
        return {key: dict(members)}
    found: dict[str, dict[str, T]] = {}
    for suffix, member in members.items():
        rest, dot, last = suffix.rpartition(".")
        found.setdefault(f"{key}{dot}{rest}", {})[last] = member
    return found


def _kept_counts(kept: Path) -> dict[str, Any]:
    try:
        entries = parse_json(kept.read_text(encoding="utf-8"))["shards"].items()
        return {name: entry for name, entry in entries if len(entry) == 3}
    except (OSError, ValueError, KeyError, TypeError, AttributeError):  # missing or invalid: count again
        return {}


def _count_members(path: Path) -> int:
    """Count the keys of a tar file that have an image and a caption, reading only headers."""
    names: list[str] = []
    try:
        with tarfile.open(path) as archive:
            names += (member.name for member in archive if member.isreg() and member.size)
    except Exception:  # damaged file; reported when the stream reaches it
        del names[-1:]  # the last member is truncated
    samples = members_by_key(names).values()
    return sum(CAPTION_SUFFIX in found and bool(found.keys() & set(IMAGE_SUFFIXES)) for found in samples)
