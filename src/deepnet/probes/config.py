"""The recipe's section [probes]."""

from typing import Annotated

from pydantic import Field

from deepnet.config import Section


class ProbeConfig(Section):
    """What is measured while a model trains, on the same few valid sentences each time; docs/probes.md explains it."""

    every: Annotated[int, Field(ge=0)] = 100
    """Updates from one reading to the next; 0 measures nothing."""
    sentences: Annotated[int, Field(ge=1)] = 4
    """Sentences of the fixed probe batch: the first so many of the valid part."""
