"""`nas serve`, `nas worker`, `nas helper` and `nas token`: the commands of an operator.

Libraries are imported where they are used, so that `nas --help` stays quick and a missing extra
is explained.
"""

from __future__ import annotations

import socket
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from nas.console.output import out, print_json, say, tell
from nas.console.tables import table
from nas.executors.base import ExecutorKind
from nas.executors.opening import check_installed
from search_spaces.errors import NasError, UsageError
from service.auth import Role, Token, digest_of, new_token, read_expiry
from service.settings import Settings, default_home, read_settings

if TYPE_CHECKING:
    from service.jobs.store import Store

HOME: Any = typer.Option(
    None,
    "--home",
    metavar="DIR",
    help="Folder of database, runs and data sets; also NAS_HOME.",
    show_default=str(default_home()),
)

DAY, MINUTE = "%Y-%m-%d", "%Y-%m-%d %H:%M UTC"  # of a token's times

token_app = typer.Typer(
    no_args_is_help=True,
    help="Make, list and revoke the tokens that the service lets in.",
    epilog="Example: nas token create --name alice --role submitter --expires 30d",
)


@contextmanager
def installed() -> Iterator[None]:
    """Explain a library that is missing."""
    try:
        yield
    except ModuleNotFoundError as error:
        raise UsageError(
            f"the service needs the package {error.name}: pip install 'nas-service[service]'"
        ) from error


def serve(
    home: Path = HOME,
    host: str = typer.Option(None, help="Address to listen on.", show_default="127.0.0.1"),
    port: int = typer.Option(None, help="Port; 0 for any free one.", show_default="8321"),
    workers: int = typer.Option(1, min=0, help="Workers to start beside the API."),
    no_auth: bool = typer.Option(
        False, "--no-auth", help="Let everybody in; only on a loopback address."
    ),
) -> None:
    """Serve searches over HTTP: the API and a worker, on this machine.

    Example: nas serve --port 8321
    """
    settings = read_settings(home=home, host=host, port=port, no_auth=no_auth or None)
    with installed():
        from service import serving

    serving.serve(settings, workers, _announce)


def _announce(settings: Settings, secret: str | None) -> None:
    """Tell where the service and its home are, and its first token, which is nowhere else."""
    tell(f"Serving {settings.address}")
    tell(f"Home    {settings.home}")
    if secret is not None:
        say(f"Token   {secret}")
        say(f"Open    {settings.address}/?token={secret}")
        tell("This token is shown once; nas token create makes others.")


def worker(
    home: Path = HOME,
    check: bool = typer.Option(
        False, "--check", help="Only say whether a worker of this machine gives signs of life."
    ),
    executor: ExecutorKind = typer.Option(
        None,
        help="Where a search evaluates and times networks: in its own process, or by workers of a "
        "Ray cluster; also NAS_EXECUTOR.",
        show_default="local",
    ),
    ray_address: str = typer.Option(
        None,
        metavar="auto|HOST:PORT",
        help="The cluster; also NAS_RAY_ADDRESS.",
        show_default="a Ray of its own",
    ),
) -> None:
    """Work on the jobs of a service: as many of these as you like, where the home folder is.

    Example: nas worker --home /srv/nas
    """
    settings = read_settings(home=home, executor=executor, ray_address=ray_address)
    if check:
        _check_workers(settings)
        return
    if settings.executor == "ray":
        check_installed()
    with installed():
        from service.logs import log_to_stderr
        from service.worker.worker import run_worker

    log_to_stderr()
    run_worker(settings)


def helper(
    home: Path = HOME,
    check: bool = typer.Option(False, "--check", help="Only say whether a helper answers."),
) -> None:
    """Ask networks, read checkpoints and prepare data for an API with NAS_HELPER=1.

    Example: nas helper --home /srv/nas
    """
    settings = read_settings(home=home)
    with installed():
        from service.children import connected
        from service.helper import help_api

    if not check:
        help_api(settings, lambda place: tell(f"Helping at {place}"))
        return
    connected(settings.home).close()
    say("a helper answers")


def _check_workers(settings: Settings) -> None:
    """Name the workers of this machine that live.

    Raises:
        NasError: when there is none.
    """
    with _store(settings.home) as store:
        found = store.workers.alive(settings.stale_s)
    mine = [worker.name for worker in found if worker.host == socket.gethostname()[:128]]
    if not mine:
        raise NasError(
            f"no worker of this machine gave a sign of life in the last {settings.stale_s:g} s; "
            "nas worker starts one"
        )
    say(", ".join(mine))


@token_app.command("create", epilog="Example: nas token create --name alice --role submitter")
def create_token(
    name: str = typer.Option(..., help="Whose jobs it makes and sees."),
    role: Role = typer.Option(Role.submitter, help="reader looks, submitter works, admin rules."),
    expires: str = typer.Option("90d", metavar="12h|30d|2w|1y|never", help="How long it is good."),
    home: Path = HOME,
) -> None:
    """Make a token and print it, alone on the last line; it is kept nowhere."""
    token, secret = new_token(name, role, read_expiry(expires, time.time()))
    with _store(home) as store:
        store.tokens.add(token, digest_of(secret))
    until = "" if token.expires_at is None else "until "
    tell(f"Token {token.id} for {name}, {role}, good {until}{_end(token)}; it is shown once:")
    say(secret)


@token_app.command("list", epilog="Example: nas token list --json")
def list_tokens(
    as_json: bool = typer.Option(False, "--json", help="Print JSON for scripts."),
    home: Path = HOME,
) -> None:
    """List the tokens; the secrets themselves are kept nowhere."""
    with _store(home) as store:
        tokens = store.tokens.list()
    if as_json:
        print_json([asdict(token) for token in tokens])
        return
    made = table("", ["id", "name", "role", "made", "good until"])
    for token in tokens:
        made.add_row(token.id, token.name, token.role, _shown(token.created_at), _until(token))
    out().print(made)


@token_app.command("revoke", epilog="Example: nas token revoke 1a2b3c4d")
def revoke_token(
    identity: str = typer.Argument(..., metavar="ID", help="As nas token list shows it."),
    home: Path = HOME,
) -> None:
    """Make a token worthless."""
    with _store(home) as store:
        if not store.tokens.revoke(identity):
            raise UsageError(f"there is no good token {identity!r}; nas token list shows all")
    say(f"revoked {identity}")


@contextmanager
def _store(home: Path | None) -> Iterator[Store]:
    with installed():
        from service.home import open_home
    _, store = open_home(read_settings(home=home))
    try:
        yield store
    finally:
        store.database.close()


def _until(token: Token) -> str:
    if token.revoked_at is not None:
        return f"revoked {_shown(token.revoked_at)}"
    return _end(token)


def _end(token: Token) -> str:
    """Until when a token is good, to the minute: some are good for hours."""
    return "for ever" if token.expires_at is None else _shown(token.expires_at, MINUTE)


def _shown(seconds: float, form: str = DAY) -> str:
    return datetime.fromtimestamp(seconds, UTC).strftime(form)
