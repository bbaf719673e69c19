"""``antiphase leaderboard``: all robustness cards below a folder as one page."""

from pathlib import Path
from typing import Annotated

from antiphase.commands.command import Command
from antiphase.commands.options import Directory, Options, Typed


class LeaderboardOptions(Options):
    """Rank the models of all robustness cards below a folder on one page, for each data set, norm and ε.

    The page is one file that needs no network; it links to the cards and reports. Every column sorts. What is no valid
    card is left out and named.

    **Examples**

    antiphase leaderboard runs
    antiphase leaderboard runs --out site/index.html --json
    """

    folder: Annotated[Directory, Typed(argument=True)]
    """Folder below which the cards are, at any depth."""
    out: Annotated[Path | None, Typed(metavar="FILE")] = None
    """Page to write. If not given: leaderboard.html in the folder."""


COMMAND = Command("leaderboard", LeaderboardOptions, "antiphase.commands.leaderboard.run:answer", tabled=True)
