"""The search itself: genotypes, rankers and fronts as plain numpy."""
