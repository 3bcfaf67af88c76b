"""What every residual scheme must hold, checked against the claims of a `SchemeCase`.

Each function raises AssertionError with what differed; `check_scheme` runs them all. They are the package's own tests
of its schemes, offered to those who write their own.
"""

import math
from collections.abc import Callable, Iterator
from copy import deepcopy
from fnmatch import fnmatch
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from deepnet.audit.scheme_case import SIZES, SchemeCase, StackParts
from deepnet.schemes.base import Architecture, Policy, ResidualScheme
from deepnet.schemes.catalogue import describe_scheme, load_scheme
from deepnet.schemes.coefficients import coefficients
from deepnet.training.config import OptimizerConfig
from deepnet.training.optimizers import LR_MULTIPLIER, build_optimizer
from deepnet.transformer.initialize import parameter_policies, role_weights
from deepnet.transformer.layers import Inputs, Sublayer
from deepnet.transformer.models import Transformer, TransformerConfig
from deepnet.transformer.scales import LearnedScale
from deepnet.transformer.stacks import Stack

Batch = tuple[Tensor, Tensor | None, Tensor | None]


def check_scheme(case: SchemeCase) -> None:
    """Run every check of a scheme; raises AssertionError at the first that fails."""
    for check in CHECKS:
        check(case)


def check_equation(case: SchemeCase) -> None:
    """Check that each stack of every architecture computes the row's expression to 1e-12, every parameter perturbed.

    An encoder has 2 layers and a decoder 3, in float64: a scheme that takes one depth for the other is found.
    """
    for architecture in _architectures(case):
        model = _perturbed(case, architecture, decoder_layers=3, tie_embeddings="none")
        for stack in model.stacks():
            _assert_equation(case, model, stack)


def check_coefficients(case: SchemeCase) -> None:
    """Check alpha and beta at the row's depths."""
    assert len(case.coefficients) >= 2, "coefficients are claimed at two depths or more"
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
            assert same, f"{name} at {n}-{m} is {got}; claimed {value}"


def check_initial_std(case: SchemeCase) -> None:
    """Check the std of every role, pooled per stack, within 4 standard errors of the row's formula."""
    torch.manual_seed(1)
    model = _model(case, _architectures(case)[0], layers=4, **SIZES)
    pools: dict[tuple[str, str], list[Tensor]] = {}
    for stack, role, layer, weight in _layer_weights(model):
        aimed = case.std(stack, role, layer)
        assert aimed > 0 or not weight.any(), f"{role} of {stack} layer {layer} should start at 0"
        if aimed > 0:
            pools.setdefault((stack, role), []).append((weight / aimed).flatten())
    for key, parts in pools.items():
        pooled = torch.cat(parts).double()
        # the std of n normal draws has a standard error of 1 / sqrt(2 n), that of other draws here a smaller one
        errors = abs(pooled.square().mean().sqrt().item() - 1) * math.sqrt(2 * pooled.numel())
        assert errors < 4, f"the std of {key} is {errors:.1f} standard errors off"


def check_parameter_count(case: SchemeCase) -> None:
    """Check the exact number of parameters: Post-LN's, counted by hand, and what the row adds."""
    for architecture in _architectures(case):
        model = _model(case, architecture, layers=4, **SIZES)
        claimed = _post_ln_count(model.config) + case.extra_parameters(model.config)
        found = sum(parameter.numel() for parameter in model.parameters())
        assert found == claimed, f"{architecture}: {found} parameters; claimed {claimed}"


def check_gradients(case: SchemeCase) -> None:
    """Check that before the first update a gradient reaches every parameter but the documented ones."""
    for architecture in _architectures(case):
        torch.manual_seed(1)
        model = _model(case, architecture).double()
        model.scheme.prepare(model, iter([_batch(architecture)]))
        torch.autograd.backward(_loss(model, _batch(architecture)))
        for name, parameter in model.named_parameters():
            documented = any(fnmatch(f"{architecture}/{name}", p) for p in case.zero_gradient)
            reached = parameter.grad is not None and bool(parameter.grad.abs().max() > 0)
            # softmax does not change under a shift of the scores; what is left of its gradient is rounding
            if not name.endswith("k.bias"):
                assert reached != documented, (
                    f"{architecture}: {name} has {'a' if reached else 'no'} gradient"
                )


