"""Options of commands: validation whose errors are one line, how the command line shows a field, and shared fields."""

import os
import re
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from contextvars import ContextVar
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal, Self

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    PrivateAttr,
    ValidationError,
    ValidationInfo,
    field_validator,
)

from antiphase.errors import UserError, invalid, refuse_truth_value, shown
from antiphase.registry import MODELS

MOST_AT_ONCE = 2**20  # of images in a batch: far more than fit in memory
_MOST = 10**15  # of an integer whose field has no bound of its own: longer numbers overflow
_MOST_PARTS = 256  # of a path: pathlib makes them one within the other
# e999999999 takes minutes
_NUMBER = re.compile(r"[+-]?([0-9]+\.?[0-9]*|\.[0-9]+)(e[+-]?[0-9]{1,3})?", re.IGNORECASE)
_SETTING = re.compile(rf"\w+\s*=(?!({'|'.join(MODELS)}):)")  # of a model, and no model with a name
_STORED: ContextVar[frozenset[str]] = ContextVar("stored", default=frozenset())  # names of fields from a file


@dataclass(frozen=True)
class Typed:
    """How the command line shows a field where its type and name do not say it.

    ``text`` turns a default into the text that one would type, which the field's validator reads; ``choices`` are the
    valid values of a field of strings that has no ``Literal`` type.
    """

    argument: bool = False
    flags: tuple[str, ...] = ()
    metavar: str | None = None
    text: Callable[[Any], str] | None = None
    choices: Collection[str] | None = None


class Options(BaseModel):
    """The options of a command, for its command line, its Python function and its stored record."""

    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True)
    left_out: ClassVar[tuple[str, ...]] = ()  # inherited fields that the command line does not offer

    @classmethod
    def from_file(cls, stored: Mapping[str, Any], /, **values: Any) -> Self:
        """Return options of which some were read from a file, which may hold some that have no use here."""
        token = _STORED.set(frozenset(stored) - frozenset(values))
        try:
            return cls(**{**stored, **values})
        finally:
            _STORED.reset(token)

    def typed(self, name: str) -> bool:
        """Whether the caller gave a field, and no file did."""
        return name in self.model_fields_set - self._stored

    _stored: frozenset[str] = PrivateAttr(default_factory=_STORED.get)

    def __init__(self, **values: Any) -> None:
        try:
            super().__init__(**values)
        except ValidationError as error:
            mistake = error.errors(include_url=False)[0]
            if mistake["type"] != "extra_forbidden":
                raise invalid(error) from None
            known = ", ".join(type(self).model_fields)
            raise UserError(f"option {mistake['loc'][0]!r}: expected one of {known}") from None

    _check_number = field_validator("*", mode="before")(refuse_truth_value)

    @field_validator("*")
    @classmethod
    def _check_choice(cls, value: Any, info: ValidationInfo) -> Any:
        if value is None:  # an optional field that was not given
            return value
        markers = cls.model_fields[info.field_name or ""].metadata
        if isinstance(value, int) and value > _MOST and not any(hasattr(marker, "le") for marker in markers):
            raise UserError(f"{info.field_name} {shown(value)}: expected an integer of at most {_MOST}")
        for marker in markers:
            if isinstance(marker, Typed) and marker.choices is not None and value not in marker.choices:
                raise UserError(f"{info.field_name} {shown(value)}: expected one of {', '.join(marker.choices)}")
        return value

    def chosen(self, *names: str) -> dict[str, Any]:
        return {name: value for name in names if (value := getattr(self, name)) is not None}

    def record(self) -> dict[str, Any]:
        return self.model_dump(mode="json")


# readers of what was typed: text becomes values, and values stay as they are


def read_number(value: Any, info: ValidationInfo) -> Any:
    """Read a finite number from text; ``1/255`` is one."""
    if not isinstance(value, str):
        return value
    above, slash, below = (word.strip() for word in value.partition("/"))
    with suppress(ValueError, ZeroDivisionError, OverflowError):
        if all(map(_NUMBER.fullmatch, [above, below] if slash else [above])):
            return float(Fraction(above) / Fraction(below if slash else 1))
    raise UserError(f"{info.field_name} {shown(value.strip())}: expected a finite number or a fraction such as 1/255")


def read_words(value: Any) -> Any:
    """Split a comma-separated list, write a dictionary as NAME=VALUE; leave other sequences, and None as no words."""
    if isinstance(value, Mapping):
        return tuple(f"{name}={part}" for name, part in value.items())
    if isinstance(value, str):
        return tuple(part.strip() for part in value.split(",") if part.strip())
    return () if value is None else value


