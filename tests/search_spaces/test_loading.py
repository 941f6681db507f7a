"""Space files: shipped ones are right, a user's mistakes are named by file, line and key."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from search_spaces import SearchSpace, dump_space, load_space, parse_space, space_names
from search_spaces.errors import SpaceFileError, UnknownNameError
from search_spaces.space_form import LARGEST
from search_spaces.toml import source
from search_spaces.toml.bounds import check_bounds
from search_spaces.toml.source import MAX_BYTES, TomlSource
from search_spaces.variation import sample
from tests.support.memory_cases import SPACE as WITH_MEMORY
from tests.support.space_strategies import generator, spaces

SHIPPED = {
    "cifar10", "digits", "iwslt14-hat", "listops", "lm-small", "multi30k", "python-source",
    "recall", "vit-small", "wikitext103", "wikitext103-xl", "wmt14", "wmt14-hat",
}  # fmt: skip

MINE = """\
[space]
name = "mine"
task = "classification"

[model]
max_length = 16
num_classes = 10
qkv_dim = 64

[model.input]
kind = "tokens"
vocab_size = 20

[encoder]
embed_dim = [64, 32]
num_layers = [2, 1]
attention = ["omni", "softmax"]
num_heads = [2, 4]
ffn_dim = [
    64,   # small
    128,
]
"""

DECODER = """
[decoder]
embed_dim = [64]
num_layers = [1]
self_attention = ["softmax"]
self_num_heads = [2]
ffn_dim = [64]
cross_attention = ["softmax"]
cross_num_heads = [2]
ende_connect = [1]
"""

TRANSLATION = (
    MINE.replace("classification", "translation").replace("num_classes = 10\n", "") + DECODER
).replace("vocab_size = 20", "vocab_size = 20\nshare_embeddings = true")


def refusal(text: str) -> str:
    with pytest.raises(SpaceFileError) as caught:
        parse_space(text, "mine.toml")
    return str(caught.value)


# -- what is right --------------------------------------------------------------------------------


def test_the_shipped_spaces_are_the_promised_ones() -> None:
    assert set(space_names()) == SHIPPED and space_names() == sorted(SHIPPED)


@pytest.mark.parametrize("name", sorted(SHIPPED))
def test_shipped_spaces_load_count_sample_and_round_trip(name: str) -> None:
    space = load_space(name)
    assert space.name == name and space.description and space.data["dataset"]
    rows = sample(space, generator(), 20)
    assert (space.encode(space.decode(rows)) == rows).all()
    assert space.size > 10_000
    again = parse_space(dump_space(space), name)
    assert again == space and again.digest == space.digest
    assert (again.data, again.workload) == (space.data, space.workload)


def test_sizes_are_sorted_and_kinds_in_their_usual_order() -> None:
    space = parse_space(MINE, "mine.toml")
    assert space.slot("encoder.embed_dim").choices == (32, 64)
    assert space.slot("encoder.1.attention").choices == ("softmax", "omni")
    names = [slot.name for slot in space.slots[:6]]
    assert names[:2] == ["encoder.embed_dim", "encoder.num_layers"]
    assert names[2:5] == [f"encoder.0.{gene}" for gene in ("attention", "num_heads", "ffn_dim")]


def test_a_translation_space_of_ones_own() -> None:
    space = parse_space(TRANSLATION, "mine.toml")
    assert space.stacks == ("encoder", "decoder")
    assert space.slots[-1].name == "decoder.0.ende_connect"


def test_a_language_space_may_have_a_memory() -> None:
    space = parse_space(WITH_MEMORY, "mine.toml")
    assert [slot.name for slot in space.slots[:3]] == [
        f"decoder.{gene}" for gene in ("embed_dim", "num_layers", "memory_length")
    ]
    assert space.slots[2].choices == (0, 3, 40)
    without = parse_space(WITH_MEMORY.replace("memory_length = [0, 3, 40]\n", ""), "mine.toml")
    assert [s.name for s in without.slots] == [s.name for s in space.slots if s != space.slots[2]]
    assert space.size == 3 * without.size and space.digest != without.digest


def test_a_memory_of_nothing_asks_for_nothing() -> None:
    text = WITH_MEMORY.replace("[0, 3, 40]", "[0]").replace('"none"', '"learned"')
    assert parse_space(text, "mine.toml").slots[2].choices == (0,)


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("_positions = 3", "_positions = 0", "needs relative_positions > 0 .* = 0 and"),
        ('"none"', '"sinusoidal"', "positions = 'none'.* places do not; given .*'sinusoidal'"),
        ('["softmax"]', '["softmax", "linear"]', r"decoder\.0\.self_attention offers .*'linear'"),
        ('["softmax"]', '["omni"]', "needs self_attention = .'softmax'. and nothing else"),
        ("[0, 3, 40]", "[0, -3]", "found -3, allowed are whole numbers from 0 to 1000000"),
        ("[0, 3, 40]", "[3, 3]", "found 3 more than once"),
        ("[0, 3, 40]", "40", "found 40, allowed is a list"),
        ("[0, 3, 40]", "[true]", "found true, allowed are whole"),
    ],
)
def test_a_mistake_in_a_space_with_a_memory_is_named(old: str, new: str, message: str) -> None:
    assert old in WITH_MEMORY
    found = refusal(WITH_MEMORY.replace(old, new, 1))
    assert re.match(f"mine.toml, line 18, decoder.memory_length: .*{message}", found)


def test_a_memory_belongs_to_language_models() -> None:
    text = TRANSLATION.replace("[decoder]", "[decoder]\nmemory_length = [0, 8]")
    assert re.search("decoder.memory_length: .*the task is translation: remove", refusal(text))
    text = MINE.replace("[encoder]", "[encoder]\nmemory_length = [0, 8]")
    assert "encoder.memory_length: found 'memory_length'" in refusal(text)
    text = WITH_MEMORY + "[decoder.layer.0]\nmemory_length = [3]\n"
    assert "decoder.layer.0.memory_length: found 'memory_length'" in refusal(text)


def test_one_layer_may_offer_less() -> None:
    space = parse_space(MINE + '[encoder.layer.1]\nattention = ["omni"]\n', "mine.toml")
    assert space.slot("encoder.0.attention").choices == ("softmax", "omni")
    assert space.slot("encoder.1.attention").choices == ("omni",)


def test_free_tables_are_kept() -> None:
    text = MINE + '[data]\ndataset = "x"\n[presets.quick]\nrates = [0.1, 0.2]\n'
    space = parse_space(text, "mine.toml")
    assert space.data == {"dataset": "x"} and space.presets["quick"]["rates"] == [0.1, 0.2]
    assert parse_space(dump_space(space), "again").presets == space.presets


@given(spaces(max_layers=3, most=3), st.randoms(use_true_random=False))
def test_dumping_and_parsing_gives_the_same_space(space: SearchSpace, random: object) -> None:
    slot = space.slots[random.randrange(len(space.slots))]  # type: ignore[attr-defined]
    for original in (space, space.restrict({slot.name: slot.choices[-1:]})):
        again = parse_space(dump_space(original), "dumped")
        assert again == original and again.digest == original.digest


def test_a_pruned_space_with_fewer_layers_keeps_its_columns() -> None:
    root = load_space("digits")
    cut = root.restrict({"encoder.num_layers": [1, 2], "encoder.3.ffn_dim": [8]})
    again = parse_space(dump_space(cut), "pruned")
    assert again == cut and len(again.slots) == len(root.slots)
    assert again.parent_digest == root.digest


def test_a_path_works_where_a_name_does(tmp_path: Path) -> None:
    path = tmp_path / "mine.toml"
    path.write_bytes(b"\xef\xbb\xbf" + MINE.replace("\n", "\r\n").encode())
    assert load_space(str(path)) == parse_space(MINE, "mine.toml")


# -- names and files ------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["digit", "Digits", "dgits"])
def test_an_unknown_name_suggests_the_nearest(name: str) -> None:
    with pytest.raises(UnknownNameError, match=r"did you mean digits( or vit-small)?\?\); shipped"):
        load_space(name)


@pytest.mark.parametrize("name", ["", "zzzzzz", "../digits.", "mnist "])
def test_names_that_resemble_nothing_list_what_there_is(name: str) -> None:
    with pytest.raises((UnknownNameError, SpaceFileError), match="space"):
        load_space(name)


def test_files_that_are_no_space_files(tmp_path: Path) -> None:
    cases = {
        "empty.toml": (b"", "the file is empty"),
        "comment.toml": (b"# nothing\n", "the file is empty"),
        "latin.toml": (b"[space]\nname = '\xe9'\n", r"line 2: the file is not UTF-8"),
        "huge.toml": (b"#" * (MAX_BYTES + 1), "larger than"),
    }
    for name, (content, message) in cases.items():
        (tmp_path / name).write_bytes(content)
        with pytest.raises(SpaceFileError, match=f"{name}.*{message}"):
            load_space(str(tmp_path / name))


def test_missing_files_and_folders(tmp_path: Path) -> None:
    with pytest.raises(SpaceFileError, match="there is no such file"):
        load_space(str(tmp_path / "none.toml"))
    with pytest.raises(SpaceFileError, match="this is not a file"):
        load_space(f"{tmp_path}/")


# -- mistakes in the text -------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        # syntax and structure
        ("[model]", "[model", "line 5: this is not TOML"),
        ("[64, 32]", "[64, 32", "this is not TOML"),
        ("num_classes = 10", "max_length = 10", "line 7: this is not TOML: .*overwrite"),
        ("[space]", "[spaces]", "line 1, spaces: found 'spaces' .did you mean 'space'"),
        ("[encoder]", "[encodr]", "line 14, encodr: found 'encodr' .did you mean 'encoder'"),
        ("[model.input]", "[model.inputs]", "line 10, model.inputs: found 'inputs' .did you mean"),
        ("ffn_dim = [", "ffn_size = [", "line 19, encoder.ffn_size: .*did you mean 'ffn_dim'"),
        ("num_heads = [2, 4]\n", "", "line 14, encoder.num_heads: this key is missing"),
        ("max_length = 16\n", "", "line 5, model.max_length: this key is missing"),
        ("vocab_size = 20", "", "line 10, model.input.vocab_size: this key is missing"),
        # header
        ('"mine"', '""', "line 2, space.name: found ''"),
        ('"mine"', '"a b"', "line 2, space.name: found 'a b', allowed are 1 to 64"),
        ('"mine"', "7", "line 2, space.name: found 7, allowed is a string"),
        ('"classification"', '"clasification"', "line 3, space.task: .*did you mean"),
        # model
        ("= 16", '= "16"', "line 6, model.max_length: found '16', allowed is a whole number"),
        ("= 16", "= 0", "line 6, model.max_length: found 0, allowed .* from 1 to 1000000"),
        ("= 16", "= 1000001", "line 6, model.max_length: found 1000001"),
        ("= 16", "= true", "line 6, model.max_length: found true"),
        ("= 16", "= 16\nnorm = 'both'", "line 7, model.norm: found 'both', allowed are 'pre', 'p"),
        ("= 16", "= 16\nnorm = [1]", r"line 7, model.norm: found \[1\]"),
        ("= 16", "= 16\nclass_token = 1", "line 7, model.class_token: found 1, allowed are true"),
        ("= 16", "= 16\nhead_dim = 8", "line 5, model: give exactly one of head_dim and qkv_dim"),
        ("= 16", "= 16\npooling = 'class'", "line 5, model: pooling is 'class'"),
        ("= 16", "= 16\nrotary_theta = nan", "line 5, model: rotary_theta is a finite number"),
        ("= 16", "= 16\nrotary_theta = 1e400", "line 5, model: rotary_theta is a finite number"),
        ("= 16", "= 16\nrotary_factor = 0.9", "line 5, model: rotary_factor stretches wave len"),
        ("= 16", "= 16\nrotary_low_freq_factor = 4", "line 5, model: rotary_low_freq_factor is"),
        ("num_classes = 10", "", "line 5, model: a classification space needs num_classes"),
        ('"tokens"', '"sound"', "line 11, model.input.kind: found 'sound', allowed are 'image'"),
        ('"tokens"', "[1]", r"line 11, model.input.kind: found \[1\]"),
        # choices
        ("[64, 32]", "64", r"line 15, encoder.embed_dim: found 64, allowed is a list"),
        ("[64, 32]", "[]", "line 15, encoder.embed_dim: found 0 choices"),
        ("[64, 32]", "[64, 64]", "line 15, encoder.embed_dim: found 64 more than once"),
        ("[64, 32]", "[64, -32]", "line 15, encoder.embed_dim: found -32, allowed are whole"),
        ("[64, 32]", "[64, 32.0]", r"line 15, encoder.embed_dim: found 32\.0"),
        ("[64, 32]", "[64, true]", "line 15, encoder.embed_dim: found true"),
        ("[2, 1]", "[2, 1001]", "line 16, encoder.num_layers: found 1001, .* from 1 to 1000"),
        ('"softmax"]', '"softmx"]', "line 17, encoder.attention: .*did you mean 'softmax'"),
        ('"softmax"]', "3]", "line 17, encoder.attention: found '3', allowed are softmax"),
        ("[2, 4]", "[2, 3]", "line 18, encoder.num_heads: found 3, .* divide model.qkv_dim = 64"),
        ("    128,", '    "128",', "line 19, encoder.ffn_dim: found '128'"),
        ("[64, 32]", "[64, 32]\nmax_layers = 1", "line 16, encoder.max_layers: found 1, .*from 2"),
    ],
)  # fmt: skip
def test_a_mistake_is_named(old: str, new: str, message: str) -> None:
    assert old in MINE
    assert re.match(f"mine.toml.*{message}", refusal(MINE.replace(old, new, 1)))


@pytest.mark.parametrize(
    ("extra", "message"),
    [
        ("[encoder.layer.2]\n", "line 23, encoder.layer.2: found layer '2', allowed are 0 to 1"),
        ("[encoder.layer.01]\n", "found layer '01'"),
        ("[encoder.layer.0]\nffn = [64]\n", "line 24, encoder.layer.0.ffn: .*'ffn_dim'"),
        ("[encoder.layer.0]\nffn_dim = [65]\n", "line 24, .*found 65, allowed are choices of"),
        ("[encoder.layer]\n0 = 3\n", "line 24, encoder.layer.0: found 3, allowed is a table"),
        ("[data]\nmean = [0.5]\n", "line 24, data.mean: found 'mean', allowed are dataset$"),
        ("[data]\ndataset = 3\n", "line 24, data.dataset: found 3, allowed is a string"),
        ("[data]\nday = 2020-01-01\n", "line 24, data.day: found a date"),
        ("[data.deep]\nx = 1\n", "line 23, data.deep: found a table"),
        ("[presets]\nquick = 3\n", "line 24, presets.quick: found 3, allowed is a table"),
        (DECODER, "line 24, decoder: a classification space has no decoder"),
    ],
)
def test_a_mistake_in_optional_tables_is_named(extra: str, message: str) -> None:
    assert re.match(f"mine.toml.*{message}", refusal(MINE + extra))


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("ende_connect = [1]", "ende_connect = [1, 2]", "decoder.ende_connect: found 2, .*most 1"),
        (DECODER, "", r"decoder: the table \[decoder\] is missing; translation needs it"),
        ("share_embeddings = true", "", "either input.target_vocab_size or"),
        ("max_length = 16", "max_length = 16\nnum_classes = 3", "belongs to classification"),
        ("max_length = 16", "max_length = 16\nclass_token = true", "class_token belongs to class"),
        ("max_length = 16", "max_length = 16\nunit_length = true", "unit_length belongs to class"),
        ('"translation"', '"language_modelling"', "share_embeddings belong to translation"),
        ("cross_num_heads = [2]", "cross_num_heads = [3]", "decoder.cross_num_heads: found 3"),
    ],
)
def test_a_mistake_in_a_translation_space_is_named(old: str, new: str, message: str) -> None:
    assert old in TRANSLATION
    assert re.match(f"mine.toml.*{message}", refusal(TRANSLATION.replace(old, new, 1)))


def test_linformer_is_refused_in_decoders_only() -> None:
    linformer = TRANSLATION.replace("= 16", '= 16\nomni_kernel = "linformer"', 1)
    parse_space(linformer, "mine.toml")
    text = linformer.replace('self_attention = ["softmax"]', 'self_attention = ["omni"]')
    assert "it cannot be causal" in refusal(text)


# What was neither counted as deep nor as long: each took seconds and gigabytes, or still does in
# tomllib alone.
HOSTILE = {
    "brackets": "a = " + "[" * 5000 + "]" * 5000,
    "a number": "a = " + "9" * 5000,
    "a number of another base": "a = 0x" + "f" * 5000,
    "a key behind a quoted equals sign": '"="' + ".a" * 5000 + " = 1\n",
    "an inline table": "x = {a" + ".a" * 5000 + " = 1}\n",
    "a header": "[a" + ".a" * 5000 + "]\n",
    "quoted parts": '"a"' + ".'a'" * 5000 + " = 1\n",
    "a next line": "a\x85" + ".a" * 5000 + " = 1\n",
    "a line separator": "'\u2028'" + ".a" * 5000 + " = 1\n",
    "behind a comment": "# ' \" \n" + "a" + " . a" * 5000 + " = 1\n",
    "behind a string of several lines": 'b = """\n\\""" """\n' + "a" + ".a" * 5000 + " = 1\n",
    "a long key": "a" * 5000 + " = 1\n",
    "a long quoted key": f'"{"=" * 5000}" = 1\n',
    "a long part of a header": f'["{"=" * 5000}"]\n',
    "keys": "".join(f"a{n} = 1\n" for n in range(6000)),
    "values": "a = [" + "1," * 60_000 + "]\n",
    "inline tables": "a = [" + "{}," * 30_000 + "]\n",
}


