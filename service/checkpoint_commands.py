"""`nas checkpoints`: upload, list and delete the checkpoints of a service."""

from __future__ import annotations

from pathlib import Path

import typer

from nas.console import options
from nas.console.formatting import NOTHING
from nas.console.output import out, print_json, say, tell
from nas.console.tables import table
from search_spaces.errors import UsageError
from service.client_commands import SERVER, TOKEN, connected
from supernet.pretrained.folder_files import is_checkpoint_file, is_weights_file, unread_weights

SHOWN = 5  # names of files that are left out

app = typer.Typer(
    no_args_is_help=True,
    help="Upload, list and delete checkpoints that searches of a service may begin with.",
    epilog="Example: nas checkpoints upload ./my-llama --name my-llama",
)


@app.command("upload", epilog="Example: nas checkpoints upload ./my-llama --name my-llama")
def upload(
    folder: Path = typer.Argument(..., metavar="DIR", help="A folder of Hugging Face's form."),
    name: str = typer.Option(None, help="What to call it.", show_default="as the folder"),
    server: str = SERVER,
    token: str = TOKEN,
) -> None:
    """Upload a checkpoint: settings, safetensors and tokenizer; nas submit --from NAME names it.

    Pickles, programs and whatever else the folder holds stay here.
    """
    files, left_out = checkpoint_files(folder)
    called = folder.resolve().name if name is None else name
    size = sum(file.stat().st_size for file in files.values())
    if left_out:
        more = f" and {len(left_out) - SHOWN} more" if len(left_out) > SHOWN else ""
        tell(f"Left out: {', '.join(left_out[:SHOWN])}{more}.")
    tell(f"Uploading {len(files)} files, {size / 1e6:,.1f} MB, as {called} …")
    with connected(server, token) as client:
        made = client.upload(called, files)
    tell(f"{made['family']}, {made['task']}; nas submit --from {made['name']} begins with it")
    say(str(made["name"]))


@app.command("list", epilog="Example: nas checkpoints list --json")
def list_checkpoints(
    as_json: bool = options.JSON, server: str = SERVER, token: str = TOKEN
) -> None:
    """List the checkpoints that searches of the service may begin with."""
    with connected(server, token) as client:
        found = client.checkpoints()
    if as_json:
        print_json([one.model_dump(mode="json") for one in found])
        return
    made = table("", ["name", "owner", "family", "task", "MB", "problem"], right=["MB"])
    for one in found:
        size = NOTHING if one.bytes is None else f"{one.bytes / 1e6:,.1f}"
        facts = (one.family or NOTHING, one.task or NOTHING, size, one.problem or "")
        made.add_row(one.name, one.owner or "the server", *facts)
    out().print(made)


@app.command("delete", epilog="Example: nas checkpoints delete my-llama")
def delete(
    name: str = typer.Argument(..., metavar="NAME", help="As nas checkpoints list shows it."),
    owner: str = typer.Option(None, help="Whose it is.", show_default="yours"),
    server: str = SERVER,
    token: str = TOKEN,
) -> None:
    """Delete a checkpoint that was uploaded, unless a job needs it that has not ended."""
    with connected(server, token) as client:
        client.delete_checkpoint(name, owner)
    say(f"deleted {name}")


def checkpoint_files(folder: Path) -> tuple[dict[str, Path], list[str]]:
    """The files of a checkpoint in a folder, by name, and the names of all others.

    Raises:
        UsageError: when it is no folder, or holds no checkpoint.
    """
    if not folder.is_dir():
        raise UsageError(f"{folder} is no folder: give the folder that holds config.json")
    names = sorted(
        file.relative_to(folder).as_posix() for file in folder.rglob("*") if file.is_file()
    )
    known = {name: folder / name for name in names if is_checkpoint_file(name)}
    if "config.json" not in known or not any(map(is_weights_file, known)):
        raise UsageError(
            f"{folder} holds no checkpoint: it has a config.json and weights as safetensors "
            "(pickles are never uploaded)"
        )
    for name in unread_weights(known):
        del known[name]
    return known, [name for name in names if name not in known]
