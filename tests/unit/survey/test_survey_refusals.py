"""Which options a scheme refuses is found whatever the types of its options are."""

from dataclasses import dataclass

from deepnet.errors import ConfigError
from deepnet.schemes import pre_ln
from deepnet.survey.refusals import refused_options


@dataclass(frozen=True, kw_only=True)
class Scheme(pre_ln.Scheme):
    """Pre-LN with options of several types."""

    sizes: tuple[float, ...] = (1.0,)
    either: float | int = 1.0
    rank: int = 1

    def __post_init__(self) -> None:
        if self.rank < 1:
            raise ConfigError(f"rank is {self.rank}; expected at least 1")


def test_options_that_are_no_number_are_left_as_they_are():
    assert refused_options(f"{__name__}:Scheme") == {
        "rank is -1; expected at least 1": {"rank": -1}
    }
