"""The harness of all studies: command line, JSON, tables, exit code and results of a `Study`.

A study is a value that says its question, what it measures and when its marks are met. Everything
that is printed is made from the numbers that are kept, so a file in ``results/`` prints the same
tables as the study did (`experiments.results_tables`).
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import dataclass
from multiprocessing import get_context, parent_process
from pathlib import Path
from typing import Any, Protocol, TypeVar

from rich.console import Console, RenderableType
from rich.table import Table

from search_spaces.errors import NasError
from search_spaces.files import append_lines, read_lines, write_atomically

RESULTS = Path(__file__).parent / "results"

STDERR = 2  # for what a command says on stdout, where the numbers alone go

Options = argparse.Namespace
Numbers = Any  # as JSON knows them


@dataclass(frozen=True)
class Study:
    """A question, and how it is answered.

    Attributes:
        name: of its module.
        question: in one sentence.
        add_options: adds its options; ``--json`` is always there.
        measure: options → all numbers, as JSON; one that is none (NaN) is kept as null.
        show: numbers → tables and sentences to print.
        met: numbers → whether its marks are met, which decides the exit code.
        results: options → name of the file in ``results/`` that keeps the numbers, or a path;
            None where they are not kept.
        example: options for the help.
        width: columns, where there is no terminal to ask.
        summary: options and numbers → what ``--json`` prints of them.
    """

    name: str
    question: str
    add_options: Callable[[argparse.ArgumentParser], None]
    measure: Callable[[Options], Numbers]
    show: Callable[[Numbers], Iterable[RenderableType]]
    met: Callable[[Numbers], bool] = lambda numbers: True
    results: Callable[[Options], str | Path | None] = lambda options: None
    example: str = ""
    width: int = 120
    summary: Callable[[Options, Numbers], Numbers] = lambda options, numbers: numbers

    @property
    def parser(self) -> argparse.ArgumentParser:
        """What reads its command line."""
        command = f"python -m experiments.{self.name}"
        example = f"example: {command} {self.example}" if self.example else None
        parser = argparse.ArgumentParser(command, description=self.question, epilog=example)
        self.add_options(parser)
        parser.add_argument("--json", action="store_true", help="print JSON instead of tables")
        return parser

    def main(self, arguments: Sequence[str] | None = None) -> int:
        """Run it as a command; numbers are kept before they are printed.

        Returns:
            0 where its marks are met, 1 where one is missed, otherwise the code of the error.
        """
        options = self.parser.parse_args(arguments)
        try:
            numbers = self.measure(options)
        except NasError as error:
            print(f"error: {error}", file=sys.stderr)
            return error.exit_code
        kept = self.results(options)
        if kept is not None:
            file = RESULTS / f"{kept}.json" if isinstance(kept, str) else kept
            write_atomically(file, json_of(numbers, indent=1) + "\n")
        if options.json:
            print(json_of(self.summary(options, numbers), indent=2))
        else:
            console = Console(width=None if sys.stdout.isatty() else self.width)
            for part in self.show(numbers):
                console.print(part, markup=False)
        return 0 if self.met(numbers) else 1


def json_of(numbers: Numbers, indent: int | None = None) -> str:
    """Numbers as JSON, which has no word for one that is none or without end: null."""
    plain = json.loads(json.dumps(numbers), parse_constant=lambda _: None)
    return json.dumps(plain, indent=indent)


def note(text: object) -> None:
    """Print how far a study is; the numbers alone go to stdout."""
    print(text, file=sys.stderr, flush=True)


def table_of(title: str, heads: Sequence[str], rows: Iterable[Sequence[object]]) -> Table:
    """A table whose first column is aligned to the left, the others to the right."""
    table = Table(title=title, title_justify="left")
    for number, head in enumerate(heads):
        table.add_column(head, justify="right" if number else "left")
    for row in rows:
        table.add_row(*map(str, row))
    return table


class Keyed(Protocol):
    """A job that a journal knows by its key."""

    @property
    def key(self) -> str:
        """The same for the same work."""


Job = TypeVar("Job", bound=Keyed)


def journaled(
    work: Callable[[Job], dict[str, Any]],
    jobs: Sequence[Job],
    done: dict[str, dict[str, Any]],
    journal: Path,
    workers: int,
) -> Iterator[dict[str, Any]]:
    """Do what is not `done` in fresh processes; results, with their ``key``, go to the journal."""
    missing = [job for job in jobs if job.key not in done]
    for _, result in _in_processes(work, missing, workers):
        done[result["key"]] = result
        append_lines(journal, [json.dumps(result)])
        yield result


Work = TypeVar("Work")
Done = TypeVar("Done")


def processes(workers: int) -> ProcessPoolExecutor:
    """Fresh processes, which end when the study does, were it killed."""
    return ProcessPoolExecutor(
        workers, mp_context=get_context("spawn"), initializer=end_with_parent
    )


def end_with_parent() -> None:
    """End when the process that began this one does, for nobody waits for an answer then."""
    parent = parent_process()
    assert parent is not None, "processes are begun by a study"

    def watch() -> None:
        parent.join()
        os._exit(1)

    threading.Thread(target=watch, name="watch-parent", daemon=True).start()


def _in_processes(
    work: Callable[[Work], Done], jobs: Sequence[Work], workers: int
) -> Iterator[tuple[Work, Done]]:
    """Each job with its result, as they end.

    Where one fails, what has not begun is left out; what was begun ends and is handed over before
    the failure is.
    """
    with processes(workers) as pool:
        waiting = {pool.submit(work, job): job for job in jobs}
        try:
            for future in as_completed(waiting):
                result = future.result()
                yield waiting.pop(future), result
        except (Exception, KeyboardInterrupt):
            pool.shutdown(cancel_futures=True)
            for future, job in waiting.items():
                if not future.cancelled() and future.exception() is None:
                    yield job, future.result()
            raise
        finally:
            pool.shutdown(cancel_futures=True)


def done_in(
    executor: str,
    work: Callable[[Work], Done],
    jobs: Sequence[Work],
    workers: int,
    address: str | None = None,
) -> Iterator[tuple[Work, Done]]:
    """Each job with its result, as they end, in processes of this machine or of a Ray cluster.

    Args:
        executor: ``local`` or ``ray``.
        work: a function of a module.
        jobs: in the order in which they are begun.
        workers: most jobs at a time; one of this machine is this process.
        address: of the cluster, see `experiments.ray_jobs`.
    """
    if executor == "ray":
        from experiments.ray_jobs import done_by_ray  # for which Ray is loaded

        yield from done_by_ray(work, jobs, workers, address)
        return
    if workers == 1:
        yield from ((job, work(job)) for job in jobs)
        return
    yield from _in_processes(work, jobs, workers)


def positive(text: str) -> int:
    """A whole number of 1 or more, of the command line."""
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"give a whole number of 1 or more; given {text!r}")
    return int(text)


def add_workers(parser: argparse.ArgumentParser) -> None:
    """The option of how many processes there are."""
    parser.add_argument(
        "--workers",
        type=positive,
        default=os.cpu_count() or 1,
        metavar="N",
        help="processes at once (default: %(default)s, one for each core)",
    )


def add_executor(parser: argparse.ArgumentParser) -> None:
    """The options that `done_in` takes."""
    add_workers(parser)
    parser.add_argument("--executor", choices=("local", "ray"), default="local")
    parser.add_argument(
        "--ray-address", metavar="ADDRESS", help="of a cluster (default: a Ray of one's own)"
    )


def add_numbers(parser: argparse.ArgumentParser) -> None:
    """The option of a preset's numbers, together or one by one; `nas.request.fields.pairs`."""
    numbers = "numbers of the preset, as retrain.epochs=45"
    parser.add_argument("--set", nargs="*", action="extend", default=[], help=numbers)


def done_jobs(journal: Path) -> dict[str, dict[str, Any]]:
    """What a journal holds, by key; nothing where there is none."""
    return {line["key"]: line for line in map(json.loads, read_lines(journal))}
