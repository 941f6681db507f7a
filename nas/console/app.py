"""The command `nas`; see `nas --help`."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import typer
from typer.core import TyperCommand

from nas import version as nas_version
from nas.console.commands import (
    architectures,
    cache,
    cluster,
    data,
    evaluate,
    export,
    predict,
    profile,
    retrain,
    runs,
    search,
    spaces,
    translate,
)
from nas.console.commands.picking import OptionalPick
from nas.console.commands.settings import KnowsSpace
from nas.console.output import drop_output, replace_unwritable, say
from nas.console.plugins import DATA, LOOK, SPACES, USE, WORK, CommandGroup

EPILOG = "Example: nas search --space digits"

app = typer.Typer(
    name="nas",
    cls=CommandGroup,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
    epilog=EPILOG,
)
space_app = typer.Typer(no_args_is_help=True, epilog="Example: nas space show digits")
architectures_app = typer.Typer(
    no_args_is_help=True, epilog="Example: nas architectures export arch.json --format text"
)
cache_app = typer.Typer(no_args_is_help=True, epilog="Example: nas cache list")
cluster_app = typer.Typer(no_args_is_help=True, epilog="Example: nas cluster check")
data_app = typer.Typer(no_args_is_help=True, epilog="Example: nas data prepare --help")


def _print_version(wanted: bool) -> None:
    if wanted:
        say(f"nas {nas_version()}")
        raise typer.Exit


@app.callback()
def _nas(
    version: bool = typer.Option(
        False, "--version", is_eager=True, callback=_print_version, help="Print the version."
    ),
) -> None:
    """Find, verify and retrain Pareto-optimal transformers."""


def _add(
    target: typer.Typer,
    name: str,
    function: Callable[..., Any],
    panel: str | None,
    *examples: str,
    cls: type[TyperCommand] | None = None,
) -> None:
    """Register a command whose help ends with examples."""
    word = "Example" if len(examples) == 1 else "Examples"
    epilog = "\n\n".join([f"{word}:", *examples])  # an empty line is where typer ends a line
    target.command(name, cls=cls, epilog=epilog, rich_help_panel=panel)(function)


_add(
    app,
    "search",
    search.search,
    WORK,
    "nas search --space digits",
    "nas search --space ./mine.toml --preset smoke --limit params=2e5 --set supernet.epochs=30",
    cls=KnowsSpace,
)
_add(
    app,
    "profile",
    profile.profile,
    WORK,
    "nas profile --space digits --out laptop.json",
    "nas profile --space listops --workload source=128 --workload source=512 --samples 60 "
    "--out laptop.json --report laptop.html",
)
_add(
    app,
    "resume",
    search.resume,
    WORK,
    "nas resume runs/digits-1a2b3c4d",
    "nas resume runs/digits-1a2b3c4d --retime",
)
_add(
    app,
    "retrain",
    retrain.retrain,
    WORK,
    "nas retrain runs/digits-1a2b3c4d --pick best",
    "nas retrain runs/wmt14-1a2b3c4d --backend fairseq",
    "nas retrain runs/digits-1a2b3c4d --pick front --top 5 --tune 20 --executor ray",
)
_add(
    app,
    "predict",
    predict.predict_inputs,
    USE,
    "nas predict runs/pets-1a2b3c4d cat.png dog.jpg --json",
    "nas predict runs/mails-1a2b3c4d new.txt",
)
_add(
    app,
    "translate",
    translate.translate,
    USE,
    "nas translate runs/multi30k-1a2b3c4d < input.en > output.de",
    "nas translate runs/multi30k-1a2b3c4d --arch 8737 --beam 1 --device cpu < input.en",
)
_add(
    app,
    "evaluate",
    evaluate.evaluate,
    USE,
    "nas evaluate runs/digits-1a2b3c4d",
    "nas evaluate runs/multi30k-1a2b3c4d --split valid --beam 5 --lenpen 1 --json",
)
_add(
    app,
    "export",
    export.export,
    USE,
    "nas export runs/digits-1a2b3c4d --format safetensors",
    "nas export runs/multi30k-1a2b3c4d --arch 8737 --format huggingface --out translator",
)
_add(app, "verify", export.verify, USE, "nas verify runs/digits-1a2b3c4d/export/8737/safetensors")
_add(app, "runs", runs.runs, LOOK, "nas runs", "nas runs --dir /data/runs --json")
_add(
    app,
    "show",
    runs.show,
    LOOK,
    "nas show runs/digits-1a2b3c4d",
    "nas show runs/digits-1a2b3c4d --pick",
    "nas show runs/digits-1a2b3c4d --pick 'latency_ms<=12,params<=2e5'",
    "nas show runs/digits-1a2b3c4d --features",
    "nas show runs/digits-1a2b3c4d --attention 8737c0d2a1b4",
    cls=OptionalPick,
)
_add(app, "report", runs.report, LOOK, "nas report runs/digits-1a2b3c4d")
app.add_typer(cache_app, name="cache", help="List and remove what was timed.", rich_help_panel=LOOK)
_add(cache_app, "list", cache.list_cache, None, "nas cache list --json")
_add(cache_app, "clear", cache.clear, None, "nas cache clear 3f2a", "nas cache clear --all")
app.add_typer(
    cluster_app,
    name="cluster",
    help="See whether a Ray cluster is fit for a search.",
    rich_help_panel=LOOK,
)
_add(
    cluster_app,
    "check",
    cluster.check,
    None,
    "nas cluster check",
    "nas cluster check --ray-address 10.0.0.1:6379 --run /shared/runs --data /shared/wmt14",
)
app.add_typer(
    space_app, name="space", help="List, show and check search spaces.", rich_help_panel=SPACES
)
_add(
    app,
    "cost",
    spaces.cost,
    SPACES,
    "nas cost --space digits --arch network.json --convention true --json",
)
_add(space_app, "list", spaces.list_spaces, None, "nas space list --json")
_add(space_app, "show", spaces.show_space, None, "nas space show digits")
_add(space_app, "check", spaces.check_space, None, "nas space check ./mine.toml")
_add(
    space_app,
    "new",
    spaces.new_space,
    None,
    "nas space new --data data/pets > pets.toml",
)
_add(space_app, "from", spaces.space_from, None, "nas space from ./my-llama > mine.toml")
_add(
    space_app,
    "estimate",
    spaces.estimate_training,
    None,
    "nas space estimate lm-small --preset standard --gpus 8",
)
app.add_typer(
    architectures_app,
    name="architectures",
    help="Read and write networks: JSON, HAT's YAML, one line of text.",
    rich_help_panel=SPACES,
)
_add(
    architectures_app,
    "import",
    architectures.import_architecture,
    None,
    "nas architectures import HAT_wmt14ende_titanxp_91.2ms.yml --space wmt14-hat --out arch.json",
    "nas architectures import 'E512: 6*s8/2048 | D512: 6*s8+s8@1/2048'",
)
_add(
    architectures_app,
    "export",
    architectures.export_architecture,
    None,
    "nas architectures export runs/digits-1a2b3c4d --format text",
    "nas architectures export arch.json --format hat --space wmt14-hat --out arch.yml",
)
app.add_typer(
    data_app, name="data", help="Prepare data of your own for a search.", rich_help_panel=DATA
)
_add(
    data_app,
    "prepare",
    data.prepare,
    None,
    "nas data prepare --task translation --source train.en --target train.de --valid val "
    "--test test --vocab-size 8000 --out data/mine",
    "nas data prepare --task language_modelling --source train.txt --valid valid.txt "
    "--test test.txt --out data/mine",
    "nas data prepare --task classification --source cifar-10-batches-py --out data/cifar10",
)


def main() -> None:
    """Run the command and leave the process with its exit code."""
    replace_unwritable()
    try:
        app(prog_name="nas")
    finally:
        try:
            sys.stdout.flush()
        except BrokenPipeError:
            drop_output()


if __name__ == "__main__":
    main()
