"""From a parsed TOML document to a checked `SearchSpace`; the first mistake is reported.

The form, by example::

    [space]                      # name, task; optional: description, parent_digest
    [model]                      # the fields of ModelSettings; style = "llama" sets several of
                                 # them, linear_kernel may list several (`kernel_choices`)
    [model.input]                # kind = "image" or "tokens" and the fields of that input
    [encoder]                    # every gene with its list of choices; num_kv_heads if wanted
    [encoder.layer.0]            # optional: fewer choices for one layer, counted from 0
    [decoder]                    # the same, self_num_kv_heads; language models: memory_length
    [data]                       # optional; dataset, and the keys of `data_keys`
    [workload]                   # optional, free keys: the default timing workload
    [presets.quick]              # optional, free keys: numbers that override a preset
"""

from __future__ import annotations

import re
import types
from collections.abc import Mapping, Sequence
from dataclasses import MISSING, fields, replace
from typing import Any, Literal, TypeGuard, Union, get_args, get_origin, get_type_hints

from search_spaces.architecture import (
    ATTENTION_KINDS,
    LINEAR_KERNELS,
    base_kind,
    kind_order,
    kind_problem,
)
from search_spaces.attention import OPERATORS, Place, operator_of, window_of
from search_spaces.data_keys import DATASET, RECALL, data_keys
from search_spaces.errors import ArchitectureError, SettingError
from search_spaces.genotypes import MAX_CHOICES
from search_spaces.kernel_choices import with_kernel_choices
from search_spaces.recall import SETTING as RECALL_WINDOW
from search_spaces.recall import window_problem
from search_spaces.recall_form import RECALL_FORM, RecallSettings
from search_spaces.settings import STYLES, ImageInput, ModelSettings, OmniKernel, TokenInput
from search_spaces.space import (
    CROSS_GENES,
    KV_GENES,
    LAYER_GENES,
    MEMORY_GENE,
    STACK_GENES,
    Choice,
    SearchSpace,
    Slot,
)
from search_spaces.tasks import TASKS, TaskName
from search_spaces.toml.source import KeyPath, TomlSource, shown, unknown_name

MAX_LAYERS = 1_000

_TABLES = ("space", "model", "encoder", "decoder", "data", "workload", "presets")
_DIGEST = re.compile(r"[0-9a-f]{64}")

MAX_SIZE = 1_000_000

_INPUTS: Mapping[str, type[ImageInput | TokenInput]] = {"image": ImageInput, "tokens": TokenInput}
_MAY_BE_ZERO = ("relative_positions", "rotary_original_length", "token_types", "window")

MAX_ALL_CHOICES = 20_000  # over all layers
LARGEST = 10**300  # networks; scores and tables hold their number as a float


def space_from_source(source: TomlSource, *, kept: bool = False) -> SearchSpace:
    """Check the document and build the space.

    Args:
        source: the document.
        kept: whether a run kept it: earlier versions took any key in ``[data]``, and looked at none
            that they did not know.

    Raises:
        SpaceFileError: for the first mistake, with file, line, key, what was found and what is
            allowed.
    """
    source.check_keys((), _TABLES, ())
    source = with_kernel_choices(source)
    name, task, description, parent = _header(source)
    model = model_from_source(source, task)
    slots: list[Slot] = []
    for stack in _stacks(source, task):
        slots += _stack_slots(source, stack, task)
    _check_number(source, slots)
    space = SearchSpace(
        name=name,
        task=task,
        model=model,
        slots=tuple(slots),
        description=description,
        data=_data(source, task, model, kept),
        workload=_free(source, ("workload",)),
        presets={name: _preset(source, name) for name in source.table(("presets",), {})},
        parent_digest=parent,
    )
    _check_space(source, space)
    if not kept:
        _check_rotary(source, space)
    return space


# -- [space] ------------------------------------------------------------------------------------


