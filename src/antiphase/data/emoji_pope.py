"""POPE of the scenes ``emoji-objects``: a substitute for COCO that needs no download."""

from pathlib import Path

from antiphase.data.emoji import emoji_objects
from antiphase.data.pope import PopeSet, pope_questions

NAME = "emoji-pope"


def emoji_pope(root: Path | None = None, progress: bool = True) -> PopeSet:
    """Return POPE's three sets of questions about 500 of the 1,000 test scenes, made by POPE's rules.

    Args:
        root: data folder, where the rendered drawings are cached.
        progress: show a progress bar on stderr during rendering.

    Raises:
        UserError: if a package that draws the objects is missing.
    """
    scenes = emoji_objects("test", root, progress)
    assert scenes.objects is not None
    labelled = {
        f"{scenes.name}-{number}": [one.name for one in objects]
        for number, objects in zip(scenes.ids.tolist(), scenes.objects, strict=True)
    }
    questions = pope_questions(labelled)
    places = {name: at for at, name in enumerate(labelled)}
    names = tuple(dict.fromkeys(one.image for one in questions["random"]))
    every = tuple(one for several in questions.values() for one in several)
    pictures = scenes.take([places[name] for name in names])
    return PopeSet(name=NAME, pictures=pictures, names=names, questions=every)
