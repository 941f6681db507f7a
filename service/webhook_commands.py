"""`nas webhook`: be told by a service when one's jobs end."""

from __future__ import annotations

import typer

from nas.console import options
from nas.console.formatting import NOTHING
from nas.console.output import out, print_json, say, tell
from nas.console.tables import table
from service.client_commands import SERVER, TOKEN, connected

app = typer.Typer(
    no_args_is_help=True,
    help="Be told by a service when your jobs end.",
    epilog="Example: nas webhook set https://example.org/hooks/nas",
)


@app.command("set", epilog="Example: nas webhook set https://example.org/hooks/nas")
def name(
    url: str = typer.Argument(..., metavar="URL", help="Where messages are sent, by POST."),
    server: str = SERVER,
    token: str = TOKEN,
) -> None:
    """Name your webhook; the last line is its secret, which is told once."""
    with connected(server, token) as client:
        made = client.set_webhook(url)
    tell(f"{made.url} is told when your jobs end; a first message comes at once")
    say(made.secret)


@app.command("show", epilog="Example: nas webhook show --json")
def show(as_json: bool = options.JSON, server: str = SERVER, token: str = TOKEN) -> None:
    """Show your webhook, and the last messages with their answers."""
    with connected(server, token) as client:
        found = client.webhook()
    if as_json:
        print_json(found.model_dump(mode="json"))
        return
    made = table(found.url, ["at", "job", "state", "sent", "answer"], right=["sent"])
    for one in found.deliveries:
        answer = f"{one.status or ''} {one.answer}".strip()
        at = one.created_at.isoformat()[:19]
        made.add_row(at, one.job or NOTHING, one.outcome, str(one.tries), answer)
    out().print(made)


@app.command("remove", epilog="Example: nas webhook remove")
def remove(server: str = SERVER, token: str = TOKEN) -> None:
    """Be told no more; what waits is not sent."""
    with connected(server, token) as client:
        client.remove_webhook()
    say("removed")
