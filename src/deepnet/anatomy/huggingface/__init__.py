"""Hugging Face's models, one file per family; the file name is the `model_type` of the configuration.

Each file overrides the one forward of a layer that holds its residual additions, and says where norms and weights are.
Only these files import transformers, and they are imported only when a model of that family is looked at.
"""
