"""PAR Transformer-XL language models: the supernet that searches for an architecture, and fixed networks.

Shape legend: B rows, T new tokens, M positions before them, P targets, V words, N blocks, A attending blocks, d width.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Unpack

import numpy as np
import torch
from torch import Tensor, nn
from transformers import Cache, GenerationConfig, GenerationMixin
from transformers import initialization as init
from transformers.utils.generic import can_return_tuple

from adadepth.errors import ConfigError, DataError, nearest
from adadepth.halting.trace import DepthTrace, Work
from adadepth.models.contract import HoldsBudget, LearnsGates, Remembers
from adadepth.models.par_xl.adaptive_softmax import AdaptiveSoftmax
from adadepth.models.par_xl.attention import Context, ParXLCache, check_implementation
from adadepth.models.par_xl.blocks import (
    Mix,
    ParXLModel,
    ParXLModelOutput,
    ParXLOutput,
    ParXLPreTrainedModel,
    count_memory_positions,
    make_architecture_trace,
    make_path_mixes,
    one_hot,
)
from adadepth.models.par_xl.configuration import OPERATIONS, ParXLConfig, find_most_probable_at_cost, price_par_xl
from adadepth.models.par_xl.gates import gate_temperature, gate_weights, gumbel_noise, sample_path
from adadepth.models.shared.causal import causal_targets, select_kept_columns
from adadepth.models.shared.generation import CACHE_ARGUMENT, CheckedGeneration, accept_former_name
from adadepth.models.shared.layers import whole
from adadepth.models.shared.losses import LossOptions, LossTerm, combine_terms, refuse_unknown
from adadepth.runtime.devices import fill_values, select_float64_device, upload

_MODES = ("soft", "argmax", "noisy")


class ParXLLanguageModel(Remembers, ParXLPreTrainedModel):
    """Base class of the supernet and the fixed network: output layer, loss and MAC counts."""

    _tied_weights_keys = {r"head\.tables\.\d+\.weight": r"model\.embedding\.tables\.\d+\.weight"}
    # A stock `Trainer` passes `num_items_in_batch`, the number of targets of an optimiser step.
    accepts_loss_kwargs = True
    depth_unit = "architecture"
    longest_sequence = None

    @property
    def vocabulary_size(self) -> int | None:
        """Number of words in the embedding table."""
        return int(self.config.vocab_size)

    def __init__(self, config: ParXLConfig) -> None:
        super().__init__(config)
        self.model = ParXLModel(config, alone=False)
        self.head = AdaptiveSoftmax(
            config.hidden_size,
            config.vocab_size,
            config.cutoffs,
            config.proj_factor,
            config.softmax_bias,
            config.proj_dims,
        )

    def get_output_embeddings(self) -> nn.Module | None:
        """Return the output matrix of all words, or None if words are in clusters."""
        return None if self.head.tails else self.head.tables[0]

    def set_output_embeddings(self, value: nn.Module) -> None:
        """Replace the output matrix of all words.

        Raises:
            ConfigError: If words are in clusters.
        """
        if self.head.tails:
            raise ConfigError(f"cutoffs={self.config.cutoffs}: clustered embeddings have no single matrix to replace")
        self.head.set_last(value)

    def resize_token_embeddings(
        self, new_num_tokens: int | None = None, pad_to_multiple_of: int | None = None, mean_resizing: bool = True
    ) -> nn.Module:
        """Resize the vocabulary by adding or removing words at the end of the last cluster.

        Args:
            new_num_tokens: New vocabulary size V, or None for the current size.
            pad_to_multiple_of: V is rounded up to a multiple of this number.
            mean_resizing: Whether new vectors are sampled around the mean of the cluster, instead of initialised as
                usual.

        Raises:
            ConfigError: If the last cluster would be empty.
        """
        if not isinstance(pad_to_multiple_of, int | None):
            return super().resize_token_embeddings(new_num_tokens, pad_to_multiple_of)  # says that it is no integer
        config, multiple = self.config, pad_to_multiple_of or 1
        words = -(-(config.vocab_size if new_num_tokens is None else new_num_tokens) // multiple) * multiple
        first = config.cutoffs[-1] if config.cutoffs else 0
        if words <= first:
            raise ConfigError(
                f"new_num_tokens={words}: must be above {first}, the start of the last cluster of words; other "
                "clusters cannot shrink"
            )
        if words != config.vocab_size:
            embedding, output = self.model.embedding, self.head.tables[-1]
            assert isinstance(output, nn.Linear)
            # Resize the output layer first: for tied words, resizing the table resizes the vectors of both.
            resized = self._get_resized_lm_head(output, words - first, mean_resizing=mean_resizing)
            self.head.set_last(resized.requires_grad_(output.weight.requires_grad))
            rows = words - embedding.clusters[-1][0]
            embedding.set_last(self._get_resized_embeddings(embedding.tables[-1], rows, None, mean_resizing))
            config.vocab_size = self.vocab_size = words
            self.tie_weights()
        return self.get_input_embeddings()

    @property
    def max_updates(self) -> int:
        """Maximum number of updates of a token, one per block."""
        return self.config.num_hidden_layers

    def least_activations(self, lengths: Sequence[int], recomputed: bool) -> dict[str, int]:
        """Return a lower bound on the number of activation values stored for the backward pass, by part."""
        config, tokens = self.config, sum(lengths)
        blocks = config.architecture or ""  # a supernet may run any
        inner = blocks.count("f")
        return {
            "states": tokens * config.hidden_size * (len(blocks) - blocks.count("-")),
            "feed-forward": tokens * config.intermediate_size * (min(inner, 1) if recomputed else inner),
            "logits": tokens * self.head.head_words,
        }

    def context(self, memory_length: int | None, clamp_length: int | None, same_length: bool) -> Context:
        """Build the attention context for evaluation. A length of None uses the configured one."""
        memory = self.config.memory_length if memory_length is None else memory_length
        return Context(memory, self.config.clamp_length if clamp_length is None else clamp_length, same_length)

    def count_targets(self, batch: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Return the number of targets in a batch for each part of the loss."""
        count = (batch["targets"] >= 0).sum()
        return {"lm": count} | dict.fromkeys(self.penalties(count), count)

    def penalties(self, count: Tensor) -> dict[str, LossTerm]:
        """Return the parts of the loss besides the likelihood, each summed over the targets."""
        return {}

    def price(self, trace: DepthTrace) -> Work:
        """Return the MACs of a batch from its depth trace."""
        return price_par_xl(self.config, trace)

    def _predict(
        self,
        stack: ParXLModelOutput,
        trace: DepthTrace,
        targets: Tensor | None,
        labels: Tensor | None,
        logits_to_keep: int | Tensor,
        num_targets: Mapping[str, Tensor] | None,
        options: LossOptions,
    ) -> ParXLOutput:
        """Compute the loss of targets or labels or, without targets, the log-probabilities of all words."""
        refuse_unknown(options, type(self).__name__)
        shifted = options.get("shift_labels")
        if shifted is None and labels is not None:
            shifted = causal_targets(labels)
        if targets is not None and shifted is not None:
            raise DataError("labels and targets: pass one of them; targets are labels that are already shifted")
        states = stack.last_hidden_state
        assert states is not None
        positions = select_kept_columns(logits_to_keep)
        loss, parts, logits, losses = None, None, None, None
        if targets is not None:
            losses = self._compute_target_losses(states, targets)
        elif shifted is not None:
            log_probs = self.head.log_probs(states)
            losses, logits = _compute_label_losses(log_probs, shifted), log_probs[:, positions]
        else:
            logits = self.head.log_probs(states[:, positions])
        if losses is not None:
            count = torch.full((), len(losses), device=losses.device)
            terms = {"lm": LossTerm(losses.sum(), count), **self.penalties(count)}
            loss, parts = combine_terms(terms, num_targets, options.get("num_items_in_batch"))
        return ParXLOutput(
            loss=loss,
            loss_parts=parts,
            logits=logits,
            token_losses=None if losses is None else losses.detach(),
            memory=stack.memory,
            cache=stack.cache,
            hidden_states=stack.hidden_states,
            attentions=stack.attentions,
            trace=trace,
        )

    def _compute_target_losses(self, states: Tensor, targets: Tensor) -> Tensor:
        """Compute the loss of every target that is not negative, (P,)."""
        states, words = states.flatten(0, 1), targets.flatten()
        counted = (words >= 0).nonzero().squeeze(1)
        if torch.compiler.is_compiling() or len(counted) < len(words):
            states, words = states[counted], words[counted]
        losses: Tensor = self.head(states, words)
        return losses


