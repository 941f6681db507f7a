"""The parts that ``modeling.py`` of an export is generated from; see `supernet.export.generate`.

Every part is real Python and runs as it stands, for the sample network of `sizes`. In a generated
file a branch on a property in capitals (``if PRE_NORM:``) is decided, what is then used by nothing
is left out, and sizes are numbers.

Shapes, here and in generated files: B batch, N positions, D width, H heads, W width of one head,
M source positions, V vocabulary.
"""
