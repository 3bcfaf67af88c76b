"""Every scheme's equation: a whole stack as plain expressions, written without using the scheme."""

import math

import torch

from deepnet.schemes.base import ONE


def post_norm(skip, branch=1.0):
    """x <- LN(skip * x + branch * f(x)) at every site; either may be a function of the stack."""

    def equation(x, parts):
        alpha, a = (one(parts) if callable(one) else one for one in (skip, branch))
        for site in parts.sites:
            x = site.residual.post(alpha * x + a * site.f(x))
        return x

    return equation


def pre_norm(x, parts):
    """x <- x + f(LN(x)) at every site, a norm at the end."""
    for site in parts.sites:
        x = x + site.f(site.residual.pre(x))
    return parts.ends.final(x)


def no_norm(x, parts):
    """x <- x + f(x) at every site."""
    for site in parts.sites:
        x = x + site.f(x)
    return x


def admin(x, parts):
    """x <- LN(w * x + f(x)), w a vector per site."""
    for site in parts.sites:
        x = site.residual.post(site.residual.skip.factor * x + site.f(x))
    return x


def prores(placement):
    """x <- x + a f(LN(x)), or LN(x + a f(x)): after t updates layer l is grown to a = min(1, t / (1000 l))."""

    def equation(x, parts):
        for site in parts.sites:
            r, a = site.residual, min(1.0, parts.updates / (1000 * site.site.layer))
            x = x + a * site.f(r.pre(x)) if placement == "pre" else r.post(x + a * site.f(x))
        return parts.ends.final(x) if placement == "pre" else x

    return equation


def deepscale_lm(placement):
    """x <- lam x + beta f(LN(x)) and a norm at the end, or x <- LN(lam x + beta f(x)); beta^2 = 2 / R of R sites."""

    def equation(x, parts):
        lam, beta = math.sqrt(1 - 2 / len(parts.sites)), math.sqrt(2 / len(parts.sites))
        for site in parts.sites:
            pre, post = site.residual.pre, site.residual.post
            x = lam * x + beta * site.f(pre(x) if pre else x)
            x = post(x) if post else x
        return parts.ends.final(x) if placement == "pre" else x

    return equation


def gpas(alpha):
    """x <- G(x + f(LN(x))), a norm at the end; with alpha of the stack x <- LN(alpha G(x) + f(x)).

    G(u) = u - silu(g) u without gradient, g the same at all sites of a layer.
    """

    def equation(x, parts):
        for layer in parts.layers:
            g = layer[0].residual.skip.factor
            s = g / (1 + (-g).exp())
            for site in layer:
                r = site.residual
                if alpha:
                    x = r.post(alpha(parts) * (x - s * x.detach()) + site.f(x))
                else:
                    u = x + site.f(r.pre(x))
                    x = u - s * u.detach()
        return x if alpha else parts.ends.final(x)

    return equation


def laurel(form):
    """x <- a f(LN(x)) + b (x + B A x), a = 2 / (1 + exp(-w)) and b so of numbers per site, or 1; a norm at the end."""

    def equation(x, parts):
        for site in parts.sites:
            r, skip, a, b = site.residual, x, 1.0, 1.0
            if "lr" in form:
                low = r.extra["low_rank"]
                skip = x + torch.einsum("ir,rj,btj->bti", low.b, low.a, x)
            if "rw" in form:
                a, b = (2 / (1 + torch.exp(-w.factor)) for w in (r.branch_scale, r.skip))
            x = a * site.f(r.pre(x)) + b * skip
        return parts.ends.final(x)

    return equation


def rezero(x, parts):
    """x <- x + s * f(x), s the same number at all sites of a layer."""
    for layer in parts.layers:
        for site in layer:
            x = x + layer[0].residual.branch_scale.factor * site.f(x)
    return x


def r_fixup(x, parts):
    """x <- x + s * MHA(x - c), x <- x + s * W2 (relu(W1 (x - c1) - c2) - c3).

    At the end x - c, in an encoder s_e * (x - c).
    """
    for site in parts.sites:
        entered = x - site.residual.shift
        if site.site.kind == "ffn":
            hidden = torch.relu(
                entered @ site.branch.fc1.weight.T - site.branch.preactivation_shift
            )
            y = (hidden - site.branch.activation_shift) @ site.branch.fc2.weight.T
        else:
            y = site.f(entered)
        x = x + site.residual.branch_scale.factor * y
    exit_scale = parts.ends.scale.factor if parts.name == "encoder" else 1.0
    return exit_scale * (x - parts.ends.shift)


