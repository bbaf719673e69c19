"""Shared by the parts of Figure 3: ASR of ViT and DiffViT by depth, with one panel per ε, and its claims."""

import polars as pl

from antiphase.evaluation.statistics import Estimate
from antiphase.studies.artefact import Artefact, Panel, Plot
from antiphase.studies.claims import Check, Claim
from antiphase.studies.estimation import ASR, estimates, over
from antiphase.studies.papers.robustness.show import against, apart, eps_name, table_of

AT = (1 / 255, 4 / 255)
_HIGH = 0.9  # our reading of "saturate at high ASR"


def draw_asr(attacks: pl.DataFrame, name: str, attack: str) -> Artefact:
    """Return ASR over depth at 1/255 and 4/255, for each data set."""
    found = estimates(attacks, ["data", "eps", "series", "depth"], ASR).sort("depth", maintain_order=True)
    panels, tables = [], []
    for (data, eps), block in found.group_by(["data", "eps"], maintain_order=True):
        if not any(abs(float(eps) - at) < 1e-9 for at in AT):  # type: ignore[arg-type]
            continue
        title = f"{attack}, ε = {eps_name(float(eps))}, {data}"  # type: ignore[arg-type]
        points = block.with_columns(x=pl.col("depth").cast(pl.Float64)).drop("data", "eps", "depth")
        panels.append(Panel(title, "depth", "attack success rate", points, percent=True))
        key = f"{name}-{data}-{float(eps) * 255:g}"  # type: ignore[arg-type]
        tables.append(
            table_of(block, pl.col("series"), pl.format("depth {}", "depth"), key, f"ASR under {title}")
        )
    caption = f"ASR under {attack} by depth. Bands: 95 % over {over(found)}."
    return Artefact([Plot(name, caption, tuple(panels))], tables)


def asr_claims(attacks: pl.DataFrame, attack: str, source: str) -> list[Claim]:
    """Return the paper's claims on ASR by depth."""
    depths = sorted(attacks["depth"].unique())
    small, large = AT
    deepest = depths[-1]

    def falls(first: int, second: int) -> Check:
        found = apart(attacks, "depth", first, second, ASR, {"series": "DiffViT", "eps": small})
        return Check(f"ASR(DiffViT, depth {first}) − ASR(depth {second}) at 1/255", found)

    def higher(depth: int, sign: int) -> Check:
        names = ("DiffViT", "ViT") if sign > 0 else ("ViT", "DiffViT")
        found = against(attacks, *names, ASR, depth=depth, eps=small)
        return Check(f"ASR({names[0]}) − ASR({names[1]}) at 1/255, depth {depth}", found)

    high = [
        Check(
            f"ASR({kind}, depth {deepest}) − {_HIGH * 100:.0f} % at 4/255",
            _above(attacks.filter((pl.col("eps") - large).abs() < 1e-9, series=kind, depth=deepest)),
        )
        for kind in ("ViT", "DiffViT")
    ]  # fmt: skip
    key, under = attack.lower().replace(" ", "-"), f"Under {attack} at 1/255"
    shallow = [higher(depth, 1) for depth in depths if depth <= 2]
    statements = {
        "falls-with-depth": (f"{under}, DiffViT's ASR falls with depth.", [falls(depths[0], deepest)]),
        "highest-at-depth-1": (
            f"{under}, DiffViT's ASR is highest at depth 1.", [falls(depths[0], depth) for depth in depths[1:]],
        ),
        "fragile-when-shallow": (f"{under}, DiffViT is more fragile than ViT at depths 1 and 2.", shallow),
        "robust-when-deep": (f"{under}, the deepest DiffViT is more robust than ViT.", [higher(deepest, -1)]),
        "saturates": (
            f"Under {attack} at 4/255, ViT and DiffViT both saturate: ASR above 90 % at the largest depth.", high,
        ),
    }  # fmt: skip
    return [Claim(f"{key}-{name}", source, words, checks) for name, (words, checks) in statements.items()]


def _above(rows: pl.DataFrame) -> Estimate | None:
    found = (
        None
        if rows.is_empty()
        else estimates(rows, ["series"], ASR - _HIGH, kind="difference").row(0, named=True)
    )
    return None if found is None else Estimate(found["value"], found["low"], found["high"], found["n"])
