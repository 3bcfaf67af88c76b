"""What runs a model: on which processes, in which precision, with how much memory."""