def scale_norm(x, parts):
    """x <- x + f(g x / |x|), the same norm at the end."""
    for site in parts.sites:
        x = x + site.f(site.residual.pre.g * x / x.square().sum(-1, keepdim=True).sqrt())
    return parts.ends.final.g * x / x.square().sum(-1, keepdim=True).sqrt()


def mix_ln(x, parts):
    """Post-LN in the first of two layers, Pre-LN in the second, a norm at the end."""
    for site in parts.sites:
        post, pre = site.residual.post, site.residual.pre
        x = post(x + site.f(x)) if site.site.layer == 1 else x + site.f(pre(x))
    return parts.ends.final(x)


def layernorm_scaling(x, parts):
    """x <- x + f(LN(x) / sqrt(l)), an unscaled norm at the end."""
    for site in parts.sites:
        norm = site.residual.pre if site.site.layer == 1 else site.residual.pre.norm
        x = x + site.f(norm(x) / math.sqrt(site.site.layer))
    return parts.ends.final(x)


def layerscale(x, parts):
    """x <- x + g * f(LN(x)), g a vector per site, a norm at the end."""
    for site in parts.sites:
        g = site.residual.branch_scale.factor
        x = x + g * site.f(site.residual.pre(x))
    return parts.ends.final(x)


def peri_ln(x, parts):
    """x <- x + LN_out(f(LN_in(x))), a norm at the end."""
    for site in parts.sites:
        x = x + site.residual.out(site.f(site.residual.pre(x)))
    return parts.ends.final(x)


def dyt(x, parts):
    """x <- x + f(g * tanh(a x) + b), the same in place of the final norm."""
    for norm, site in ((site.residual.pre, site) for site in parts.sites):
        x = x + site.f(norm.g * torch.tanh(norm.a * x) + norm.b)
    final = parts.ends.final
    return final.g * torch.tanh(final.a * x) + final.b


def derf(x, parts):
    """x <- x + f(g * erf(a x + s) + b), the same in place of the final norm."""
    for norm, site in ((site.residual.pre, site) for site in parts.sites):
        x = x + site.f(norm.g * torch.erf(norm.a * x + norm.s) + norm.b)
    final = parts.ends.final
    return final.g * torch.erf(final.a * x + final.s) + final.b


def same(y):
    return y


def attention(site, x, *, multiplier=8**-0.5, q=same, k=same, v=same, heads=same, given=None):
    """Attention written out, with what may happen to q, k and v [B, H, T, K] and to the heads' outputs [B, T, H, K].

    Its values may be `given` [B, C, V].
    """
    branch, cross = site.branch, site.site.kind == "cross"
    read = site.inputs.memory if cross else x
    given = branch.v(read) if given is None else given
    queries, keys, values = (
        norm(projected.unflatten(-1, (branch.num_heads, -1)).transpose(1, 2))
        for norm, projected in ((q, branch.q(x)), (k, branch.k(read)), (v, given))
    )
    scores = multiplier * queries @ keys.transpose(2, 3)
    if site.inputs.causal and not cross:
        future = torch.ones_like(scores, dtype=torch.bool).triu(1)
        scores = scores.masked_fill(future, -math.inf)
    return branch.out(heads((scores.softmax(-1) @ values).transpose(1, 2)).reshape(x.shape))


def feed_forward(site, x, norm=same):
    """The feed-forward branch with a norm after its activation."""
    return site.branch.fc2(norm(site.branch.fc1(x).relu()))


def sub_ln(x, parts):
    for site in parts.sites:
        n = site.residual.pre(x)
        if site.site.kind == "ffn":
            x = x + feed_forward(site, n, site.branch.activation_norm)
        elif site.site.kind == "cross":
            x = x + attention(site, n)
        else:
            x = x + attention(site, n, heads=_flat(site.branch.heads_norm))
    return parts.ends.final(x)


def _flat(norm):
    return lambda y: norm(y.flatten(2))


