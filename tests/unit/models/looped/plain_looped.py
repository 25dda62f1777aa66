"""The equations of Ouro, Huginn and related models as plain loops over rows, heads and positions, in float64.

They use the published names of weights, or ours, and share no code with the package. Shape legend: T tokens, D width.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

Weights = Mapping[str, Tensor]


def apply_rms_norm(u: Tensor, w: Tensor, eps: float) -> Tensor:
    return u / (u.pow(2).mean(-1, keepdim=True) + eps).sqrt() * w


def rotate(head: Tensor, theta: float | Sequence[float], pairs: bool) -> Tensor:
    """Rotate a head (T, d): complex pairs of features times exp(i p r_j), with r_j given or theta^(-2j/d)."""
    length, width = head.shape
    rates = [theta ** (-2 * j / width) for j in range(width // 2)] if isinstance(theta, float | int) else theta
    out, positions = torch.empty_like(head), torch.arange(length, dtype=head.dtype)
    for j in range(width // 2):
        a, b = (2 * j, 2 * j + 1) if pairs else (j, j + width // 2)
        numbers = torch.complex(head[:, a], head[:, b]) * torch.exp(1j * positions * rates[j])
        out[:, a], out[:, b] = numbers.real, numbers.imag
    return out


def compute_attention(
    x: Tensor, query_states: Tensor, q: Tensor, k: Tensor, v: Tensor, o: Tensor, *, heads: int, shared: int,
    theta: float | Sequence[float], pairs: bool, q_bias: Tensor | None = None, k_bias: Tensor | None = None,
    norms: tuple[Callable[[Tensor], Tensor], Callable[[Tensor], Tensor]] | None = None, scale: float | None = None,
    cap: float | None = None, gate: Tensor | None = None, window: int | None = None,
) -> Tensor:  # fmt: skip
    """Compute causal attention of one row, x (T, D), in a window; `norms` are those of all queries and of all keys."""
    query, key, value = query_states @ q.T, x @ k.T, x @ v.T
    if norms is not None:
        query, key = norms[0](query), norms[1](key)
    if q_bias is not None and k_bias is not None:
        query, key = query + q_bias, key + k_bias
    width, outputs = query.shape[1] // heads, []
    for head in range(heads):
        of = head // (heads // shared)
        rotated_query = rotate(query[:, head * width : (head + 1) * width], theta, pairs)
        rotated_keys = rotate(key[:, of * width : (of + 1) * width], theta, pairs)
        head_values = value[:, of * width : (of + 1) * width]
        rows = []
        for position in range(len(x)):
            visible = slice(max(0, position + 1 - (window or len(x))), position + 1)
            scores = (rotated_keys[visible] @ rotated_query[position]) / math.sqrt(scale or width)
            scores = scores if cap is None else cap * torch.tanh(scores / cap)
            rows.append(scores.softmax(0) @ head_values[visible])
        outputs.append(torch.stack(rows))
    heads_output = torch.cat(outputs, dim=1)
    return (heads_output if gate is None else heads_output * torch.sigmoid(x @ gate.T)) @ o.T


def apply_swiglu(x: Tensor, gate: Tensor, up: Tensor, down: Tensor) -> Tensor:
    inner = x @ gate.T
    return (inner * torch.sigmoid(inner) * (x @ up.T)) @ down.T


def run_plain_ouro(fields: Mapping[str, Any], weights: Weights, ids: Tensor) -> tuple[list[Tensor], list[Tensor]]:
    """Return states (T, D) and gate logits (T,) after every step of one row."""
    w = {name: weight.double() for name, weight in weights.items()}
    eps, heads = fields["rms_norm_eps"], fields["num_attention_heads"]
    h = w["model.embed_tokens.weight"][ids]
    states, gates = [], []
    for _ in range(fields["total_ut_steps"]):
        for number in range(fields["num_hidden_layers"]):
            p = f"model.layers.{number}."
            u = apply_rms_norm(h, w[p + "input_layernorm.weight"], eps)
            a = compute_attention(
                u, u, *(w[f"{p}self_attn.{letter}_proj.weight"] for letter in "qkvo"), heads=heads,
                shared=fields["num_key_value_heads"], theta=fields["rope_theta"], pairs=False,
            )  # fmt: skip
            h = h + apply_rms_norm(a, w[p + "input_layernorm_2.weight"], eps)
            m = apply_swiglu(
                apply_rms_norm(h, w[p + "post_attention_layernorm.weight"], eps),
                *(w[f"{p}mlp.{part}_proj.weight"] for part in ("gate", "up", "down")),
            )
            h = h + apply_rms_norm(m, w[p + "post_attention_layernorm_2.weight"], eps)
        h = apply_rms_norm(h, w["model.norm.weight"], eps)
        states.append(h)
        gates.append(h @ w["model.early_exit_gate.weight"][0] + w["model.early_exit_gate.bias"][0])
    return states, gates


def run_plain_nanbeige(fields: Mapping[str, Any], weights: Weights, ids: Tensor, loops: int) -> Tensor:
    """Return logits (T, V) of one row: a Llama with repeated layers, normed after every loop or after the last."""
    w = {name: weight.double() for name, weight in weights.items()}
    eps, h = fields["rms_norm_eps"], w["model.embed_tokens.weight"][ids]
    for loop in range(1, loops + 1):
        for number in range(fields["num_hidden_layers"]):
            p = f"model.layers.{number}."
            u = apply_rms_norm(h, w[p + "input_layernorm.weight"], eps)
            h = h + compute_attention(
                u, u, *(w[f"{p}self_attn.{letter}_proj.weight"] for letter in "qkvo"),
                heads=fields["num_attention_heads"], shared=fields["num_key_value_heads"], theta=fields["rope_theta"],
                pairs=False,
            )  # fmt: skip
            u = apply_rms_norm(h, w[p + "post_attention_layernorm.weight"], eps)
            h = h + apply_swiglu(u, *(w[f"{p}mlp.{part}_proj.weight"] for part in ("gate", "up", "down")))
        if loop == loops or not fields["skip_loop_final_norm"]:
            h = apply_rms_norm(h, w["model.norm.weight"], eps)
    return h @ w["lm_head.weight"].T


def run_plain_huginn(fields: Mapping[str, Any], weights: Weights, ids: Tensor, state: Tensor, steps: int) -> Tensor:
    """Return logits (T, V) of one row after this many steps from an initial state (T, D)."""
    w = {name: weight.double() for name, weight in weights.items()}
    eps, heads, width = fields["norm_eps"], fields["num_attention_heads"], fields["n_embd"]

    def run_block(x: Tensor, p: str) -> Tensor:
        u = apply_rms_norm(x, w[p + "norm_1.weight"], eps)
        q, k, v = w[p + "attn.Wqkv.weight"].split(width)
        bias = w[p + "attn.qk_bias"].reshape(2, width)
        a = compute_attention(
            u, u, q, k, v, w[p + "attn.proj.weight"], heads=heads, shared=heads, theta=fields["rope_base"], pairs=True,
            q_bias=bias[0], k_bias=bias[1],
        )  # fmt: skip
        x = apply_rms_norm(a + x, w[p + "norm_2.weight"], eps)
        gate, up = w[p + "mlp.fc.weight"].chunk(2)
        m = apply_swiglu(apply_rms_norm(x, w[p + "norm_3.weight"], eps), gate, up, w[p + "mlp.proj.weight"])
        return apply_rms_norm(m + x, w[p + "norm_4.weight"], eps)

    e, s = w["transformer.wte.weight"][ids] * math.sqrt(width), state.double()
    for number in range(fields["n_layers_in_prelude"]):
        e = run_block(e, f"transformer.prelude.{number}.")
    for _ in range(steps):
        s = torch.cat([s, e], dim=-1) @ w["transformer.adapter.weight"].T
        for number in range(fields["n_layers_in_recurrent_block"]):
            s = run_block(s, f"transformer.core_block.{number}.")
    x = apply_rms_norm(s, w["transformer.ln_f.weight"], eps)
    for number in range(fields["n_layers_in_coda"]):
        x = run_block(x, f"transformer.coda.{number}.")
    return apply_rms_norm(x, w["transformer.ln_f.weight"], eps) @ w["transformer.wte.weight"].T


def scale_llama3_rates(theta: float, width: int, scaling: Mapping[str, Any]) -> list[float]:
    """Return the rates of rotary positions scaled as in Llama 3: long waves slower, short ones unchanged."""
    rates = []
    for j in range(width // 2):
        rate = theta ** (-2 * j / width)
        turns = scaling["original_max_position_embeddings"] * rate / (2 * math.pi)
        slow, fast = scaling["low_freq_factor"], scaling["high_freq_factor"]
        share = min(max((turns - slow) / (fast - slow), 0.0), 1.0)
        rates.append(share * rate + (1 - share) * rate / scaling["factor"])
    return rates


def run_plain_retrofit(
    kind: str, fields: Mapping[str, Any], weights: Weights, ids: Tensor, state: Tensor, steps: int
) -> Tensor:
    """Return logits (T, V) of one row of a retrofitted Llama, OLMo 2 or Gemma 2 after steps from a state (T, D)."""
    w = {name: weight.double() for name, weight in weights.items()}
    eps, heads, shared, wide = (fields[name] for name in ("norm_eps", "n_heads", "num_key_value_heads", "head_dim"))
    theta: float | list[float] = fields["rope_theta"]
    if fields.get("rope_scaling"):
        theta = scale_llama3_rates(fields["rope_theta"], wide, fields["rope_scaling"])
    attention_options: dict[str, Any] = {"scale": 256.0, "cap": 50.0} if kind == "gemma2" else {}

    def norm(u: Tensor, name: str) -> Tensor:
        return apply_rms_norm(u, w[name + ".weight"] + float(kind == "gemma2"), eps)

    def attend(x: Tensor, p: str) -> Tensor:
        q, k, v = w[p + "attn.Wqkv.weight"].split([heads * wide, shared * wide, shared * wide])
        if kind == "olmo2":
            attention_options["norms"] = lambda u: norm(u, p + "attn.q_norm"), lambda u: norm(u, p + "attn.k_norm")
        return compute_attention(
            x,
            x,
            q,
            k,
            v,
            w[p + "attn.proj.weight"],
            heads=heads,
            shared=shared,
            theta=theta,
            pairs=False,
            **attention_options,
        )

    def feed(x: Tensor, p: str) -> Tensor:
        gate, up = w[p + "mlp.fc.weight"].chunk(2)
        if kind != "gemma2":
            return apply_swiglu(x, gate, up, w[p + "mlp.proj.weight"])
        u = x @ gate.T
        gelu = u / 2 * (1 + torch.tanh(math.sqrt(2 / math.pi) * (u + 0.044715 * u**3)))
        return (gelu * (x @ up.T)) @ w[p + "mlp.proj.weight"].T

    def run_block(x: Tensor, p: str) -> Tensor:
        if kind == "llama":
            x = x + attend(norm(x, p + "norm_1"), p)
            return x + feed(norm(x, p + "norm_2"), p)
        if kind == "olmo2":
            x = x + norm(attend(x, p), p + "norm_1")
            return x + norm(feed(x, p), p + "norm_2")
        x = x + norm(attend(norm(x, p + "norm_1"), p), p + "norm_2")
        return x + norm(feed(norm(x, p + "norm_3"), p), p + "norm_4")

    e, s = w["transformer.wte.weight"][ids] * fields["init_values"]["embed_scale"], state.double()
    for number in range(fields["n_layers_in_prelude"]):
        e = run_block(e, f"transformer.prelude.{number}.")
    for _ in range(steps):
        s = torch.cat([s, e], dim=-1) @ w["transformer.adapter.weight"].T
        for number in range(fields["n_layers_in_recurrent_block"]):
            s = run_block(s, f"transformer.core_block.{number}.")
    for number in range(fields["n_layers_in_coda"]):
        s = run_block(s, f"transformer.coda.{number}.")
    logits = norm(s, "transformer.ln_f") @ w["lm_head.weight"].T
    return 30.0 * torch.tanh(logits / 30.0) if kind == "gemma2" else logits


def run_plain_looped(config: Any, weights: Weights, ids: Tensor, state: Tensor | None = None) -> list[Tensor]:
    """Return logits (T, V) after every loop of one row with this project's layers."""
    w = {name: weight.double() for name, weight in weights.items()}

    def norm(u: Tensor, name: str) -> Tensor:
        return apply_rms_norm(u, w.get(name, torch.ones(u.shape[-1], dtype=u.dtype)), config.rms_norm_eps)

    def run_layer(x: Tensor, p: str, previous: Tensor | None = None) -> Tensor:
        def add(u: Tensor, branch: Tensor, name: str) -> Tensor:
            if config.norms == "pre":
                return u + branch
            return norm(u + branch, p + name) if config.norms == "sandwich" else u + norm(branch, p + name)

        u = norm(x, p + "attention_norm.weight")
        query_states = u if previous is None else norm(previous, p + "attention_norm.weight")
        shared = config.num_key_value_heads or config.num_attention_heads
        a = compute_attention(
            u, query_states, *(w[f"{p}self_attn.{letter}_proj.weight"] for letter in "qkvo"),
            heads=config.num_attention_heads, shared=shared, theta=config.rope_theta, pairs=config.rope_pairs,
            q_bias=w.get(p + "self_attn.q_proj.bias"), k_bias=w.get(p + "self_attn.k_proj.bias"),
            gate=w.get(p + "self_attn.gate_proj.weight"), window=config.sliding_window,
        )  # fmt: skip
        x = add(x, a, "attention_post_norm.weight")
        parts = (w[f"{p}mlp.{part}_proj.weight"] for part in ("gate", "up", "down"))
        return add(x, apply_swiglu(norm(x, p + "mlp_norm.weight"), *parts), "mlp_post_norm.weight")

    root = math.sqrt(config.hidden_size) if config.scale_embeddings else 1.0
    e = w["model.embed_tokens.weight"][ids] * (config.embedding_scale or root)
    for number in range(config.prelude):
        e = run_layer(e, f"model.prelude.{number}.")
    starts: dict[str, Callable[[], Tensor]] = {"input": lambda: e, "zeros": lambda: torch.zeros_like(e)}
    s = starts[config.start]() if state is None else state.double()
    low = w["model.low_start"].expand_as(e) if config.low_layers else torch.zeros_like(e)
    previous, logits = None, []

    def add_input(s: Tensor) -> Tensor:
        return {
            "none": lambda: s,
            "add": lambda: s + e,
            "linear": lambda: torch.cat([s, e], dim=-1) @ w["model.adapter.weight"].T,
            "restart": lambda: e,
        }[config.injection]()

    for _ in range(config.num_loops):
        for _ in range(config.low_cycles if config.low_layers else 0):
            low = add_input(s + low)
            for number in range(config.low_layers):
                low = run_layer(low, f"model.low.{number}.")
            low = norm(low, "model.low_norm.weight")
        z = add_input(s + low)
        for number in range(config.core):
            z = run_layer(z, f"model.core.{number}.", previous if config.queries == "previous" else None)
        s = s + (1.0 / config.num_loops if config.damping is None else config.damping) * (z - s)
        normed = norm(s, "model.norm.weight")
        s = normed if config.state_norm == "fed" else s
        previous = normed
        x = s if config.state_norm == "none" else normed
        if config.coda:
            for number in range(config.coda):
                x = run_layer(x, f"model.coda.{number}.")
            x = norm(x, "model.norm.weight")
        else:
            x = normed
        logits.append(x @ w["lm_head.weight"].T)
    return logits
