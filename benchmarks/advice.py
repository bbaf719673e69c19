"""What each defence brought a DiffViT in the study ``defence``, from ``results/``: the numbers of an audit's advice.

uv run python benchmarks/advice.py     # writes src/antiphase/commands/audit/advice.json
"""

import json
from pathlib import Path
from typing import Any

from antiphase.statistics.seeds_by_images import CrossedEstimate
from antiphase.studies.estimation import ASR, CORRECT, difference
from antiphase.studies.options import StudyOptions
from antiphase.studies.own.defence import BY_ARCHITECTURE, CHOSEN, DEFENCES, DIFFVIT, defended, evaluated
from antiphase.studies.papers.robustness.bench import bench
from antiphase.studies.plan import select
from antiphase.studies.results import result, study_rows
from antiphase.studies.spec import profile
from antiphase.terminal import eps_label

ROOT = Path(__file__).parents[1]
FILE = ROOT / "src/antiphase/commands/audit/advice.json"


def advice() -> list[dict[str, Any]]:
    """Return for each defence the verdict of its claim, and what it changed in DiffViT's ASR and accuracy."""
    chosen = select(StudyOptions(names=("defence",), profile="laptop", rows=ROOT / "results"))
    (study,) = chosen.studies
    claims = {claim.name: claim for claim in result(study, chosen.profile, chosen.store, "").claims}
    rows = study_rows(study.cells(chosen.profile), chosen.store)
    seconds = json.loads((ROOT / "benchmarks/defence_strengths.json").read_text(encoding="utf-8"))["rows"]
    entries = []
    for name in DEFENCES:
        sides = {"series": f"{DIFFVIT}, {name}"}, {"series": DIFFVIT}
        asr = difference(evaluated(rows)[0], *sides, ASR)
        accuracy = difference(rows["accuracy"], *sides, CORRECT)
        assert asr is not None
        assert accuracy is not None
        entry = {"defence": name, "strength": CHOSEN.get(name), "verdict": claims[f"{name}-lowers-asr"].verdict}
        entry |= {"command": _command(name), "seeds": asr.seeds, "asr": _numbers(asr), "accuracy": _numbers(accuracy)}
        if (spent := seconds.get(f"{name}={CHOSEN.get(name, 0):g}")) is not None:
            entry["times"] = round(spent["cpu_seconds"] / seconds["natural"]["cpu_seconds"], 2)
        entries.append(entry)
    return entries


def _command(name: str) -> str:
    """Return how a user trains with a defence."""
    model = defended(bench(profile("laptop")), DIFFVIT, name, 0, "fashion-mnist", CHOSEN.get(name, 0.0))
    if name in BY_ARCHITECTURE:
        return f"ap.models.diffvit({', '.join(f'{field}={value}' for field, value in BY_ARCHITECTURE[name].items())})"
    words = ["antiphase train --model diffvit --data DATA"]
    if model.adversary:
        words += ["--adversarial", eps_label(model.adversary["eps"])]
        words += ["--adversarial-variant", model.adversary["variant"]]
    words += [f"--defend {one}={value:g}" for one, value in model.recipe.get("defences", {}).items()]
    return " ".join([*words, "--out runs/robust"])


def _numbers(estimate: CrossedEstimate) -> list[float]:
    return [round(number, 5) for number in (estimate.value, estimate.low, estimate.high)]


if __name__ == "__main__":
    FILE.write_text(json.dumps(advice(), indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
