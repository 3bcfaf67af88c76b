"""Stands in for timm in the benchmarks' environment: torchscale imports one function of it."""
