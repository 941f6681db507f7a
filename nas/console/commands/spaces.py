"""`nas space list | show | check | new | from` and `nas cost`."""

from __future__ import annotations

import difflib
from dataclasses import asdict
from pathlib import Path
from typing import Any

import typer
from rich.table import Table

from latency.device import describe_device
from nas.console import options
from nas.console.commands.checked_spaces import (
    BUILT_IN,
    checked_any,
    checked_space,
    checked_with_data,
)
from nas.console.formatting import network
from nas.console.output import out, print_json, say, tell
from nas.console.tables import WrappingText, cost_table, gene_rows, gene_table, table
from nas.request.architectures import read_architecture
from nas.request.fitted_space import Fitted, Pace, Size, fit_space
from nas.request.presets import PRESETS, Budget, budget_for
from nas.request.spec import DEFAULT_HOURS, FAMILIES, Device
from search_spaces.architecture import Architecture
from search_spaces.costs import cost as count
from search_spaces.counts import power_of_ten
from search_spaces.data_keys import DATASET
from search_spaces.errors import UsageError
from search_spaces.genes import GeneSpace
from search_spaces.genotypes import GenotypeSpace
from search_spaces.loading import load_space, space_names
from search_spaces.space import SearchSpace
from search_spaces.tasks import TASKS
from search_spaces.variation import largest, smallest
from supernet.data.manifest import read_manifest
from supernet.training_costs import A100_OPS, USED_SHARE, training_costs
from supernet.training_settings import TrainingSettings

OF_GENES = "genes for an evaluator"

NAME: Any = typer.Argument(
    ...,
    metavar="NAME|FILE",
    help=options.SPACE_HELP,
    autocompletion=options.complete_space,
)


def list_spaces(as_json: bool = options.JSON) -> None:
    """List the shipped spaces."""
    spaces = [load_space(name) for name in space_names()]
    if as_json:
        print_json([_summary(space) for space in spaces])
        return
    columns = ["name", "task", "networks", "description"]
    made = table("", columns, right=["networks"], whole=["name", "task"], spare=["task"])
    for space in spaces:
        made.add_row(space.name, space.task, power_of_ten(space.size), space.description)
    out().print(made)


def show_space(name: str = NAME, as_json: bool = options.JSON) -> None:
    """Show a space: its genes, how many networks it holds, the smallest and the largest."""
    space = checked_any(name)
    if isinstance(space, GeneSpace):
        _show_genes(space, as_json)
        return
    if as_json:
        print_json(_details(space))
        return
    say(f"{space.name}: {space.description or space.task}")
    say(f"{networks(space)} ({power_of_ten(space.size)})")
    out().print(gene_table(space))
    made = table("Ends", ["", "params", "FLOPs", "network"], right=["params", "FLOPs"])
    for end, (architecture, params, flops) in _ends(space).items():
        made.add_row(end, f"{params:,}", f"{flops:,}", WrappingText(network(architecture)))
    out().print(made)
    out().print(_preset_table(space))


def networks(space: GenotypeSpace) -> str:
    """How many networks a space holds, in words."""
    return f"{space.size:,} different network{'s' * (space.size != 1)}"


def _show_genes(space: GeneSpace, as_json: bool) -> None:
    if as_json:
        genes = [
            {
                "gene": gene.name,
                "per_layer": gene.per_layer,
                "choices": list(gene.choices),
                "when": {name: list(values) for name, values in gene.when.items()},
            }
            for gene in space.genes
        ]
        print_json({**_summary(space), "genes": genes})
        return
    say(f"{space.name}: {space.description or OF_GENES}")
    say(f"{networks(space)} ({power_of_ten(space.size)})")
    made = table("Genes", ["gene", "in each of", "choices", "where"])
    for gene in space.genes:
        where = (f"{name} is {' or '.join(map(str, one))}" for name, one in gene.when.items())
        choices = "  ".join(map(str, gene.choices))
        made.add_row(gene.name, gene.per_layer or "", choices, ", ".join(where))
    out().print(made)