def read_numbers(value: Any) -> Any:
    """Split a comma-separated list, in which every part has to be a number; take a number as a list of it."""
    if isinstance(value, str):
        return tuple(value.split(","))
    if isinstance(value, int | float):
        return (value,)
    with suppress(TypeError):  # a tensor without axes
        return tuple(value) if isinstance(value, Iterable) and not isinstance(value, bytes | Mapping) else value
    return value


def read_models(value: Any) -> Any:
    """Split a comma-separated list of models; a comma before ``name=`` belongs to the settings after a ``?``."""
    if not isinstance(value, str) or os.path.isdir(os.path.expanduser(value)):
        return (value,) if isinstance(value, str) else read_words(value)
    if not (words := read_words(value)):
        raise UserError(f"{shown(value)}: expected a model; leave the option out for none")
    models: list[str] = []
    for word in words:
        if models and "?" in models[-1] and _SETTING.match(word):
            models[-1] += f",{word}"
        else:
            models.append(word)
    return tuple(models)


def each_once(numbers: tuple[float, ...], info: ValidationInfo) -> tuple[float, ...]:
    """Refuse a number that is given twice."""
    if again := [number for number in numbers if numbers.count(number) > 1]:
        raise UserError(f"{info.field_name} {eps_text(again[0])}: given twice; give each number once")
    return numbers


def eps_text(value: float | Sequence[float]) -> str:
    """Return numbers as one would type them, such as ``0.5/255,0.3``."""
    if not isinstance(value, int | float):
        return ",".join(map(eps_text, value))
    above = f"{value * 255:g}"
    return f"{above}/255" if len(above) < 4 and float(Fraction(above) / 255) == value else repr(value)


def as_tuple(value: Any) -> Any:
    """Return one text or path as a tuple of it, and anything else as it is."""
    return (value,) if isinstance(value, str | Path) else value


def at_least_one(values: tuple[Any, ...]) -> tuple[Any, ...]:
    """Refuse an empty list."""
    if not values:
        raise ValueError("expected at least one")
    return values


def directory(value: str | Path) -> Path:
    """Return the path of a directory, whether it exists or not; refuse what is no path, or a file."""
    if not isinstance(value, str | Path):
        raise ValueError("expected the path of a directory")
    if not str(value).strip() or "\0" in str(value):
        raise ValueError(f"{str(value)!r} is no path; expected a directory")
    if os.path.isfile(value):  # never raises, unlike Path.is_file
        raise ValueError(f"{str(value)!r} is a file; expected a directory")
    if (parts := len(Path(value).parts)) > _MOST_PARTS:
        raise ValueError(f"has {parts:,} parts; expected at most {_MOST_PARTS}")
    return Path(in_unicode(str(value)))


def in_unicode(text: str) -> str:
    """Refuse text with bytes that are not UTF-8."""
    try:
        text.encode()
    except UnicodeEncodeError:
        raise ValueError(f"{shown(text)} is not UTF-8; expected text in UTF-8") from None
    return text


def read_settings(value: Any) -> Any:
    """Read ``NAME=VALUE`` texts as a dictionary; values stay text for whoever knows their types."""
    if isinstance(value, str):
        value = (value,)
    if value is None or isinstance(value, Mapping):
        return dict(value or {})
    if not isinstance(value, Sequence):
        return value
    settings: dict[str, Any] = {}
    for text in value:
        name, equals, setting = str(text).partition("=")
        if not equals or not name:
            raise UserError(f"set {shown(str(text))}: expected NAME=VALUE, such as momentum=0.9")
        if name in settings:
            raise UserError(f"set {shown(name)}: given twice; give each setting once")
        settings[name] = setting
    return settings


# kinds of values
Words = Annotated[tuple[str, ...], BeforeValidator(read_words), Typed(text=",".join, metavar="A,B,…")]
Models = Annotated[tuple[str, ...], BeforeValidator(read_models), Typed(text=",".join, metavar="MODEL,…")]
Number = Annotated[float, BeforeValidator(read_number), Typed(text=eps_text)]
OptionalNumber = Annotated[float | None, BeforeValidator(read_number), Typed(text=eps_text)]
Numbers = Annotated[
    tuple[Annotated[float, BeforeValidator(read_number)], ...],
    BeforeValidator(read_numbers),
    AfterValidator(at_least_one),
    AfterValidator(each_once),
    Typed(text=eps_text, metavar="X,…"),
]
Unicode = Annotated[str, AfterValidator(in_unicode)]
Directory = Annotated[Path, BeforeValidator(directory), Typed(metavar="DIRECTORY")]

