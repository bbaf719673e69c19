"""``antiphase leaderboard``: what it prints, and its examples."""

from antiphase.cli.app import app
from antiphase.cli.command import Answer, command
from antiphase.runs.options.verify import LeaderboardOptions
from antiphase.terminal import say


@command(app, LeaderboardOptions)
def leaderboard(options: LeaderboardOptions) -> Answer:
    """Draw all robustness cards below a folder as one page, a table for each data set and norm.

    The page is one file that needs no network. Every column sorts. What is no valid card is left out and named.

    **Examples**

    antiphase leaderboard runs

    antiphase leaderboard runs --out site/index.html --json
    """
    from antiphase.report.card.leaderboard import entries, find_cards, write_leaderboard

    cards, left_out = find_cards(options.folder)
    out = options.folder / "leaderboard.html" if options.out is None else options.out
    page = write_leaderboard(cards, left_out, out)
    for line in left_out:
        say(f"left out: {line}")
    say(f"leaderboard of {len(cards)} card{'' if len(cards) == 1 else 's'}: {page}")
    return {"leaderboard": str(page), "cards": len(cards), "left_out": left_out, "rows": entries(cards)}
