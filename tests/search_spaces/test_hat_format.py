"""HAT's configuration files: read, written, and refused where they say something else."""

from __future__ import annotations

import numpy as np
import pytest

from search_spaces import load_space
from search_spaces.architecture import (
    Architecture,
    DecoderLayer,
    DecoderStack,
    EncoderLayer,
    EncoderStack,
)
from search_spaces.errors import ArchitectureError
from search_spaces.hat import from_hat, to_hat
from search_spaces.interchange import detect_form, parse_architecture
from search_spaces.variation import sample

# One of HAT's networks, typed from its published layer lists.
TITAN = """
encoder-embed-dim-subtransformer: 512
decoder-embed-dim-subtransformer: 512
encoder-ffn-embed-dim-all-subtransformer: [3072, 3072, 3072, 3072, 3072, 3072]
decoder-ffn-embed-dim-all-subtransformer: [3072, 3072, 3072]  # a comment: ignored
encoder-layer-num-subtransformer: 6
decoder-layer-num-subtransformer: 3
encoder-self-attention-heads-all-subtransformer: [4, 4, 8, 8, 8, 4]
decoder-self-attention-heads-all-subtransformer: [8, 8, 8]
decoder-ende-attention-heads-all-subtransformer: [4, 8, 8]
decoder-arbitrary-ende-attn-all-subtransformer: [-1, 1, 2]
"""


def network(kind: str = "softmax", connect: int = 1) -> Architecture:
    layer = DecoderLayer("softmax", 4, 64, kind, 2, connect)  # type: ignore[arg-type]
    encoder = EncoderStack(16, (EncoderLayer("softmax", 2, 32),) * 4)
    return Architecture(encoder, DecoderStack(24, (layer,)))


def test_a_network_of_hat_is_read() -> None:
    found = from_hat(TITAN)
    assert found.encoder is not None and found.decoder is not None
    assert [layer.num_heads for layer in found.encoder.layers] == [4, 4, 8, 8, 8, 4]
    assert [layer.cross_num_heads for layer in found.decoder.layers] == [4, 8, 8]
    assert [layer.ende_connect for layer in found.decoder.layers] == [1, 2, 3]
    assert load_space("wmt14-hat").contains(found)


def test_lists_may_be_longer_than_the_network() -> None:
    longer = TITAN.replace("[8, 8, 8]", "[8, 8, 8, 4, 4, 4]")
    assert from_hat(longer) == from_hat(TITAN)


def test_a_network_is_written_line_by_line_as_hat_does() -> None:
    said = {line.split("  #")[0] for line in TITAN.splitlines() if line}
    written = to_hat(from_hat(TITAN)).splitlines()
    assert {line for line in written if line and not line.startswith("#")} == said


@pytest.mark.parametrize("name", ["wmt14-hat", "iwslt14-hat"])
def test_networks_of_hats_spaces_come_back(name: str) -> None:
    space = load_space(name)
    for one in space.decode(sample(space, np.random.default_rng(3), 100)):
        assert from_hat(to_hat(one, space.model)) == one == parse_architecture(to_hat(one))


@pytest.mark.parametrize(
    ("made", "reason"),
    [
        (network("linear"), "attention of the kind linear, and HAT has softmax only"),
        (network("omni"), "kind omni"),
        (network(connect=4), "ende_connect of decoder layer 1 is 4"),
        (Architecture(EncoderStack(8, (EncoderLayer("softmax", 1, 8),))), "no encoder or no dec"),
        (Architecture(None, DecoderStack(8, (DecoderLayer("softmax", 1, 8),))), "no encoder or"),
        (
            Architecture(
                EncoderStack(8, (EncoderLayer("softmax", 1, 8),)),
                DecoderStack(8, (DecoderLayer("softmax", 1, 8),)),
            ),
            "decoder layer 1 has no cross-attention",
        ),
    ],
)
def test_what_hat_cannot_say_is_refused(made: Architecture, reason: str) -> None:
    with pytest.raises(ArchitectureError, match=f"HAT's format cannot say this.*{reason}"):
        to_hat(made)


def test_heads_of_a_fixed_width_cannot_be_said() -> None:
    with pytest.raises(ArchitectureError, match="a head is 32 wide"):
        to_hat(network(), load_space("multi30k").model)
    assert to_hat(network(), load_space("wmt14").model) == to_hat(network())


BOMB = "a: &a [1]\n" + "".join(f"b{n}: &b{n} [*a, *a, *a, *a, *a, *a, *a]\n" for n in range(9))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (TITAN.replace("[8, 8, 8]", "[8, 8"), "no YAML"),
        (TITAN.replace("encoder-layer-num", "layers"), "unknown key 'layers-subtransformer'"),
        (TITAN.replace("encoder-layer-num-subtransformer: 6", ""), "'encoder-layer-num.*missing"),
        (TITAN.replace("[-1, 1, 2]", "[-1, 1, 7]"), "holds 7; allowed are -1, 1, 2"),
        (TITAN.replace("[4, 8, 8]", "[4]"), "at least 3 whole numbers"),
        (TITAN.replace("[4, 8, 8]", "[4, 8.5, 8]"), "at least 3 whole numbers"),
        (TITAN.replace("[4, 8, 8]", "[4, true, 8]"), "at least 3 whole numbers"),
        (TITAN.replace("[4, 8, 8]", "8"), "at least 3 whole numbers"),
        (TITAN.replace("[4, 8, 8]", "[4, 0, 8]"), "cross_num_heads must be"),
        (TITAN.replace("dim-subtransformer: 512", "dim-subtransformer: [512]", 1), "whole number"),
        (TITAN.replace("layer-num-subtransformer: 3", "layer-num-subtransformer: -1"), "is -1"),
        (TITAN + "encoder-layer-num-subtransformer: 2\n", "there twice"),
        (TITAN + "encoder-embed-dim: 2\n", "given with and without"),
        (TITAN + "3: 4\n", "unknown key 3"),
        (TITAN + "lr: 1e-3\n", "unknown key 'lr'"),
        (TITAN.replace("[4, 8, 8]", "[[4], 8, 8]"), "number or a list of numbers"),
        (TITAN.replace("[4, 8, 8]", "{a: 1}"), "number or a list of numbers"),
        (BOMB, "aliases and anchors"),
        ("a: !!python/object/apply:os.system [id]", "the tag 'tag:yaml.org,2002:python/object"),
        ("[" * 50_000, "number or a list of numbers"),
        ("- 1\n- 2\n", "no network in HAT's format"),
        ("\x00", "no YAML"),
        ("a: 1\n---\nb: 2\n", "no YAML"),
        ("x" * 70_000, "at most 64000 characters"),
    ],
)
def test_another_file_is_refused(text: str, message: str) -> None:
    with pytest.raises(ArchitectureError, match=message):
        from_hat(text)


def test_forms_are_told_apart() -> None:
    assert detect_form(TITAN) == "hat"
    assert detect_form('\n {"encoder": {}}') == "json"
    assert detect_form("E8: s1/4") == "text"
    with pytest.raises(ArchitectureError, match="there is nothing"):
        detect_form(" \n")
