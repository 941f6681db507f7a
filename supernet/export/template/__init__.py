"""The parts of an export's ``modeling.py``; `supernet.export.standalone` puts them together.

Every part is real Python and imports the others as modules. In an exported file the parts that a
network needs stand one after the other, and sizes are read from ``architecture.json``.

Shapes, here and in exported files: B batch, N positions, D width, H heads, W width of one head,
M source positions, V vocabulary.
"""
