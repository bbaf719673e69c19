"""What a study's cells deviate in from its paper, as declared next to the paper's own numbers."""

from antiphase.studies.papers.diffclip.transcribed import DIFFCLIP
from antiphase.studies.papers.robustness.transcribed import ROBUSTNESS
from antiphase.studies.papers.transcription import Line, in_words
from antiphase.studies.spec import Profile, Study

TRANSCRIBED: dict[str, tuple[Line, ...]] = {**ROBUSTNESS, **DIFFCLIP}
"""The lines of each study of a paper."""


def shown_settings(study: Study, profile: Profile) -> dict[str, str]:
    """Return the settings shown on a study's page: its own, and under the profile ``paper`` each deviation."""
    found = deviations(study, profile)
    return {**study.settings(profile), **{f"deviation in {line.name}": _sentence(line) for line in found}}


def _sentence(line: Line) -> str:
    return f"{in_words(line.ours or ())}. {line.why}"


def note_of(study: Study, profile: Profile) -> str:
    """Return the sentence that names a study's deviations next to its figures; empty if there are none."""
    names = dict.fromkeys(line.name for line in deviations(study, profile))
    return f"Declared deviations from the paper: {', '.join(names)}; the settings say which." if names else ""


def deviations(study: Study, profile: Profile) -> list[Line]:
    """Return the lines in which a study deviates under the profile ``paper``; others are stand-ins throughout."""
    if profile.name != "paper":
        return []
    return [line for line in TRANSCRIBED.get(study.name, ()) if line.why]
