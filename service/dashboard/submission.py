"""The form for a new search, built from its space."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, get_args, get_origin

from fastapi import APIRouter, Request, Response
from fastapi.responses import RedirectResponse
from pydantic import ValidationError

from nas.objectives import COSTS, LATENCY, OBJECTIVES, QUALITIES, QUALITY
from nas.request.fields import first_problem, read_texts, shown
from nas.request.protected_choices import NONE
from nas.request.spec import PLAIN, SYNTHETIC, SpaceSource
from search_spaces.errors import NasError, UnknownNameError, UsageError
from search_spaces.space import Choice, SearchSpace, Slot
from service.api.dependencies import Context, InContext, Submitter
from service.api.problems import ProblemError
from service.api.routes import jobs
from service.api.schemas import JobRequest
from service.api.specs import read_space
from service.auth import Token
from service.dashboard.pages import Form, Page, page

GENE = "gene:"  # before the names of the genes' fields
LIMIT = "limit:"
DEFAULT_SPACE = "digits"
# Always shown, in this order; the others below "More".
MAIN = ("title", "preset", "seed", "dataset", "device", "pick", "quality")
Fields = Mapping[str, Sequence[str]]

router = APIRouter(route_class=Page)


@dataclass(frozen=True, slots=True)
class Control:
    """A field of the form.

    Attributes:
        name: of the request's field.
        label: in words.
        help: what it means.
        kind: ``select``, ``number``, ``text`` or ``lines``.
        value: what it holds.
        options: what can be chosen, or is proposed.
        usual: what holds while it is empty; None where it never is.
        hint: the form of a text.
        main: whether it is always shown.
    """

    name: str
    label: str
    help: str
    kind: str
    value: str
    options: Sequence[str]
    usual: str | None
    hint: str
    main: bool


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
    return _form_page(request, token, context, {name: params.getlist(name) for name in params})


@router.post("/new")
def submit(request: Request, token: Submitter, context: InContext, form: Form) -> Response:
    """Submit what the form holds; what is wrong with it is said above it."""
    try:
        space = _space(context, form)
        given = JobRequest(**read_form(form, space))
        made, _ = jobs.begin_search(given, token, context)
    except ValidationError as error:
        return _form_page(request, token, context, form, first_problem(error))
    except UsageError as error:
        return _form_page(request, token, context, form, str(error))
    except ProblemError as error:
        if error.status not in (403, 422):
            raise
        return _form_page(request, token, context, form, error.detail)
    return RedirectResponse(f"/jobs/{made.id}", status_code=303)


def _form_page(
    request: Request, token: Token, context: Context, form: Fields, problem: str | None = None
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
        controls=controls(context, space, form, token),
        costs=COSTS,
        more=[name for name in COSTS if OBJECTIVES[name].maximise],
        objectives=form.get("objective") or [QUALITY, LATENCY],
        genes=rows,
        remaining=remaining,
        limits={name: _one(form, LIMIT + name) for name in COSTS},
    )


def controls(context: Context, space: SearchSpace, form: Fields, token: Token) -> list[Control]:
    """What the form asks for besides space, objectives and choices: the fields of a request."""
    catalog, dataset = context.catalog, space.data.get("dataset")
    here: dict[str, list[str]] = {
        "dataset": [one.name for one in catalog.datasets() if one.problem is None],
        "data": [SYNTHETIC, *catalog.data_names()],
        "device_profile": catalog.profile_names(),
        "start": catalog.seen_by(token).checkpoint_names(),
        "quality": [name for name, one in QUALITIES.items() if space.task in one.tasks],
        "baseline": [PLAIN, NONE],
        "executor": ["local", *{context.settings.executor} - {"local"}],
    }
    found = []
    for name, field in JobRequest.model_fields.items():
        how = shown(field)
        if how.apart:
            continue
        number = int in (field.annotation, *get_args(field.annotation))
        options = here.get(name, [str(one) for one in get_args(field.annotation)])
        kind = "lines" if how.many else "number" if number else "text"
        if name in here or get_origin(field.annotation) is Literal:
            kind = "select"
        usual = f"the space's own ({dataset})" if name == "dataset" and dataset else how.usual
        found.append(
            Control(
                name=name,
                label=how.label,
                help=str(field.description),
                kind=kind,
                value="\n".join(form.get(name) or [str(field.default or "")]),
                options=[*map(str, field.examples or ())] if kind == "text" else options,
                usual=usual or ("" if field.default is None else None),
                hint=how.metavar or "",
                main=name in MAIN,
            )
        )
    return sorted(found, key=lambda one: MAIN.index(one.name) if one.main else len(MAIN))


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
    """The request that a form stands for, not checked yet.

    Raises:
        ProblemError: 422 when nothing is left of a gene.
        UsageError: for a text of another form than its field has.
    """
    texts = {
        name: [line.strip() for line in "\n".join(form[name]).splitlines() if line.strip()]
        for name, field in JobRequest.model_fields.items()
        if _one(form, name) and not shown(field).apart
    }
    request = read_texts(JobRequest, texts)
    if "start" not in request:  # around a checkpoint there is a space of its own
        request |= {"space": space.name, "restrict": _restriction(genes(space, form))}
    limits = [name for name in form if name.startswith(LIMIT) and _one(form, name)]
    request["limits"] = {name.removeprefix(LIMIT): _one(form, name) for name in limits}
    if form.get("objective"):
        request["objectives"] = list(form["objective"])
    return request


def _one(form: Fields, name: str) -> str:
    values = form.get(name) or [""]
    return values[0].strip()
