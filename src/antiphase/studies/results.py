"""What is known of a study in a store, as the report takes it."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from antiphase.studies.artefact import Artefact
from antiphase.studies.claims import Claim


@dataclass(frozen=True)
class Result:
    """One study under one profile.

    Attributes:
        name: such as ``"table-1"``.
        paper: ``"robustness"``, ``"diffclip"``, or the name under which a user's own studies stand.
        label: the artefact's name in the paper, ``"Table 1"``.
        title: what it shows, in a few words.
        text: the study's docstring.
        profile: under which it was run.
        seeds: of training.
        command: that makes it.
        done, total: cells.
        artefact: what the rows come to; None where there are none yet.
        claims: with their checks.
        settings: what a reader needs to judge the numbers.
        versions: of the libraries that made the rows; several where cells differ.
        hardware: that the cells ran on.
        seconds: that the cells took, all together.
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
