"""Strict reader of the IDX format of the MNIST family."""

import gzip
import math
import struct
import zlib
from pathlib import Path

import torch
from jaxtyping import UInt8
from torch import Tensor

from antiphase.errors import UserError


def read_idx(path: Path) -> UInt8[Tensor, "..."]:
    """Read a gzip-compressed IDX file of unsigned bytes.

    Layout: two zero bytes, the type code 8, the number of axes, the length of each axis as a big-endian 32-bit
    number, then the bytes, last axis fastest.

    Raises:
        UserError: if the file is missing, truncated, damaged, or not an IDX file of unsigned bytes.
    """
    try:
        with gzip.open(path) as file:
            content = bytearray(file.read())
    except FileNotFoundError as error:
        raise UserError(f"{path} does not exist: download the data set again") from error
    except (OSError, EOFError, zlib.error) as error:
        raise UserError(
            f"{path} is truncated or damaged ({error}): delete it and download it again"
        ) from error
    if len(content) < 4 or content[:3] != b"\0\0\x08":
        raise UserError(f"{path} is not an IDX file of unsigned bytes: delete it and download it again")
    axes = content[3]
    header = 4 + 4 * axes
    shape = struct.unpack(f">{axes}I", content[4:header]) if len(content) >= header else ()
    if not shape or len(content) != header + math.prod(shape):
        raise UserError(
            f"{path} has {len(content)} bytes, expected {header + math.prod(shape)} from its header, {axes} axes of "
            f"lengths {list(shape)}: delete it and download it again"
        )
    return torch.frombuffer(content, dtype=torch.uint8)[header:].reshape(shape)
