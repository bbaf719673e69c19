"""Sources of labelled images by name: float32 pixels in [0, 1], never normalised here."""

from antiphase.data.images import ArrayImages, FileImages, ImageSet
from antiphase.data.sources import SOURCES, load_data

__all__ = ["SOURCES", "ArrayImages", "FileImages", "ImageSet", "load_data"]