def _header(source: TomlSource) -> tuple[str, TaskName, str, str | None]:
    source.check_keys(
        ("space",), ("name", "task", "description", "parent_digest"), ("name", "task")
    )
    table = source.table(("space",))
    for key, value in table.items():
        if not isinstance(value, str):
            raise source.error(("space", key), f"found {shown(value)}, allowed is a string")
    source.check_name(table["name"])
    if table["task"] not in TASKS:
        raise source.error(("space", "task"), unknown_name(table["task"], TASKS))
    parent = table.get("parent_digest")
    if parent is not None and not _DIGEST.fullmatch(parent):
        raise source.error(
            ("space", "parent_digest"), f"found {shown(parent)}, allowed are 64 hex digits"
        )
    return table["name"], table["task"], table.get("description", ""), parent


# -- [encoder] and [decoder] --------------------------------------------------------------------


def _stacks(source: TomlSource, task: TaskName) -> tuple[str, ...]:
    wanted = TASKS[task].stacks
    for stack in ("encoder", "decoder"):
        if stack in source.data and stack not in wanted:
            raise source.error((stack,), f"a {task} space has no {stack}: remove the table")
        if stack in wanted and stack not in source.data:
            raise source.error((stack,), f"the table [{stack}] is missing; {task} needs it")
    return wanted


def _stack_slots(source: TomlSource, stack: str, task: TaskName) -> list[Slot]:
    offered = [g for g in LAYER_GENES[stack] if TASKS[task].crosses or g not in CROSS_GENES]
    whole = _whole_stack_genes(source, stack, task)
    table = source.table((stack,))
    genes = [gene for gene in offered if gene in table or gene not in KV_GENES]
    source.check_keys((stack,), [*whole, *offered, "max_layers", "layer"], [*whole, *genes])
    choices = {g: _choices(source, (stack, g), table[g]) for g in [*whole, *genes]}
    slots = [Slot(stack, gene, None, choices[gene]) for gene in whole]
    layers = _max_layers(source, stack, choices["num_layers"])
    overrides = _overrides(source, stack, layers, genes)
    for layer in range(layers):
        for gene in genes:
            slots.append(Slot(stack, gene, layer, overrides.get((layer, gene), choices[gene])))
    return slots


def _whole_stack_genes(source: TomlSource, stack: str, task: TaskName) -> tuple[str, ...]:
    """`STACK_GENES`, and the memory of a decoder that has one."""
    if stack != "decoder" or MEMORY_GENE not in source.table((stack,)):
        return STACK_GENES
    if not TASKS[task].continues:
        raise source.error(
            (stack, MEMORY_GENE),
            f"a memory of earlier segments belongs to language_modelling; the task is {task}: "
            "remove the key",
        )
    return (*STACK_GENES, MEMORY_GENE)


def _max_layers(source: TomlSource, stack: str, depths: Sequence[Choice]) -> int:
    """Number of layers with slots; more than the largest depth only in a pruned space."""
    deepest = int(max(depths))
    value = source.table((stack,)).get("max_layers", deepest)
    if not _is_int(value) or not deepest <= value <= MAX_LAYERS:
        raise source.error(
            (stack, "max_layers"),
            f"found {shown(value)}, allowed is a whole number from {deepest} (the largest of "
            f"num_layers) to {MAX_LAYERS}",
        )
    return int(value)


def _overrides(
    source: TomlSource, stack: str, layers: int, genes: Sequence[str]
) -> dict[tuple[int, str], tuple[Choice, ...]]:
    """(layer, gene) → the choices of that layer, where the file narrows them."""
    result = {}
    numbers = {str(layer) for layer in range(layers)}
    for number in source.table((stack, "layer"), {}):
        path = (stack, "layer", number)
        if number not in numbers:
            raise source.error(
                path, f"found layer {shown(number)}, allowed are 0 to {layers - 1} (from 0)"
            )
        source.check_keys(path, genes, ())
        for gene, value in source.table(path).items():
            choices = _choices(source, (*path, gene), value)
            offered = source.table((stack,))[gene]
            known = set(offered)
            for choice in choices:
                if choice not in known:
                    raise source.error(
                        (*path, gene),
                        f"found {shown(choice)}, allowed are choices of {stack}.{gene}: "
                        f"{shown(offered)}",
                    )
            result[int(number), gene] = choices
    return result


