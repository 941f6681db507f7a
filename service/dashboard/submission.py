"""The form for a new search, built from its space."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal, get_args, get_origin

from fastapi import APIRouter, Request, Response
from fastapi.responses import JSONResponse, RedirectResponse
from pydantic import ValidationError

from nas.objectives import COSTS, LATENCY, OBJECTIVES, QUALITIES, QUALITY
from nas.request.fields import bounds_of, first_problem, read_texts, shown, texts_of
from nas.request.protected_choices import NONE
from nas.request.spec import DETERMINISTIC, PLAIN, SYNTHETIC, SpaceSource
from nas.run.duration import not_told
from search_spaces.architecture import Architecture
from search_spaces.errors import NasError, UnknownNameError, UsageError
from search_spaces.loading import parse_space
from search_spaces.space import Choice, SearchSpace, Slot
from search_spaces.wording import mark
from service.api.catalog import Catalog
from service.api.dependencies import Context, InContext, Submitter, job_of
from service.api.problems import ProblemError
from service.api.routes import jobs
from service.api.schemas import JobRequest
from service.api.specs import read_space
from service.auth import Token
from service.dashboard.pages import Form, Page, digits, page
from service.dashboard.pages import duration as seconds
from service.dashboard.wording import for_pages, no_space_for, of_control
from service.jobs.states import Kind
from supernet.data.sources import SOURCES

GENE = "gene:"  # before the names of the genes' fields
LIMIT = "limit:"
DEFAULT_SPACE = "digits"
AGAIN = "again"  # the job whose request the form begins with
GENES_OF = "genes_of"  # the space whose choices the form has shown
WITH_SPACE = "with_space"  # ticked, a checkpoint is searched in the space shown
WHAT, HOW_GOOD, HOW_LONG, WHERE = "What", "How good", "How long", "Where"
# Group → its fields in their order; a field that stands nowhere belongs to the last.
GROUPS: Mapping[str, Sequence[str]] = {
    WHAT: ("title", "tags", "notes", "dataset", "data", "start"),
    HOW_GOOD: ("quality", "pick", "retrain", "baseline", "keep"),
    HOW_LONG: ("preset", "searcher", "seed", "settings"),
    WHERE: ("device", "device_profile", "workload", "threads", "executor", "priority"),
}
# Fields without a control that the form takes over otherwise.
OTHERWISE = ("space", "space_toml", "restrict", "objectives", "limits", "deterministic")
Fields = Mapping[str, Sequence[str]]

router = APIRouter(route_class=Page)


@dataclass(frozen=True, slots=True)
class Control:
    """A field of the form.

    Attributes:
        name: of the request's field.
        label: in words.
        help: what it means.
        kind: ``select``, ``number``, ``text``, ``lines``, each of them a text, or ``long``, one
            text of several lines.
        value: what it holds.
        options: what can be chosen, or is proposed.
        gone: whether the value cannot be chosen, such as a data set that was deleted.
        usual: what holds while it is empty; None where it never is.
        hint: the form of a text.
        bounds: as `bounds_of`.
        group: of `GROUPS`.
    """

    name: str
    label: str
    help: str
    kind: str
    value: str
    options: Sequence[str]
    gone: bool
    usual: str | None
    hint: str
    bounds: Mapping[str, float]
    group: str


@dataclass(frozen=True, slots=True)
class Offer:
    """A space that can be chosen, or why it cannot."""

    name: str
    problem: str | None


@dataclass(frozen=True, slots=True)
class Chosen:
    """What the form is about: a space, and what it holds.

    Attributes:
        space: whose choices are shown.
        form: the fields; those of an earlier request where none were filled in yet.
        toml: the space's text, where it came with that request.
        note: what of that request the form cannot show, or that no space suits the data set.
        baseline: a network of one's own that came with that request, as JSON.
        turned_from: the space whose choices were shown before; empty where it is the same.
    """

    space: SearchSpace
    form: Fields
    toml: str | None = None
    note: str | None = None
    baseline: Mapping[str, Any] | None = None
    turned_from: str = ""

    @property
    def around(self) -> bool:
        """Whether the space around the checkpoint is searched, and not the one shown."""
        return bool(_one(self.form, "start")) and not _one(self.form, WITH_SPACE)

    @property
    def own_baseline(self) -> list[str]:
        """What the form calls that network; empty without one."""
        return [] if self.baseline is None else [_network(self.baseline)]


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

    @property
    def cut(self) -> bool:
        """Whether something is unticked."""
        return self.kept != self.choices


@router.get("/new")
def new(request: Request, token: Submitter, context: InContext) -> Response:
    """The form; fields in the address are taken over, those of a job with ``again=ID``."""
    params = request.query_params
    chosen = _chosen({name: params.getlist(name) for name in params}, token, context)
    return _form_page(request, token, context, chosen)


@router.post("/new")
async def submit(request: Request, token: Submitter, context: InContext, form: Form) -> Response:
    """Submit what the form holds; why that cannot be done is said above it."""
    run = context.thread_pools.spaces.run
    chosen = await run(lambda: _chosen(form, token, context))
    try:
        made, _ = await run(lambda: jobs.begin_search(_asked(chosen), token, context))
    except ValidationError as error:
        problem = ProblemError(422, first_problem(error, JobRequest, mark))
    except UsageError as error:
        problem = ProblemError(422, error.marked)
    except ProblemError as error:
        problem = error
    else:
        return RedirectResponse(f"/jobs/{made.id}", status_code=303)
    return await run(lambda: _form_page(request, token, context, chosen, problem))


@router.post("/new/check")
async def check(token: Submitter, context: InContext, form: Form) -> Response:
    """As JSON, what would be said if the form were submitted now, and how many networks remain.

    That is null where the space around a checkpoint is searched.
    """
    run = context.thread_pools.spaces.run
    problem = field = None
    remaining: int | None = 0
    try:
        chosen = await run(lambda: _chosen(form, token, context))
        remaining = await run(lambda: _remaining(chosen, context))
        await run(lambda: jobs.checked_search(_asked(chosen), token, context))
    except ValidationError as error:
        problem = first_problem(error, JobRequest, mark)
        field = str(error.errors()[0]["loc"][0]) if error.errors()[0]["loc"] else None
    except ProblemError as error:
        problem = error.detail
        field = error.errors[0].field.lstrip("/").partition("/")[0] if error.errors else None
    except NasError as error:
        problem = error.marked
    told = problem and for_pages(problem)
    left = None if remaining is None else digits(remaining)
    return JSONResponse({"problem": told, "field": field, "remaining": left})


@router.post("/new/duration")
async def duration(token: Submitter, context: InContext, form: Form) -> Response:
    """As JSON, how long the search of the form would take here, in a sentence; or why not."""
    pools = context.thread_pools
    try:
        given = await pools.spaces.run(lambda: _asked(_chosen(form, token, context)))
        found = await pools.spaces.run(lambda: context.spaces.search(given, token))
        told = await pools.trials.run(lambda: context.spaces.duration(found))
    except (ValidationError, NasError):
        return JSONResponse({"duration": ""})  # what is wrong is told by the check
    except ProblemError as error:
        return JSONResponse({"duration": for_pages(f"No duration is told: {error.detail}.")})
    text = f"No duration is told: {told.reason}."
    if not told.reason:
        longest = sorted(told.stages, key=lambda one: -(one.seconds or 0.0))[:2]
        most = ", ".join(f"{one.label} {seconds(one.seconds or 0.0)}" for one in longest)
        lacking = not_told(one.label for one in told.stages if one.seconds is None)
        text = f"About {seconds(told.seconds)} ({most}, …), as fast as this service's machine"
        text += f"{lacking}."
        if told.warning:
            text += f" {told.warning[0].upper()}{told.warning[1:]}."
    return JSONResponse({"duration": for_pages(text)})


def _asked(chosen: Chosen) -> JobRequest:
    """The request that the form stands for.

    Raises:
        ProblemError: 422 when nothing is left of a gene, or the choices are of another space.
        UsageError: for a text of another form than its field has.
        ValidationError: for a value that cannot be.
    """
    return JobRequest(**read_form(chosen))


def _remaining(chosen: Chosen, context: Context) -> int | None:
    """How many networks the ticks leave; None where they do not count.

    Raises:
        ProblemError: 422 when nothing is left of a gene.
    """
    if chosen.around:
        return None
    restrict = _restriction(genes(chosen.space, chosen.form))
    if chosen.toml is not None:
        return chosen.space.restrict(restrict).size if restrict else chosen.space.size
    return read_space(SpaceSource(space=chosen.space.name, restrict=restrict), context.catalog).size


def _form_page(
    request: Request,
    token: Token,
    context: Context,
    chosen: Chosen,
    problem: ProblemError | None = None,
) -> Response:
    form, space = chosen.form, chosen.space
    remaining: int | None = 0
    try:
        remaining = _remaining(chosen, context)
    except ProblemError as error:
        problem = problem or error
    offers = _offers(context.catalog.seen_by(token))
    answer = page(
        request,
        "new",
        problem.status if problem else 200,
        problem=problem and problem.detail,
        note=chosen.note,
        again=_one(form, AGAIN),
        space=space,
        own=chosen.toml is not None,
        offers=offers,
        lacking=next((one.problem for one in offers if one.name == space.name), None),
        groups=GROUPS,
        controls=controls(context, chosen, token),
        with_space=bool(_one(form, WITH_SPACE)),
        costs=COSTS,
        labels={name: OBJECTIVES[name].label for name in COSTS},
        units={name: OBJECTIVES[name].symbol for name in COSTS},
        more=[name for name in COSTS if OBJECTIVES[name].maximise],
        objectives=form.get("objective") or [QUALITY, LATENCY],
        genes=genes(space, form),
        remaining=remaining,
        limits={name: _one(form, LIMIT + name) for name in COSTS},
    )
    answer.headers.update(problem.headers if problem else {})
    return answer


def _offers(catalog: Catalog) -> list[Offer]:
    """All spaces; with what is missing where neither its own data are here nor others for it."""
    datasets, files = catalog.datasets(), bool(catalog.data_names())
    found = []
    for name in catalog.space_names():
        problem = None
        try:
            space = catalog.space(name)
        except NasError:
            problem = _unreadable(name, catalog)
        else:
            data = space.data.get("dataset")
            of_file = data in SOURCES and SOURCES[data].needs_path and files
            mine = (one for one in datasets if one.path is not None or one.name == data)
            if not of_file and not any(one.suits(space) for one in mine):
                problem = f"needs {data or 'data for ' + space.task.replace('_', ' ')}"
        found.append(Offer(name, problem))
    return found


def _unreadable(name: str, catalog: Catalog) -> str:
    """Why a space cannot be searched with the form."""
    try:
        catalog.genes(name)
    except NasError:
        return "cannot be read"
    return "is searched with an evaluator, by nas submit"


def _chosen(form: Fields, token: Token, context: Context) -> Chosen:
    """What a form is about, which may begin with the request of an earlier job.

    Raises:
        ProblemError: 404 for a space or job that is not there, 422 for one of another kind.
    """
    again = _one(form, AGAIN)
    if not again:
        name, note = _one(form, "space"), None
        if not name:
            name, note = _begun_with(_one(form, "dataset"), token, context)
        return _turned(Chosen(_space(context, name), form, note=note))
    job = job_of(again, token, context)
    request = dict(job.request)
    if job.kind is not Kind.search or request.get("evaluator"):
        raise ProblemError(422, "only searches of this project's networks have a form")
    toml, own = request.get("space_toml"), request.get("baseline")
    baseline = own if isinstance(own, dict) else None
    if toml is None:
        space = _space(context, _one(form, "space") or str(request.get("space") or DEFAULT_SPACE))
    else:
        space = parse_space(str(toml), job.space)
    if not form.keys() <= {AGAIN, "space"}:  # it was filled in already
        return _turned(Chosen(space, form, toml, baseline=baseline))
    around = request.get("start") and toml is None and not request.get("space")
    rows = () if around else _fields(space)  # a space around a checkpoint has no form
    lost = ", ".join(_lost(request, rows))
    note = f"not taken over: {lost}" if lost else None
    asked = {**request, "restrict": {}} if around else request
    return Chosen(space, {**form, **form_of(asked, space)}, toml, note, baseline)


def _lost(request: Mapping[str, Any], rows: Collection[str]) -> Iterator[str]:
    """What of a request the form does not take over, in words.

    Args:
        request: as it is kept; of an earlier version it may have what there is no more.
        rows: the genes whose choices the form shows.
    """
    for name in request.get("restrict", {}):
        if name not in rows:
            yield f"the choices of {name}"
    for name in request:
        field = JobRequest.model_fields.get(name)
        if name not in OTHERWISE and (field is None or shown(field).apart):
            yield of_control(name)


def _begun_with(dataset: str, token: Token, context: Context) -> tuple[str, str | None]:
    """The space that a form begins with which names none, and what to do where none suits its data.

    Of those that suit the data set it is the one that names it, or the usual one.
    """
    catalog = context.catalog.seen_by(token)
    one = next((one for one in catalog.datasets() if one.name == dataset), None)
    if one is None:
        return DEFAULT_SPACE, None
    suited = catalog.spaces_for(one)
    if not suited:
        return DEFAULT_SPACE, no_space_for(one)
    own = [space.name for space in suited if space.data.get("dataset") == dataset]
    names = own or [space.name for space in suited]
    return DEFAULT_SPACE if DEFAULT_SPACE in names else names[0], None


def _turned(chosen: Chosen) -> Chosen:
    """The same with all choices of its space, where the form has shown those of another one."""
    before = _one(chosen.form, GENES_OF)
    if before in ("", chosen.space.name):
        return chosen
    form = {name: one for name, one in chosen.form.items() if not name.startswith(GENE)}
    return replace(chosen, form=form, turned_from=before)


def form_of(request: Mapping[str, Any], space: SearchSpace) -> dict[str, list[str]]:
    """The fields of the form that stand for a request; `read_form` is the way back."""
    form = {"space": [space.name], "objective": list(request.get("objectives", ()))}
    if request.get("deterministic"):
        settings = {**request.get("settings", {}), **dict.fromkeys(DETERMINISTIC, True)}
        request = {**request, "settings": settings}
    for name, value in request.items():
        field = JobRequest.model_fields.get(name)
        if field is not None and not shown(field).apart and value is not None:
            own = name == "baseline" and isinstance(value, Mapping)
            form[name] = [_network(value)] if own else texts_of(value)
    if request.get("start") and (request.get("space") or request.get("space_toml")):
        form[WITH_SPACE] = ["true"]
    form |= {LIMIT + name: texts_of(most) for name, most in request.get("limits", {}).items()}
    kept = request.get("restrict", {})
    return form | {
        GENE + name: list(map(str, kept.get(name, slot.choices)))
        for name, slot in _fields(space).items()
    }


def _network(given: Mapping[str, Any]) -> str:
    return f"network {Architecture.from_json(given).id}"


def controls(context: Context, chosen: Chosen, token: Token) -> list[Control]:
    """What the form asks for besides space, objectives and choices: the fields of a request."""
    space, form = chosen.space, chosen.form
    catalog, dataset = context.catalog.seen_by(token), space.data.get("dataset")
    here: dict[str, list[str]] = {
        "dataset": [one.name for one in catalog.datasets() if one.problem is None],
        "data": [SYNTHETIC, *catalog.data_names()],
        "device_profile": catalog.profile_names(),
        "start": catalog.checkpoint_names(),
        "quality": [name for name, one in QUALITIES.items() if space.task in one.tasks],
        "baseline": [PLAIN, NONE, *chosen.own_baseline],
        "executor": ["local", *{context.settings.executor} - {"local"}],
    }
    found = []
    for name, field in JobRequest.model_fields.items():
        how = shown(field)
        if how.apart:
            continue
        number = int in (field.annotation, *get_args(field.annotation))
        options = here.get(name, [str(one) for one in get_args(field.annotation)])
        kind = "lines" if how.many else "long" if how.long else "number" if number else "text"
        if name in here or get_origin(field.annotation) is Literal:
            kind = "select"
        usual = f"the space's own ({dataset})" if name == "dataset" and dataset else how.usual
        value = "\n".join(form.get(name) or [str(field.default or "")])
        found.append(
            Control(
                name=name,
                label=how.label,
                help=str(field.description),
                kind=kind,
                value=value,
                options=[*map(str, field.examples or ())] if kind == "text" else options,
                gone=kind == "select" and value not in ("", *options),
                usual=usual or ("" if field.default is None else None),
                hint=how.metavar or "",
                bounds=bounds_of(JobRequest, name),
                group=next((g for g, names in GROUPS.items() if name in names), WHERE),
            )
        )
    order = [name for names in GROUPS.values() for name in names]
    return sorted(found, key=lambda one: order.index(one.name) if one.name in order else len(order))


def _space(context: Context, name: str) -> SearchSpace:
    try:
        return context.catalog.space(name)
    except UnknownNameError as error:
        raise ProblemError(404, error.marked) from error
    except NasError as error:
        raise ProblemError(422, error.marked) from error


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
    return {row.name: list(row.kept) for row in rows if row.cut}


def read_form(chosen: Chosen) -> dict[str, Any]:
    """The request that a form stands for, not checked yet.

    Raises:
        ProblemError: 422 when nothing is left of a gene, or the choices are of another space.
        UsageError: for a text of another form than its field has.
    """
    form, space = chosen.form, chosen.space
    texts: dict[str, list[str]] = {}
    for name, field in JobRequest.model_fields.items():
        how = shown(field)
        if not _one(form, name) or how.apart:
            continue
        text = "\n".join(form[name]).replace("\r\n", "\n")  # which browsers send
        texts[name] = [line.strip() for line in text.split("\n") if line.strip()]
        if how.long:
            texts[name] = [text]
    request = read_texts(JobRequest, texts, mark)
    if request.get("baseline") in chosen.own_baseline:
        request["baseline"] = chosen.baseline
    if not chosen.around:
        if chosen.turned_from:
            raise ProblemError(
                422,
                f"the choices were those of the space {chosen.turned_from}: look at those of "
                f"{space.name}, and submit again",
                "/space",
            )
        own = {"space": space.name} if chosen.toml is None else {"space_toml": chosen.toml}
        request |= {**own, "restrict": _restriction(genes(space, form))}
    limits = [name for name in form if name.startswith(LIMIT) and _one(form, name)]
    request["limits"] = {name.removeprefix(LIMIT): _one(form, name) for name in limits}
    if form.get("objective"):
        request["objectives"] = list(form["objective"])
    return request


def _one(form: Fields, name: str) -> str:
    values = form.get(name) or [""]
    return values[0].strip()