def _compute_label_losses(log_probs: Tensor, labels: Tensor) -> Tensor:
    """Compute the loss of every shifted label that is not negative, (P,)."""
    losses = -log_probs.gather(-1, labels.clamp(min=0).unsqueeze(-1)).squeeze(-1)
    return losses[labels >= 0]


def _mask_real_tokens(stack: ParXLModelOutput, attention_mask: Tensor | None) -> Tensor:
    """Return a boolean mask of the new tokens that are not padding, (B, T)."""
    states = stack.last_hidden_state
    assert states is not None
    if attention_mask is None:
        return torch.ones(states.shape[:2], dtype=torch.bool, device=states.device)
    return attention_mask[:, -states.shape[1] :].bool()


class ParXLForCausalLM(CheckedGeneration, ParXLLanguageModel, GenerationMixin):
    """PAR-XL causal language model with a fixed architecture.

    Raises:
        ConfigError: If the configuration has no architecture.
    """

    def __init__(self, config: ParXLConfig) -> None:
        if config.architecture is None:
            raise ConfigError(
                "architecture=None: ParXLForCausalLM needs a fixed architecture; ParXLSupernet searches for one"
            )
        super().__init__(config)
        self.post_init()

    @accept_former_name
    @can_return_tuple
    def forward(
        self,
        input_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
        cache: Cache | None = None,
        inputs_embeds: Tensor | None = None,
        labels: Tensor | None = None,
        use_cache: bool | None = None,
        output_attentions: bool | None = None,
        output_hidden_states: bool | None = None,
        logits_to_keep: int | Tensor = 0,
        memory: Tensor | None = None,
        targets: Tensor | None = None,
        context: Context | None = None,
        num_targets: Mapping[str, Tensor] | None = None,
        **options: Unpack[LossOptions],
    ) -> ParXLOutput:
        """Predict the next token at every position.

        For a whole text, pass `labels`, and for generation, a cache, as with every causal language model of
        transformers. For a text in segments, pass `targets` and `memory`. Labels could not express that the last token
        of a segment predicts the first token of the next. A memory of states also reflects changes of the weights
        during training.

        Args:
            input_ids: Token ids, (B, T); exclusive with `inputs_embeds`.
            attention_mask: 0 at padding, 1 elsewhere, for earlier and new positions, (B, M + T). Distances count every
                position, so padding must be at an end of the text.
            cache: Cache of keys and values of the text so far. The new tokens are added to it.
            inputs_embeds: Word embeddings instead of `input_ids`, (B, T, d).
            labels: Input ids, (B, T), negative where no token is to be predicted.
            use_cache: Whether to create a `ParXLCache` if no cache is given. It cannot be used with a memory.
            output_attentions: Whether to return attention weights.
            output_hidden_states: Whether to return the embeddings and the states after every block.
            logits_to_keep: Number of last positions for which log-probabilities are returned (0 for all positions), or
                indices of positions.
            memory: `memory` of the previous segment's output, (A, B, M, d) with any M, or None at the start of a text.
            targets: Token that FOLLOWS each input token, (B, T), negative where there is no target.
            context: Context of attention, or None for that of the configuration.
            num_targets: Counts that normalise the loss parts; see `combine_terms`.
            options: Options of transformers' trainers; see `LossOptions`.

        Raises:
            DataError: If inputs are mutually exclusive, or their shapes do not fit.
        """
        remembered = count_memory_positions(memory, cache)
        stack = self.model(
            input_ids,
            attention_mask,
            cache,
            inputs_embeds,
            use_cache,
            output_attentions,
            output_hidden_states,
            memory=memory,
            context=context,
            return_dict=True,
        )
        path, real = self.config.path, _mask_real_tokens(stack, attention_mask)
        trace = make_architecture_trace(one_hot(path, real.device), make_path_mixes(path), real, remembered)
        return self._predict(stack, trace, targets, labels, logits_to_keep, num_targets, options)

    def _prepare_cache_for_generation(
        self, generation_config: GenerationConfig, model_kwargs: dict[str, Any], *args: Any
    ) -> None:
        """Create a `ParXLCache` for `generate`, unless caching is disabled or a cache is given.

        Raises:
            ConfigError: If `cache_implementation` requests a cache of another kind.
        """
        if generation_config.use_cache is False or model_kwargs.get(CACHE_ARGUMENT) is not None:
            super()._prepare_cache_for_generation(generation_config, model_kwargs, *args)  # type: ignore[misc]
            return
        check_implementation(generation_config.cache_implementation)
        cache = model_kwargs[CACHE_ARGUMENT] = ParXLCache(self.config)
        if generation_config.is_assistant:
            cache.activate_past_recording()


