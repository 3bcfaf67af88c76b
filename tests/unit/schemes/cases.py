"""One row per scheme: what its source says of it, written without using the scheme."""

import math

from equations import (
    admin,
    attn_res,
    b2t,
    completep,
    deepscale_lm,
    denseformer,
    derf,
    dlcl,
    dynamic_maps,
    dyt,
    gpas,
    hybrid_norm,
    hyper_connections,
    keel,
    laurel,
    layernorm_scaling,
    layerscale,
    manifold_maps,
    mhc,
    mix_ln,
    mudd,
    ngpt,
    no_norm,
    normformer,
    peri_ln,
    post_norm,
    pre_norm,
    prores,
    r_fixup,
    resi_dual,
    rezero,
    scale_norm,
    siamese_norm,
    static_maps,
    sub_ln,
    value_embeddings,
    value_residual,
    x0,
)

from deepnet.schemes.base import Policy
from deepnet.testing import SchemeCase, gained, glorot_std
from deepnet.testing.scheme_case import nothing_more


def num_stacks(config):
    """Return how many stacks there are."""
    return (config.encoder_layers > 0) + (config.decoder_layers > 0)


def num_sites(config):
    """Return how many attentions and how many feed-forward sites there are."""
    layers = config.encoder_layers + config.decoder_layers
    return layers + (config.decoder_layers if config.encoder_layers else 0), layers


def final_norms(config):
    """Return the parameters of one LayerNorm per stack."""
    return 2 * config.d_model * num_stacks(config)


def site_norms(config):
    """Return the parameters of one LayerNorm per site."""
    return 2 * config.d_model * sum(num_sites(config))


def upper_attentions(config):
    """Return how many attentions stand above the first layer of their stack."""
    first = num_stacks(config) + (config.encoder_layers > 0 and config.decoder_layers > 0)
    return num_sites(config)[0] - first


def value_tables(config):
    """Return the parameters of two tables of the tokens per stack of 4 layers, and of their gates."""
    return num_stacks(config) * 2 * (config.vocab_size * config.d_model + 12 * config.num_heads)


def r_fixup_parameters(config):
    """Return s and one shift per attention, s and three per ffn, one per stack, s_e; less norms and biases."""
    (attentions, ffns), d = num_sites(config), config.d_model
    scalars = 2 * attentions + 4 * ffns + num_stacks(config) + (config.encoder_layers > 0)
    return scalars - attentions * 4 * d - ffns * (d + config.ffn_dim) - site_norms(config)


def merged_parameters(config):
    """Return what merged attention saves: an attention and a norm per decoder layer."""
    d = config.d_model
    return -config.decoder_layers * (4 * (d * d + d) + 2 * d)


def depth_scaled(power):
    """Return Glorot's std times l^(-power)."""
    return lambda stack, role, layer: (
        glorot_std(stack, role, layer) * (layer**-power if layer else 1.0)
    )


def r_fixup_std(stack, role, layer):
    """Return Glorot's std times R^(-1/6) on q, k, v and R^(-1/2) on fc1, 0 for out and fc2; R = 2 * 4 + 3 * 4."""
    gains = {"q": 20 ** (-1 / 6), "k": 20 ** (-1 / 6), "v": 20 ** (-1 / 6), "fc1": 20**-0.5}
    return glorot_std(stack, role, layer) * (gains | {"out": 0.0, "fc2": 0.0}).get(role, 1.0)


def t_fixup_std(stack, role, layer):
    """Return Glorot's std times 0.67 N^(-1/4) or (9 M)^(-1/4), 1/sqrt(2) on q and k; N = M = 4."""
    gain = 0.67 * 4**-0.25 if stack == "encoder" else 36**-0.25
    gains = {"q": 0.5**0.5, "k": 0.5**0.5, "embedding": 36**-0.25}
    return glorot_std(stack, role, layer) * gains.get(role, gain)


def scale_norm_std(stack, role, layer):
    """Return sqrt(2 / (5 d)) in attention, Glorot's in the ffn, that of U(-0.01, 0.01) for embeddings."""
    if role == "embedding":
        return 0.01 / math.sqrt(3)
    return glorot_std(stack, role, layer) if role.startswith("fc") else math.sqrt(2 / (5 * 64))


