"""Reading ``card.json``; a card that is damaged or was altered is refused with one line."""

from pathlib import Path

from pydantic import ValidationError

from antiphase.errors import UserError, invalid, shown
from antiphase.report.card.model import RobustnessCard

CARD = "card.json"


def read_card(path: str | Path) -> RobustnessCard:
    """Read a card and check that its numbers fit each other.

    Args:
        path: of the card, or of the run directory that holds it.

    Raises:
        UserError: the file is missing or no card, or a number in it does not fit the others; names the field.
    """
    file = Path(path)
    file = file / CARD if file.is_dir() else file
    try:
        text = file.read_text(encoding="utf-8")
    except (OSError, ValueError) as error:
        why = getattr(error, "strerror", None) or "is no text"
        raise UserError(
            f"card {shown(str(path))}: cannot be read ({why}); expected {CARD} or the directory of an audit"
        ) from None
    try:
        return RobustnessCard.model_validate_json(text, strict=True)
    except ValidationError as error:
        raise invalid(error, f"card {shown(str(path))}: ") from None
