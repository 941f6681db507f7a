"""The form for a new search, built from its space."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from fastapi import APIRouter, Request, Response
from fastapi.responses import RedirectResponse
from pydantic import ValidationError

from nas.objectives import LATENCY, OBJECTIVES, QUALITY
from nas.request.picks import WORDS
from nas.request.presets import PRESETS
from search_spaces.errors import NasError, UnknownNameError
from search_spaces.space import Choice, SearchSpace, Slot
from service.access import Context, InContext, Submitter
from service.dashboard.pages import Form, Page, page
from service.problems import ProblemError
from service.routes import jobs
from service.schemas import JobRequest, SpaceSource
from service.specs import read_space

GENE = "gene:"  # before the names of the genes' fields
LIMIT = "limit:"
DEFAULT_SPACE = "digits"
Fields = Mapping[str, Sequence[str]]

router = APIRouter(route_class=Page)


@dataclass(frozen=True, slots=True)
class Gene:
    """One row of the form: a gene of all layers, or of one layer where they differ.

    Attributes:
        name: as `SearchSpace.restrict` takes it.
        label: in words.
        choices: all of them.
        kept: those that are ticked.
    """

    name: str
    label: str
    choices: tuple[Choice, ...]
    kept: tuple[Choice, ...]


@router.get("/new")
def new(request: Request, token: Submitter, context: InContext) -> Response:
    """The form; choices in the address are taken over, and the networks that remain counted."""
    params = request.query_params
    return _form_page(request, context, {name: params.getlist(name) for name in params})


@router.post("/new")
def submit(request: Request, token: Submitter, context: InContext, form: Form) -> Response:
    """Submit what the form holds; what is wrong with it is said above it."""
    try:
        space = _space(context, form)
        given = JobRequest(**read_form(form, space))
        made, _ = jobs.begin_search(given, token, context)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        where = ".".join(str(part) for part in first["loc"])
        return _form_page(request, context, form, f"{where}: {first['msg']}")
    except ProblemError as error:
        if error.status not in (403, 422):
            raise
        return _form_page(request, context, form, error.detail)
    return RedirectResponse(f"/jobs/{made.id}", status_code=303)


def _form_page(
    request: Request, context: Context, form: Fields, problem: str | None = None
) -> Response:
    space = _space(context, form)
    rows = genes(space, form)
    try:
        restrict = _restriction(rows)
        source = SpaceSource(space=space.name, restrict=restrict)
        remaining = read_space(source, context.catalog).size
    except ProblemError as error:
        remaining, problem = 0, problem or error.detail
    return page(
        request,
        "new",
        422 if problem else 200,
        problem=problem,
        space=space,
        spaces=context.catalog.space_names(),
        datasets=[one.name for one in context.catalog.datasets() if one.problem is None],
        presets=list(PRESETS),
        picks=WORDS,
        costs=[name for name in OBJECTIVES if name != QUALITY],
        objectives=form.get("objective") or [QUALITY, LATENCY],
        genes=rows,
        remaining=remaining,
        given={name: _one(form, name) for name in _TEXTS},
        limits={name: _one(form, LIMIT + name) for name in OBJECTIVES if name != QUALITY},
    )


_TEXTS = ("title", "preset", "seed", "dataset", "quality", "device", "pick")


def _space(context: Context, form: Fields) -> SearchSpace:
    name = _one(form, "space") or DEFAULT_SPACE
    try:
        return context.catalog.space(name)
    except UnknownNameError as error:
        raise ProblemError(404, str(error)) from error
    except NasError as error:
        raise ProblemError(422, str(error)) from error


def genes(space: SearchSpace, form: Fields) -> list[Gene]:
    """The rows of the form; everything is ticked where the form holds no choices yet."""
    from nas.report import words  # brings along what plots reports

    fresh = not any(name.startswith(GENE) for name in form)
    rows = []
    for name, slot in _fields(space).items():
        ticked = set(form.get(GENE + name, ()))
        kept = tuple(choice for choice in slot.choices if fresh or str(choice) in ticked)
        label = words.GENES.get(slot.gene, slot.gene)
        stack = f"{slot.stack}: " if len(space.stacks) > 1 else ""
        own = slot.layer is not None and name == slot.name
        layer = f", layer {(slot.layer or 0) + 1}" if own else ""
        rows.append(Gene(name, f"{stack}{label}{layer}", slot.choices, kept))
    return rows


def _fields(space: SearchSpace) -> dict[str, Slot]:
    """Gene, or slot where the layers of a gene have different choices → a slot with them."""
    choices: dict[str, set[tuple[Choice, ...]]] = {}
    for slot in space.slots:
        choices.setdefault(slot.gene_name, set()).add(slot.choices)
    fields: dict[str, Slot] = {}
    for slot in space.slots:
        alike = len(choices[slot.gene_name]) == 1
        fields.setdefault(slot.gene_name if alike else slot.name, slot)
    return fields


def _restriction(rows: Sequence[Gene]) -> dict[str, list[Choice]]:
    """What is left of the genes of which something was unticked.

    Raises:
        ProblemError: 422 when nothing is left of one.
    """
    for row in rows:
        if not row.kept:
            raise ProblemError(422, f"{row.label}: tick at least one choice")
    return {row.name: list(row.kept) for row in rows if row.kept != row.choices}


def read_form(form: Fields, space: SearchSpace) -> dict[str, Any]:
    """The request that a form stands for.

    Raises:
        ProblemError: 422 for a field that is no number.
    """
    request: dict[str, Any] = {"space": space.name, "restrict": _restriction(genes(space, form))}
    for name in ("title", "preset", "dataset", "quality", "device", "pick"):
        if _one(form, name):
            request[name] = _one(form, name)
    if _one(form, "seed"):
        request["seed"] = _number(form, "seed")
    limits = [name for name in form if name.startswith(LIMIT) and _one(form, name)]
    request["limits"] = {name.removeprefix(LIMIT): _number(form, name) for name in limits}
    if form.get("objective"):
        request["objectives"] = list(form["objective"])
    return request


def _number(form: Fields, name: str) -> float | int:
    text = _one(form, name)
    try:
        number = float(text)
    except ValueError:
        number = math.nan
    if not math.isfinite(number):
        raise ProblemError(422, f"{name.removeprefix(LIMIT)} is a number; given {text[:50]!r}")
    return int(number) if number.is_integer() else number


def _one(form: Fields, name: str) -> str:
    values = form.get(name) or [""]
    return values[0].strip()