def normformer(x, parts):
    for site in parts.sites:
        n, residual = site.residual.pre(x), site.residual
        if site.site.kind == "ffn":
            r = residual.skip.factor if residual.plan.skip != ONE else 1.0
            x = r * x + feed_forward(site, n, site.branch.activation_norm)
        else:
            h = site.branch.head_scale.factor
            x = x + residual.out(attention(site, n, heads=h[:, None].mul))
    return parts.ends.final(x)


def hybrid_norm(first_pre_norm):
    def equation(x, parts):
        for site in parts.sites:
            branch, pre, first = site.branch, site.residual.pre, site.site.layer == 1
            if site.site.kind == "self":
                n = pre(x) if first and first_pre_norm else x
                x = x + attention(site, n, q=branch.q_norm, k=branch.k_norm, v=branch.v_norm)
            else:
                n = pre(x)
                x = (x if first and first_pre_norm else n) + feed_forward(site, n)
        return parts.ends.final(x)

    return equation


def completep(branch):
    def equation(x, parts):
        for site in parts.sites:
            n = site.residual.pre(x)
            ffn = site.site.kind == "ffn"
            y = feed_forward(site, n) if ffn else attention(site, n, multiplier=1 / 8)
            x = x + branch(len(parts.layers)) * y
        return parts.ends.final(x)

    return equation


def keel(x, parts):
    for site in parts.sites:
        y = site.f(site.residual.pre(x))
        x = x + y if site.site.layer == 1 else site.residual.post(len(parts.sites) * x + y)
    return x


def b2t(x, parts):
    for *inner, last in parts.layers:
        b = x
        for site in inner:
            b = site.residual.post(b + site.f(b))
        x = last.residual.post(x + b + last.f(b))
    return x


def resi_dual(scale):
    def equation(x, parts):
        d = scale * x
        for site in parts.sites:
            y = site.f(x)
            x, d = site.residual.post(x + y), d + scale * y
        return x + parts.ends.final(d)

    return equation


def dlcl(placement):
    def equation(x, parts):
        layers = parts.layers
        held = [layer[-1].residual.extra for layer in layers]
        columns = [parts.sites[0].residual.extra["embedding"].weight]
        columns += [extra["column"].weight for extra in held]

        def combine(outputs):  # a row of W over the outputs there are
            row = len(outputs) - 1
            return sum(columns[k][row - k] * y for k, y in enumerate(outputs))

        outputs = [x]
        x = combine(outputs)
        for layer, extra in zip(layers, held, strict=True):
            for site in layer:
                r = site.residual
                x = x + site.f(r.pre(x)) if placement == "pre" else r.post(x + site.f(x))
            outputs.append(extra["norm"](x) if placement == "pre" else x)
            x = combine(outputs)
            x = x if placement == "pre" else extra["norm"](x)
        return parts.ends.final(x) if placement == "pre" else x

    return equation


def denseformer(dilation, period):
    """After a layer l that is a multiple of the period: sum of w_lj X_j over j = l, l - k, l - 2 k, ..."""

    def equation(x, parts):
        outputs = [x]
        for number, layer in enumerate(parts.layers, 1):
            for site in layer:
                x = x + site.f(site.residual.pre(x))
            outputs.append(x)
            if number % period == 0:
                row = layer[-1].residual.extra["average"].weight
                below = range(number, -1, -dilation)
                assert len(below) == len(row)
                x = sum(row[-1 - back] * outputs[j] for back, j in enumerate(below))
        return parts.ends.final(x)

    return equation


def mudd(x, parts):
    """After layer l: sum of (b_j + [W2 gelu(W1 rms(X_l))]_j) X_j, gelu(z) = z (1 + erf(z / sqrt 2)) / 2."""
    outputs = [x]
    for layer in parts.layers:
        for site in layer:
            x = x + site.f(site.residual.pre(x))
        outputs.append(x)
        dense = layer[-1].residual.extra["dense"]
        z = x / (x.square().mean(-1, keepdim=True) + 1e-6).sqrt() @ dense.w1
        added = (z * (1 + torch.erf(z / math.sqrt(2))) / 2) @ dense.w2
        x = sum((dense.static[j] + added[..., [j]]) * output for j, output in enumerate(outputs))
    return parts.ends.final(x)


