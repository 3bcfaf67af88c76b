"""Search and scoring: beam search, sampling, ensembles, forced scores and whole texts."""
