"""Which emoji show the same concept, so that a split by concepts has nothing of a test concept in training.

Two emoji are one concept if their names are equal without words for variants: skin tone, gender, age and hair of
persons, colour, size, direction, phase of the moon, hour; if they share an alias; if one is of the other's kind ("polar
bear"); or, in one group, if its name begins with the other ("umbrella with rain drops"). All of this is transitive.
"""

import re
from collections.abc import Iterator, Sequence

_TONE = r"(medium-light|medium-dark|light|medium|dark) skin tone"
_HOUR = "(one|two|three|four|five|six|seven|eight|nine|ten|eleven|twelve)"
# one thing under several names
_SAME = {
    _TONE: "",
    r"(red|curly|white|blond) hair": "",
    "light blue": "blue",
    "mer(maid|man)": "merperson",
    "prince(ss)?|with crown": "with crown",
    r"(santa|mrs\.|mx) claus": "claus",
    "breast-feeding": "feeding baby",
    "family.*": "family",
    "mountain biking": "biking",
    f"{_HOUR}(-thirty| o’clock)": "clock face",
    r"keycap \S+": "keycap",
    "(upwards|downwards) button": "arrow button",
    "(wo)?men’s room|water closet": "restroom",
    "globe showing.*": "globe",
    "speaker (low|medium|high) volume|muted speaker": "speaker",
}
_PATTERNS = [(re.compile(rf"(?<![\w’-])({old})(?![\w’-])", re.IGNORECASE), new) for old, new in _SAME.items()]
_PERSON_WORDS = """man woman men women person people boy girl male female adult child children man’s woman’s
    old older bald beard"""
_OTHER_WORDS = """red orange yellow green blue purple brown black white grey pink
    large small medium medium-small big high-speed open closed
    left right up down upwards downwards leftwards rightwards left-facing right-facing facing front-facing
    up-left up-right down-left down-right left-right up-down tilted oncoming
    horizontal vertical waxing waning crescent gibbous first last quarter full new"""
_RELATION_WORDS = "and with without of in on or from behind over for at holding tipping"
_PERSON, _RELATION = (frozenset(words.split()) for words in (_PERSON_WORDS, _RELATION_WORDS))
_VARIANT = _PERSON.union(_OTHER_WORDS.split())


def concept_name(name: str) -> str:
    """Return the name of an emoji in the singular, without words for its variants.

    >>> concept_name("woman walking facing right medium-dark skin tone"), concept_name("two light blue hearts")
    ('walking', 'two heart')
    """
    for pattern, new in _PATTERNS:
        name = pattern.sub(new, name)
    words = name.split()
    kept = [word for word in words if word not in _VARIANT]
    while kept and kept[0] in ("and", "with", "in"):
        del kept[0]
    singular = (
        word[:-1] if len(word) > 3 and word.endswith("s") and word[-2] != "s" else word for word in kept
    )
    return " ".join(singular) or ("person" if _PERSON.issuperset(words) else name)


def without_tone(name: str) -> str:
    """Return a name without its skin tones."""
    return re.sub(rf" {_TONE}", "", name)


def concepts_of(captions: Sequence[Sequence[str]], groups: Sequence[str]) -> list[str]:
    """Return the shortest name of each emoji's concept, by its captions (the name, then aliases) and its group."""
    from scipy.sparse import coo_array  # slow to import
    from scipy.sparse.csgraph import connected_components

    names = [concept_name(name) for name, *_ in captions]
    places = {name: place for place, name in reversed([*enumerate(names)])}
    in_group = dict(zip(zip(names, groups, strict=True), range(len(names)), strict=True))

    def links(place: int) -> Iterator[int | None]:
        yield places[names[place]]
        yield from (places.get(concept_name(alias)) for alias in captions[place][1:])
        words, persons = names[place].split(), _PERSON.intersection(captions[place][0].split())
        for at in range(1, len(words)):
            start = " ".join(words[:at])
            yield places.get(start) if words[at] in _RELATION else in_group.get((start, groups[place]))
            if not _RELATION.intersection(words[:at]) and not persons:
                yield places.get(" ".join(words[at:]))

    edges = [(place, other) for place in range(len(names)) for other in links(place) if other is not None]
    graph = coo_array(([True] * len(edges), tuple(zip(*edges, strict=True))), shape=(len(names), len(names)))
    _, component = connected_components(graph, directed=False)
    numbered = sorted(zip(component.tolist(), names, strict=True), key=lambda one: (len(one[1]), one[1]))
    shortest = dict(reversed(numbered))
    return [shortest[own] for own in component.tolist()]
