"""From a recipe to a scored model in one call: where data, training, decoding and evaluation are wired together."""