def check_depth(case: SchemeCase) -> None:
    """Check that 200 layers, of a single stack where there may be one, give finite numbers and gradients in float32."""
    architecture = _architectures(case)[-1]
    torch.manual_seed(1)
    model = _model(case, architecture, layers=200, d_model=8, ffn_dim=8)
    model.scheme.prepare(model, iter([_batch(architecture)]))
    model.scheme.advance(model, 1000)
    loss = _loss(model, _batch(architecture))
    torch.autograd.backward(loss)
    assert torch.isfinite(loss), f"the loss is {loss.item()}"
    for name, parameter in model.named_parameters():
        assert parameter.grad is None or torch.isfinite(parameter.grad).all(), name


def check_cached_decoding(case: SchemeCase) -> None:
    """Check that decoding token by token gives the logits of the full pass to 1e-12 in float64."""
    for architecture in _architectures(case):
        if architecture != "encoder_only":
            model = _perturbed(case, architecture).eval()
            source, keep, target_in = _batch(architecture)
            memory = None if target_in is None else model.encode(source, keep)
            tokens = source if target_in is None else target_in
            cache = model.begin(memory, keep if target_in is not None else None)
            steps = [model.step(tokens[:, [t]], t, cache)[:, 0] for t in range(tokens.shape[1])]
            full = model(source, None if target_in is None else keep, target_in)
            torch.testing.assert_close(torch.stack(steps, 1), full, rtol=1e-12, atol=1e-12)


def check_resume(case: SchemeCase) -> None:
    """Check that two updates, a save, a load and two more give the weights of four updates bit for bit."""
    architecture = _architectures(case)[0]
    torch.manual_seed(1)
    straight, resumed = (_model(case, architecture, dropout=0.1) for _ in range(2))
    straight.scheme.prepare(straight, iter([_batch(architecture)]))
    optimizer = _optimizer(straight)
    _train(straight, optimizer, range(2))
    resumed.load_state_dict(straight.state_dict())
    other = _optimizer(resumed)
    other.load_state_dict(deepcopy(optimizer.state_dict()))
    _train(straight, optimizer, range(2, 4))
    _train(resumed, other, range(2, 4))
    for name, value in straight.state_dict().items():
        assert torch.equal(value, resumed.state_dict()[name]), f"{name} differs after resuming"


def check_policies(case: SchemeCase) -> None:
    """Check that the row's multipliers reach the optimiser's groups, and that nothing small is decayed."""
    model = _model(case, _architectures(case)[0])
    groups = {id(p): group for group in _optimizer(model).param_groups for p in group["params"]}
    for stack in model.stacks():
        for sublayer in (module for module in stack.modules() if isinstance(module, Sublayer)):
            for role, weight in sublayer.branch.roles():
                _assert_policy(groups[id(weight)], case.policies.get(role, Policy()), role)
            of_scales = case.policies.get("scale", Policy(weight_decay=0.0))
            for scale in (
                module for module in sublayer.modules() if isinstance(module, LearnedScale)
            ):
                _assert_policy(groups[id(scale.factor)], of_scales, "scale")
    for name, parameter, _ in parameter_policies(model):
        if parameter.dim() < 2:
            assert groups[id(parameter)]["weight_decay"] == 0, f"{name} is decayed"


def check_description(case: SchemeCase) -> None:
    """Check that what a bundle saves of the scheme makes the same scheme again."""
    scheme = _scheme(case)
    described = describe_scheme(scheme)
    assert load_scheme(described.pop("name"), described) == scheme


CHECKS: tuple[Callable[[SchemeCase], None], ...] = (
    check_equation,
    check_coefficients,
    check_initial_std,
    check_parameter_count,
    check_gradients,
    check_depth,
    check_cached_decoding,
    check_resume,
    check_policies,
    check_description,
)
"""Every check, in the order in which `check_scheme` runs them."""


