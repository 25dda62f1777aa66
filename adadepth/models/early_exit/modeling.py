"""The base class of early-exit models: a network of transformers, its head, and the weights of its early exits.

The unit of depth is a token, of classifiers of texts a text; its updates are the exits that it passed, each with the
layers since the exit before. Tokens that have exited go on for the others of their text, so that no rule changes a
state; a text leaves the batch once all its units have exited.

Shape legend: B texts, A texts that still run, T tokens, D width, L layers, N exits, K units that are read, k of them, C
classes or pieces, M targets.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from transformers import (
    CONFIG_MAPPING,
    MODEL_FOR_CAUSAL_LM_MAPPING,
    MODEL_FOR_SEQUENCE_CLASSIFICATION_MAPPING,
    Cache,
)
from transformers.activations import ACT2FN

from adadepth.config.declaration import get_field_specs
from adadepth.errors import CheckpointError, ConfigError
from adadepth.halting.exit_rules import CORRECTNESS, LOGITS, ExitRule
from adadepth.halting.trace import DepthTrace, DepthUnit, Work
from adadepth.halting.units import UnitMemory, build_halting_unit, count_unit_macs, run_unit, start_unit, take_memory
from adadepth.models.depth.engine import ExitRuleKnob, resolve_exit_rule
from adadepth.models.depth.outputs import StepMacs, price_steps
from adadepth.models.depth.runner import (
    RunningTexts,
    begin_texts,
    count_layer_macs,
    count_pair_macs,
    count_projection_macs,
    draw_skipped,
)
from adadepth.models.early_exit.base_weights import list_network_weights, read_with_base, require_base
from adadepth.models.early_exit.configuration import EarlyExitConfig
from adadepth.models.early_exit.losses import (
    dropout_probability,
    exit_weights,
)
from adadepth.models.registry import families
from adadepth.models.shared.generation import CacheOutput
from adadepth.models.shared.halting_settings import find_loss_problems
from adadepth.models.shared.losses import (
    LossTerm,
    count_head_classes,
    takes_one_class,
)
from adadepth.models.shared.network_model import NetworkModel, map_network_names
from adadepth.models.shared.network_settings import DECODERS
from adadepth.models.shared.published_files import (
    find_folder,
    is_rotary_table,
    load_stored_weights,
    read_generation_config,
)


@dataclass
class EarlyExitOutput(CacheOutput):
    """Predictions of a head.

    Attributes:
        loss: Sum of `loss_parts`, with labels.
        loss_parts: Weighted and normalised parts by name.
        logits: Predictions at each unit's exit: (B, T, V) of a language model, (B, C) of texts, (B, T, C) of tokens,
            0 at padding. A language model in training with labels leaves them out.
        prediction_logits: The logits of a model of masked words, under the name that pretraining heads use.
        cache: The cache of a language model.
        hidden_states: States before the first layer and after every exit, (B, T, D) each, on request; None in place of
            those that are not requested.
        step_logits: Predictions of every exit: `StepLogits` (B, T, N, V) of a language model, if all ran; else
            (K, N, C), NaN at exits that a unit did not reach.
        halting_logits: Logits of the gate at every exit, in the shape of `step_logits` without C, if there is a gate.
        exit_steps: Exit of each unit, from 1, int64: (B, T) of a language model, 0 at padding; else (K,).
        unit_slots: b T + t of the token at which each of the K units of a classifier is read.
        trace: Exits of every unit.
        token_losses: Cross-entropy in nats of a language model's P tokens with a label, detached, (P,): at their exit,
            in training at the last exit with a loss.
        step_losses: The same at every exit, outside training, (P, N).
    """

    loss: Tensor | None = None
    loss_parts: dict[str, Tensor] | None = None
    logits: Tensor | None = None
    prediction_logits: Tensor | None = None
    cache: Cache | None = None
    hidden_states: tuple[Tensor | None, ...] | None = None
    step_logits: Any = None
    halting_logits: Tensor | None = None
    exit_steps: Tensor | None = None
    unit_slots: Tensor | None = None
    trace: DepthTrace | None = None
    token_losses: Tensor | None = None
    step_losses: Tensor | None = None


class ExitMlp(nn.Module):
    """x + W_2 gelu(W_1 norm(x)), which begins as the identity where the exits begin as the last one."""

    def __init__(self, config: EarlyExitConfig, norm: nn.Module) -> None:
        super().__init__()
        self.norm = norm
        self.up_proj = nn.Linear(config.hidden_size, config.intermediate_size)
        self.down_proj = nn.Linear(config.intermediate_size, config.hidden_size)
        self.activation = ACT2FN["gelu"]

    def forward(self, states: Tensor) -> Tensor:
        """Map (..., D) to (..., D)."""
        mixed: Tensor = self.down_proj(self.activation(self.up_proj(self.norm(states))))
        return states + mixed


def copy_module(module: nn.Module) -> nn.Module:
    """Return a copy of a module with weights of its own.

    `copy.deepcopy` alone would give fake tensors, on which a training step is estimated, a mode of their own.
    """
    copies: dict[int, Tensor] = {id(buffer): buffer.clone() for buffer in module.buffers()}
    for weight in module.parameters():
        copies[id(weight)] = nn.Parameter(weight.detach().clone(), weight.requires_grad)
    return copy.deepcopy(module, copies)


class EarlyExit(nn.Module):
    """The weights of an early exit: those that `exit_heads` gives it beside the last exit's."""

    def __init__(self, config: EarlyExitConfig, head: Any) -> None:
        super().__init__()
        norm = head.base_model.norm
        self.mlp = ExitMlp(config, copy_module(norm)) if config.exit_heads == "mlp" else None
        self.norm = copy_module(norm) if config.exit_heads == "norm" else None
        self.head = copy_module(head) if config.exit_heads in ("own", "mlp") else None

    def copy_weights(self, head: Any) -> None:
        """Initialise the exit with the weights of the last exit, which has the given head."""
        norm = head.base_model.norm.state_dict()
        if self.norm is not None:
            self.norm.load_state_dict(norm)
        if self.head is not None:
            self.head.load_state_dict(head.state_dict())
        if self.mlp is not None:
            self.mlp.norm.load_state_dict(norm)
            nn.init.zeros_(self.mlp.down_proj.weight)
            nn.init.zeros_(self.mlp.down_proj.bias)