def sub_ln_gain(stack, role, layer):
    """Return Magneto's std at 4-4 layers; the decoder's plain cross-attention halves what is above 1 in v and out."""
    decoder = math.log(3 * 4)
    gain = {
        "encoder": math.log(3 * 4) * math.log(2 * 4) / 3,
        "decoder": decoder if role in ("fc1", "fc2") else (decoder + 1) / 2,
    }[stack]
    scaled = role in ("v", "out", "fc1", "fc2")
    return glorot_std(stack, role, layer) * (gain**0.5 if scaled else 1.0)


def hyper_parameters(per_site):
    """Return what the maps of four streams add per site, and the final norms."""
    return lambda config: final_norms(config) + per_site * sum(num_sites(config))


def deepscale_std(stack, role, layer):
    """Return DeepScaleLM's std without dropout at 4 layers, d = 64, d_ff = 128: beta^2 = 2 / 8, r_1 = 0.221."""
    if role == "embedding":
        return 0.5**0.5
    if role in ("q", "k"):
        return 64**-0.5
    if role in ("fc1", "fc2"):
        return (2 / (64 * 128)) ** 0.25
    r = 0.221
    for _ in range(layer - 1):
        r = 0.75 * r + 0.25
        behind = r + (math.sqrt(1 - r**2) - r * math.acos(r)) / math.pi
        r = 0.75 * r + 0.25 * behind
    return math.sqrt(math.sqrt(1 / r) / 64)


def deepnorm_gain(stack):
    """Return DeepNet's beta at 4-4 layers (arXiv 2203.00555, figure 2)."""
    return 0.87 * (4**4 * 4) ** (-1 / 16) if stack == "encoder" else (12 * 4) ** -0.25


