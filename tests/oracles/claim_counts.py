"""README's table of counts from the registers of claims and the verdicts that docs/findings.md prints.

`python tests/oracles/claim_counts.py` prints it, with the tests behind each verdict. A claim has the worst verdict of
its tests, or of its parts. What was not run, or has too few seeds, is not tested.
"""

import html
import re
import tomllib
from collections import Counter
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PAPERS = ROOT / "src/antiphase/studies/papers"
NAMES = {"robustness": "Sensitivity paper", "diffclip": "DiffCLIP"}
WORST_FIRST = ("contradicted", "undecided", "smaller than claimed", "absent", "holds")


def verdicts():
    """The verdict of each tested statement as docs/findings.md prints it, and of our own questions."""
    page = (ROOT / "docs/findings.md").read_text().split("<!-- claims -->")[1].split("<!-- /claims -->")[0]
    line = re.compile(r"^\| (.+?) \((?:[^()]|\([^()]*\))*\) \| ([a-z ]+?)(?: \(([^|]*)\))? \| .* \|$", re.M)
    own_start = page.index("### Our own questions")
    result = []
    for match in line.finditer(page):
        tested = match[2] != "not run" and "too few" not in (match[3] or "")
        text = html.unescape(re.sub(r"\\(.)", r"\1", match[1]))  # Markdown's escapes
        result.append((text, match[2] if tested else "not tested", match.start() > own_start))
    return result


def statements():
    """A regular expression for each statement, by `study/claim`; what a page fills in is left open."""
    patterns = {}
    for file in [*PAPERS.glob("*/studies.toml"), *PAPERS.parent.glob("own/studies.toml")]:
        for study, words in tomllib.loads(file.read_text()).items():
            for name, claim in words.get("claims", {}).items():
                text = claim if isinstance(claim, str) else claim["statement"]
                fixed = map(re.escape, re.split(r"\{\{.*?\}\}", text))
                patterns[f"{study}/{name}"] = ".*".join(fixed)
    return patterns


def judged():
    """For each paper the verdict of each claim of its register, with the tests that it rests on."""
    printed, patterns, result = verdicts(), statements(), {}
    for paper, name in NAMES.items():
        claims = {c["name"]: c for c in tomllib.loads((PAPERS / paper / "claims.toml").read_text())["claims"]}

        def verdict(claim, claims=claims):
            if claim["kind"] == "theorem":
                wrong = claim["proof"].startswith("Wrong") or "Refuted" in claim["proof"]
                return f"theorem, {'wrong as printed' if wrong else 'right'}", []
            below = [verdict(claims[part]) for part in claim.get("parts", [])]
            for test in claim.get("claims", []):
                below += [(v, [test]) for text, v, _ in printed if re.fullmatch(patterns[test], text)]
            worst = next((w for w in WORST_FIRST if w in [v for v, _ in below]), "not tested")
            return worst, sorted({test for v, tests in below if v == worst for test in tests})

        result[name] = {key: verdict(claim) for key, claim in claims.items()}
    return result


def counts():
    """How many claims have each verdict."""
    result = {name: Counter(v for v, _ in claims.values()) for name, claims in judged().items()}
    return result | {"Our own questions": Counter(v for _, v, ours in verdicts() if ours)}


if __name__ == "__main__":
    for paper, verdicts_of in counts().items():
        print(paper, sum(verdicts_of.values()), dict(verdicts_of))
    for claims in judged().values():
        for key, (verdict, tests) in claims.items():
            print(f"{verdict:20} {key:28}", *tests)
