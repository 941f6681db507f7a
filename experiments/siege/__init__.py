"""The parts of `experiments.service_siege`: a service, its ordinary clients, and the attacks."""