def _choices(source: TomlSource, path: KeyPath, value: object) -> tuple[Choice, ...]:
    """A checked list of choices, sizes ascending and attention kinds in their usual order."""
    is_kind = path[-1].endswith("attention")
    example = '["softmax", "linear"]' if is_kind else "[64, 128]"
    if not isinstance(value, list):
        raise source.error(path, f"found {shown(value)}, allowed is a list such as {example}")
    if not 1 <= len(value) <= MAX_CHOICES:
        raise source.error(
            path, f"found {len(value)} choices, allowed are 1 to {MAX_CHOICES}, such as {example}"
        )
    highest = MAX_LAYERS if path[-1] in ("num_layers", "ende_connect") else MAX_SIZE
    lowest = 0 if path[-1] == MEMORY_GENE else 1
    for choice in value:
        if is_kind:
            if (problem := kind_problem(choice)) is not None:
                if base_kind(str(choice)) not in ATTENTION_KINDS:
                    raise source.error(path, unknown_name(_text(choice), ATTENTION_KINDS))
                raise source.error(path, f"found {shown(choice)}, {problem}")
        elif not _is_int(choice) or not lowest <= choice <= highest:
            raise source.error(
                path,
                f"found {shown(choice)}, allowed are whole numbers from {lowest} to {highest}",
            )
    if len(set(value)) < len(value):
        twice = next(choice for choice in value if value.count(choice) > 1)
        raise source.error(path, f"found {shown(twice)} more than once; each choice once")
    return tuple(sorted(value, key=kind_order if is_kind else None))


# -- [data] -------------------------------------------------------------------------------------


def _data(
    source: TomlSource, task: TaskName, model: ModelSettings, kept: bool
) -> Mapping[str, Any]:
    table = _free(source, ("data",))
    if kept or not table:
        return table
    dataset = table.get(DATASET, "")
    if not isinstance(dataset, str):
        raise source.error(("data", DATASET), f"found {shown(dataset)}, allowed is a string")
    source.check_keys(("data",), data_keys(task, model, dataset or None), ())
    if RECALL_WINDOW in table and (problem := window_problem(table[RECALL_WINDOW])) is not None:
        raise source.error(("data", RECALL_WINDOW), problem)
    form = dataset == RECALL or any(key in table for key in RECALL_FORM)
    if form and task == "language_modelling":
        _check_recall_form(source, table, model)
    return table


def _check_recall_form(source: TomlSource, table: Mapping[str, Any], model: ModelSettings) -> None:
    """Refuse a form of generated recall sequences that cannot be drawn, or read."""
    assert isinstance(model.input, TokenInput), "language models read tokens"
    try:
        RecallSettings.read(table, model.input.vocab_size, model.max_length)
    except SettingError as error:
        key = next((key for key in error.keys if key in table), error.keys[0])
        raise source.error(("data", key), error.marked) from None


# -- free tables --------------------------------------------------------------------------------


def _preset(source: TomlSource, name: str) -> dict[str, Any]:
    """A preset: plain values, and one level of tables of them (``[presets.quick.supernet]``)."""
    path = ("presets", name)
    table = source.table(path, {})
    nested = [key for key, value in table.items() if isinstance(value, dict)]
    plain = _free(source, path, skip=nested)
    return {**plain, **{key: _free(source, (*path, key)) for key in nested}}


def _free(source: TomlSource, path: KeyPath, skip: Sequence[str] = ()) -> dict[str, Any]:
    """A table with free keys whose values are plain: strings, numbers, booleans, lists of them."""
    table = {key: value for key, value in source.table(path, {}).items() if key not in skip}
    for key, value in table.items():
        for part in value if isinstance(value, list) else [value]:
            if not isinstance(part, str | int | float | bool):
                raise source.error(
                    (*path, key),
                    f"found {shown(part)}, allowed are strings, numbers, true and false, "
                    "and lists of them",
                )
    return table


def _text(value: object) -> str:
    return value if isinstance(value, str) else shown(value)


# -- [model] ------------------------------------------------------------------------------------


def model_from_source(source: TomlSource, task: TaskName) -> ModelSettings:
    """Check ``[model]`` and ``[model.input]`` and build the settings.

    Raises:
        SpaceFileError: for the first mistake.
    """
    names = [field.name for field in fields(ModelSettings)]
    source.check_keys(("model",), ["style", *names], ("input", "max_length"))
    values = _typed_values(source, ("model",), ModelSettings, skip=("input", "style"))
    model = ModelSettings(input=_input(source), **{**_style(source), **values})
    problem = model.problem() or TASKS[task].problem(model)
    if problem is not None:
        raise source.error(("model",), problem)
    return model


