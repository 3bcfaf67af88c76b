"""What every residual scheme must hold, checked against the claims of a `SchemeCase`.

Each function raises SchemeError with what differed; `check_scheme` runs them all. They are the package's own tests of
its schemes, offered to those who write their own.
"""

import math
import re
from collections.abc import Callable
from copy import deepcopy
from fnmatch import fnmatch
from typing import Any

import torch
from torch import Tensor

from deepnet.errors import SchemeError
from deepnet.schemes.base import Policy
from deepnet.schemes.catalogue import describe_scheme, load_scheme, scheme_row
from deepnet.schemes.coefficients import coefficients
from deepnet.testing.scheme_case import SIZES, SchemeCase, StackParts
from deepnet.testing.scheme_models import (
    case_architectures,
    case_model,
    case_scheme,
    example_batch,
    example_loss,
    example_optimizer,
    perturbed_model,
    train_on_example,
)
from deepnet.training.optimization.optimizers import LR_MULTIPLIER
from deepnet.transformer.initialize import drawn_rows, parameter_policies
from deepnet.transformer.inputs import Inputs
from deepnet.transformer.models import Transformer, TransformerConfig
from deepnet.transformer.scales import LearnedScale, ScheduledScale
from deepnet.transformer.stacks import Stack


def check_scheme(case: SchemeCase) -> None:
    """Run every check of a scheme; raises SchemeError, with the scheme's name, at the first that fails."""
    for check in CHECKS:
        try:
            check(case)
        except SchemeError as error:
            raise SchemeError(f"{case.name}: {error}") from error


def check_equation(case: SchemeCase) -> None:
    """Check that each stack of every architecture computes the row's expression to 1e-12, every parameter perturbed.

    An encoder has 2 layers and a decoder 3, in float64: a scheme that takes one depth for the other is found. Where a
    scale follows a schedule, it is looked at on the way, too.
    """
    for architecture in case_architectures(case):
        model = perturbed_model(case, architecture, decoder_layers=3, tie_embeddings="none")
        scheduled = any(isinstance(module, ScheduledScale) for module in model.modules())
        for updates in (0, 1, 100, 1000) if scheduled else (1000,):
            model.scheme.advance(model, updates)
            for stack in model.stacks():
                _require_equation(case, model, stack, updates)


def check_coefficients(case: SchemeCase) -> None:
    """Check alpha and beta at the row's depths."""
    depths = len(case.coefficients)
    _require(
        depths >= 2,
        f"coefficients are claimed at {depths} depths; claim them at two depths or more",
    )
    for (n, m), claimed in case.coefficients.items():
        found = coefficients(
            load_scheme(case.name, case.options), encoder_layers=n, decoder_layers=m
        )
        stack = found["decoder" if m else "encoder"]
        for name, value in zip(("alpha", "beta"), claimed, strict=True):
            got = stack[name]
            same = (
                got is value
                if value is None or got is None
                else math.isclose(got, value, rel_tol=1e-12)
            )
            _require(same, f"{name} at {n}-{m} is {got}; claimed {value}")


def check_initial_std(case: SchemeCase) -> None:
    """Check the std of every role, pooled per stack, within 4 standard errors of the row's formula."""
    torch.manual_seed(1)
    model = case_model(case, case_architectures(case)[0], layers=4, **SIZES)
    pools: dict[tuple[str, str], list[Tensor]] = {}
    for weight in model.role_weights():
        stack, layer, role = weight.stack, weight.layer, weight.role
        aimed, drawn = case.std(stack, role, layer), drawn_rows(weight)
        is_right = aimed > 0 or not drawn.any()
        _require(is_right, f"{role} of {stack} layer {layer} does not start at 0, as is claimed")
        if aimed > 0:
            pools.setdefault((stack, role), []).append((drawn / aimed).flatten())
    for key, parts in pools.items():
        pooled = torch.cat(parts).double()
        # the std of n normal draws has a standard error of 1 / sqrt(2 n), that of other draws here a smaller one
        errors = abs(pooled.square().mean().sqrt().item() - 1) * math.sqrt(2 * pooled.numel())
        _require(
            errors < 4, f"the std of {key} is {errors:.1f} standard errors off the claimed one"
        )


def check_parameter_count(case: SchemeCase) -> None:
    """Check the exact number of parameters: Post-LN's, counted by hand, and what the row adds."""
    for architecture in case_architectures(case):
        model = case_model(case, architecture, layers=4, **SIZES)
        claimed = _post_ln_count(model.config) + case.extra_parameters(model.config)
        found = sum(parameter.numel() for parameter in model.parameters())
        _require(found == claimed, f"{architecture}: {found} parameters; claimed {claimed}")


