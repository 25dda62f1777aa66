"""The equations of Ouro, of Huginn and of their kin as plain loops over rows, heads and positions, in float64.

They read weights by the published names, or ours, and share no line with the package. Shape legend: T tokens, D width.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

Weights = Mapping[str, Tensor]


def rms(u: Tensor, w: Tensor, eps: float) -> Tensor:
    return u / (u.pow(2).mean(-1, keepdim=True) + eps).sqrt() * w


def turned(head: Tensor, theta: float | Sequence[float], pairs: bool) -> Tensor:
    """A head (T, d), every pair of features as a complex number times exp(i p r_j), r_j given or theta^(-2j/d)."""
    length, width = head.shape
    rates = [theta ** (-2 * j / width) for j in range(width // 2)] if isinstance(theta, float | int) else theta
    out, positions = torch.empty_like(head), torch.arange(length, dtype=head.dtype)
    for j in range(width // 2):
        a, b = (2 * j, 2 * j + 1) if pairs else (j, j + width // 2)
        numbers = torch.complex(head[:, a], head[:, b]) * torch.exp(1j * positions * rates[j])
        out[:, a], out[:, b] = numbers.real, numbers.imag
    return out


def attention(
    x: Tensor, asked: Tensor, q: Tensor, k: Tensor, v: Tensor, o: Tensor, *, heads: int, shared: int,
    theta: float | Sequence[float], pairs: bool, q_bias: Tensor | None = None, k_bias: Tensor | None = None,
    norms: tuple[Callable[[Tensor], Tensor], Callable[[Tensor], Tensor]] | None = None, scale: float | None = None,
    cap: float | None = None, gate: Tensor | None = None, window: int | None = None,
) -> Tensor:  # fmt: skip
    """Causal attention of one row, x (T, D), queries of `asked`, to the last tokens of a window; norms of all heads."""
    query, key, value = asked @ q.T, x @ k.T, x @ v.T
    if norms is not None:
        query, key = norms[0](query), norms[1](key)
    if q_bias is not None and k_bias is not None:
        query, key = query + q_bias, key + k_bias
    width, outputs = query.shape[1] // heads, []
    for head in range(heads):
        of = head // (heads // shared)
        mine = turned(query[:, head * width : (head + 1) * width], theta, pairs)
        theirs = turned(key[:, of * width : (of + 1) * width], theta, pairs)
        said = value[:, of * width : (of + 1) * width]
        rows = []
        for position in range(len(x)):
            seen = slice(max(0, position + 1 - (window or len(x))), position + 1)
            scores = (theirs[seen] @ mine[position]) / math.sqrt(scale or width)
            scores = scores if cap is None else cap * torch.tanh(scores / cap)
            rows.append(scores.softmax(0) @ said[seen])
        outputs.append(torch.stack(rows))
    whole = torch.cat(outputs, dim=1)
    return (whole if gate is None else whole * torch.sigmoid(x @ gate.T)) @ o.T


def swiglu(x: Tensor, gate: Tensor, up: Tensor, down: Tensor) -> Tensor:
    inner = x @ gate.T
    return (inner * torch.sigmoid(inner) * (x @ up.T)) @ down.T


def plain_ouro(found: Mapping[str, Any], weights: Weights, ids: Tensor) -> tuple[list[Tensor], list[Tensor]]:
    """States (T, D) and gate logits (T,) after every step of one row."""
    w = {name: weight.double() for name, weight in weights.items()}
    eps, heads = found["rms_norm_eps"], found["num_attention_heads"]
    h = w["model.embed_tokens.weight"][ids]
    states, gates = [], []
    for _ in range(found["total_ut_steps"]):
        for number in range(found["num_hidden_layers"]):
            p = f"model.layers.{number}."
            u = rms(h, w[p + "input_layernorm.weight"], eps)
            a = attention(
                u, u, *(w[f"{p}self_attn.{letter}_proj.weight"] for letter in "qkvo"), heads=heads,
                shared=found["num_key_value_heads"], theta=found["rope_theta"], pairs=False,
            )  # fmt: skip
            h = h + rms(a, w[p + "input_layernorm_2.weight"], eps)
            m = swiglu(
                rms(h, w[p + "post_attention_layernorm.weight"], eps),
                *(w[f"{p}mlp.{part}_proj.weight"] for part in ("gate", "up", "down")),
            )
            h = h + rms(m, w[p + "post_attention_layernorm_2.weight"], eps)
        h = rms(h, w["model.norm.weight"], eps)
        states.append(h)
        gates.append(h @ w["model.early_exit_gate.weight"][0] + w["model.early_exit_gate.bias"][0])
    return states, gates


def plain_nanbeige(found: Mapping[str, Any], weights: Weights, ids: Tensor, loops: int) -> Tensor:
    """Logits (T, V) of one row: a Llama whose layers run so many times, normed after every loop, or after the last."""
    w = {name: weight.double() for name, weight in weights.items()}
    eps, h = found["rms_norm_eps"], w["model.embed_tokens.weight"][ids]
    for loop in range(1, loops + 1):
        for number in range(found["num_hidden_layers"]):
            p = f"model.layers.{number}."
            u = rms(h, w[p + "input_layernorm.weight"], eps)
            h = h + attention(
                u, u, *(w[f"{p}self_attn.{letter}_proj.weight"] for letter in "qkvo"),
                heads=found["num_attention_heads"], shared=found["num_key_value_heads"], theta=found["rope_theta"],
                pairs=False,
            )  # fmt: skip
            u = rms(h, w[p + "post_attention_layernorm.weight"], eps)
            h = h + swiglu(u, *(w[f"{p}mlp.{part}_proj.weight"] for part in ("gate", "up", "down")))
        if loop == loops or not found["skip_loop_final_norm"]:
            h = rms(h, w["model.norm.weight"], eps)
    return h @ w["lm_head.weight"].T


def plain_huginn(found: Mapping[str, Any], weights: Weights, ids: Tensor, state: Tensor, steps: int) -> Tensor:
    """Logits (T, V) of one row after so many steps from an initial state (T, D)."""
    w = {name: weight.double() for name, weight in weights.items()}
    eps, heads, width = found["norm_eps"], found["num_attention_heads"], found["n_embd"]

    def block(x: Tensor, p: str) -> Tensor:
        u = rms(x, w[p + "norm_1.weight"], eps)
        q, k, v = w[p + "attn.Wqkv.weight"].split(width)
        bias = w[p + "attn.qk_bias"].reshape(2, width)
        a = attention(
            u, u, q, k, v, w[p + "attn.proj.weight"], heads=heads, shared=heads, theta=found["rope_base"], pairs=True,
            q_bias=bias[0], k_bias=bias[1],
        )  # fmt: skip
        x = rms(a + x, w[p + "norm_2.weight"], eps)
        gate, up = w[p + "mlp.fc.weight"].chunk(2)
        m = swiglu(rms(x, w[p + "norm_3.weight"], eps), gate, up, w[p + "mlp.proj.weight"])
        return rms(m + x, w[p + "norm_4.weight"], eps)

    e, s = w["transformer.wte.weight"][ids] * math.sqrt(width), state.double()
    for number in range(found["n_layers_in_prelude"]):
        e = block(e, f"transformer.prelude.{number}.")
    for _ in range(steps):
        s = torch.cat([s, e], dim=-1) @ w["transformer.adapter.weight"].T
        for number in range(found["n_layers_in_recurrent_block"]):
            s = block(s, f"transformer.core_block.{number}.")
    x = rms(s, w["transformer.ln_f.weight"], eps)
    for number in range(found["n_layers_in_coda"]):
        x = block(x, f"transformer.coda.{number}.")
    return rms(x, w["transformer.ln_f.weight"], eps) @ w["transformer.wte.weight"].T


def llama3_rates(theta: float, width: int, scaling: Mapping[str, Any]) -> list[float]:
    """Rates of rotary positions as Llama 3 scales them: long waves slower, short ones not, a line in between."""
    rates = []
    for j in range(width // 2):
        rate = theta ** (-2 * j / width)
        turns = scaling["original_max_position_embeddings"] * rate / (2 * math.pi)
        slow, fast = scaling["low_freq_factor"], scaling["high_freq_factor"]
        share = min(max((turns - slow) / (fast - slow), 0.0), 1.0)
        rates.append(share * rate + (1 - share) * rate / scaling["factor"])
    return rates


def plain_retrofit(
    kind: str, found: Mapping[str, Any], weights: Weights, ids: Tensor, state: Tensor, steps: int
) -> Tensor:
    """Logits (T, V) of one row of a retrofitted Llama, OLMo 2 or Gemma 2 after so many steps from a state (T, D)."""
    w = {name: weight.double() for name, weight in weights.items()}
    eps, heads, shared, wide = (found[name] for name in ("norm_eps", "n_heads", "num_key_value_heads", "head_dim"))
    theta: float | list[float] = found["rope_theta"]
    if found.get("rope_scaling"):
        theta = llama3_rates(found["rope_theta"], wide, found["rope_scaling"])
    more: dict[str, Any] = {"scale": 256.0, "cap": 50.0} if kind == "gemma2" else {}

    def norm(u: Tensor, name: str) -> Tensor:
        return rms(u, w[name + ".weight"] + float(kind == "gemma2"), eps)

    def attend(x: Tensor, p: str) -> Tensor:
        q, k, v = w[p + "attn.Wqkv.weight"].split([heads * wide, shared * wide, shared * wide])
        if kind == "olmo2":
            more["norms"] = lambda u: norm(u, p + "attn.q_norm"), lambda u: norm(u, p + "attn.k_norm")
        return attention(
            x, x, q, k, v, w[p + "attn.proj.weight"], heads=heads, shared=shared, theta=theta, pairs=False, **more
        )

    def feed(x: Tensor, p: str) -> Tensor:
        gate, up = w[p + "mlp.fc.weight"].chunk(2)
        if kind != "gemma2":
            return swiglu(x, gate, up, w[p + "mlp.proj.weight"])
        u = x @ gate.T
        gelu = u / 2 * (1 + torch.tanh(math.sqrt(2 / math.pi) * (u + 0.044715 * u**3)))
        return (gelu * (x @ up.T)) @ w[p + "mlp.proj.weight"].T

    def block(x: Tensor, p: str) -> Tensor:
        if kind == "llama":
            x = x + attend(norm(x, p + "norm_1"), p)
            return x + feed(norm(x, p + "norm_2"), p)
        if kind == "olmo2":
            x = x + norm(attend(x, p), p + "norm_1")
            return x + norm(feed(x, p), p + "norm_2")
        x = x + norm(attend(norm(x, p + "norm_1"), p), p + "norm_2")
        return x + norm(feed(norm(x, p + "norm_3"), p), p + "norm_4")

    e, s = w["transformer.wte.weight"][ids] * found["init_values"]["embed_scale"], state.double()
    for number in range(found["n_layers_in_prelude"]):
        e = block(e, f"transformer.prelude.{number}.")
    for _ in range(steps):
        s = torch.cat([s, e], dim=-1) @ w["transformer.adapter.weight"].T
        for number in range(found["n_layers_in_recurrent_block"]):
            s = block(s, f"transformer.core_block.{number}.")
    for number in range(found["n_layers_in_coda"]):
        s = block(s, f"transformer.coda.{number}.")
    logits = norm(s, "transformer.ln_f") @ w["lm_head.weight"].T
    return 30.0 * torch.tanh(logits / 30.0) if kind == "gemma2" else logits


def plain_conditioning(w: Weights, time: float, step: float, layer: int, width: int) -> list[Tensor]:
    """Gain and scale of attention, then of the feed-forward layer, (D,) each, of one layer in one loop."""
    total = torch.zeros(width, dtype=torch.float64)
    for name, value in (("time", time), ("step", step)):
        angles = [value * 10000 ** (-i / 128) for i in range(128)]
        waves = torch.tensor([math.cos(a) for a in angles] + [math.sin(a) for a in angles], dtype=torch.float64)
        p = f"model.conditioning.{name}_embedding."
        inner = w[p + "0.weight"] @ waves + w[p + "0.bias"]
        total = total + w[p + "2.weight"] @ (inner * torch.sigmoid(inner)) + w[p + "2.bias"]
    p, begin = "model.conditioning.modulation.", 4 * layer * width
    made = w[p + "weight"] @ (total * torch.sigmoid(total)) + w[p + "bias"]
    return [made[begin + part * width : begin + (part + 1) * width] for part in range(4)]


def plain_looped(
    config: Any, weights: Weights, ids: Tensor, state: Tensor | None = None, steps: Sequence[float] | None = None
) -> list[Tensor]:
    """Logits (T, V) after every loop of one row, with layers of our own, with equal or given steps."""
    w = {name: weight.double() for name, weight in weights.items()}
    steps = [1 / config.num_loops] * config.num_loops if steps is None else steps

    def norm(u: Tensor, name: str) -> Tensor:
        return rms(u, w.get(name, torch.ones(u.shape[-1], dtype=u.dtype)), config.rms_norm_eps)

    def layer(x: Tensor, p: str, previous: Tensor | None = None, conditioning: Any = (1, 0, 1, 0)) -> Tensor:
        gain, scale, mlp_gain, mlp_scale = conditioning

        def add(u: Tensor, branch: Tensor, gain: Any, name: str) -> Tensor:
            if config.norms == "pre":
                return u + gain * branch
            if config.norms == "sandwich":
                return norm(u + gain * branch, p + name)
            return u + gain * norm(branch, p + name)

        u = norm(x, p + "attention_norm.weight") * (1 + scale)
        asked = u if previous is None else norm(previous, p + "attention_norm.weight") * (1 + scale)
        shared = config.num_key_value_heads or config.num_attention_heads
        a = attention(
            u, asked, *(w[f"{p}self_attn.{letter}_proj.weight"] for letter in "qkvo"),
            heads=config.num_attention_heads, shared=shared, theta=config.rope_theta, pairs=config.rope_pairs,
            q_bias=w.get(p + "self_attn.q_proj.bias"), k_bias=w.get(p + "self_attn.k_proj.bias"),
            gate=w.get(p + "self_attn.gate_proj.weight"), window=config.sliding_window,
        )  # fmt: skip
        x = add(x, a, gain, "attention_post_norm.weight")
        parts = (w[f"{p}mlp.{part}_proj.weight"] for part in ("gate", "up", "down"))
        mixed = swiglu(norm(x, p + "mlp_norm.weight") * (1 + mlp_scale), *parts)
        return add(x, mixed, mlp_gain, "mlp_post_norm.weight")

    root = math.sqrt(config.hidden_size) if config.scale_embeddings else 1.0
    e = w["model.embed_tokens.weight"][ids] * (config.embedding_scale or root)
    for number in range(config.prelude):
        e = layer(e, f"model.prelude.{number}.")
    starts: dict[str, Callable[[], Tensor]] = {"input": lambda: e, "zeros": lambda: torch.zeros_like(e)}
    s = starts[config.start]() if state is None else state.double()
    low = w["model.low_start"].expand_as(e) if config.low_layers else torch.zeros_like(e)
    previous, logits = None, []

    def inject(s: Tensor) -> Tensor:
        return {
            "none": lambda: s,
            "add": lambda: s + e,
            "linear": lambda: torch.cat([s, e], dim=-1) @ w["model.adapter.weight"].T,
            "restart": lambda: e,
        }[config.injection]()

    for loop, step in enumerate(steps):
        for _ in range(config.low_cycles if config.low_layers else 0):
            low = inject(s + low)
            for number in range(config.low_layers):
                low = layer(low, f"model.low.{number}.")
            low = norm(low, "model.low_norm.weight")
        z = inject(s + low)
        for number in range(config.core):
            conditioning = (1, 0, 1, 0)
            if config.loop_conditioning == "time":
                conditioning = plain_conditioning(w, sum(steps[:loop]), step, number, config.hidden_size)
            z = layer(z, f"model.core.{number}.", previous if config.queries == "previous" else None, conditioning)
        s = s + (1.0 / len(steps) if config.damping is None else config.damping) * (z - s)
        normed = norm(s, "model.norm.weight")
        s = normed if config.state_norm == "fed" else s
        previous = normed
        x = s if config.state_norm == "none" else normed
        if config.coda:
            for number in range(config.coda):
                x = layer(x, f"model.coda.{number}.")
            x = norm(x, "model.norm.weight")
        else:
            x = normed
        logits.append(x @ w["lm_head.weight"].T)
    return logits