def _style(source: TomlSource) -> Mapping[str, Any]:
    style = source.table(("model",)).get("style")
    if style is None:
        return {}
    if not isinstance(style, str) or style not in STYLES:
        raise source.error(("model", "style"), unknown_name(_text(style), STYLES))
    return STYLES[style]


def _input(source: TomlSource) -> ImageInput | TokenInput:
    path = ("model", "input")
    kind = source.table(path).get("kind")
    if not isinstance(kind, str) or kind not in _INPUTS:
        raise source.error((*path, "kind"), f"found {shown(kind)}, allowed are 'image', 'tokens'")
    cls = _INPUTS[kind]
    required = [field.name for field in fields(cls) if field.default is MISSING]
    source.check_keys(path, ["kind", *(field.name for field in fields(cls))], required)
    return cls(**_typed_values(source, path, cls, skip=("kind",)))


def _typed_values(
    source: TomlSource, path: KeyPath, cls: type, skip: Sequence[str]
) -> dict[str, Any]:
    """The keys of a table, each checked against the type of the field of that name."""
    hints = get_type_hints(cls)
    table = source.table(path)
    for key, value in table.items():
        if key in skip:
            continue
        allowed = _not_allowed(key, value, hints[key])
        if allowed is not None:
            raise source.error((*path, key), f"found {shown(value)}, allowed {allowed}")
    return {key: value for key, value in table.items() if key not in skip}


def _not_allowed(key: str, value: object, hint: Any) -> str | None:
    """None where the value fits the type, else what would."""
    options = get_args(hint) if get_origin(hint) in (Union, types.UnionType) else (hint,)
    hint = next(option for option in options if option is not type(None))
    if get_origin(hint) is Literal:
        return None if value in get_args(hint) else "are " + ", ".join(map(repr, get_args(hint)))
    if hint is bool:
        return None if isinstance(value, bool) else "are true and false"
    if hint is float:
        number = isinstance(value, int | float) and not isinstance(value, bool)
        return None if number else "is a number"
    lowest = 0 if key in _MAY_BE_ZERO else 1
    fits = _is_int(value) and lowest <= value <= MAX_SIZE
    return None if fits else f"is a whole number from {lowest} to {MAX_SIZE}"


def _is_int(value: object) -> TypeGuard[int]:
    """Whether the value is a whole number; booleans are not."""
    return isinstance(value, int) and not isinstance(value, bool)


# -- what depends on several keys -----------------------------------------------------------------


def _check_space(source: TomlSource, space: SearchSpace) -> None:
    """Refuse a space whose parts contradict each other, or that is too large to count in.

    Raises:
        SpaceFileError: for the first mistake.
    """
    _check_size(source, space)
    _check_heads(source, space)
    _check_kv_heads(source, space)
    _check_kinds(source, space)
    _check_decoder(source, space)
    _check_memory(source, space)


def _check_number(source: TomlSource, slots: Sequence[Slot]) -> None:
    """Refuse so many choices that everything done with them takes too long.

    Raises:
        SpaceFileError: naming the stack.
    """
    number = sum(len(slot.choices) for slot in slots)
    if number > MAX_ALL_CHOICES:
        raise source.error(
            (slots[0].stack,),
            f"found {number:,} choices over all layers, allowed are {MAX_ALL_CHOICES:,}: "
            "leave out choices or layers",
        )


def _check_size(source: TomlSource, space: SearchSpace) -> None:
    if space.size > LARGEST:
        raise source.error(
            (space.stacks[0],),
            f"the space holds more than 10^{len(str(LARGEST)) - 1} networks, more than can be "
            "counted with: leave out choices or layers",
        )


def _check_heads(source: TomlSource, space: SearchSpace) -> None:
    width = space.model.qkv_dim
    for slot in space.slots:
        if slot.gene.endswith("num_heads") and width is not None:
            for heads in slot.choices:
                if width % int(heads):
                    raise source.error(
                        (slot.stack, slot.gene),
                        f"found {heads}, allowed are numbers that divide model.qkv_dim = {width}",
                    )


