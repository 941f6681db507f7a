"""Ways of choosing which networks to really evaluate; see `nas.search.searchers.base`."""
