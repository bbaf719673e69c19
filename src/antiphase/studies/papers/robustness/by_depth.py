"""Shared by the parts of Figure 3: ASR of ViT and DiffViT by depth, with one panel per ε, and its claims."""

import polars as pl

from antiphase.budgets import eps_label
from antiphase.studies.claims import Check, Claim
from antiphase.studies.estimation import ASR, estimates, over, peak, share_above, trend
from antiphase.studies.figures import Artefact, Panel, Plot
from antiphase.studies.papers.robustness.show import against, table_of

AT = (1 / 255, 4 / 255)
_HIGH = 0.9  # our reading of "saturate at high ASR"


def draw_asr(attacks: pl.DataFrame, name: str, attack: str) -> Artefact:
    """Return ASR over depth at 1/255 and 4/255, for each data set."""
    found = estimates(attacks, ["data", "eps", "series", "depth"], ASR).sort("depth", maintain_order=True)
    panels, tables = [], []
    for (data, eps), block in found.group_by(["data", "eps"], maintain_order=True):
        if not any(abs(float(eps) - at) < 1e-9 for at in AT):  # type: ignore[arg-type]
            continue
        title = f"{attack}, ε = {eps_label(float(eps))}, {data}"  # type: ignore[arg-type]
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

    own = {"series": "DiffViT", "eps": small}
    falls = Check(
        f"fitted fall of ASR(DiffViT) over log2 depth, {depths[0]} to {deepest}, at 1/255",
        trend(attacks, "depth", own, -ASR, scale="log2"),
    )
    highest = [
        Check("ASR(DiffViT, depth 1) − mean of the deeper ones, at 1/255", found)
        for _, found in peak(attacks, "depth", 1, own, ASR)
    ]

    def higher(depth: int, sign: int) -> Check:
        names = ("DiffViT", "ViT") if sign > 0 else ("ViT", "DiffViT")
        found = against(attacks, *names, ASR, depth=depth, eps=small)
        return Check(f"ASR({names[0]}) − ASR({names[1]}) at 1/255, depth {depth}", found)

    high = [
        Check(
            f"ASR({kind}, depth {deepest}) − {_HIGH * 100:.0f} % at 4/255",
            share_above(attacks, {"series": kind, "depth": deepest, "eps": large}, ASR, _HIGH),
        )
        for kind in ("ViT", "DiffViT")
    ]
    key, under = attack.lower().replace(" ", "-"), f"Under {attack} at 1/255"
    shallow = [higher(depth, 1) for depth in depths if depth <= 2]
    statements = {
        "falls-with-depth": (f"{under}, DiffViT's ASR falls with depth.", [falls]),
        "highest-at-depth-1": (f"{under}, DiffViT's ASR is highest at depth 1.", highest),
        "fragile-when-shallow": (f"{under}, DiffViT is more fragile than ViT at depths 1 and 2.", shallow),
        "robust-when-deep": (f"{under}, the deepest DiffViT is more robust than ViT.", [higher(deepest, -1)]),
        "saturates": (
            f"Under {attack} at 4/255, ViT and DiffViT both saturate: ASR above 90 % at the largest depth.",
            high,
        ),
    }
    return [Claim(f"{key}-{name}", source, words, checks) for name, (words, checks) in statements.items()]
