"""The results of a study, as input of the report."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from antiphase.studies.artefact import Artefact
from antiphase.studies.claims import Claim


@dataclass(frozen=True)
class Result:
    """One study under one profile.

    Attributes:
        name: such as ``"table-1"``.
        paper: ``"robustness"``, ``"diffclip"``, or the group name of a user's own studies.
        label: the artefact's name in the paper, ``"Table 1"``.
        title: what it shows, in a few words.
        text: the study's docstring.
        profile: name of the profile.
        seeds: training seeds.
        command: command that reproduces the study.
        done, total: number of finished cells, and of all cells.
        artefact: figures and tables; None if there are no rows yet.
        claims: claims with their checks.
        settings: settings for the reader.
        versions: library versions; several if cells differ.
        hardware: hardware that the cells ran on.
        seconds: total time of the cells.
    """

    name: str
    paper: str
    label: str
    title: str
    text: str
    profile: str
    seeds: Sequence[int]
    command: str
    done: int
    total: int
    artefact: Artefact | None
    claims: Sequence[Claim] = ()
    settings: Mapping[str, str] = field(default_factory=dict)
    versions: Mapping[str, str] = field(default_factory=dict)
    hardware: Sequence[str] = ()
    seconds: float = 0.0