def estimate_training(
    name: str = NAME,
    preset: str = typer.Option(
        "quick", metavar="NAME", help=f"Whose numbers: {', '.join(PRESETS)}."
    ),
    gpus: int = typer.Option(1, min=1, max=1024, help="GPUs that share the training."),
    ops: float = typer.Option(
        A100_OPS / 1e12, min=0.001, help="Tera-operations a second of one, in bf16; an A100's."
    ),
    used: float = typer.Option(USED_SHARE, min=0.01, max=1.0, help="Share of them that is used."),
    as_json: bool = options.JSON,
) -> None:
    """Tell by arithmetic what training the supernet needs of GPUs: memory, operations, hours."""
    from supernet.building import supernet_params  # imports torch

    space = checked_space(name)
    budget = budget_for(space, preset, {})
    if budget.own_updates:
        raise UsageError(
            f"preset {preset} of {space.name} trains no supernet, but each network alone for "
            f"{budget.own_updates:,} updates (own_updates); name another one with --preset"
        )
    settings = budget.supernet
    costs = training_costs(space, supernet_params(space), settings, gpus)
    hours = costs.hours(gpus, ops * 1e12, used) if costs.updates else None
    if as_json:
        print_json(
            {
                "space": space.name,
                "preset": preset,
                "gpus": gpus,
                "hours": hours,
                "memory_gb": costs.memory_bytes / 1e9,
                **asdict(costs),
            }
        )
        return
    say(f"{space.name}, preset {preset}, {gpus} GPU{'s' * (gpus > 1)}: the supernet's training")
    made = table("", ["what", "each GPU", ""], right=["each GPU"])
    parts = {
        "weights, gradients, optimiser": (costs.weight_bytes, f"{costs.params:,} parameters"),
        "activations": (costs.activation_bytes, f"{costs.tokens:,} tokens an update in all"),
        "logits": (costs.logit_bytes, ""),
        "together": (costs.memory_bytes, "and 5 to 10 % that the allocator loses"),
    }
    for what, (size, note) in parts.items():
        made.add_row(what, f"{size / 1e9:.1f} GB", note)
    out().print(made)
    if hours is None:
        say("how long it takes follows from the data: the preset counts in passes over them")
    else:
        say(
            f"about {hours:.1f} hours for {costs.updates:,} updates of {costs.operations:.3g} "
            f"operations, where {used:.0%} of {ops:g} tera-operations a second are used"
        )


def check_space(
    file: str = typer.Argument(
        ..., metavar="FILE", help="The TOML file.", autocompletion=options.complete_space
    ),
    as_json: bool = options.JSON,
) -> None:
    """Check a space file; the first mistake is told with its line, key and what is allowed."""
    try:
        space = checked_with_data(file)
    except UsageError as error:
        if not as_json:
            raise
        print_json({"ok": False, "error": str(error)})
        raise typer.Exit(error.exit_code) from None
    if as_json:
        print_json({"ok": True, **_summary(space)})
        return
    of = OF_GENES if isinstance(space, GeneSpace) else space.task
    say(f"{file} is fine: {space.name}, {of}, {networks(space)}")
    dataset = None if isinstance(space, GeneSpace) else space.data.get(DATASET)
    if dataset is not None and dataset not in BUILT_IN:
        near = difflib.get_close_matches(dataset, BUILT_IN, n=1)
        hint = f" (did you mean {near[0]!r}?)" if near else ""
        say(
            f"its data set {dataset} is not built in{hint}: search it with --data DIR, a folder "
            "made by nas data prepare, or on a server that has such data"
        )


def space_from(
    folder: str = typer.Argument(
        ...,
        metavar="DIR",
        help=f"A checkpoint of Hugging Face's form: {', '.join(FAMILIES)}, or an export of a run.",
    ),
) -> None:
    """Print the space around a checkpoint as TOML, to be kept in a file and edited."""
    from supernet.pretrained.checkpoint import read_checkpoint
    from supernet.pretrained.space import space_text

    for line in space_text(read_checkpoint(folder)).splitlines():
        say(line)


def new_space(
    data: Path = typer.Option(
        ..., "--data", metavar="DIR", help="A folder made by nas data prepare."
    ),
    size: Size | None = typer.Option(
        None, help="Of the networks.", show_default="the largest that data and time can teach"
    ),
    hours: float = typer.Option(
        DEFAULT_HOURS, metavar="HOURS", help="For a search with the preset quick on this machine."
    ),
    device: Device = typer.Option("cpu", help="Where networks will be trained."),
    quiet: bool = options.QUIET,
) -> None:
    """Print a space made for prepared data as TOML, to be kept in a file and edited.

    A few networks are trained for a moment to find out how fast this machine is.
    """
    for line in made_space(data.expanduser(), hours, device, quiet, size).text.splitlines():
        say(line)


