"""Conversations about the scenes ``emoji-objects``: captions, and questions with the answers yes and no."""

from collections import Counter
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import final

from antiphase.data.conversations import Conversation
from antiphase.data.emoji import OBJECTS, emoji_objects, theme_of
from antiphase.data.pairs import ArrayPairs
from antiphase.data.pope import ASK, with_article
from antiphase.files import digest
from antiphase.streams import key

ASK_CAPTION = "Provide a one-sentence caption for the provided image."
"""As in the instructions of LLaVA 1.5."""

_CAPTIONS = 0.1  # share of the conversations of stage 2 that ask for the caption
_TEXTS = 0.2  # share that has the caption in place of the image


@final
@dataclass(frozen=True, eq=False)
class EmojiConversations:
    """One conversation about each training scene.

    Stage 1: the caption. Stage 2: in a tenth, the caption is asked for; in the others, whether objects are in the
    image, some five questions, of which half are answered yes. A fifth of all conversations have the caption in place
    of the image, as LLaVA's instructions have conversations without one: a language model learns from words what the
    answers depend on.

    Neither an object's name nor the theme of the scene tells the answer. Of the scenes of a theme, let f be the share
    that show an object. One that shows it asks about it with probability min(1, (1 − f)/f), one that does not with
    min(1, f/(1 − f)). So min(f, 1 − f) of the theme's scenes ask and answer yes, and as many no. Earlier answers tell a
    little, since a scene shows two to four objects: 47 % are yes after a yes, and 56 % after a no.

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
        scenes, questions = self.scenes, self._questions(position)
        name, caption = f"{scenes.name}-{int(scenes.ids[position])}", scenes.captions[position][0]
        if not self.has_image(position):
            (first, answer), *rest = questions
            return Conversation(name, None, ((f"The image shows {caption}.\n{first}", answer), *rest))
        image = scenes.pixels(position).float() / 255
        return Conversation(name, image, tuple(questions) or ((ASK_CAPTION, caption),))

    def has_image(self, position: int) -> bool:
        return not (self._questions(position) and self._kind(position) < _CAPTIONS + _TEXTS)

    def fingerprint(self) -> str:
        # the number rises when the same scene and seed give other turns
        return digest("emoji conversations", "2", self._scenes, str(self.stage), str(self.seed))

    @cached_property
    def _scenes(self) -> str:
        return self.scenes.fingerprint()

    @cached_property
    def _objects(self) -> list[list[str]]:
        assert self.scenes.objects is not None
        return [[one.name for one in several] for several in self.scenes.objects]

    @cached_property
    def _shares(self) -> dict[int, dict[str, float]]:
        """The share of the scenes of each theme that show an object."""
        scenes: Counter[int] = Counter()
        shown: Counter[tuple[int, str]] = Counter()
        for names in self._objects:
            theme = _main_theme(names)
            scenes[theme] += 1
            shown.update((theme, name) for name in names)
        return {theme: {name: shown[theme, name] / scenes[theme] for name in OBJECTS} for theme in scenes}

    def _kind(self, position: int) -> float:
        """Return a number below 1 that decides what a conversation is like; 0 in stage 1."""
        return self._uniform(int(self.scenes.ids[position]), "kind") if self.stage == 2 else 0.0

    def _questions(self, position: int) -> list[tuple[str, str]]:
        """Return the questions about a scene, if any; all they draw depends on the seed and the scene's number."""
        if self._kind(position) < _CAPTIONS:
            return []
        there, number = self._objects[position], int(self.scenes.ids[position])
        shares = self._shares[_main_theme(there)]
        asked = []
        for name in OBJECTS:
            # s = f without the object and 1 − f with it: ask with probability min(1, s/(1 − s))
            share = shares[name] if name not in there else 1 - shares[name]
            if self._uniform(number, "ask", name) * (1 - share) < share:
                asked.append((ASK.format(with_article(name)), "Yes" if name in there else "No"))
        return sorted(asked, key=lambda turn: self._uniform(number, "order", turn[0]))

    def _uniform(self, number: int, *what: str) -> float:
        return (key(self.seed, "emoji questions", number, *what) % 2**53) / 2**53


def emoji_conversations(stage: int, seed: int = 0, root: Path | None = None) -> EmojiConversations:
    """Return the conversations about the 6,000 training scenes.

    Args:
        stage: 1 for captions, 2 for questions and captions.
        seed: random seed of the questions.
        root: data folder, where the rendered drawings are cached.

    Raises:
        UserError: if a package that draws the objects is missing.
    """
    return EmojiConversations(emoji_objects("train", root, progress=False), stage, seed)


def _main_theme(names: list[str]) -> int:
    """Return the theme of most of the objects, the lowest if there are several."""
    themes = Counter(map(theme_of, names))
    return min(themes, key=lambda theme: (-themes[theme], theme))