class ParXLSupernet(LearnsGates, HoldsBudget, ParXLLanguageModel):
    """Supernet for architecture search: every block contains all operations, and gates weight or select them.

    `set_step` draws the noise and the path of a training step from `gate_seed` and the number of the optimiser step
    only. All micro-batches and processes of a step therefore use the same noise and path.

    Attributes:
        gates: Unconstrained logits of the operations, (N, 3).
        temperature: Temperature of the current optimiser step.

    Raises:
        ConfigError: If the configuration has an architecture.
    """

    def __init__(self, config: ParXLConfig) -> None:
        if config.architecture is not None:
            raise ConfigError(
                f"architecture={config.architecture}: must be None, because ParXLSupernet searches for an architecture"
            )
        super().__init__(config)
        self.gates: nn.Parameter = nn.Parameter(torch.zeros(config.num_hidden_layers, len(OPERATIONS)))
        self.temperature: float = float(config.tau_start)
        self._noise: Tensor | None = None
        self._path: list[int] = []
        self.post_init()

    @torch.no_grad()
    def _init_weights(self, module: nn.Module) -> None:
        super()._init_weights(module)
        if module is self:
            init.zeros_(self.gates)

    def set_step(self, step: int, total: int) -> None:
        """Set the gate temperature for optimiser step `step` of `total`, and draw the step's gate noise and path."""
        config = self.config
        self.temperature = gate_temperature(step, total, config.tau_start, config.tau_end, config.tau_schedule)
        noise = self.draw_noise(step)
        if config.gate_path == "sampled":
            self._path = (whole(self.gates).float().cpu() + noise).argmax(dim=-1).tolist()

    def draw_noise(self, *key: int) -> Tensor:
        """Draw the Gumbel noise that is added to the gates, (N, 3) on the CPU, seeded by (`gate_seed`, *key)."""
        seed = int(np.random.SeedSequence((self.config.gate_seed, *key)).generate_state(1)[0])
        noise = gumbel_noise(self.gates.shape, torch.Generator().manual_seed(seed))
        self._noise = upload(noise, self.gates.device)
        return noise

    def gate_probabilities(self) -> Tensor:
        """Return the probability of every operation in every block, softmax(a), float32 (N, 3)."""
        return gate_weights(self.gates)

    def architecture(self) -> str:
        """Return the most probable operation of every block, as one letter per block."""
        return "".join(OPERATIONS[operation] for operation in self._select_most_probable())

    def find_most_probable(self, target: float, tolerance: float) -> str:
        """Return the most probable architecture whose latency is within a tolerance of the target.

        If there is none, return the architecture with the nearest latency.

        Args:
            target: Latency in milliseconds.
            tolerance: Largest deviation, as a share of the target.
        """
        assert self.config.operation_costs is not None
        milliseconds = [1e3 * cost for cost in self.config.operation_costs]
        return find_most_probable_at_cost(gate_weights(whole(self.gates)).tolist(), milliseconds, target, tolerance)

    def sample_path(self, generator: torch.Generator) -> list[int]:
        """Sample one operation index per block from the gate probabilities, with a CPU generator."""
        return sample_path(self.gates.float().cpu(), generator)

    def _select_most_probable(self) -> list[int]:
        return whole(self.gates).argmax(dim=-1).tolist()

    def penalties(self, count: Tensor) -> dict[str, LossTerm]:
        """Return the expected cost of the architecture, sum_b softmax(a_b) . c, relative to the alternating network."""
        if not self.config.latency_weight:
            return {}
        cost = self._compute_expected_cost(self.gate_probabilities())
        return {"latency": LossTerm(cost * count, count, self.config.latency_weight)}

    def latency(self) -> Tensor:
        """Return the latency of the most probable architecture in milliseconds, a scalar."""
        assert self.config.operation_costs is not None
        device = select_float64_device(self.gates.device)
        costs = fill_values(self.config.operation_costs, device, torch.float64)
        return 1e3 * costs[whole(self.gates).argmax(dim=-1).to(device)].sum()

    def count_units(self, batch: Mapping[str, Tensor]) -> Tensor:
        """Return the number of rows in a batch; each counts the depth of the architecture once."""
        return torch.full((), len(batch["input_ids"]), device=batch["input_ids"].device)

    def expected_depth(self, outputs: ParXLOutput) -> LossTerm:
        """Return the expected cost in blocks of the alternating network, N sum_b softmax(a_b) . c / c(sfsf...)."""
        assert outputs.gate_probabilities is not None
        assert outputs.trace is not None
        rows = outputs.trace.executed.tokens
        assert rows is not None
        depth = self._compute_expected_cost(outputs.gate_probabilities) * self.config.num_hidden_layers
        count = torch.full((), len(rows), device=depth.device)
        return LossTerm(depth * count, count)

    def _compute_expected_cost(self, probabilities: Tensor) -> Tensor:
        """Return the expected cost of the architecture, as a share of the alternating network's cost."""
        assert self.config.relative_costs is not None
        return (probabilities * fill_values(self.config.relative_costs, probabilities.device)).sum()

    @can_return_tuple
    def forward(
        self,
        input_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
        inputs_embeds: Tensor | None = None,
        labels: Tensor | None = None,
        output_attentions: bool | None = None,
        output_hidden_states: bool | None = None,
        logits_to_keep: int | Tensor = 0,
        memory: Tensor | None = None,
        targets: Tensor | None = None,
        gates: str | Sequence[int] | None = None,
        context: Context | None = None,
        num_targets: Mapping[str, Tensor] | None = None,
        **options: Unpack[LossOptions],
    ) -> ParXLOutput:
        """Predict the next token at every position, with arguments as for `ParXLForCausalLM.forward` plus `gates`.

        Args:
            input_ids: Token ids, (B, T); exclusive with `inputs_embeds`.
            attention_mask: 0 at padding, 1 elsewhere, (B, M + T).
            inputs_embeds: Word embeddings instead of `input_ids`, (B, T, d).
            labels: Input ids, (B, T), negative where no token is to be predicted.
            output_attentions: Whether to return attention weights.
            output_hidden_states: Whether to return the embeddings and the states after every block.
            logits_to_keep: Number of last positions for which log-probabilities are returned (0 for all positions), or
                indices of positions.
            memory: `memory` of the previous segment's output, (N, B, M, d) with any M, or None at the start of a text.
            targets: Token that FOLLOWS each input token, (B, T), negative where there is no target.
            gates: Selection of the operations. `soft` mixes operations by softmax(a). `noisy` mixes them with the noise
                and temperature of the optimiser step. `argmax` runs the most probable path alone. A list of N operation
                numbers runs that path alone. None means `soft` in evaluation. In training, None means `noisy` or the
                sampled path of the optimiser step, as set by `gate_path`.
            context: Context of attention, or None for that of the configuration.
            num_targets: Counts that normalise the loss parts; see `combine_terms`.
            options: Options of transformers' trainers; see `LossOptions`.

        Raises:
            ConfigError: If `gates` is neither a mode nor a path of N operations.
            DataError: If inputs are mutually exclusive, or their shapes do not fit.
        """
        mixes, weights = self._mix(gates)
        stack = self.model(
            input_ids,
            attention_mask,
            inputs_embeds=inputs_embeds,
            output_attentions=output_attentions,
            output_hidden_states=output_hidden_states,
            memory=memory,
            mixes=mixes,
            context=context,
            return_dict=True,
        )
        real = _mask_real_tokens(stack, attention_mask)
        trace = make_architecture_trace(weights.detach(), mixes, real, count_memory_positions(memory, None))
        outputs = self._predict(stack, trace, targets, labels, logits_to_keep, num_targets, options)
        outputs.gate_probabilities = self.gate_probabilities()
        return outputs

    def _mix(self, gates: str | Sequence[int] | None) -> tuple[list[Mix], Tensor]:
        """Return the operations that each block runs, with their factors, and the weights of all operations, (N, 3)."""
        if gates is None and not self.training:
            gates = "soft"
        if self._noise is None and gates in (None, "noisy"):
            self.set_step(0, 1)
        if gates is None and self.config.gate_path == "sampled":
            return self._mix_sampled()
        if gates in (None, "soft", "noisy"):
            weights = (
                gate_weights(self.gates)
                if gates == "soft"
                else self._compute_noisy_weights(self.config.straight_through)
            )
            return [dict(enumerate(row.unbind())) for row in weights.unbind()], weights
        path = self._select_most_probable() if gates == "argmax" else self._check_path(gates)
        return make_path_mixes(path), one_hot(path, self.gates.device)

    def _mix_sampled(self) -> tuple[list[Mix], Tensor]:
        """Return a sampled path of operations whose factors are 1 but pass gradients to the gates.

        Dong & Yang 2019 (arXiv 1910.04465).
        """
        path_weights = one_hot(self._path, self.gates.device)
        weights = (self._compute_noisy_weights(False) * path_weights).sum(dim=-1)
        factors = 1.0 + (weights - weights.detach())
        mixes: list[Mix] = [{operation: factor} for operation, factor in zip(self._path, factors.unbind(), strict=True)]
        return mixes, path_weights

    def _compute_noisy_weights(self, straight_through: bool) -> Tensor:
        assert self._noise is not None
        return gate_weights(self.gates, self.temperature, self._noise.to(self.gates.device), straight_through)

    def _check_path(self, gates: str | Sequence[int]) -> list[int]:
        if isinstance(gates, str):
            raise ConfigError(f"gates={gates!r} must be one of {', '.join(_MODES)}, or a path{nearest(gates, _MODES)}")
        path = list(gates)
        if len(path) != len(self.gates) or not set(path) <= set(range(len(OPERATIONS))):
            raise ConfigError(f"gates={path}: must be {len(self.gates)} operation numbers, each 0, 1 or 2")
        return path