def check_starts(case: SchemeCase) -> None:
    """Check mean and std of what the row says of parameters without a role, within 4 standard errors."""
    torch.manual_seed(1)
    model = case_model(case, case_architectures(case)[0], layers=4, **SIZES)
    for pattern, (mean, std) in case.starts.items():
        found = [one.flatten() for name, one in model.named_parameters() if fnmatch(name, pattern)]
        _require(bool(found), f"starts claims '{pattern}', and no parameter has such a name")
        numbers = torch.cat(found).detach().double()
        off = max(
            abs(numbers.mean().item() - mean) * math.sqrt(len(numbers)),
            abs((numbers - mean).square().mean().sqrt().item() - std) * math.sqrt(2 * len(numbers)),
        )
        _require(
            off <= 4 * std + 1e-6 * abs(mean),
            f"{pattern} starts with mean {numbers.mean():.4g} and std {numbers.std(correction=0):.4g}; "
            f"claimed {mean:g} and {std:g}",
        )


def check_gradients(case: SchemeCase) -> None:
    """Check that before the first update a gradient reaches every parameter but the documented ones."""
    wrong: dict[bool, list[str]] = {True: [], False: []}
    for architecture in case_architectures(case):
        torch.manual_seed(1)
        model = case_model(case, architecture).double()
        model.scheme.prepare(model, iter([example_batch(architecture)]))
        torch.autograd.backward(example_loss(model, example_batch(architecture)))
        for name, parameter in model.named_parameters():
            documented = any(fnmatch(f"{architecture}/{name}", p) for p in case.zero_gradient)
            reached = parameter.grad is not None and bool(parameter.grad.abs().max() > 0)
            # softmax does not change under a shift of the scores; what is left of its gradient is rounding
            if reached == documented and not name.endswith("k.bias"):
                wrong[reached].append(f"{architecture}/{name}")
    for reached, names in wrong.items():
        _require(
            not names,
            f"{'a' if reached else 'no'} gradient reaches {_some(names)} before the first update; claimed "
            f"{'none' if reached else 'one'}, as zero_gradient has the patterns of those without",
        )


def _some(names: list[str]) -> str:
    """Return how many names there are, and as patterns of them those that differ in more than model and layer."""
    kinds = sorted({re.sub(r"\.[0-9]+\.", ".*.", re.sub("^[^/]+/", "*/", name)) for name in names})
    more = f", and {len(kinds) - 12} more" if len(kinds) > 12 else ""
    return f"{len(names)} parameters ({', '.join(kinds[:12])}{more})"


def check_depth(case: SchemeCase) -> None:
    """Check that 200 layers, of a single stack where there may be one, give finite numbers and gradients in float32."""
    architecture = case_architectures(case)[-1]
    torch.manual_seed(1)
    model = case_model(case, architecture, layers=200, d_model=8, ffn_dim=8)
    model.scheme.prepare(model, iter([example_batch(architecture)]))
    model.scheme.advance(model, 1000)
    loss = example_loss(model, example_batch(architecture))
    torch.autograd.backward(loss)
    _require(
        bool(torch.isfinite(loss)),
        f"the loss of 200 layers is {loss.item()}; expected a finite one",
    )
    for name, parameter in model.named_parameters():
        finite = parameter.grad is None or bool(torch.isfinite(parameter.grad).all())
        _require(finite, f"the gradient of {name} in 200 layers is not finite")


def check_cached_decoding(case: SchemeCase) -> None:
    """Check that decoding token by token gives the logits of the full pass to 1e-12 in float64."""
    for architecture in case_architectures(case):
        if architecture != "encoder_only":
            model = perturbed_model(case, architecture).eval()
            source, keep, target_in = example_batch(architecture)
            memory = None if target_in is None else model.encode(source, keep)
            tokens = source if target_in is None else target_in
            cache = model.begin(memory, keep if target_in is not None else None)
            steps = [model.step(tokens[:, [t]], t, cache)[:, 0] for t in range(tokens.shape[1])]
            full = model(source, None if target_in is None else keep, target_in)
            _require_equal(
                torch.stack(steps, 1), full, "decoding token by token computes other logits"
            )


def check_resume(case: SchemeCase) -> None:
    """Check that two updates, a save, a load and two more give the weights of four updates bit for bit."""
    architecture = case_architectures(case)[0]
    torch.manual_seed(1)
    straight, resumed = (case_model(case, architecture, dropout=0.1) for _ in range(2))
    straight.scheme.prepare(straight, iter([example_batch(architecture)]))
    optimizer = example_optimizer(straight)
    train_on_example(straight, optimizer, range(2))
    resumed.load_state_dict(straight.state_dict())
    other = example_optimizer(resumed)
    other.load_state_dict(deepcopy(optimizer.state_dict()))
    train_on_example(straight, optimizer, range(2, 4))
    train_on_example(resumed, other, range(2, 4))
    for name, value in straight.state_dict().items():
        same = torch.equal(value, resumed.state_dict()[name])
        _require(
            same, f"{name} differs after two updates, a save, a load and two more from four updates"
        )