@pytest.mark.parametrize("text", HOSTILE.values(), ids=HOSTILE)
def test_hostile_text_is_refused_before_it_is_parsed(
    text: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def parse(text: str) -> None:
        raise AssertionError("it was parsed")

    monkeypatch.setattr(source.tomllib, "loads", parse)
    message = refusal(text)
    assert message.startswith("mine.toml, line") and message.endswith("no space needs as much")
    assert len(message) < 200


def test_strings_and_comments_may_hold_what_keys_may_not() -> None:
    text = "a.b.c = '" + "[." * 500 + "'\n"
    text += 'd = """\n' + "a." * 500 + '\n\\"""' + '"""\n'
    text += (
        "# "
        + "a." * 500
        + "\n"
        + "e = ["
        + '"'
        + "x" * 500
        + '"]\nf = [1.5, 2.5, 3.5, 1.5, 1.5, 9.5]'
    )
    check_bounds(text, "mine.toml")
    assert TomlSource.parse(text, "mine.toml").data["f"][-1] == 9.5


@pytest.mark.parametrize("text", ['a = """' + ".a" * 5000, "a = '" + ".a" * 5000])
def test_a_string_without_an_end_is_the_parsers_to_refuse(text: str) -> None:
    assert "this is not TOML" in refusal(text)


def test_more_networks_than_a_number_can_hold_are_refused() -> None:
    wide = "[" + ", ".join(map(str, range(1, 21))) + "]"
    text = MINE.replace("num_heads = [2, 4]", "num_heads = [1, 2]")
    deep = text.replace("[2, 1]", "[1000, 1]")
    assert "more than 10^300 networks" in refusal(deep)
    many = text[: text.index("ffn_dim")] + f"ffn_dim = {wide}\nmax_layers = 1000\n"
    assert "found 24,004 choices" in refusal(many)


def test_the_largest_space_that_is_allowed_can_be_written_down() -> None:
    text = MINE.replace("[2, 1]", "[330, 1]")
    space = parse_space(text, "mine.toml")
    assert 10**290 < space.size < LARGEST and f"{space.size:.2e}".endswith(
        f"e+{len(str(space.size)) - 1}"
    )


# -- lines ----------------------------------------------------------------------------------------


def test_lines_are_found_whatever_the_style() -> None:
    text = (
        "# [not.a.table]\n"
        'first = """\n[nor.this]\nx = 1\n""""\n'
        "second = [ # ]\n  '[', \"]\", # three\n  { k = 1 },\n]\n"
        "[\"quoted.name\".'inner']\n"
        "a.b = '''\n'c'''\n"
        "  [[ many ]]  # comment\n"
        "late = {inline = 2}"
    )
    lines = TomlSource.parse(text, "t").lines
    assert {path: line for path, line in lines.items() if len(path) == 1} == {
        ("first",): 2, ("second",): 6, ("quoted.name",): 10, ("many",): 13,
    }  # fmt: skip
    assert lines[("quoted.name", "inner", "a", "b")] == 11
    assert lines[("many", "late")] == 14


def test_a_key_of_an_inline_table_is_placed_at_the_table() -> None:
    start, end = MINE.index("[model.input]"), MINE.index("[encoder]")
    text = MINE[:start] + 'input = { kind = "tokens", vocab_size = 0 }\n' + MINE[end:]
    assert refusal(text).startswith("mine.toml, line 10, model.input.vocab_size: found 0")


@given(st.text(alphabet="[]{}=.\"'#ab1 \n\\,", max_size=80))
def test_any_text_is_parsed_or_refused_as_a_space_file(text: str) -> None:
    with pytest.raises(SpaceFileError):
        parse_space(text, "fuzz.toml")