def _assert_equation(case: SchemeCase, model: Transformer, stack: Stack) -> None:
    x = torch.randn(3, 4, 16, dtype=torch.float64)
    decodes = stack.name == "decoder"
    inputs = Inputs(causal=decodes, memory=torch.randn_like(x) if decodes else None)
    state: Any = stack.stream.open(x)
    for layer in stack.layers:
        state = layer(state, inputs)
    expected = case.equation(x, StackParts.of(stack, inputs, model.config))
    torch.testing.assert_close(
        stack.stream.close(state, stack.ends),
        expected,
        rtol=1e-12,
        atol=1e-12,
        msg=lambda text: f"the {stack.name} of an {model.config.architecture}: {text}",
    )


def _scheme(case: SchemeCase) -> ResidualScheme:
    return load_scheme(case.name, case.options)


def _architectures(case: SchemeCase) -> tuple[Architecture, ...]:
    return tuple(name for name in _scheme(case).architectures if name in case.architectures)


def _model(
    case: SchemeCase,
    architecture: Architecture,
    *,
    layers: int = 2,
    **sizes: Any,
) -> Transformer:
    shape = {"d_model": 16, "ffn_dim": 32, "num_heads": 2, "vocab_size": 30, "dropout": 0.0}
    decoder_layers = sizes.pop("decoder_layers", layers)
    config = TransformerConfig(
        architecture=architecture,
        encoder_layers=0 if architecture == "decoder_only" else layers,
        decoder_layers=0 if architecture == "encoder_only" else decoder_layers,
        **{**shape, **sizes, **case.shape},
    )
    return Transformer(config, _scheme(case))


def _perturbed(case: SchemeCase, architecture: Architecture, **shape: Any) -> Transformer:
    """Return a float64 model after 1,000 updates whose every parameter is off its start, so that none is idle."""
    torch.manual_seed(1)
    model = _model(case, architecture, **shape).double()
    model.scheme.advance(model, 1000)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn_like(parameter), alpha=0.1)
    return model


def _batch(architecture: Architecture) -> Batch:
    """Return source [3, 5], its keep mask with padding in a row, and target_in [3, 4]."""
    generator = torch.Generator().manual_seed(1)
    source = torch.randint(2, 29, (3, 5), generator=generator)
    target_in = torch.randint(2, 29, (3, 4), generator=generator)
    if architecture == "decoder_only":
        return source, None, None
    keep = torch.ones(3, 5, dtype=torch.bool)
    keep[1, 3:] = False
    return source, keep, target_in if architecture == "encoder_decoder" else None


def _loss(model: nn.Module, batch: Batch) -> Tensor:
    logits: Tensor = model(*batch)
    generator = torch.Generator().manual_seed(2)
    targets = torch.randint(0, logits.shape[-1], logits.shape[:2], generator=generator)
    return nn.functional.cross_entropy(logits.flatten(0, 1), targets.flatten())


def _optimizer(model: Transformer) -> Optimizer:
    config = OptimizerConfig(name="adamw", lr=1e-3, weight_decay=0.1)
    return build_optimizer(config, policies=parameter_policies(model))


def _train(model: Transformer, optimizer: Optimizer, steps: range) -> None:
    for step in steps:
        torch.manual_seed(step)
        optimizer.zero_grad()
        torch.autograd.backward(_loss(model, _batch(model.config.architecture)))
        optimizer.step()
        model.scheme.after_update(model)
        model.scheme.advance(model, step + 1)


def _layer_weights(model: Transformer) -> Iterator[tuple[Any, Any, int, Tensor]]:
    """Yield stack, role, layer (0 at the ends) and the drawn rows of every matrix."""
    layer_of = {
        id(weight): sublayer.residual.site.layer
        for sublayer in model.modules()
        if isinstance(sublayer, Sublayer)
        for _, weight in sublayer.branch.roles()
    }
    for weight in role_weights(model):
        rows = weight.parameter.detach()
        drawn = rows[:-1] if weight.role in ("embedding", "vocabulary") else rows
        yield weight.stack, weight.role, layer_of.get(id(weight.parameter), 0), drawn


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


def _assert_policy(group: dict[str, Any], policy: Policy, role: str) -> None:
    found = (group[LR_MULTIPLIER], group["weight_decay"] / 0.1, group["eps"] / 1e-8)
    claimed = (policy.lr, policy.weight_decay, policy.eps)
    same = all(math.isclose(a, b, rel_tol=1e-9) for a, b in zip(found, claimed, strict=True))
    assert same, f"lr, weight decay and eps multipliers of {role} are {found}; claimed {claimed}"
