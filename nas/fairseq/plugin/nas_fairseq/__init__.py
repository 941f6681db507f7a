"""The plug-in for fairseq's ``--user-dir``: registers the model ``nas_transformer``.

It needs the packages `search_spaces`, `supernet` and `nas`; an exported folder brings what it needs
of them along, in ``lib``.
"""

import sys
from pathlib import Path

_LIB = Path(__file__).parent / "lib"
if _LIB.is_dir() and str(_LIB) not in sys.path:
    sys.path.insert(0, str(_LIB))

from . import network  # noqa: E402,F401
