"""Which omni layers look at several layers."""

from __future__ import annotations

from typing import Any

import pytest

from search_spaces.omni import omni_layers
from tests.support.supernet_cases import network


@pytest.mark.parametrize(
    ("kinds", "expected"),
    [
        (("omni", "softmax"), []),  # the first layer looks at the embeddings alone
        (("softmax", "omni", "omni"), [("encoder", 2, (0, 1))]),
        (("linear", "linear", "softmax", "omni"), [("encoder", 4, (1, 2, 3))]),
    ],
)
def test_layers_that_look_at_several(kinds: Any, expected: list[Any]) -> None:
    assert omni_layers(network(*kinds), 3) == expected
