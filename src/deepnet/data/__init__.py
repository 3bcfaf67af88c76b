"""From files of text to the batches of an update: each step is one module with one format or type at its border."""
