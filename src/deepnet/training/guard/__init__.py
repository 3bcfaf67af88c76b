"""The guard: what it sees of an update, how it judges, where trouble began, and what the run then does."""
