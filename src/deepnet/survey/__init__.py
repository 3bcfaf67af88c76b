"""What is known of each residual scheme: what its file says, what a model of it has and costs, and what we measured."""

from deepnet.survey.refusals import refused_options
from deepnet.survey.sheet import scheme_sheet
from deepnet.survey.table import NORMS, PARAMETERS, scheme_catalogue

__all__ = ["NORMS", "PARAMETERS", "refused_options", "scheme_catalogue", "scheme_sheet"]
