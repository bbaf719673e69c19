"""The registers of the papers' claims, ``papers/*/claims.toml``: every claim, and what became of it."""

import tomllib
from collections import Counter
from collections.abc import Mapping
from functools import lru_cache
from pathlib import Path
from typing import Any

from antiphase.studies.claims import Claim, joint

PAPERS = Path(__file__).parent / "papers"
RIGHT, WRONG, UNTESTED = "theorem, right", "theorem, wrong as printed", "not tested"


@lru_cache
def entries(paper: str) -> tuple[dict[str, Any], ...]:
    """Return the claims of a paper; none of a group that has no register."""
    file = PAPERS / paper / "claims.toml"
    return tuple(tomllib.loads(file.read_text(encoding="utf-8"))["claims"]) if file.exists() else ()


@lru_cache
def effects(paper: str) -> dict[str, float]:
    """Return the smallest difference that a paper prints for a claim of a study, by ``STUDY/CLAIM``."""
    printed: dict[str, list[float]] = {}
    for entry in entries(paper):
        for claim in entry.get("claims", ()):
            printed.setdefault(claim, []).extend(entry.get("effect", {}).get("difference", ()))
    return {claim: max(0.0, min(sizes)) for claim, sizes in printed.items() if sizes}


def outcome(entry: Mapping[str, Any], paper: str, claims: Mapping[str, Claim]) -> str:
    """Return what became of an entry: the joint verdict of the claims (``STUDY/CLAIM``) or parts that test it."""
    named = {one["name"]: one for one in entries(paper)}
    known: list[Any] = [outcome(named[part], paper, claims) for part in entry.get("parts", ())]
    own = [claims[key] for key in entry.get("claims", ()) if key in claims]
    known += [claim.verdict for claim in own if claim.verdict != "not run" and not claim.lacks_seeds]
    known = [verdict for verdict in known if verdict not in (UNTESTED, RIGHT, WRONG)]
    if not known:
        proof = entry.get("proof", "")
        wrong = proof.startswith("Wrong") or "Refuted" in proof
        return WRONG if wrong else RIGHT if proof else UNTESTED
    return joint(known)


def outcomes(paper: str, claims: Mapping[str, Claim]) -> Counter[str]:
    """Count what became of a paper's claims."""
    return Counter(outcome(entry, paper, claims) for entry in entries(paper))
