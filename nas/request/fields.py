"""How people give a field of a request: as an option, in a form, as text."""

from __future__ import annotations

import difflib
import functools
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, TypeVar

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, ValidationError
from pydantic.fields import FieldInfo
from pydantic_core import PydanticCustomError

from search_spaces.errors import UsageError
from search_spaces.wording import option

T = TypeVar("T")

LINE = r"^[^\x00-\x1f\x7f]*$"
UNKNOWN_FIELD = ("extra_forbidden", "unexpected_keyword_argument")
_KINDS = {
    "boolean": "true or false",
    "string": "a text",
    "array": "a list",
    "object": "a table of keys",
    "integer": "a whole number",
    "number": "a number",
}
_BOUNDS = {"minimum": "min", "maximum": "max", "maxLength": "maxlength"}
FROZEN = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)


@dataclass(frozen=True, slots=True)
class Shown:
    """How people give a field; what it means and may be stands in the field itself.

    Attributes:
        label: in the form.
        option: whether the commands have one, see `search_spaces.wording.option`.
        metavar: what follows the option.
        usual: what holds where nothing is given, in words.
        read: (what the field is called, texts) → its value, where it is not one plain value.
        many: whether there may be several texts: an option is repeated, a control has lines.
        long: whether it is one text that may have several lines.
        without: another option, without a value, which stands for the word ``none``.
        apart: why the form has no control for it, or asks for it in another way.
    """

    label: str = ""
    option: bool = True
    metavar: str | None = None
    usual: str | None = None
    read: Callable[[str, Sequence[str]], Any] | None = None
    many: bool = False
    long: bool = False
    apart: str = ""
    without: str = ""


def shown(field: FieldInfo) -> Shown:
    """How people give a field."""
    return next(one for one in field.metadata if isinstance(one, Shown))


def option_of(model: type[BaseModel], name: str) -> str:
    """The option of a field; empty where it has none."""
    return option(name) if shown(model.model_fields[name]).option else ""


def checked(check: Callable[[T], T]) -> AfterValidator:
    """A check whose refusal is reported with the field it belongs to."""

    def run(value: T) -> T:
        with as_value_error():
            return check(value)

    return AfterValidator(run)


def _no_truth(given: Any) -> Any:
    if isinstance(given, bool):
        # Unlike a ValueError it is told with the field and what was given.
        raise PydanticCustomError("truth", "Input should be a number, not true or false")
    return given


NUMERIC = BeforeValidator(_no_truth)
"""Of a field that is a number: true and false, which Python takes for 1 and 0, are none.

It stands behind the bounds, which are the number's.
"""


@contextmanager
def as_value_error() -> Iterator[None]:
    """Let a refusal be one of a field, which pydantic knows as a `ValueError`."""
    try:
        yield
    except UsageError as error:
        raise ValueError(error.marked) from None


def nearest(name: str, known: Iterable[str]) -> str:
    """A hint at the nearest known name, or nothing."""
    near = difflib.get_close_matches(name, list(known), n=1, cutoff=0.4)
    return f"; did you mean {near[0]!r}?" if near else ""


def first_problem(
    error: ValidationError, model: type[BaseModel], called: Callable[[str], str] = str
) -> str:
    """What is wrong, as one sentence.

    Args:
        error: of a request, spec or budget.
        model: what the values were given for.
        called: field → what to call it.
    """
    problem = error.errors(include_url=False)[0]
    field, *parts = [str(part) for part in problem["loc"] if part != "[key]"] or [""]
    message = problem["msg"].removeprefix("Value error, ")
    if problem["type"] in UNKNOWN_FIELD:
        where = ".".join((field, *parts))
        return f"there is no field {where!r}{'' if parts else nearest(field, model.model_fields)}"
    if problem["type"] == "value_error":
        return message
    where = ("." if called is str else " ").join((called(field), *parts))
    if isinstance(problem["input"], float) and not math.isfinite(problem["input"]):
        return f"{where} is {problem['input']!r}, which is no number"
    return f"{where} is {problem['input']!r}: {message[0].lower()}{message[1:]}"


