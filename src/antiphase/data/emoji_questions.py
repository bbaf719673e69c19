"""Conversations about the scenes ``emoji-objects``: captions, and questions with the answers yes and no."""

from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import final

from antiphase.data.conversations import Conversation
from antiphase.data.emoji_objects import OBJECTS, emoji_objects, theme_of
from antiphase.data.pairs import ArrayPairs
from antiphase.data.pope import ASK, with_article
from antiphase.files import digest
from antiphase.streams import key

ASK_CAPTION = "Provide a one-sentence caption for the provided image."
"""As in LLaVA 1.5's instructions."""

_LIKELY = 0.5  # probability that an absent object is of the theme of one that is there


@final
@dataclass(frozen=True, eq=False)
class EmojiConversations:
    """One conversation about each training scene.

    Stage 1: the caption. Stage 2: as many questions about objects as the scene has objects, then the caption. Each of
    these questions is about an object that is there or is not, with probability ½ whatever was asked before, so that
    earlier answers tell nothing of later ones. Half of the absent objects are of the theme of an object that is there.

    Attributes:
        scenes: with their objects.
        stage: 1 or 2.
        seed: of the questions.
    """

    scenes: ArrayPairs
    stage: int
    seed: int

    def __len__(self) -> int:
        return len(self.scenes)

    def __getitem__(self, position: int) -> Conversation:
        scene, number = self.scenes, int(self.scenes.ids[position])
        caption = (ASK_CAPTION, scene.captions[position][0])
        turns = (*self._questions(position, number), caption) if self.stage == 2 else (caption,)
        return Conversation(f"{scene.name}-{number}", scene.pixels(position).float() / 255, turns)

    def fingerprint(self) -> str:
        return digest("emoji conversations", self._scenes, str(self.stage), str(self.seed))

    @cached_property
    def _scenes(self) -> str:
        return self.scenes.fingerprint()

    def _questions(self, position: int, number: int) -> list[tuple[str, str]]:
        """Return the questions about a scene; all they draw depends on the seed and the scene's number."""
        assert self.scenes.objects is not None
        there = [one.name for one in self.scenes.objects[position]]
        themes = {theme_of(name) for name in there}
        left, absent, turns = list(there), [name for name in OBJECTS if name not in there], []
        for turn in range(len(there)):
            yes, likely, pick = (
                _uniform(self.seed, number, turn, what) for what in ("yes", "likely", "pick")
            )
            near = [name for name in absent if theme_of(name) in themes]
            among = left if yes < 0.5 else near if near and likely < _LIKELY else absent
            name = among[int(pick * len(among))]
            (left if yes < 0.5 else absent).remove(name)
            turns.append((ASK.format(with_article(name)), "Yes" if yes < 0.5 else "No"))
        return turns


def emoji_conversations(stage: int, seed: int = 0, root: Path | None = None) -> EmojiConversations:
    """Return the conversations about the 6,000 training scenes.

    Args:
        stage: 1 for captions, 2 for questions and a caption.
        seed: random seed of the questions.
        root: data folder, where the rendered drawings are cached.

    Raises:
        UserError: if a package that draws the objects is missing.
    """
    return EmojiConversations(emoji_objects("train", root, progress=False), stage, seed)


def _uniform(seed: int, number: int, turn: int, what: str) -> float:
    return (key(seed, "emoji questions", number, turn, what) % 2**53) / 2**53
