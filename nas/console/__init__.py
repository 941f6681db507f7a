"""What commands share, those of other packages among them: output, tables, progress, failures."""