class EarlyExitModel(ExitRuleKnob, NetworkModel):
    """The base class of all heads: a network of transformers, its own head, and what early exits have of their own.

    Attributes:
        mapping: Mapping of transformers from a type of configuration to its model for the task.
        task_part: Name of the loss part of the task.
    """

    config: EarlyExitConfig
    config_class = EarlyExitConfig
    supports_gradient_checkpointing = True
    _supports_flash_attn = _supports_flex_attn = _supports_attention_backend = True
    depth_unit: DepthUnit = "token"
    task_part: ClassVar[str] = "task"

    def __init__(self, config: EarlyExitConfig) -> None:
        super().__init__(config)
        self.build_network()
        if config.pooling == "mean" and (
            self.mapping is not MODEL_FOR_SEQUENCE_CLASSIFICATION_MAPPING or self.is_causal
        ):
            raise ConfigError("pooling=mean: only classifiers of texts around an encoder read the mean of the tokens")
        self.exits = nn.ModuleList()
        if config.exit_heads != "shared":
            self.exits.extend(EarlyExit(config, self.head) for _ in config.exits[:-1])
            self._tied_weights_keys = self._tied_weights_keys | self._tie_within_exits()
        self.gate = self._build_gate()
        self._step: int | None = None
        self._total = 1
        self.post_init()
        self.reference_base(not config.save_base)

    @property
    def step_loss_problem(self) -> str | None:
        """Reason why the loss over exits cannot be computed, such as a missing package, or None."""
        return next(find_loss_problems("model.exit_weights", self.config.exit_weights), None)

    @classmethod
    def read_published(cls, path: Any, stored: Mapping[str, Any], options: Mapping[str, Any]) -> dict[str, Any] | None:
        """Load exits that are stored without their network, or a causal language model of transformers.

        A decoder such as LayerSkip's gets exits after its layers. For exits without their network, `options` may have
        `base_model`, the present folder or hub id of the network.

        Raises:
            CheckpointError: If this is another head, or the network is not that of the exits.
            ConfigError: If `base_model` is given for a model with its network.
        """
        if stored.get("model_type") == cls.config_class.model_type and stored.get("save_base") is False:
            return read_with_base(cls, path, stored, options)
        if (base := options.get("base_model")) is not None:
            raise ConfigError(
                f"base_model={base}: only for exits without their network (save_base=False), unlike {path}"
            )
        if path is None or stored.get("model_type") not in DECODERS:
            return None
        if cls.mapping is not MODEL_FOR_CAUSAL_LM_MAPPING:
            problem = f"contains a model of type {stored['model_type']}; {cls.__name__} reads early_exit"
            raise CheckpointError(f"{path}: {problem}{cls.advise(path, stored)}")
        more, config = dict(options), options.get("config")
        if not isinstance(config, EarlyExitConfig):
            fields = [name for name in more if name in get_field_specs(EarlyExitConfig)]
            config = EarlyExitConfig.from_dict(dict(stored), **{name: more.pop(name) for name in fields})
        names = {name: ours for ours, name in map_network_names(cls, config).items()}
        weights = load_stored_weights(find_folder(path, options)).items()
        more["state_dict"] = {names.get(name, name): weight for name, weight in weights if not is_rotary_table(name)}
        if more.get("generation_config") is None:
            more["generation_config"] = read_generation_config(path, options)
        return more | {"config": config}

    @classmethod
    def advise(cls, path: Any, stored: Mapping[str, Any]) -> str:
        """Name the function that adds exits to a network of transformers."""
        kind = stored.get("model_type")
        if kind not in CONFIG_MAPPING or kind in families():
            return ""
        head = "" if cls.mapping is MODEL_FOR_CAUSAL_LM_MAPPING else f", model_class={cls.__name__}"
        return f"; adadepth.add_exits({str(path)!r}{head}) adds exits to a network of transformers"

    def _tie_within_exits(self) -> dict[str, str]:
        """Return the tied weights of early exits with a head, which has two names for some weights, as the last one."""
        pairs = [pair for pair in self._tied_weights_keys.items() if pair[1].startswith("head.")]
        with_head = [f"exits.{number}" for number, exit in enumerate(self.exits) if exit.head is not None]
        return {f"{exit}.{name}": f"{exit}.{source}" for exit in with_head for name, source in pairs}

    def _build_gate(self) -> nn.Module | None:
        """Build the gate, if there is one.

        Raises:
            ConfigError: If predictions are not one class, which is either right or wrong.
        """
        if not self.config.exit_gate:
            return None
        has_one_class = count_head_classes(self.config) > 1 and takes_one_class(self.config)
        if self.mapping is MODEL_FOR_SEQUENCE_CLASSIFICATION_MAPPING and not has_one_class:
            raise ConfigError("exit_gate=True: needs labels of one class; regression and several labels have none")
        return build_halting_unit(self.config.halting_unit, self.config.hidden_size, 0.0)

    def resize_token_embeddings(
        self, new_num_tokens: int | None = None, pad_to_multiple_of: int | None = None, mean_resizing: bool = True
    ) -> Any:
        """Resize the word embeddings and the predictions of all exits; the arguments are those of transformers."""
        embeddings: Any = super().resize_token_embeddings(new_num_tokens, pad_to_multiple_of, mean_resizing)
        for exit in self.exits:
            head: Any = exit.head
            matrix = None if head is None else head.get_output_embeddings()
            if matrix is not None:
                resized = self._get_resized_lm_head(matrix, embeddings.num_embeddings, mean_resizing=mean_resizing)
                head.set_output_embeddings(resized)
        return embeddings

    def copy_last_exit(self) -> None:
        """Initialise all early exits with the weights of the last one."""
        exits: Any = self.exits
        for exit in exits:
            exit.copy_weights(self.head)

    def reference_base(self, is_referenced: bool) -> None:
        """Set whether checkpoints leave out the network and the last exit, which another folder has."""
        self.config.save_base = not is_referenced
        self._keys_to_ignore_on_save = list_network_weights(self.state_dict()) if is_referenced else set()

    def save_pretrained(self, save_directory: Any, *args: Any, save_base: bool | None = None, **kwargs: Any) -> None:
        """Save the model as `DepthModel` does, with its network or as the exits alone.

        Args:
            save_directory: Folder of the model.
            *args: As in transformers.
            save_base: Whether to save the network and the last exit, too; None: as the configuration has it. Without
                them, `from_pretrained` reads them from the folder or hub id on which the exits were trained.
            **kwargs: As in `DepthModel`.

        Raises:
            ConfigError: If the network is left out, but was not frozen, or has other weights by now.
        """
        before, layout = self.config.save_base, kwargs.get("layout")
        if layout is not None and save_base is False:
            raise ConfigError(f"save_base=False: layout={layout} is that of the network; leave one of them out")
        self.reference_base(not (before if save_base is None else save_base))
        try:
            if not self.config.save_base and layout is None:
                require_base(self.config, kwargs.get("state_dict") or self.state_dict())
            super().save_pretrained(save_directory, *args, **kwargs)
        finally:
            self.reference_base(not before)

    def list_copied_layers(self) -> set[str]:
        """Return the names of the linear layers in the heads of early exits, if the network is frozen."""
        if self.trains_network:
            return set()
        heads = [f"exits.{number}.head" for number in range(len(self.exits))]
        linear = [name for name, module in self.named_modules() if isinstance(module, nn.Linear)]
        return {name for name in linear if any(name.startswith(f"{head}.") for head in heads)}

    def drop_exits(self) -> None:
        """Remove the weights of early exits, the gate and the exit rule, so that the network at full depth remains."""
        config = self.config
        self.exits, self.gate = nn.ModuleList(), None
        self.all_tied_weights_keys = {
            name: source for name, source in self.all_tied_weights_keys.items() if not name.startswith("exits.")
        }
        self._tied_weights_keys = {
            name: source for name, source in self._tied_weights_keys.items() if not name.startswith("exits.")
        }
        config.trains, config.exit_heads, config.exit_gate, config.halting_unit = "all", "shared", False, "linear"
        config.exit_rule = config.base_hash = None
        self.reference_base(False)

    # ---- What the rest of the package asks

    @property
    def exit_signals(self) -> frozenset[str]:
        """Signals for exit rules: predictions, and the gate's estimate of whether they are right."""
        return frozenset({LOGITS} if self.gate is None else {LOGITS, CORRECTNESS})

    @property
    def level_rule(self) -> str:
        """Default exit rule for a budget."""
        return "margin:0.5" if self.gate is None else "correct:0.5"

    @property
    def max_updates(self) -> int:
        """The number of exits."""
        return len(self.config.exits)

    def set_step(self, step: int, total: int) -> None:
        """Set the completed and all optimiser steps, on which curriculum and layer dropout depend."""
        self._step, self._total = step, total

    @property
    def readout_work(self) -> float:
        """Multiply-accumulates of a prediction: the weights of a head."""
        return float(count_layer_macs(self.exits[0] if len(self.exits) and self.exits[0].head else self.head))

    def reading_work(self, signal: str, lengths: Tensor) -> Tensor | float:
        """Return the multiply-accumulates of a signal of an exit: a prediction, or the gate's estimate."""
        gate = float(count_unit_macs(self.gate, self.config.hidden_size))
        return gate if signal == CORRECTNESS else self.readout_work

    def price(self, trace: DepthTrace) -> Work:
        """Return the multiply-accumulates of a traced batch, without predictions; see `readout_work`.

        A layer takes its weights a token, and 2 D_q a pair of query and key, where D_q is the width of all queries.
        """
        return price_steps(trace, self._step_macs, is_causal=self.is_causal)

    @cached_property
    def _step_macs(self) -> StepMacs:
        """Multiply-accumulates of the layers until every exit."""
        pair, numbers = count_pair_macs(self.config.base_config), [0, *self.config.exits]
        layers = [self.layers.get_layer(layer) for layer in range(numbers[-1])]
        token = [float(sum(map(count_layer_macs, layers[:number]))) for number in numbers]
        stored = [float(sum(map(count_projection_macs, layers[slice(*span)]))) for span in pairwise(numbers)]
        sums = (token, [pair * number for number in numbers], stored)
        return StepMacs(*(torch.tensor(values, dtype=torch.float64) for values in sums))

    # ---- The forward pass

    def begin(self, inputs: Mapping[str, Any], use_cache: bool = False) -> RunningTexts:
        """Embed texts; see `begin_texts` for the arguments, and `check_words` for errors."""
        self.check_words(inputs)
        with torch.set_grad_enabled(torch.is_grad_enabled() and self.trains_network):
            return begin_texts(self.model, self.layers, inputs, use_cache)

    def run_to_exit(self, running: RunningTexts, step: int) -> Tensor:
        """Run the layers until an exit, counted from 1; return the states there, (A, T, D)."""
        with torch.set_grad_enabled(torch.is_grad_enabled() and self.trains_network):
            running.run_layers(self.layers, self.config.exits[step - 1])
        return running.states

    def start_gate(self, states: Tensor) -> UnitMemory:
        """Return the memory of the gate before the first exit, given the states before the first layer, (..., D)."""
        return () if self.gate is None else start_unit(self.gate, states.detach())

    def estimate(self, states: Tensor, memory: UnitMemory, step: int) -> tuple[Tensor | None, UnitMemory]:
        """Return the logits (...) of the gate at an exit, counted from 1, if there is a gate, and its new memory.

        The gate gets states, (..., D), without gradients, so that it changes no prediction.
        """
        return (None, memory) if self.gate is None else run_unit(self.gate, states.detach(), memory, step)

    def draw_skipped_layers(self, running: RunningTexts) -> None:
        """Draw the layers that each text skips, in training with `layer_dropout`."""
        config = self.config
        if not self.training or not config.layer_dropout:
            return
        layers = range(1, config.num_hidden_layers + 1)
        probabilities = [dropout_probability(config, layer, self._step, self._total) for layer in layers]
        running.skipped = draw_skipped(probabilities, len(running.states), running.states.device)

    def exit_weights(self) -> list[float]:
        """Return the weights of the losses of all exits; the curriculum is that of the optimiser step in training."""
        step = self._step if self.training else None
        return exit_weights(self.config, step, self._total)

    def build_terms(
        self, total: Tensor, divergence: Tensor | None, count: Tensor, gate: Tensor | None = None
    ) -> dict[str, LossTerm]:
        """Return the parts of the loss from weighted sums over the units, and what divides them."""
        terms = {self.task_part: LossTerm(total, count)}
        if divergence is not None:
            terms["distillation"] = LossTerm(divergence, count, self.config.distillation)
        if gate is not None:
            terms["gate"] = LossTerm(gate, count)
        return terms

    def count_targets(self, batch: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Count the units with a label in a batch, for every part of the loss."""
        return dict.fromkeys((self.task_part, "distillation", "gate"), self.count_labels(batch["labels"]))

    def count_labels(self, labels: Tensor) -> Tensor:
        """Count the units with a label."""
        raise NotImplementedError

    def resolve_rule(self, choice: str | ExitRule | None) -> ExitRule:
        """Return the rule of a call; None: the configuration's, in training the last exit's."""
        if choice is None and not self.training:
            choice = self.config.parsed_exit_rule
        return resolve_exit_rule(self, choice or f"fixed:{self.max_updates}")

    def read(self, step: int, states: Tensor, **options: Any) -> Tensor:
        """Return the predictions of an exit, counted from 1.

        Args:
            step: Number of the exit.
            states: States of tokens, (k, D), or of texts, (A, T, D).
            **options: Further arguments of the head.
        """
        exit, head, states = None, self.head, states.to(self.dtype)
        if len(self.exits) and step < self.max_updates:
            exits: Any = self.exits
            exit = exits[step - 1]
            head = exit.head if exit.head is not None else head
            states = states if exit.mlp is None else exit.mlp(states)
        norm = head.base_model.norm if exit is None or exit.norm is None else exit.norm
        return self.predict(head, norm(states), **options)


class ExitStepper:
    """Stepper of units that are read after every exit; see `adadepth.models.depth.engine.Stepper`.

    Args:
        model: Model.
        running: Texts before the first layer.
        slots: b T + t of the token at which each unit is read, int64, (K,); None: units are whole texts.
        read: Function from the number of an exit and states, (k, D) or (A, T, D), and for texts their positions in the
            batch, to what is recorded of them, (k, C).
        states: Whether to store the states after every exit.
        pick: Function from the states of texts, (A, T, D), and their positions to those that the gate reads, (A, D);
            None: units are tokens, or there is no gate.
    """

    def __init__(
        self,
        model: EarlyExitModel,
        running: RunningTexts,
        slots: Tensor | None,
        read: Any,
        states: bool = False,
        pick: Any = None,
    ) -> None:
        self._model, self._running, self._slots, self._read = model, running, slots, read
        self._pick = pick
        self.rows = (running.states if slots is None else slots).shape[0]  # no `len`, which a program cannot have
        self.device = running.states.device
        self.states = [running.states] if states else None
        self._step = 0
        self._host_slots: Tensor | None = None  # `slots` on the CPU, once a unit has exited
        self._texts = torch.arange(running.states.shape[0], device=self.device)
        self._memory = () if model.gate is None else model.start_gate(self._read_gated(*self._select(running.states)))

    @property
    def width(self) -> int:
        """Padded length T of the texts."""
        return self._running.states.shape[1]

    @property
    def computed(self) -> tuple[int, int, Tensor | int]:
        """Number of queries, keys and pairs of them in a layer of the next step."""
        tokens = self._running.states.shape[0] * self.width
        return tokens, tokens, self._model.compute_pairs(self._running)

    def advance(self) -> tuple[Tensor, Tensor | None]:
        """Run the layers until the next exit, and read all units there, and their gate if there is one."""
        self._step += 1
        states = self._model.run_to_exit(self._running, self._step)
        if self.states is not None:
            self.states.append(states)
        units, gate = self._select(states), None
        if self._model.gate is not None:
            gate, self._memory = self._model.estimate(self._read_gated(*units), self._memory, self._step)
        return self._read(self._step, *units), gate

    def _select(self, states: Tensor) -> tuple[Tensor, ...]:
        """Return the states of the units, (A, D), or those of texts, (A, T, D), with their positions in the batch."""
        return (states, self._texts) if self._slots is None else (states.flatten(0, 1)[self._slots],)

    def _read_gated(self, states: Tensor, *texts: Tensor) -> Tensor:
        """Return the states that the gate reads, (A, D)."""
        gated: Tensor = states if self._pick is None else self._pick(states, *texts)
        return gated

    def keep(self, rows: Tensor) -> None:
        """Drop all units but these positions, int64 (A',), on the CPU, and the texts without any."""
        self._memory = take_memory(self._memory, rows)
        if self._running.cache is not None:  # later tokens read all layers
            positions = rows.to(self.device, non_blocking=True)
            self._slots = positions if self._slots is None else self._slots[positions]
            return
        texts = rows
        if self._slots is not None:
            before = self._slots.cpu() if self._host_slots is None else self._host_slots
            slots = before[rows]
            texts, numbers = torch.unique(slots // self.width, return_inverse=True)
            self._host_slots = numbers * self.width + slots % self.width
            self._slots = self._host_slots.to(self.device, non_blocking=True)
        if len(texts) < len(self._running.states):
            texts = texts.to(self.device, non_blocking=True)
            self._running.keep(texts)
            self._texts = self._texts[texts]
