"""One row per scheme: what its source says of it, written without using the scheme."""

from deepnet.audit.scheme_case import SchemeCase, gained, glorot_std


def post_norm(skip, branch=1.0):
    """x <- LN(skip * x + branch * f(x)) at every site."""

    def equation(x, parts):
        for site in parts.sites:
            x = site.residual.post(skip * x + branch * site.f(x))
        return x

    return equation


def pre_norm(x, parts):
    """x <- x + f(LN(x)) at every site, a norm at the end."""
    for site in parts.sites:
        x = x + site.f(site.residual.pre(x))
    return parts.ends.final(x)


def final_norms(config):
    """Return the parameters of one LayerNorm per stack."""
    stacks = (config.encoder_layers > 0) + (config.decoder_layers > 0)
    return 2 * config.d_model * stacks


def deepnorm_gain(stack):
    """Return DeepNet's beta at 4-4 layers (arXiv 2203.00555, figure 2)."""
    return 0.87 * (4**4 * 4) ** (-1 / 16) if stack == "encoder" else (12 * 4) ** -0.25


CASES = [
    SchemeCase(
        name="post_ln",  # arXiv 1706.03762, section 3.1
        equation=post_norm(1.0),
        coefficients={(6, 6): (1.0, 1.0), (100, 100): (1.0, 1.0)},
    ),
    SchemeCase(
        name="pre_ln",  # arXiv 2002.04745, figure 1b
        equation=pre_norm,
        coefficients={(6, 6): (1.0, 1.0), (100, 100): (1.0, 1.0)},
        extra_parameters=final_norms,
    ),
    SchemeCase(
        name="post_ln_init",  # arXiv 2203.00555, section 3
        equation=post_norm(1.0),
        coefficients={(6, 6): (1.0, None), (100, 100): (1.0, None)},
        std=lambda stack, role, layer: (
            glorot_std(stack, role, layer) / (4 - layer + 1 if layer else 1)
        ),
    ),
    SchemeCase(
        name="deepnorm",  # arXiv 2203.00555, figure 2
        equation=post_norm((3 * 2) ** 0.25),
        coefficients={(6, 6): (18**0.25, 72**-0.25), (100, 100): (300**0.25, 1200**-0.25)},
        std=gained(deepnorm_gain),
    ),
    SchemeCase(
        name="branchnorm",  # arXiv 2305.02790, equation 7, after 1,000 of 4,000 updates
        equation=post_norm(1.0, branch=0.25),
        coefficients={(6, 6): (1.0, 72**-0.25), (100, 100): (1.0, 1200**-0.25)},
        std=gained(deepnorm_gain),
        # a_0 = 0, so that the decoder does not see the encoder
        zero_gradient=("*.branch.*", "encoder_decoder/encoder.*"),
    ),
]