def attend(module, sources):
    """sum_j a_j v_j, a the softmax over j of w . (g * v_j / rms(v_j)), term by term."""
    rms = [(v.square().mean(-1, keepdim=True) + 1e-6).sqrt() for v in sources]
    scores = [
        (module.query * (module.gain * v / r)).sum(-1, keepdim=True)
        for v, r in zip(sources, rms, strict=True)
    ]
    largest = torch.stack(scores).amax(0)
    shares = [(score - largest).exp() for score in scores]
    return sum(a * v for a, v in zip(shares, sources, strict=True)) / sum(shares)


def attn_res(block):
    """Each site reads the embedding, the sums of the full blocks of `block` sites, and what is open of the next."""

    def equation(x, parts):
        full, still_open = [x], []
        for site in parts.sites:
            sources = [*full, sum(still_open)] if still_open else full
            h = attend(site.residual.extra["depth"], sources)
            still_open.append(site.f(site.residual.pre(h)))
            if len(still_open) == block:
                full, still_open = [*full, sum(still_open)], []
        sources = [*full, sum(still_open)] if still_open else full
        return parts.ends.final(attend(parts.ends.merge, sources))

    return equation


def hyper_connections(maps):
    """Stream by stream; `maps` returns A_m, B and A_r as [n], [n] and [n][n] of what multiplies [B, T, D]."""

    def equation(x, parts):
        h = [x] * 4
        for site in parts.sites:
            a_m, b, a_r = maps(site.residual.extra["maps"], h)
            read = sum(a_m[i] * h[i] for i in range(4))
            y = site.f(site.residual.pre(read))
            h = [sum(a_r[i][j] * h[i] for i in range(4)) + b[j] * y for j in range(4)]
        return parts.ends.final(sum(h) / 4)

    return equation


def static_maps(module, h):
    return module.table[:, 0], module.table[:, 1], module.table[:, 2:]


def dynamic_maps(module, h):
    a, b, w = module.read_and_mix_gate, module.write_gate, module.weight
    a_m, b_0, a_r = static_maps(module.static, h)
    normed = [module.norm(stream) for stream in h]
    return (
        [a_m[i] + a * (n @ w[:, [0]]).tanh() for i, n in enumerate(normed)],
        [b_0[i] + b * (n @ w[:, [1]]).tanh() for i, n in enumerate(normed)],
        [
            [a_r[i][j] + a * (n @ w[:, [2 + j]]).tanh() for j in range(4)]
            for i, n in enumerate(normed)
        ],
    )


def manifold_maps(module, h):
    content = (module.norm(torch.cat(h, dim=-1)) @ module.weight).unflatten(-1, (4, 6))
    read, write, mix = module.gates
    rows = module.table
    a_r = (rows[:, 2:] + mix * content[..., 2:]).exp()  # [B, T, i, j]
    for _ in range(20):
        a_r = a_r / a_r.sum(-1, keepdim=True)
        a_r = a_r / a_r.sum(-2, keepdim=True)
    return (
        [(rows[i, 0] + read * content[..., i, [0]]).sigmoid() for i in range(4)],
        [2 * (rows[i, 1] + write * content[..., i, [1]]).sigmoid() for i in range(4)],
        [[a_r[..., i, [j]] for j in range(4)] for i in range(4)],
    )


def mhc(x, parts):
    """Stream by stream and entry by entry; X_k <- sum_j C[j][k] X_j + B_k y."""
    n, streams = range(4), [x] * 4
    for site in parts.sites:
        a, b, c = mhc_maps(site.residual.extra["maps"], streams)
        y = site.f(site.residual.pre(sum(a[j] * streams[j] for j in n)))
        streams = [sum(c[j][k] * streams[j] for j in n) + b[k] * y for k in n]
    logits = mhc_logits(parts.ends.merge, streams)
    weights = [[1 / (1 + (-z).exp()) + 1e-6 for z in row] for row in logits]
    return parts.ends.final(sum(weights[j][0] * streams[j] for j in n))


def mhc_logits(module, streams):
    """gate * (W rms(vec X)) + b as rows of [B, T, 1]; the third gate is that of all columns from the third on."""
    vector = torch.cat(streams, dim=-1)
    vector = vector / (vector.square().mean(-1, keepdim=True) + 1e-6).sqrt()
    columns = module.table.shape[1]
    return [
        [
            module.gates[min(c, 2)] * (vector @ module.weight[:, [row * columns + c]])
            + module.table[row, c]
            for c in range(columns)
        ]
        for row in range(4)
    ]