def check_policies(case: SchemeCase) -> None:
    """Check that the row's multipliers reach the optimiser's groups, and that nothing small is decayed."""
    model = case_model(case, case_architectures(case)[0])
    groups = {
        id(p): group for group in example_optimizer(model).param_groups for p in group["params"]
    }
    for stack in model.stacks():
        for sublayer in stack.sites():
            for role, owner in sublayer.branch.roles().items():
                _require_policy(groups[id(owner.weight)], case.policies.get(role, Policy()), role)
            of_scales = case.policies.get("scale", Policy(weight_decay=0.0))
            for scale in (
                module for module in sublayer.modules() if isinstance(module, LearnedScale)
            ):
                _require_policy(groups[id(scale.factor)], of_scales, "scale")
    for name, parameter, _ in parameter_policies(model):
        if parameter.dim() < 2:
            decay = groups[id(parameter)]["weight_decay"]
            _require(
                decay == 0, f"{name} has weight decay {decay}; expected none on what is no matrix"
            )


def check_materialise(case: SchemeCase) -> None:
    """Check that building without memory and `reset_parameters` give what building in place does, bit for bit."""
    for architecture in case_architectures(case):
        torch.manual_seed(1)
        direct = case_model(case, architecture)
        with torch.device("meta"):
            made = case_model(case, architecture)
        made.to_empty(device="cpu")
        for tensor in _numbers(made).values():
            tensor.fill_(math.nan if tensor.is_floating_point() else 1)
        torch.manual_seed(1)
        made.reset_parameters()
        found = _numbers(made)
        for name, tensor in _numbers(direct).items():
            _require(
                torch.equal(found[name], tensor),
                f"{name} is another after to_empty and reset_parameters than in a new model; make "
                "reset_parameters of its module set it as the constructor does, and draw in the same order",
            )


def check_description(case: SchemeCase) -> None:
    """Check that the catalogue can show the scheme, and that what a bundle saves of it makes the same scheme again."""
    scheme_row(case.name)
    scheme = case_scheme(case)
    described = describe_scheme(scheme)
    again = load_scheme(described.pop("name"), described)
    _require(again == scheme, f"its description makes {again}; expected {scheme}")


CHECKS: tuple[Callable[[SchemeCase], None], ...] = (
    check_description,
    check_materialise,
    check_equation,
    check_coefficients,
    check_initial_std,
    check_starts,
    check_parameter_count,
    check_gradients,
    check_depth,
    check_cached_decoding,
    check_resume,
    check_policies,
)
"""Every check, in the order in which `check_scheme` runs them."""


def _require_equation(case: SchemeCase, model: Transformer, stack: Stack, updates: int) -> None:
    x = torch.randn(3, 4, 16, dtype=torch.float64)
    decodes = stack.name == "decoder"
    inputs = Inputs(
        causal=decodes,
        memory=torch.randn_like(x) if decodes else None,
        ids=torch.randint(model.config.vocab_size, x.shape[:2]),
    )
    state: Any = stack.stream.open(x)
    for layer in stack.layers:
        state = layer(state, inputs)
    _require_equal(
        stack.stream.close(state, stack.ends),
        case.equation(x, StackParts.of(stack, inputs, model.config, updates=updates)),
        f"the {stack.name} of an {model.config.architecture} computes another output than the equation after {updates} "
        "updates",
    )


def _numbers(model: Transformer) -> dict[str, Tensor]:
    """Return what a model holds: parameters and buffers, those that are not saved included."""
    held = dict(model.named_parameters()) | dict(model.named_buffers())
    return {name: tensor.detach() for name, tensor in held.items()}


def _post_ln_count(config: TransformerConfig) -> int:
    """Count Post-LN's parameters by hand: matrices, biases, a norm per site, one shared embedding."""
    d, ffn = config.d_model, config.ffn_dim
    attention, feed_forward, norm = 4 * (d * d + d), 2 * d * ffn + d + ffn, 2 * d
    crossed = config.decoder_layers if config.encoder_layers else 0
    layers = config.encoder_layers + config.decoder_layers
    return (
        layers * (attention + feed_forward + 2 * norm)
        + crossed * (attention + norm)
        + config.vocab_size * d
    )


def _require_policy(group: dict[str, Any], policy: Policy, role: str) -> None:
    found = (group[LR_MULTIPLIER], group["weight_decay"] / 0.1, group["eps"] / 1e-8)
    claimed = (policy.lr, policy.weight_decay, policy.eps)
    same = all(math.isclose(a, b, rel_tol=1e-9) for a, b in zip(found, claimed, strict=True))
    _require(same, f"lr, weight decay and eps multipliers of {role} are {found}; claimed {claimed}")


def _require_equal(found: Tensor, expected: Tensor, otherwise: str) -> None:
    """Raise SchemeError where two tensors differ by more than 1e-12."""
    try:
        torch.testing.assert_close(found, expected, rtol=1e-12, atol=1e-12)
    except AssertionError as error:
        raise SchemeError(f"{otherwise}: {error}") from error


def _require(holds: bool, otherwise: str) -> None:
    """Raise SchemeError unless something holds; an assertion would be left out under `python -O`."""
    if not holds:
        raise SchemeError(otherwise)