def _check_rotary(source: TomlSource, space: SearchSpace) -> None:
    """Refuse rotary positions that turn nothing, which earlier versions took for none."""
    for slot in space.slots:
        if slot.gene in ("num_heads", "self_num_heads"):
            problem = space.model.rotary_problem(int(max(slot.choices)))
            if problem is not None:
                raise source.error(("model", "rotary_share"), problem)


def _check_kv_heads(source: TomlSource, space: SearchSpace) -> None:
    """Heads of keys and values divide every number of heads of their layer."""
    for slot in space.slots:
        if slot.gene not in KV_GENES:
            continue
        heads = space.slot(f"{slot.stack}.{slot.layer}.{KV_GENES[slot.gene]}").choices
        for choice in slot.choices:
            if odd := [number for number in heads if int(number) % int(choice)]:
                raise source.error(
                    (slot.stack, slot.gene),
                    f"found {choice}, allowed are numbers that divide every choice of "
                    f"{KV_GENES[slot.gene]}, and {odd[0]} is one of them",
                )


def _check_kinds(source: TomlSource, space: SearchSpace) -> None:
    """Every kind means an operator that can stand there, and no two of a layer mean the same."""
    places: dict[str, Place] = {"attention": "encoder", "self_attention": "decoder"}
    for slot in space.slots:
        if not slot.gene.endswith("attention"):
            continue
        path = (slot.stack, slot.gene)
        meant: dict[tuple[str, int], Choice] = {}
        for choice in slot.choices:
            kind = str(choice)
            if kind == "omni":
                continue  # looks at other layers, whatever its kernel is
            place = places.get(slot.gene, "cross")
            try:
                meaning = (
                    operator_of(space.model, kind, place).name,
                    window_of(space.model, kind),
                )
            except ArchitectureError as error:
                raise source.error(path, str(error)) from None
            if place == "cross" and not operator_of(space.model, kind).crosses:
                kernels = ", ".join(name for name in LINEAR_KERNELS if OPERATORS[name].crosses)
                raise source.error(
                    path,
                    f"found {kind!r}, which cannot stand between two stacks; allowed are softmax, "
                    f"omni and linear with the kernels {kernels}",
                )
            if meaning in meant:
                raise source.error(
                    path, f"{meant[meaning]!r} and {kind!r} are the same here; name it once"
                )
            meant[meaning] = choice


def _check_decoder(source: TomlSource, space: SearchSpace) -> None:
    for slot in space.slots:
        if slot.gene == "ende_connect":
            shallowest = int(min(space.slot("encoder.num_layers").choices))
            if int(max(slot.choices)) > shallowest:
                raise source.error(
                    (slot.stack, slot.gene),
                    f"found {max(slot.choices)}, allowed is at most {shallowest}, the smallest "
                    "of encoder.num_layers",
                )
        omni = slot.stack == "decoder" and "omni" in slot.choices
        if omni and not operator_of(space.model, "omni").causal:
            kernels = (replace(space.model, omni_kernel=name) for name in get_args(OmniKernel))
            allowed = [m.omni_kernel for m in kernels if operator_of(m, "omni").causal]
            raise source.error(
                (slot.stack, slot.gene),
                f"found 'omni' with model.omni_kernel = {space.model.omni_kernel!r}, which mixes "
                "positions before it attends, so it cannot be causal; allowed in decoders are "
                f"{', '.join(map(repr, allowed))}",
            )


def _check_memory(source: TomlSource, space: SearchSpace) -> None:
    column = space.slot_index.get(f"decoder.{MEMORY_GENE}")
    if column is None or not any(space.slots[column].choices):
        return
    problem = space.model.memory_problem()
    if problem is not None:
        raise source.error(("decoder", MEMORY_GENE), problem)
    for slot in space.slots:
        if slot.gene == "self_attention" and slot.choices != ("softmax",):
            raise source.error(
                ("decoder", MEMORY_GENE),
                f"a memory of earlier segments needs self_attention = ['softmax'] and nothing "
                f"else, because the sums that linear and omni layers carry cannot be cut to the "
                f"last positions; {slot.name} offers {list(slot.choices)}",
            )