def mhc_maps(module, streams):
    """A and B [4], C [4][4]: a softmax over the last index, its columns, then 19 times its rows and columns."""
    n, eps = range(4), 1e-6
    logits = mhc_logits(module, streams)
    e = [[logits[j][2 + k].exp() for k in n] for j in n]
    c = [[e[j][k] / sum(e[j]) + eps for k in n] for j in n]

    def over_columns(c):
        sums = [sum(c[j][k] for j in n) + eps for k in n]
        return [[c[j][k] / sums[k] for k in n] for j in n]

    c = over_columns(c)
    for _ in range(19):
        c = over_columns([[c[j][k] / (sum(c[j]) + eps) for k in n] for j in n])
    return (
        [1 / (1 + (-logits[j][0]).exp()) + eps for j in n],
        [2 / (1 + (-logits[j][1]).exp()) for j in n],
        c,
    )


def siamese_norm(x, parts):
    """x normed at every site, y a plain sum; a branch reads LN(x + LN(y)) and adds 1 / sqrt(2 l) of itself to x."""
    y = x
    for number, layer in enumerate(parts.layers, 1):
        for site in layer:
            extra = site.residual.extra
            x = extra["normed"](x)
            r = site.f(site.residual.pre(x + extra["plain"](y)))
            x, y = x + r / math.sqrt(2 * number), y + r
    return parts.ends.final(parts.ends.merge.normed(x) + parts.ends.merge.plain(y))


def unit(x):
    return x / x.square().sum(-1, keepdim=True).sqrt()


def ngpt(x, parts):
    for site in parts.sites:
        branch, step = site.branch, 0.05 * site.residual.extra["step"].factor.abs()
        if site.site.kind == "self":
            s = branch.q_norm.scale
            y = attention(
                site,
                x,
                multiplier=8**0.5,
                q=lambda q, s=s: s * unit(q),
                k=lambda k, s=s: s * unit(k),
            )
        else:
            u = branch.preactivation_scale.factor * branch.fc1(x)
            v = branch.gate_scale.factor * branch.gate(x)
            y = branch.fc2(u * v * v.sigmoid())
        x = unit(x + step * (unit(y) - x))
    return x


def x0(x, parts):
    """x <- r x + z x0 before each layer, then Pre-LN."""
    embedding = x
    for layer in parts.layers:
        mix = layer[0].residual.extra["mix"]
        x = mix.r * x + mix.z * embedding
        for site in layer:
            x = x + site.f(site.residual.pre(x))
    return parts.ends.final(x)


def value_residual(mix, skip=None):
    """Values (v_1 + v_l) / 2, (1 - m) v_l + m v_1 or v_1 above layer 1, of self and cross apart."""

    def values(site, x, first, _):
        kind = site.site.kind
        if mix == "first" and site.site.layer > 1:
            return first[kind]
        v = site.branch.v(site.inputs.memory if kind == "cross" else x)
        if site.site.layer == 1:
            first[kind] = v
            return v
        m = site.residual.extra["value_mix"].m if mix == "learned" else 0.5
        return (1 - m) * v + m * first[kind]

    return with_values(values, skip)


def value_embeddings(skip=None):
    """v + 3 sigmoid(W_g n[:12]) E[token] in every second self-attention from the top, head by head."""

    def values(site, x, _, num_layers):
        if site.site.kind != "self" or num_layers % 2 != site.site.layer % 2:
            return None
        table, v = site.residual.extra["value_table"], site.branch.v(x)
        rows, heads = table.weight[site.inputs.ids].chunk(len(table.gate), -1), []
        for own, row, w in zip(v.chunk(len(table.gate), -1), rows, table.gate, strict=True):
            gate = 3 / (1 + (-(x[..., :12] * w).sum(-1, keepdim=True)).exp())
            heads.append(own + gate * row)
        return torch.cat(heads, -1)

    return with_values(values, skip)


def with_values(values, skip):
    """Pre-LN's sites, or LN(skip * x + f(x)), with attention over values(site, n, a dict, number of layers)."""

    def equation(x, parts):
        kept = {}
        for site in parts.sites:
            n = x if skip else site.residual.pre(x)
            if site.site.kind == "ffn":
                y = site.f(n)
            else:
                y = attention(site, n, given=values(site, n, kept, len(parts.layers)))
            x = site.residual.post(skip(parts) * x + y) if skip else x + y
        return x if skip else parts.ends.final(x)

    return equation
