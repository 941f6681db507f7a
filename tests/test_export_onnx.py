"""ONNX graphs of all kinds of networks, held against torch at sizes that were not traced."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from tests import decoder_cases, supernet_cases
from tests.decoder_cases import random_translator, random_writer, translator, writer
from tests.onnx_cases import (
    apart_classifying,
    apart_translating,
    apart_writing,
    network_of,
    sources,
    write,
)
from tests.supernet_cases import network, random_inputs, random_supernet

pytestmark = pytest.mark.export

TOLERANCE = 1e-4
KINDS = ("softmax", "linear", "omni")


@pytest.mark.slow
@pytest.mark.parametrize("name", decoder_cases.SETTINGS)
def test_translation_networks(name: str, tmp_path: Path) -> None:
    settings = decoder_cases.SETTINGS[name]
    architecture = translator(own=KINDS, cross=("linear", "softmax", "omni"))
    one = network_of(random_translator(settings), architecture)
    write(one, settings, "translation", tmp_path)
    assert apart_translating(one, tmp_path, 9) < TOLERANCE


@pytest.mark.slow
@pytest.mark.parametrize("name", decoder_cases.SETTINGS)
def test_language_models(name: str, tmp_path: Path) -> None:
    settings = decoder_cases.SETTINGS[name]
    one = network_of(random_writer(settings), writer(*KINDS, "omni"))
    write(one, settings, "language_modelling", tmp_path)
    assert apart_writing(one, tmp_path, 9) < TOLERANCE


@pytest.mark.slow
@pytest.mark.parametrize("name", supernet_cases.SETTINGS)
def test_classifiers(name: str, tmp_path: Path) -> None:
    settings = supernet_cases.SETTINGS[name]
    one = network_of(random_supernet(settings), network(*KINDS, "omni"))
    write(one, settings, "classification", tmp_path)
    inputs = [random_inputs(settings, batch) for batch in (1, 2, 3)]
    if inputs[0].dtype == torch.int64:
        inputs += [sources(1, 1, 9), sources(4, 17, 9), sources(2, 9, 9)]
    inputs = [x if x.dtype == torch.int64 else x.float() for x in inputs]
    assert apart_classifying(one, tmp_path, inputs) < TOLERANCE
