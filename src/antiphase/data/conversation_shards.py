"""Conversations in tar files in webdataset's layout: a JSON file and an image under each key."""

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from antiphase.data.archives import IMAGE_SUFFIXES, members_by_key, read_index
from antiphase.data.llava_records import LlavaRecords, checked_records
from antiphase.data.shards import find_shards
from antiphase.errors import UserError
from antiphase.reading import parse_json


def shard_conversations(name: str, pattern: str, root: Path) -> LlavaRecords:
    """List conversations in tar files: KEY.json, and KEY.jpg, .png, .webp or .jpeg for one about an image.

    KEY.json is a record of LLaVA's JSON layout, or its ``conversations`` alone, as Megatron-LM's converter of LLaVA's
    data writes them. The image is the one in the tar file, whatever the record calls it. Images are read from the tar
    files without unpacking; since the order is random, the files have to be local and uncompressed.

    Source: Megatron-LM (https://github.com/NVIDIA/Megatron-LM),
    ``examples/multimodal/convert_llava_pretrain_to_wds.py``.

    Args:
        name: as given to ``load_conversations``.
        pattern: as for :func:`~antiphase.data.shards.find_shards`.
        root: data folder.

    Raises:
        UserError: if a shard is missing, remote or damaged, or a record is not in LLaVA's layout.
    """
    shards = find_shards(pattern, root)
    remote = next((shard.place for shard in shards if not shard.local), None)
    if remote is not None:
        raise UserError(
            f"{name}: {remote} is remote; download it, since conversations are read in random order"
        )
    paths = [Path(shard.place).resolve() for shard in shards]
    folder = Path(os.path.commonpath([path.parent for path in paths]))
    records = [record for path in paths for record in _records(path, folder)]
    if not records:
        raise UserError(
            f"{name}: no conversations in its {len(paths)} shards; expected KEY.json with KEY.jpg"
        )
    return LlavaRecords(name, records, folder)


def _records(tar: Path, folder: Path) -> list[dict[str, Any]]:
    """Return the records of a shard; the path of an image is relative to ``folder`` and leads into the shard."""
    index = read_index(tar)
    place = tar.relative_to(folder).as_posix()

    def read() -> Iterator[Any]:
        with tar.open("rb") as file:
            for key, kinds in members_by_key(index).items():
                image = next((kinds[suffix] for suffix in IMAGE_SUFFIXES if suffix in kinds), None)
                if "json" not in kinds:
                    raise UserError(f"{tar}: {key} has no .json; correct or download it again")
                file.seek(index[kinds["json"]].offset)
                try:
                    said = parse_json(file.read(index[kinds["json"]].size))
                except ValueError as error:
                    raise UserError(
                        f"{tar}: {key}.json is not valid JSON ({error}); correct or download it again"
                    ) from None
                record = {"conversations": said} if isinstance(said, list) else said
                if isinstance(record, dict):
                    record = {"id": key} | record
                    record.pop("image", None)
                    record |= {} if image is None else {"image": f"{place}/{image}"}
                yield record

    return checked_records(list(read()), tar, literal=False)
