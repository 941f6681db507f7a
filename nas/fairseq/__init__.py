"""Networks of a run trained with fairseq."""
