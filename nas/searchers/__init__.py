"""Ways of choosing which networks to really evaluate; see `nas.searchers.base`."""