def made_space(
    folder: Path, hours: float, device: str, quiet: bool, size: Size | None = None
) -> Fitted:
    """The space for prepared data, as fast as this machine is.

    Raises:
        NasError: for a folder that was not prepared or is damaged, and hours out of range.
    """
    from nas.run.pace import measure_pace  # imports torch

    manifest = read_manifest(folder)
    describe_device(device)  # refuses one that is not there

    def measure(space: SearchSpace) -> Pace:
        return measure_pace(space, folder, device)

    if not quiet:
        tell("making a space: trying for a minute how fast this machine trains such networks")
    return fit_space(manifest, folder.resolve().name, hours, measure, size)


def cost(
    space: str = options.SPACE,
    arch: str = typer.Option(
        ...,
        metavar="FILE|TEXT",
        help="The architecture: a file with its JSON or HAT's YAML, - for standard input, or its "
        "line of text (nas architectures export).",
    ),
    convention: str = typer.Option(
        "true",
        metavar="NAME",
        help="How to count: true, matmul, torchprofile or hat.",
        autocompletion=options.complete_convention,
    ),
    source_length: int | None = typer.Option(
        None,
        min=1,
        help="Input tokens, where that can be chosen.",
        show_default="the workload's, as a search counts",
    ),
    target_length: int | None = typer.Option(
        None,
        min=1,
        help="Target tokens (translation).",
        show_default="the workload's, as a search counts",
    ),
    as_json: bool = options.JSON,
) -> None:
    """Count the parameters and FLOPs of a network, part by part, without building it."""
    from nas.objectives.size import counted_lengths

    chosen = checked_space(space)
    architecture = read_architecture(arch)
    chosen.encode([architecture])  # refuses a network of another space, naming the gene
    of_tables = convention == "hat" and TASKS[chosen.task].crosses  # which have their own lengths
    source, target = (None, None) if of_tables else counted_lengths(chosen)
    source_length, target_length = source_length or source, target_length or target
    costs = count(chosen.model, chosen.task, architecture, convention, source_length, target_length)
    if as_json:
        print_json({"id": architecture.id, "space": chosen.name, **costs.to_json()})
        return
    lengths = f"{costs.source_length} input tokens"
    if costs.target_length is not None:
        lengths += f", {costs.target_length} target tokens"
    say(f"{architecture.id}: {network(architecture)}")
    out().print(cost_table(costs, f"Convention {convention}, {lengths}"))


def _ends(space: SearchSpace) -> dict[str, tuple[Architecture, int, int]]:
    """The smallest and the largest network with parameters and FLOPs as a search counts them."""
    from nas.objectives.size import network_costs

    ends = {}
    for name, rows in {"smallest": smallest(space), "largest": largest(space)}.items():
        params, flops = network_costs(space, rows)[0].tolist()
        ends[name] = (space.decode(rows)[0], int(params), int(flops))
    return ends


def _summary(space: SearchSpace | GeneSpace) -> dict[str, Any]:
    return {
        "name": space.name,
        "task": space.task if isinstance(space, SearchSpace) else None,
        "description": space.description,
        "size": space.size,
        "digest": space.digest,
    }


def _details(space: SearchSpace) -> dict[str, Any]:
    ends = {
        end: {
            "id": architecture.id,
            "architecture": architecture.to_json(),
            "params": params,
            "flops": flops,
        }
        for end, (architecture, params, flops) in _ends(space).items()
    }
    genes = [
        {"gene": gene, "layers": layers or None, "choices": list(choices)}
        for gene, layers, choices in gene_rows(space)
    ]
    budgets = {name: budget_for(space, name, {}).model_dump(mode="json") for name in PRESETS}
    return {**_summary(space), "genes": genes, **ends, "presets": budgets}


def _preset_table(space: SearchSpace) -> Table:
    budgets = {name: budget_for(space, name, {}) for name in PRESETS}
    made = table("Presets", ["", *budgets], right=budgets)
    columns = [_amounts(budget) for budget in budgets.values()]
    for label in columns[0]:
        made.add_row(label, *(column[label] for column in columns))
    return made


def _amounts(budget: Budget) -> dict[str, str]:
    evolution = budget.evolution
    return {
        "training before observing": f"{budget.own_updates:,} updates each"
        + (f", {budget.own_seeds} seeds" if budget.own_seeds > 1 else "")
        if budget.own_updates
        else _length(budget.supernet),
        "observed networks": f"{budget.observations:,}",
        "candidates evolved": f"{evolution.population * evolution.generations:,}",
        "networks verified": f"{budget.verified:,}",
        "retraining": _length(budget.retrain),
    }


def _length(settings: TrainingSettings) -> str:
    """How long a training is: in updates where these are limited, for epochs then mean little."""
    if settings.max_updates:
        return f"{settings.max_updates:,} updates"
    return f"{settings.epochs:,} epochs"
