"""Where the residual sites and the roles of a model are: ours, torch.nn's, and Hugging Face's, one file per family."""
