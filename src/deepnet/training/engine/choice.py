"""Which engine runs a model."""

from collections.abc import Iterable, Sequence

from torch import nn

from deepnet.training.config import OptimizerConfig
from deepnet.training.engine.base import Engine
from deepnet.training.engine.data_parallel import DataParallel
from deepnet.training.engine.precision import Precision
from deepnet.training.engine.ranks import Ranks
from deepnet.training.optimization.optimizers import PolicyRow


def make_engine(
    model: nn.Module,
    *,
    optimizer: OptimizerConfig,
    policies: Iterable[PolicyRow] | None,
    blocks: Sequence[nn.Module],
    precision: Precision,
    ranks: Ranks,
) -> Engine:
    """Return what runs a model: data parallel where there are several ranks."""
    kind = DataParallel if ranks.world_size > 1 else Engine
    return kind(
        model,
        optimizer=optimizer,
        policies=policies,
        blocks=blocks,
        precision=precision,
        ranks=ranks,
    )
