"""Networks as files that run without this package; see `supernet.export.formats`."""
