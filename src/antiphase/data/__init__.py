"""Sources of labelled images, image–caption pairs and conversations by name; pixels in [0, 1], not normalised."""

from antiphase.data.conversations import CONVERSATION_SOURCES, Conversation, load_conversations
from antiphase.data.images import ArrayImages, ArrayPairs, FileImages, FilePairs, ImageSet, PairSet
from antiphase.data.shards import ShardStream
from antiphase.data.sources import PAIR_SOURCES, SOURCES, load_data, load_pairs

__all__ = ["CONVERSATION_SOURCES", "PAIR_SOURCES", "SOURCES", "ArrayImages", "ArrayPairs", "Conversation", "FileImages"]
__all__ += ["FilePairs", "ImageSet", "PairSet", "ShardStream", "load_conversations", "load_data", "load_pairs"]