# models
_FORMS = (
    "specimen:diffvit-0, a run directory, python:FILE:CALLABLE (runs your code), timm:NAME, torchvision:NAME, "
    "hf:ORG/NAME or hf:DIRECTORY, open_clip:NAME/TAG, diffclip:PATH, hub:USER/NAME, robustbench:NAME. NAME=MODEL names "
    "it in tables, MODEL@seed=N states its training seed."
)
_SEVERAL = Field(description=f"Model, or several separated by commas: {_FORMS}")
Model = Annotated[Models, AfterValidator(at_least_one), Typed(argument=True), _SEVERAL]


def _one(spec: Any) -> Any:
    """Refuse several models; a dictionary of one, in Python, comes as a tuple."""
    models = read_models(spec) if isinstance(spec, str) else spec
    if isinstance(models, tuple | list) and len(models) > 1:
        raise ValueError(f"{len(models)} models; expected one")
    return spec[0] if isinstance(spec, tuple) and spec else spec


Single = Annotated[str, BeforeValidator(_one), Typed(metavar="MODEL")]
OneModel = Annotated[Single, Typed(argument=True), Field(description=f"Model: {_FORMS}")]
_AGAINST = (
    "Model to compare with, such as the twin with standard attention; several separated by commas, one for each model."
)
Against = Annotated[Models, Field(description=_AGAINST)]
_SEEDS = (
    "Training seeds, over which the results are averaged, separated by commas: of the models in their order, and of "
    "their twins; or of one model, built with each of them, whose name may hold {seed}, as in runs/vit-{seed}."
)
Seeds = Annotated[
    tuple[Annotated[int, Field(ge=0, le=2**63 - 1)], ...],
    BeforeValidator(read_numbers),
    Typed(text=lambda seeds: ",".join(map(str, seeds)), metavar="N,…"),
    Field(description=_SEEDS),
]
_OF_LIBRARIES = "timm:, torchvision:, hf: and open_clip: models"
RandomWeights = Annotated[bool, Field(description=f"Build {_OF_LIBRARIES} with random weights, without a download.")]

# images
_CLASSES = (
    "Text file with the data's class names in the order of the model's outputs, one per line; a blank line stands for "
    "a class missing from the data. If not given: classes are matched by the names stored with the model."
)
Classes = Annotated[Path | None, Field(description=_CLASSES)]
Split = Annotated[str, Field(description="Split of the data: test, train or another that the source has.")]
Limit = Annotated[int | None, Typed(metavar="N"), Field(ge=1, description="Use at most N images.")]
SkipBad = Annotated[bool, Field(description="Leave out images that cannot be read, and count them.")]
_IMAGE_SIZE = (
    "Side in pixels of image files once they are resized. If not given: the model's, or, if it takes any, the source's."
)
ImageSize = Annotated[int | None, Field(ge=1, description=_IMAGE_SIZE)]
_RESIZE = (
    "How image files become squares: squash changes the aspect ratio, crop takes the centre. If not given: as the "
    "model's library does, or crop."
)
Resize = Annotated[Literal["squash", "crop"] | None, Field(description=_RESIZE)]

# questions
_SUFFIX = (
    "Put behind every question to a vision-language model, on a line of its own. LLaVA's 'Answer the question using a "
    "single word or phrase.' is one."
)
Suffix = Annotated[Unicode, Field(description=_SUFFIX)]

# the run
Out = Annotated[Directory, Field(description="Directory to write. The same command resumes a killed run.")]
Seed = Annotated[int, Field(ge=0, le=2**63 - 1, description="Random seed.")]
_BATCH = "Images per batch; affects no result. If not given: chosen to fit the device."
BatchSize = Annotated[int | None, Field(ge=1, le=MOST_AT_ONCE, description=_BATCH)]
Device = Annotated[str, Field(description="Device: auto, cpu, cuda, cuda:1 and so on.")]
Quiet = Annotated[bool, Typed(flags=("--quiet", "-q")), Field(description="Show no progress bars.")]

_TRACK = (
    "Experiment trackers that get loss, accuracy, learning rate and λ by layer, separated by commas: tensorboard, "
    "wandb, mlflow or another that accelerate supports. Affects no result."
)
Track = Annotated[Words, Field(description=_TRACK)]


class Measurement(Options):
    """What every measurement of models on images has."""

    model: Model
    data: str | None = None
    """Source of images, such as digits, fashion-mnist, folder:PATH or npz:FILE, and more in docs/data.md. If not given:
    the test images of the model's own data."""
    split: Split = "test"
    image_size: ImageSize = None
    resize: Resize = None
    random_weights: RandomWeights = False
    skip_bad: SkipBad = False
    prompt: Unicode | None = None
    """Template of a CLIP's class prompts, with {} for the class name. If not given: the data's, or 'a photo of {}'."""
    seed: Seed = 0
    device: Device = "auto"
    quiet: Quiet = False