def deepnorm_alpha(parts):
    """Return DeepNet's alpha of a stack (arXiv 2203.00555, figure 2)."""
    n, m = parts.config.encoder_layers, parts.config.decoder_layers
    if not (n and m):
        return (2 * (n + m)) ** 0.25
    return 0.81 * (n**4 * m) ** (1 / 16) if parts.name == "encoder" else (3 * m) ** 0.25


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
        equation=post_norm(deepnorm_alpha),
        coefficients={(6, 6): (18**0.25, 72**-0.25), (100, 100): (300**0.25, 1200**-0.25)},
        std=gained(deepnorm_gain),
    ),
    SchemeCase(
        name="branchnorm",  # arXiv 2305.02790, equation 7, growing over 4,000 updates
        equation=post_norm(1.0, branch=lambda stack: min(1.0, stack.updates / 4000)),
        coefficients={(6, 6): (1.0, 72**-0.25), (100, 100): (1.0, 1200**-0.25)},
        std=gained(deepnorm_gain),
        # a_0 = 0, so that the decoder does not see the encoder
        zero_gradient=("*.branch.*", "encoder_decoder/encoder.*"),
    ),
    *(
        SchemeCase(
            name="prores",  # arXiv 2603.05369, 1,000 updates per layer
            options={"base": base},
            equation=prores(placement),
            coefficients={(6, 6): (1.0, 1.0), (100, 100): (1.0, 1.0)},
            extra_parameters=final_norms if placement == "pre" else nothing_more,
            # a_0 = 0, so that the decoder does not see the encoder
            zero_gradient=(
                "*.branch.*",
                *(("*.residual.*",) if placement == "pre" else ()),
                "encoder_decoder/encoder.*",
            ),
        )
        for base, placement in (("pre_ln", "pre"), ("post_ln", "post"))
    ),
    SchemeCase(
        name="ds_init",  # arXiv 1908.11365
        equation=post_norm(1.0),
        coefficients={(6, 6): (1.0, None), (100, 100): (1.0, None)},
        std=depth_scaled(0.5),
    ),
    SchemeCase(
        name="ds_init",  # arXiv 1908.11365
        options={"merged": True},
        architectures=("encoder_decoder",),
        equation=post_norm(1.0),
        coefficients={(6, 6): (1.0, None), (100, 100): (1.0, None)},
        std=depth_scaled(0.5),
        extra_parameters=merged_parameters,
    ),
    SchemeCase(
        name="admin",  # arXiv 2004.08249
        equation=admin,
        coefficients={(6, 6): (None, 1.0), (100, 100): (None, 1.0)},
        extra_parameters=lambda config: config.d_model * sum(num_sites(config)),
    ),
    SchemeCase(
        name="admin",  # microsoft/admin-torch, O(log n)
        options={"form": "log"},
        equation=post_norm(
            lambda parts: math.sqrt((len(parts.sites) + 1) / math.log(len(parts.sites) + 1) - 1)
        ),
        coefficients={
            (6, 6): (math.sqrt(19 / math.log(19) - 1), 1.0),
            (100, 0): (math.sqrt(201 / math.log(201) - 1), 1.0),
        },
    ),
    SchemeCase(
        name="rezero",  # arXiv 2003.04887
        equation=rezero,
        coefficients={(6, 6): (1.0, 1.0), (100, 100): (1.0, 1.0)},
        extra_parameters=lambda config: (
            config.encoder_layers + config.decoder_layers - site_norms(config)
        ),
        # s = 0, so that the decoder does not see the encoder
        zero_gradient=(
            "*.self.branch.*",
            "*.cross.branch.*",
            "*.ffn.branch.*",
            "encoder_decoder/encoder.*",
        ),
    ),
    *(
        SchemeCase(
            name="deepscale_lm",  # arXiv 2403.09635, and the authors' code
            options={"placement": placement},
            equation=deepscale_lm(placement),
            coefficients={(6, 0): ((5 / 6) ** 0.5, None), (100, 0): (0.99**0.5, None)},
            std=deepscale_std,
            extra_parameters=final_norms if placement == "pre" else nothing_more,
        )
        for placement in ("pre", "post")
    ),
    SchemeCase(
        name="gpas",  # arXiv 2506.22049
        equation=gpas(None),
        coefficients={(6, 6): (None, 1.0), (100, 100): (None, 1.0)},
        extra_parameters=lambda config: (
            final_norms(config) + config.encoder_layers + config.decoder_layers
        ),
    ),
    SchemeCase(
        name="gpas",  # arXiv 2506.22049
        options={"base": "deepnorm"},
        equation=gpas(deepnorm_alpha),
        coefficients={(6, 6): (None, 72**-0.25), (100, 100): (None, 1200**-0.25)},
        std=gained(deepnorm_gain),
        extra_parameters=lambda config: config.encoder_layers + config.decoder_layers,
    ),
    *(
        SchemeCase(
            name="laurel",  # arXiv 2411.07501, sections 2 and 3.3
            options={"form": form} | ({"rank": 4} if rank else {}),
            equation=laurel(form),
            coefficients={(6, 6): (alpha, 1.0), (100, 100): (alpha, 1.0)},
            extra_parameters=lambda config, rank=rank, weights=alpha is None: (
                final_norms(config)
                + sum(num_sites(config)) * (2 * rank * config.d_model + 2 * weights)
            ),
            zero_gradient=("*.low_rank.a",) if rank else (),  # B = 0
        )
        for form, rank, alpha in (("rw", 0, None), ("lr", 4, 1.0), ("rw_lr", 4, None))
    ),
    SchemeCase(
        name="r_fixup",  # arXiv 1901.09321
        equation=r_fixup,
        coefficients={(6, 6): (1.0, None), (100, 100): (1.0, None)},
        std=r_fixup_std,
        extra_parameters=r_fixup_parameters,
        # out = fc2 = 0, so that the decoder does not see the encoder
        zero_gradient=(
            "*.branch.[qkv].*",
            "*.branch.fc1.*",
            "*.branch.*_shift",
            "*.residual.*",
            "encoder_decoder/encoder.*",
        ),
        policies={"scale": Policy(lr=0.1, weight_decay=0.0)},
    ),
    SchemeCase(
        name="t_fixup",  # Huang et al., ICML 2020
        equation=no_norm,
        coefficients={
            (6, 6): (1.0, 54**-0.25),
            (100, 100): (1.0, 900**-0.25),
            (18, 0): (1.0, 0.67 * 18**-0.25),
        },
        std=t_fixup_std,
        extra_parameters=lambda config: -site_norms(config),
    ),
    SchemeCase(
        name="scale_norm",  # arXiv 1910.05895
        equation=scale_norm,
        coefficients={(6, 6): (1.0, None), (100, 100): (1.0, None)},
        std=scale_norm_std,
        extra_parameters=lambda config: (
            sum(num_sites(config)) + num_stacks(config) - site_norms(config)
        ),
    ),
    SchemeCase(
        name="mix_ln",  # arXiv 2412.13795
        options={"ratio": 0.5},
        equation=mix_ln,
        coefficients={(6, 6): (1.0, 1.0), (100, 100): (1.0, 1.0)},
        extra_parameters=final_norms,
    ),
    SchemeCase(
        name="layernorm_scaling",  # arXiv 2502.05795
        equation=layernorm_scaling,
        coefficients={(6, 6): (1.0, 1.0), (100, 100): (1.0, 1.0)},
        extra_parameters=final_norms,
    ),
    SchemeCase(
        name="layerscale",  # arXiv 2103.17239, section 2
        equation=layerscale,
        coefficients={(6, 6): (1.0, 1.0), (100, 100): (1.0, 1.0)},
        extra_parameters=lambda config: (
            final_norms(config) + config.d_model * sum(num_sites(config))
        ),
    ),
    SchemeCase(
        name="peri_ln",  # arXiv 2502.02732
        equation=peri_ln,
        coefficients={(6, 6): (1.0, 1.0), (100, 100): (1.0, 1.0)},
        extra_parameters=lambda config: site_norms(config) + 2 * final_norms(config),
    ),
    SchemeCase(
        name="dyt",  # arXiv 2503.10622
        equation=dyt,
        coefficients={(6, 6): (1.0, 1.0), (100, 100): (1.0, 1.0)},
        # a per norm, and a number on each stack's embedding
        extra_parameters=lambda config: (
            final_norms(config) + sum(num_sites(config)) + 2 * num_stacks(config)
        ),
    ),
    SchemeCase(
        name="derf",  # arXiv 2512.10938
        equation=derf,
        coefficients={(6, 6): (1.0, 1.0), (100, 100): (1.0, 1.0)},
        # a and s per norm, and a number on each stack's embedding
        extra_parameters=lambda config: (
            final_norms(config) + 2 * sum(num_sites(config)) + 3 * num_stacks(config)
        ),
    ),
    SchemeCase(
        name="sub_ln",  # arXiv 2210.06423, sections 2 and 3
        equation=sub_ln,
        coefficients={
            (12, 0): (1.0, math.log(24) ** 0.5),
            (0, 96): (1.0, math.log(192) ** 0.5),
            (6, 6): (1.0, None),  # cross-attention has gain 1
        },
        std=sub_ln_gain,
        extra_parameters=lambda config: (
            final_norms(config) + num_sites(config)[1] * 2 * (config.d_model + config.ffn_dim)
        ),
    ),
    *(
        SchemeCase(
            name="normformer",  # arXiv 2110.09456, section 2
            options={"scale_residual": scale_residual},
            equation=normformer,
            coefficients={(6, 6): (alpha, 1.0), (100, 100): (alpha, 1.0)},
            extra_parameters=lambda config, r=scale_residual: (
                final_norms(config)
                + num_sites(config)[0] * (2 * config.d_model + config.num_heads)
                + num_sites(config)[1] * (2 * config.ffn_dim + r * config.d_model)
            ),
        )
        for scale_residual, alpha in ((False, 1.0), (True, None))
    ),
    *(
        SchemeCase(
            name="hybrid_norm",  # arXiv 2503.04598, section 3; HybridNorm*
            options={"first_pre_norm": star},
            equation=hybrid_norm(star),
            coefficients={(0, 6): (1.0, None), (0, 100): (1.0, None)},
            std=lambda stack, role, layer: (
                glorot_std(stack, role, layer) * (8**-0.5 if role in ("out", "fc2") else 1.0)
            ),
            # no input norm in attention but HybridNorm*'s first; q, k and v norms of 16 channels; a final norm
            extra_parameters=lambda config, star=star: (
                4 * (3 * 2 * 16 - 2 * 64) + (1 + star) * 2 * 64
            ),
        )
        for star in (False, True)
    ),
    *(
        SchemeCase(
            name="completep",  # arXiv 2505.01618, table 1; depth-muP is exponent 0.5
            options={"depth_exponent": a, "d_base": 8, "L_base": 1},
            equation=completep(lambda layers, a=a: layers**-a),
            coefficients={(6, 6): (1.0, None), (100, 100): (1.0, None)},
            std=lambda stack, role, layer: 0.02 / (8**0.5 if layer else 1),
            extra_parameters=final_norms,
            policies={
                role: Policy(lr=2 ** (a - 1) / 2, weight_decay=2, eps=2**-a / 2)
                for role in ("q", "k", "v", "out", "fc1", "fc2")
            },
        )
        for a in (1.0, 0.5)
    ),
    SchemeCase(
        name="keel",  # arXiv 2601.19895
        equation=keel,
        coefficients={
            (0, 6): (None, 1.0),
            (6, 6): (None, 1.0),
        },  # the first layer has no skip scale
        extra_parameters=lambda config: site_norms(config) * 3 // 4,  # in layers 2 to 4
    ),
    *(
        SchemeCase(
            name="b2t",  # arXiv 2206.00330, section 4
            options={"rescale": rescale},
            equation=b2t,
            coefficients={(16, 16): (1.0, gain), (4, 16): (1.0, gain)},
            std=lambda stack, role, layer, gain=gain: (
                glorot_std(stack, role, layer) * (2 * gain if layer and gain < 1 else 1.0)
            ),
        )
        for rescale, gain in ((False, 1.0), (True, 0.25))
    ),
    *(
        SchemeCase(
            name="resi_dual",  # arXiv 2304.14802, equation 5
            options={"sum_scale": scale},
            equation=resi_dual(scale),
            coefficients={(6, 6): (1.0, 1.0), (100, 100): (1.0, 1.0)},
            extra_parameters=final_norms,
        )
        for scale in (1.0, 0.1)
    ),
    SchemeCase(
        name="siamese_norm",  # arXiv 2602.08064; the authors' DeiT
        equation=siamese_norm,
        coefficients={(6, 6): (1.0, 1.0), (100, 100): (1.0, 1.0)},
        extra_parameters=lambda config: 2 * site_norms(config) + 3 * final_norms(config),
    ),
    *(
        SchemeCase(
            name="dlcl",  # Wang et al., ACL 2019, section 4
            options={"placement": placement},
            equation=dlcl(placement),
            coefficients={(6, 6): (1.0, 1.0), (100, 100): (1.0, 1.0)},
            extra_parameters=lambda config, pre=placement == "pre": (
                final_norms(config) * pre
                + num_stacks(config) * (4 * 2 * config.d_model + (4 + 1) ** 2)
            ),
        )
        for placement in ("pre", "post")
    ),
    *(
        SchemeCase(
            name="denseformer",  # arXiv 2402.02622, section 3
            options={"dilation": dilation, "period": period},
            equation=denseformer(dilation, period),
            coefficients={(6, 6): (1.0, 1.0), (100, 100): (1.0, 1.0)},
            extra_parameters=lambda config, per_stack=per_stack: (
                final_norms(config) + per_stack * num_stacks(config)
            ),
        )
        # of 4 layers: 2 + 3 + 4 + 5 numbers; after layers 2 and 4 those of X_0 and X_2, and X_4
        for dilation, period, per_stack in ((1, 1, 14), (2, 2, 5))
    ),
    SchemeCase(
        name="mudd",  # arXiv 2502.12170; the authors' MultiwayDynamicDenseBlock with one channel
        equation=mudd,
        coefficients={(6, 6): (1.0, 1.0), (100, 100): (1.0, 1.0)},
        # of 4 layers: 2 to 5 sources, 64 hidden numbers each (4 * 5 = 20 in the last are as few)
        extra_parameters=lambda config: (
            final_norms(config) + num_stacks(config) * sum(64 * 64 + 65 * j for j in (2, 3, 4, 5))
        ),
        zero_gradient=("*.dense.w1",),  # W2 = 0
    ),
    *(
        SchemeCase(
            name="attn_res",  # arXiv 2603.15031, sections 3 and 5.3
            options={"block_sites": block},
            equation=attn_res(block),
            coefficients={(6, 6): (1.0, 1.0), (100, 100): (1.0, 1.0)},
            extra_parameters=lambda config: (
                final_norms(config)
                + 2 * config.d_model * (sum(num_sites(config)) + num_stacks(config))
            ),
            # w = 0, so that the keys' gains are not felt; the first site has one source, with nothing to choose
            zero_gradient=("*.gain", "*.layers.0.sublayers.self.residual.extra.depth.query"),
        )
        for block in (1, 3)
    ),
    *(
        SchemeCase(
            name="hyper_connections",  # arXiv 2409.19606, equations 1 to 13; mHC: arXiv 2512.24880
            options={"maps": kind},
            equation=hyper_connections(maps),
            coefficients={(6, 6): (1.0, 1.0), (100, 100): (1.0, 1.0)},
            extra_parameters=hyper_parameters(per_site),
            zero_gradient=zero,
        )
        for kind, maps, per_site, zero in (
            ("static", static_maps, 4 * 6, ()),
            # W = 0, so that neither its gates nor its norms are felt
            (
                "dynamic",
                dynamic_maps,
                4 * 6 + 64 * 6 + 2 + 2 * 64,
                ("*.maps.*gate", "*.maps.norm.*"),
            ),
            (
                "manifold",
                manifold_maps,
                4 * 6 + 4 * 64 * 4 * 6 + 3 + 4 * 64,
                ("*.maps.gates", "*.maps.norm.*"),
            ),
        )
    ),
    SchemeCase(
        name="mhc",  # arXiv 2512.24880; Megatron-LM's hyper_connection.py
        equation=mhc,
        coefficients={(6, 6): (1.0, 1.0), (100, 100): (1.0, 1.0)},
        # n (n + 2) columns of n d and as many numbers, three gates; of the head n columns, n numbers and a gate
        extra_parameters=lambda config: (
            hyper_parameters(4 * 64 * 24 + 24 + 3)(config)
            + num_stacks(config) * (4 * 64 * 4 + 4 + 1)
        ),
    ),
    SchemeCase(
        name="ngpt",  # arXiv 2410.01131, table 1 and section 2.6
        equation=ngpt,
        coefficients={(0, 6): (1.0, None), (0, 100): (1.0, None)},
        std=lambda stack, role, layer: 64**-0.5,
        # no norms and biases; a gate and an output matrix; steps, s_qk, s_u and s_v, s_z
        extra_parameters=lambda config: (
            4 * (64 * 128 - 4 * 64 - (4 * 64 + 128 + 64) + 3 * 64 + 2 * 128) + 200 * 64 + 199
        ),
        policies={
            role: Policy(weight_decay=0) for role in ("q", "k", "v", "out", "fc1", "gate", "fc2")
        }
        | {"scale": Policy(lr=16**0.5, weight_decay=0)},
        shape={"activation": "swiglu", "tie_embeddings": "none"},
    ),
    *(
        SchemeCase(
            name="x0",  # modded-nanogpt, 2024-11-10; nanochat
            options={"start": start},
            equation=x0,
            coefficients={(6, 6): (1.0, 1.0), (100, 100): (1.0, 1.0)},
            extra_parameters=lambda config: (
                2 * final_norms(config) + 2 * (config.encoder_layers + config.decoder_layers)
            ),
        )
        for start in ("neutral", "nanochat")
    ),
    *(
        SchemeCase(
            name="value_residual",  # arXiv 2410.17897; learned: modded-nanogpt, 2024-11-10
            options={"mix": mix},
            equation=value_residual(mix),
            coefficients={(6, 6): (1.0, 1.0), (100, 100): (1.0, 1.0)},
            extra_parameters=lambda config, per_site=per_site: (
                final_norms(config) + upper_attentions(config) * per_site
            ),
        )
        for mix, per_site in (("half", 0), ("learned", 1), ("first", -(64 * 64 + 64)))
    ),
    SchemeCase(
        name="value_residual",
        options={"base": "deepnorm"},
        equation=value_residual("half", deepnorm_alpha),
        coefficients={(6, 6): (18**0.25, 72**-0.25), (100, 100): (300**0.25, 1200**-0.25)},
        std=gained(deepnorm_gain),
    ),
    SchemeCase(
        name="value_embeddings",  # karpathy/nanochat, nanochat/gpt.py
        equation=value_embeddings(),
        coefficients={(6, 6): (1.0, 1.0), (100, 100): (1.0, 1.0)},
        extra_parameters=lambda config: final_norms(config) + value_tables(config),
    ),
    SchemeCase(
        name="value_embeddings",
        options={"base": "deepnorm"},
        equation=value_embeddings(deepnorm_alpha),
        coefficients={(6, 6): (18**0.25, 72**-0.25), (100, 100): (300**0.25, 1200**-0.25)},
        std=gained(deepnorm_gain),
        extra_parameters=value_tables,
    ),
]
