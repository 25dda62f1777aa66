"""The PAR Transformer-XL: the supernet that searches, and the fixed network.

Shape legend: B rows, T new tokens, V words, N blocks.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from transformers import GenerationMixin, PreTrainedModel
from transformers import initialization as init
from transformers.utils.generic import can_return_tuple

from adadepth.errors import ConfigError, DataError, nearest
from adadepth.families.contract import DepthUnit
from adadepth.families.par_xl.adaptive_softmax import AdaptiveSoftmax
from adadepth.families.par_xl.architectures import OPERATIONS, most_probable_at_cost
from adadepth.families.par_xl.attention import Context
from adadepth.families.par_xl.blocks import Mix, run_alone
from adadepth.families.par_xl.configuration import ParXLConfig
from adadepth.families.par_xl.outputs import ParXLOutput, one_hot, trace_of
from adadepth.families.par_xl.pricing import price_par_xl
from adadepth.families.par_xl.stack import ParXLModel, StackOutput
from adadepth.families.shared.losses import LossTerm, combine_terms
from adadepth.halting.gates import gate_temperature, gate_weights, gumbel_noise
from adadepth.halting.trace import DepthTrace, Work

_MODES = ("soft", "argmax", "noisy")
_EMBEDDING_BOUND = 0.05  # Keras' default, whatever the shape


class ParXLPreTrainedModel(PreTrainedModel):
    """What supernet and fixed network have in common: loading, initialisation, the loss and its accounting."""

    config: ParXLConfig
    config_class = ParXLConfig
    base_model_prefix = "model"
    main_input_name = "input_ids"
    _supports_sdpa = True
    _tied_weights_keys = {r"head\.tables\.\d+\.weight": r"model\.embedding\.tables\.\d+\.weight"}
    # Its losses are normalised by `num_targets`, never by the trainer's count of items.
    accepts_loss_kwargs = False
    depth_unit: DepthUnit = "architecture"
    longest_sequence: int | None = None

    def __init__(self, config: ParXLConfig) -> None:
        super().__init__(config)
        self.model = ParXLModel(config)
        self.head = AdaptiveSoftmax(
            config.hidden_size,
            config.vocab_size,
            config.cutoffs,
            config.proj_factor,
            config.softmax_bias,
            config.proj_dims,
        )

    @torch.no_grad()
    def _init_weights(self, module: nn.Module) -> None:
        super()._init_weights(module)
        glorot = self.config.initializer == "glorot"
        if glorot and isinstance(module, nn.Linear):
            init.xavier_uniform_(module.weight)
        if glorot and isinstance(module, nn.Embedding):
            init.uniform_(module.weight, -_EMBEDDING_BOUND, _EMBEDDING_BOUND)
        for name, parameter in module.named_parameters(recurse=False):
            if name.startswith("position_bias"):
                # The original's shape, (1, h, 1, d / h), counts as h inputs and d outputs.
                fans = self.config.num_attention_heads + self.config.hidden_size
                init.normal_(parameter, std=(2.0 / fans) ** 0.5 if glorot else self.config.initializer_range)
        if isinstance(module, ParXLSupernet):
            init.zeros_(module.gates)

    def get_input_embeddings(self) -> nn.Module:
        """The embedding, which has a table for each cluster of words."""
        return self.model.embedding

    @property
    def max_updates(self) -> int:
        """The most updates of a unit."""
        return self.config.num_hidden_layers

    def context(self, memory_length: int | None, clamp_length: int | None, same_length: bool) -> Context:
        """What attention sees in evaluation; None leaves a length as the configuration says."""
        memory = self.config.memory_length if memory_length is None else memory_length
        return Context(memory, self.config.clamp_length if clamp_length is None else clamp_length, same_length)

    def count_targets(self, batch: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """What each loss part of a batch is divided by; the trainer adds it up over an optimiser step."""
        count = (batch["targets"] >= 0).sum()
        return {"lm": count} | dict.fromkeys(self.penalties(count), count)

    def penalties(self, count: Tensor) -> dict[str, LossTerm]:
        """Parts of the loss beside the likelihood, each taken once for every target."""
        return {}

    def price(self, trace: DepthTrace) -> Work:
        """Multiply-accumulates of one traced batch; see `price_par_xl`."""
        return price_par_xl(self.config, trace)

    def _predict(
        self,
        stack: StackOutput,
        trace: DepthTrace,
        targets: Tensor | None,
        output_hidden_states: bool | None,
        num_targets: Mapping[str, Tensor] | None,
    ) -> ParXLOutput:
        """Log-probabilities of every word, or with targets the loss alone."""
        outputs = ParXLOutput(memory=stack.memory, trace=trace)
        if output_hidden_states or (output_hidden_states is None and self.config.output_hidden_states):
            outputs.hidden_states = stack.hidden_states
        if targets is None:
            outputs.logits = self.head.log_probs(stack.state)
            return outputs
        states, wanted = stack.state.flatten(0, 1), targets.flatten()
        counted = (wanted >= 0).nonzero().squeeze(1)
        if len(counted) < len(wanted):
            states, wanted = states[counted], wanted[counted]
        losses = self.head(states, wanted)
        count = torch.full((), len(counted), device=losses.device)
        terms = {"lm": LossTerm(losses.sum(), count), **self.penalties(count)}
        outputs.loss, outputs.loss_parts = combine_terms(terms, num_targets)
        outputs.token_losses = losses.detach()
        return outputs


class ParXLForCausalLM(ParXLPreTrainedModel, GenerationMixin):
    """A fixed architecture.

    Raises:
        ConfigError: If the configuration has no architecture.
    """

    def __init__(self, config: ParXLConfig) -> None:
        if config.architecture is None:
            raise ConfigError("architecture=None: ParXLForCausalLM is a fixed network; ParXLSupernet searches for one")
        super().__init__(config)
        self.post_init()

    @can_return_tuple
    def forward(
        self,
        input_ids: Tensor,
        memory: Tensor | None = None,
        targets: Tensor | None = None,
        context: Context | None = None,
        output_hidden_states: bool | None = None,
        num_targets: Mapping[str, Tensor] | None = None,
    ) -> ParXLOutput:
        """Predict the next token of every position.

        Args:
            input_ids: (B, T).
            memory: The output's `memory` of the segment before, of any length; None at the start.
            targets: The token that FOLLOWS each input token, negative where there is none, (B, T).
            context: What attention sees, instead of what the configuration says.
            output_hidden_states: Return the states between blocks.
            num_targets: See `combine_terms`.

        Raises:
            DataError: If the memory is of other blocks, rows or width.
        """
        stack = self.model(input_ids, memory, context=context)
        path = self.config.path
        trace = trace_of(one_hot(path, input_ids.device), run_alone(path), input_ids, memory)
        return self._predict(stack, trace, targets, output_hidden_states, num_targets)

    def prepare_inputs_for_generation(
        self, input_ids: Tensor, attention_mask: Tensor | None = None, **kwargs: Any
    ) -> dict[str, Any]:
        """The whole text so far, at every step: attention then sees all of it, and beams need no memory."""
        if attention_mask is not None and not attention_mask.all():
            raise DataError("attention_mask: prompts of one batch must be of one length; this model knows no padding")
        return {"input_ids": input_ids}


class ParXLSupernet(ParXLPreTrainedModel):
    """All operations in every block, and the gates that choose between them.

    `set_step` draws what training uses: noise and path are functions of `gate_seed` and the update alone, so that all
    micro-batches and processes of an update agree.

    Attributes:
        gates: The unconstrained logits, (N, 3).
        temperature: Of the current update.

    Raises:
        ConfigError: If the configuration has an architecture.
    """

    def __init__(self, config: ParXLConfig) -> None:
        if config.architecture is not None:
            raise ConfigError(
                f"architecture={config.architecture}: a ParXLSupernet searches for one; ParXLForCausalLM holds it"
            )
        super().__init__(config)
        self.gates: nn.Parameter = nn.Parameter(torch.zeros(config.num_hidden_layers, len(OPERATIONS)))
        self.temperature: float = float(config.tau_start)
        self._noise: Tensor | None = None
        self._path: list[int] = []
        self.post_init()

    def set_step(self, step: int, total: int) -> None:
        """Set the temperature of update `step` of `total`, and draw its noise and its path."""
        config = self.config
        self.temperature = gate_temperature(step, total, config.tau_start, config.tau_end, config.tau_schedule)
        noise = self.draw_noise(step)
        if config.gate_path == "sampled":
            self._path = (self.gates.detach().float().cpu() + noise).argmax(dim=-1).tolist()

    def draw_noise(self, *key: int) -> Tensor:
        """Set the noise to that of `gate_seed` and these numbers, and return it, (N, 3), on the CPU."""
        seed = int(np.random.SeedSequence((self.config.gate_seed, *key)).generate_state(1)[0])
        noise = gumbel_noise(self.gates.shape, torch.Generator().manual_seed(seed))
        self._noise = noise.to(self.gates.device)
        return noise

    def gate_probabilities(self) -> Tensor:
        """softmax(a), float32, (N, 3)."""
        return gate_weights(self.gates)

    def architecture(self) -> str:
        """The most probable operation of every block as a string; of equal ones the first."""
        return "".join(OPERATIONS[operation] for operation in self._most_probable())

    def most_probable_within(self, target: float, tolerance: float) -> str:
        """The most probable architecture whose `latency_of` is within a share of the target, or of the nearest one."""
        assert self.config.operation_costs is not None
        milliseconds = [1e3 * cost for cost in self.config.operation_costs]
        return most_probable_at_cost(self.gate_probabilities().tolist(), milliseconds, target, tolerance)

    def _most_probable(self) -> list[int]:
        return self.gates.detach().argmax(dim=-1).tolist()

    def penalties(self, count: Tensor) -> dict[str, LossTerm]:
        """The expected cost sum_b softmax(a_b) . c, as a share of that of attention and feed-forward in turn."""
        if not self.config.latency_weight:
            return {}
        cost = self._expected_cost(self.gate_probabilities())
        return {"latency": LossTerm(cost * count, count, self.config.latency_weight)}

    def latency(self) -> Tensor:
        """Milliseconds of all blocks, each running its most probable operation; a scalar."""
        costs = torch.tensor(self.config.operation_costs, dtype=torch.float64, device=self.gates.device)
        return 1e3 * costs[self.gates.detach().argmax(dim=-1)].sum()

    def count_units(self, batch: Mapping[str, Tensor]) -> Tensor:
        """Rows of a batch: all have the one architecture, and a budget counts it for each."""
        return torch.full((), len(batch["input_ids"]), device=batch["input_ids"].device)

    def expected_depth(self, outputs: ParXLOutput) -> LossTerm:
        """N sum_b softmax(a_b) . c / c(sfsf...), the expected cost in mean blocks of the alternating network."""
        assert outputs.gate_probabilities is not None
        assert outputs.trace is not None
        rows = outputs.trace.executed.tokens
        assert rows is not None
        depth = self._expected_cost(outputs.gate_probabilities) * self.config.num_hidden_layers
        count = torch.full((), len(rows), device=depth.device)
        return LossTerm(depth * count, count)

    def _expected_cost(self, probabilities: Tensor) -> Tensor:
        """As a share of the alternating network's."""
        return (probabilities * torch.tensor(self.config.relative_costs, device=probabilities.device)).sum()

    @can_return_tuple
    def forward(
        self,
        input_ids: Tensor,
        memory: Tensor | None = None,
        targets: Tensor | None = None,
        gates: str | Sequence[int] | None = None,
        context: Context | None = None,
        output_hidden_states: bool | None = None,
        num_targets: Mapping[str, Tensor] | None = None,
    ) -> ParXLOutput:
        """Predict the next token of every position.

        Args:
            input_ids: (B, T).
            memory: As in `ParXLForCausalLM.forward`, of all blocks.
            targets: See there.
            gates: `soft`: mix by softmax(a); `noisy`: with the noise and temperature of the update; `argmax`, or a path
                of N operation numbers: run that one alone. None: `soft` in evaluation; in training `noisy`, or the
                update's path, as `gate_path` says.
            context: See there.
            output_hidden_states: See there.
            num_targets: See there.

        Raises:
            ConfigError: If the gates are none of these.
            DataError: If the memory is of other blocks, rows or width.
        """
        mixes, weights = self._mix(gates)
        stack = self.model(input_ids, memory, mixes, context)
        trace = trace_of(weights.detach(), mixes, input_ids, memory)
        outputs = self._predict(stack, trace, targets, output_hidden_states, num_targets)
        outputs.gate_probabilities = self.gate_probabilities()
        return outputs

    def _mix(self, gates: str | Sequence[int] | None) -> tuple[list[Mix], Tensor]:
        """What runs in each block, and the weights (N, 3)."""
        if gates is None and not self.training:
            gates = "soft"
        if self._noise is None and gates in (None, "noisy"):
            self.set_step(0, 1)
        if gates is None and self.config.gate_path == "sampled":
            return self._sampled()
        if gates in (None, "soft", "noisy"):
            weights = gate_weights(self.gates) if gates == "soft" else self._noisy_weights(self.config.straight_through)
            return [dict(enumerate(row.unbind())) for row in weights.unbind()], weights
        path = self._most_probable() if gates == "argmax" else self._check_path(gates)
        return run_alone(path), one_hot(path, self.gates.device)

    def _sampled(self) -> tuple[list[Mix], Tensor]:
        """The update's path; the gates have a gradient through factors of one (Dong & Yang 2019, arXiv 1910.04465)."""
        taken = one_hot(self._path, self.gates.device)
        chosen = (self._noisy_weights(False) * taken).sum(dim=-1)
        factors = 1.0 + (chosen - chosen.detach())
        return [{o: factor} for o, factor in zip(self._path, factors.unbind(), strict=True)], taken

    def _noisy_weights(self, straight_through: bool) -> Tensor:
        assert self._noise is not None
        return gate_weights(self.gates, self.temperature, self._noise.to(self.gates.device), straight_through)

    def _check_path(self, gates: str | Sequence[int]) -> list[int]:
        if isinstance(gates, str):
            raise ConfigError(f"gates={gates!r} must be one of {', '.join(_MODES)}, or a path{nearest(gates, _MODES)}")
        path = list(gates)
        if len(path) != len(self.gates) or not set(path) <= set(range(len(OPERATIONS))):
            raise ConfigError(f"gates={path} must be {len(self.gates)} numbers of operations, 0, 1 or 2")
        return path