def allowed(form: Mapping[str, Any]) -> str:
    """What a value may be, in words, from its JSON schema: ``a whole number from 1 to 1,024``."""
    if "anyOf" in form:
        parts = [allowed(one) for one in form["anyOf"] if one.get("type") != "null"]
        return " or ".join(dict.fromkeys(parts))
    if "const" in form:
        return f"the word {form['const']}"
    if "enum" in form:
        return f"one of {', '.join(form['enum'])}"
    words = _KINDS[form["type"]]
    if "minimum" in form:
        words += f" from {form['minimum']:,}"
    if "exclusiveMinimum" in form:
        words += f" above {form['exclusiveMinimum']:,}"
    if "maximum" in form:
        words += f" to {form['maximum']:,}"
    return words + (f" of at most {form['maxLength']:,} characters" if "maxLength" in form else "")


def bounds_of(model: type[BaseModel], name: str) -> dict[str, int | float]:
    """The bounds of a field's value, named like the attributes of a control in HTML.

    Args:
        model: that has the field.
        name: of the field.

    Returns:
        ``min``, ``max`` and ``maxlength``, as far as the field has them.
    """
    form = _properties(model)[name]
    parts = (form, *form.get("anyOf", ()))
    return {html: part[key] for key, html in _BOUNDS.items() for part in parts if key in part}


@functools.cache
def _properties(model: type[BaseModel]) -> Mapping[str, Any]:
    return model.model_json_schema()["properties"]  # type: ignore[no-any-return]


# -- texts ----------------------------------------------------------------------------------------


def names(called: str, texts: Sequence[str]) -> list[str]:
    """``["quality,flops"]`` → ``["quality", "flops"]``."""
    return [name.strip() for text in texts for name in text.split(",")]


def words(called: str, texts: Sequence[str]) -> list[str]:
    """``["paper, table-2 draft"]`` → ``["paper", "table-2", "draft"]``."""
    return [word for text in texts for word in text.replace(",", " ").split()]


def pairs(called: str, texts: Sequence[str]) -> dict[str, str]:
    """``["latency_ms=5"]`` → ``{"latency_ms": "5"}``.

    Raises:
        UsageError: for another form, or a name that is given twice.
    """
    found: dict[str, str] = {}
    for text in texts:
        name, equals, value = (part.strip() for part in text.partition("="))
        if not (name and equals and value):
            raise UsageError(f"{called} takes NAME=VALUE, for example params=2e5; given {text!r}")
        if name in found:
            raise UsageError(f"{called} {name} is given twice: {found[name]} and {value}")
        found[name] = value
    return found


def gene_choices(called: str, texts: Sequence[str]) -> dict[str, list[str]]:
    """``["encoder.attention=omni,linear"]`` → ``{"encoder.attention": ["omni", "linear"]}``.

    Raises:
        UsageError: for another form.
    """
    found: dict[str, list[str]] = {}
    for text in texts:
        name, equals, values = (part.strip() for part in text.partition("="))
        named = [value.strip() for value in values.split(",")]
        if not (name and equals and all(named)):
            raise UsageError(
                f"{called} takes GENE=CHOICE, for example encoder.attention=omni; given {text!r}"
            )
        found.setdefault(name, []).extend(named)
    return found


def texts_of(value: Any) -> list[str]:
    """A value as it is typed, a text for each time its field is given; `read_texts` reads them.

    What is None among the values of a table is left out.
    """
    if isinstance(value, Mapping):
        given = {name: each for name, each in value.items() if each is not None}
        return [f"{name}={','.join(texts_of(each))}" for name, each in given.items()]
    if isinstance(value, list | tuple):
        return [",".join(text for each in value for text in texts_of(each))]
    if isinstance(value, bool):
        return [str(value).lower()]
    return [str(value).removesuffix(".0") if isinstance(value, float) else str(value)]


def read_texts(
    model: type[BaseModel],
    given: Mapping[str, Sequence[str]],
    called: Callable[[str], str] = str,
) -> dict[str, Any]:
    """What texts stand for, as the model takes it.

    Args:
        model: whose fields they are of.
        given: field → texts, as typed.
        called: field → what messages call it.

    Raises:
        UsageError: for a text of another form than its field has.
    """
    values: dict[str, Any] = {}
    for name, texts in given.items():
        read = shown(model.model_fields[name]).read
        values[name] = texts[0] if read is None else read(called(name), texts)
    return values
