"""A scheme on somebody else's model, in one call."""

from collections.abc import Iterable, Mapping
from typing import Any

from torch import nn

from deepnet.adapt.attach import attach
from deepnet.adapt.convert import keep_function
from deepnet.adapt.drawn import WeightChange, check_untrained, draw_weights
from deepnet.adapt.ends import check_ends, draw_rows, ends_notes, read_ends
from deepnet.adapt.fit import PlannedStack, Setting, plan_stacks
from deepnet.adapt.journal import Journal
from deepnet.adapt.prepare import prepare
from deepnet.adapt.record import write_record
from deepnet.adapt.report import Report
from deepnet.adapt.state import SchemeState
from deepnet.anatomy.base import Anatomy, stock_class
from deepnet.anatomy.locate import locate
from deepnet.errors import AdaptError, ConfigError
from deepnet.schemes.base import OptimizerFamily, ResidualScheme
from deepnet.schemes.catalogue import describe_scheme, load_scheme
from deepnet.transformer.ends import EndsConfig
from deepnet.transformer.models import Transformer


def apply_scheme(
    model: nn.Module,
    scheme: str | ResidualScheme,
    *,
    options: Mapping[str, Any] | None = None,
    batches: Iterable[Any] = (),
    initialize: bool | None = None,
    optimizer_family: OptimizerFamily = "adam",
    layers: tuple[int, int] | None = None,
    ends: EndsConfig | Mapping[str, Any] | None = None,
) -> Report:
    """Put a residual scheme on `model` in place, draw its weights by role, and report every change.

    Call it before the optimiser is made: the norms are new parameters. `batches` is for schemes that measure before
    the first update; a batch is a tuple or a mapping of the model's inputs. `initialize` None draws new weights, but
    refuses trained ones; True draws in any case; False keeps the function the weights compute, where the scheme has an
    exact form of it. `layers` is (encoder, decoder) of the whole where `model` is one stack of it; (0, M) makes
    torch's encoder a decoder-only model. `ends` chooses what [ends] does in a recipe, of a Hugging Face model's
    embeddings and vocabulary projection; its multipliers are carried out by `report.parameter_groups`.

    Raises AdaptError that says why the scheme cannot live there and which can, ConfigError where `ends` has a wrong key
    or contradicts the scheme; the model is then as it was.
    """
    named = _named(scheme, options)
    anatomy = locate(model)
    _check_stock(model)
    _check_forwards(anatomy)
    keep, choice = initialize is False, read_ends(ends)
    check_ends(anatomy, choice, keep=keep)
    setting = Setting(optimizer_family=optimizer_family, layers=layers, ends=choice)
    planned = plan_stacks(anatomy, named, setting)
    if initialize is None:
        check_untrained(_norms(anatomy))
    journal = Journal()
    try:
        report = _apply(anatomy, named, planned, journal, keep=keep, ends=choice)
        write_record(model, named, setting, kept=keep, journal=journal)
        if not keep:
            prepare(named, model, batches)
    except Exception:
        journal.undo()
        raise
    return report


def _named(scheme: str | ResidualScheme, options: Mapping[str, Any] | None) -> ResidualScheme:
    if isinstance(scheme, str):
        return load_scheme(scheme, options)
    if options:
        raise ConfigError(f"options {dict(options)} go with a scheme's name; this one has its own")
    return scheme


def _check_stock(model: nn.Module) -> None:
    if isinstance(model, Transformer):
        raise AdaptError("this is deepnet's own Transformer; build it with the scheme you want")
    if any(isinstance(module, SchemeState) for module in model.modules()):
        raise AdaptError("this model carries a scheme already; call undo() on its report first")


def _check_forwards(anatomy: Anatomy) -> None:
    """Raise AdaptError where a layer's forward is not its stock class's: ours would replace it, or not be called."""
    for found in anatomy.sites():
        owner = found.part.owner
        wrapped = "forward" in vars(owner)
        if wrapped or type(owner) is not stock_class(found.part.sited):
            raise AdaptError(
                f"{anatomy.path(owner)} ({type(owner).__name__}) has a forward of its own"
                f"{', put in by a wrapper such as a device_map' if wrapped else ''}; expected "
                "the stock layer. Apply the scheme before wrapping, or use the building blocks in your own class"
            )


def _norms(anatomy: Anatomy) -> list[nn.Module]:
    """Return every stock norm of the sites and the ends."""
    sites = [norm for found in anatomy.sites() for norm in found.norms()]
    ends = [stack.final.get() for stack in anatomy.stacks if stack.final is not None]
    return [norm for norm in [*sites, *ends] if norm is not None]


def _apply(
    anatomy: Anatomy,
    scheme: ResidualScheme,
    planned: tuple[PlannedStack, ...],
    journal: Journal,
    *,
    keep: bool,
    ends: EndsConfig,
) -> Report:
    attached = attach(anatomy.model, scheme, planned, journal, keep=keep, ends=ends)
    paths = {module: path for path, module in anatomy.model.named_modules()}
    weights: list[WeightChange] = []
    for stack, sites in zip(planned, attached.stacks, strict=True):
        if keep:
            weights += [change for one in sites for change in keep_function(one, paths, journal)]
        else:
            weights += draw_weights(stack, sites, paths, journal)
    weights += draw_rows(anatomy, planned, ends, journal)
    return Report(
        family=anatomy.family,
        architecture=planned[0].architecture,
        scheme=describe_scheme(scheme),
        modules=attached.changes,
        weights=tuple(weights),
        notes=(*attached.notes, *ends_notes(anatomy, ends)),
        journal=journal,
        model=anatomy.model,
    )
