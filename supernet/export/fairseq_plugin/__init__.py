"""Where fairseq finds the plug-in: give `USER_DIR` to its commands as ``--user-dir``.

The folder has a floor of its own because fairseq puts the folder around it on the path.
"""

from pathlib import Path

USER_DIR = Path(__file__).parent / "nas_fairseq"
