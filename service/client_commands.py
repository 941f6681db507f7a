"""`nas submit`, `jobs`, `watch`, `cancel` and `front`: the commands that talk to a service."""

from __future__ import annotations

import json
import sys
from typing import TYPE_CHECKING, Any

import typer

from nas.console import options
from nas.console.failures import FAILED
from nas.console.formatting import NOTHING
from nas.console.output import out, print_json, say, tell, tell_error
from nas.console.progress import choose_reporter
from nas.console.tables import show_front, table
from nas.run.events import event_from_json
from nas.search.doubtful import doubtful_sentence
from nas.search.front import Front, FrontEntry, schema_of, value_text
from search_spaces.architecture import Architecture
from search_spaces.genes import GeneNetwork
from search_spaces.genotypes import Network
from service.api.schemas import JobOut, JobQuery, JobRequest
from service.commands import installed
from service.jobs.states import State
from service.settings import DEFAULT_SERVER

if TYPE_CHECKING:
    from service.client import Client

SERVER: Any = typer.Option(
    DEFAULT_SERVER, "--server", envvar="NAS_SERVER", metavar="URL", help="Where the service is."
)
TOKEN: Any = typer.Option(
    None,
    "--token",
    envvar="NAS_TOKEN",
    metavar="TOKEN",
    help="The token to come with; better in NAS_TOKEN, where nobody else sees it.",
    show_envvar=False,
)
ENDINGS = {State.failed: "has failed", State.cancelled: "was cancelled"}
JOB: Any = typer.Argument(..., metavar="JOB", help="A job's id, as nas submit prints it.")


@options.grouped(request=options.request_options(JobRequest))
def submit(
    request: JobRequest,
    follow: bool = typer.Option(False, "--watch", "-w", help="Follow it until it ends."),
    quiet: bool = options.QUIET,
    server: str = SERVER,
    token: str = TOKEN,
) -> None:
    """Submit a search to a service; the last line is the job's id.

    Example: nas submit --space digits --preset smoke --watch
    """
    with connected(server, token) as client:
        job = client.submit(request).id
        if follow:
            tell(f"job {job}")
            _watch(client, job, quiet, json_lines=False)
    say(job)


@options.grouped(query=options.request_options(JobQuery))
def jobs(
    query: JobQuery,
    as_json: bool = options.JSON,
    server: str = SERVER,
    token: str = TOKEN,
) -> None:
    """List the jobs of a service, newest first.

    Example: nas jobs --state running --tag paper
    """
    with connected(server, token) as client:
        page = client.jobs(query)
    if as_json:
        print_json([job.model_dump(mode="json") for job in page.jobs])
        return
    made = table("", ["job", "kind", "state", "space", "preset", "owner", "at", "tags", "title"])
    for job in page.jobs:
        names = ("id", "kind", "state", "space", "preset", "owner")
        words = (", ".join(job.tags) or NOTHING, job.title or NOTHING)
        made.add_row(*(str(getattr(job, name)) for name in names), _at(job), *words)
    out().print(made)
    if page.next:
        tell("there are more: raise --limit, or narrow it with --state, --tag, --text or --since")


def watch(
    job: str = JOB,
    quiet: bool = options.QUIET,
    json_lines: bool = options.EVENTS,
    server: str = SERVER,
    token: str = TOKEN,
) -> None:
    """Follow a job with the progress bars of a search on this machine; it goes on without you.

    Example: nas watch 01a1fea91e56c8caa9ec
    """
    with connected(server, token) as client:
        _watch(client, job, quiet, json_lines)


def cancel(job: str = JOB, server: str = SERVER, token: str = TOKEN) -> None:
    """Cancel a job; what it has done is kept, and a retry goes on from there.

    Example: nas cancel 01a1fea91e56c8caa9ec
    """
    with connected(server, token) as client:
        told = client.cancel(job)
    stopping = told.state is State.running
    say(f"{told.id} {'is being cancelled' if stopping else told.state}")


def front(
    job: str = JOB,
    as_json: bool = options.JSON,
    as_csv: bool = typer.Option(False, "--csv", help="Print CSV."),
    server: str = SERVER,
    token: str = TOKEN,
) -> None:
    """Show the Pareto front of a job, as far as it is known.

    Example: nas front 01a1fea91e56c8caa9ec --csv
    """
    with connected(server, token) as client:
        if as_csv:
            sys.stdout.write(client.front_csv(job))
            return
        found = client.front_json(job)
    if as_json:
        print_json(found)
    else:
        _show(found)


def connected(server: str, token: str | None) -> Client:
    """The service at an address."""
    with installed():
        from service.client import Client

    return Client(server, token)


def _watch(client: Client, job: str, quiet: bool, json_lines: bool) -> None:
    with choose_reporter(quiet, json_lines) as screen:
        for data in client.follow(job):
            if json_lines:
                sys.stdout.write(json.dumps(data) + "\n")
                sys.stdout.flush()
            elif (event := event_from_json(data)) is not None:
                screen.show(event)
    ended = client.job(job)  # which may have been retried since, or the stream broke off
    if ended.state is State.succeeded:
        if not quiet and not json_lines:
            tell(f"{ended.state}; nas front {job} shows what was found")
        return
    told = ENDINGS.get(ended.state, f"is {ended.state}: nas watch {job} follows it again")
    tell_error(f"the job {job} {told}" + (f": {ended.error}" if ended.error else ""))
    raise typer.Exit(FAILED)


def _show(answer: dict[str, Any]) -> None:
    if not answer["front"]:
        say("nothing is known of the front yet")
        return
    if answer["final"]:
        show_front(Front.from_json({**answer, "schema": schema_of(answer)}, _network), None)
        return
    names = [objective["name"] for objective in answer["objectives"]]
    made = table("So far", ["id", *names], right=names)
    for entry in answer["front"]:
        made.add_row(entry["id"], *(value_text(entry, name) for name in names))
    out().print(made)
    if doubt := doubtful_sentence([_entry(one) for one in answer["front"]]):
        say(doubt)


def _entry(answer: dict[str, Any]) -> FrontEntry:
    network = _network(answer["architecture"])
    doubtful = answer.get("doubtful", {})  # earlier versions of the service told of none
    return FrontEntry(answer["id"], network, answer["measured"], answer["predicted"], doubtful)


def _network(data: Any) -> Network:
    """A network as the server tells it: stacks of layers, or genes of anybody's."""
    stacks = data.keys() <= {"encoder", "decoder"} and all(
        isinstance(v, dict) for v in data.values()
    )
    return Architecture.from_json(data) if stacks else GeneNetwork.from_json(data)


def _at(job: JobOut) -> str:
    progress = job.progress
    if job.state is not State.running or not progress.stage:
        return NOTHING
    return f"{progress.label or progress.stage} {progress.done}/{progress.total}"
