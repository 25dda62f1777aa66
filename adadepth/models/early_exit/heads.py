"""Early-exit models: language models, and classifiers of texts and of tokens.

The unit of depth is a token, of classifiers of texts a text; its updates are the exits that it passed, each with the
layers since the exit before. Tokens that have exited go on for the others of their text, so that no rule changes a
state; a text leaves the batch once all its units have exited.

Shape legend: B texts, A texts that still run, T tokens, D width, L layers, N exits, K units that are read, k of them, C
classes or pieces, M targets.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from typing import Any, ClassVar, Unpack

import torch
from torch import Tensor, nn
from transformers import (
    MODEL_FOR_CAUSAL_LM_MAPPING,
    MODEL_FOR_MASKED_LM_MAPPING,
    MODEL_FOR_SEQUENCE_CLASSIFICATION_MAPPING,
    MODEL_FOR_TOKEN_CLASSIFICATION_MAPPING,
    Cache,
    GenerationMixin,
    PreTrainedModel,
)
from transformers.activations import ACT2FN
from transformers.utils import ModelOutput
from transformers.utils.generic import can_return_tuple

from adadepth.errors import ConfigError, DataError
from adadepth.halting.exit_rules import LOGITS, ExitRule, Fixed, StepView, apply_rule, select_predictions
from adadepth.halting.trace import DepthTrace, DepthUnit, Execution, Work
from adadepth.models.early_exit.configuration import EarlyExitConfig
from adadepth.models.early_exit.losses import (
    divergences,
    dropout_probability,
    exit_weights,
    token_divergences,
)
from adadepth.models.early_exit.modeling import (
    ExitableLayers,
    RunningTexts,
    begin_texts,
    count_layer_macs,
    draw_skipped,
    split_model,
)
from adadepth.models.shared.causal import causal_targets, count_in_documents, cross_entropies
from adadepth.models.shared.encoders import check_words, longest_sequence
from adadepth.models.shared.generation import CheckedGeneration
from adadepth.models.shared.losses import (
    LossOptions,
    LossTerm,
    class_losses,
    combine_terms,
    count_head_classes,
    count_sequences,
    refuse_unknown,
    step_losses,
    target_weights,
)
from adadepth.models.shared.steps import (
    ExitRuleKnob,
    Steps,
    build_unit_fields,
    resolve_exit_rule,
    run_steps,
    runs_all,
)

_ROWS = 1024  # predictions over a vocabulary that are made at once for a rule


@dataclass
class EarlyExitOutput(ModelOutput):
    """Predictions of a head.

    Attributes:
        loss: Sum of `loss_parts`, with labels.
        loss_parts: Weighted and normalised parts by name.
        logits: Predictions at each unit's exit: (B, T, V) of a language model, (B, C) of texts, (B, T, C) of tokens,
            NaN at padding. A language model in training with labels leaves them out.
        past_key_values: The cache of a language model.
        hidden_states: States before the first layer and after every exit, (B, T, D) each, on request.
        step_logits: Predictions of every exit: `ExitLogits` (B, T, N, V) of a language model, if all ran; else
            (K, N, C), NaN at exits that a unit did not reach.
        halting_logits: None: there is no halting head.
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
    past_key_values: Cache | None = None
    hidden_states: tuple[Tensor, ...] | None = None
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


class EarlyExit(nn.Module):
    """The weights of an early exit: those that `exit_heads` gives it beside the last exit's."""

    def __init__(self, config: EarlyExitConfig, head: Any) -> None:
        super().__init__()
        norm = head.base_model.norm
        self.mlp = ExitMlp(config, copy.deepcopy(norm)) if config.exit_heads == "mlp" else None
        self.norm = copy.deepcopy(norm) if config.exit_heads == "norm" else None
        self.head = copy.deepcopy(head) if config.exit_heads in ("own", "mlp") else None

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


class EarlyExitModel(ExitRuleKnob, PreTrainedModel):
    """The base class of all heads: a network of transformers, its own head, and what early exits have of their own.

    Attributes:
        mapping: Mapping of transformers from a type of configuration to its model for the task.
    """

    config: EarlyExitConfig
    config_class = EarlyExitConfig
    base_model_prefix = "model"
    main_input_name = "input_ids"
    supports_gradient_checkpointing = True
    accepts_loss_kwargs = False
    _supports_sdpa = _supports_flash_attn = _supports_flex_attn = _supports_attention_backend = True
    depth_unit: DepthUnit = "token"
    exit_signals = frozenset({LOGITS})
    level_rule = "margin:0.5"
    mapping: ClassVar[Any]

    def __init__(self, config: EarlyExitConfig) -> None:
        super().__init__(config)
        self.model, self.head, self._tied_weights_keys = split_model(self._build_stock())
        config.base_config = self.model.config  # that of the layers: `attn_implementation` then has one owner
        self.exits = nn.ModuleList()
        if config.exit_heads != "shared":
            self.exits.extend(EarlyExit(config, self.head) for _ in config.exits[:-1])
        self._freeze()
        self._step: int | None = None
        self._total = 1
        self.post_init()

    @classmethod
    def from_pretrained(cls, *args: Any, **kwargs: Any) -> Any:
        """Load as transformers does, which makes all weights trainable; see `StrictLoading`."""
        loaded = super().from_pretrained(*args, **kwargs)
        (loaded[0] if isinstance(loaded, tuple) else loaded)._freeze()
        return loaded

    def _freeze(self) -> None:
        """Freeze all weights but those of early exits, if these alone are trained."""
        if self.config.trains == "exits":
            self.model.requires_grad_(False)
            self.head.requires_grad_(False)

    def train(self, mode: bool = True) -> Any:
        """Set the training mode; a frozen network has no dropout."""
        super().train(mode)
        if self.config.trains == "exits":
            self.model.eval()
            self.head.eval()
        return self

    @classmethod
    def find_stock_class(cls, config: EarlyExitConfig) -> Any:
        """Return the model of transformers for this task and a configuration.

        Raises:
            ConfigError: If transformers has none.
        """
        kind = type(config.base_config)
        stock_class = cls.mapping.get(kind, None)
        is_encoder_as_decoder = cls.mapping is MODEL_FOR_CAUSAL_LM_MAPPING and kind in MODEL_FOR_MASKED_LM_MAPPING
        if stock_class is None or is_encoder_as_decoder:
            raise ConfigError(f"base={config.base}: transformers has no such network for {cls.__name__}")
        return stock_class

    def _build_stock(self) -> Any:
        """Build the model of transformers, with random weights."""
        config, stock_class = self.config, self.find_stock_class(self.config)
        config.base_config.num_labels = count_head_classes(config)
        attention = config._attn_implementation
        if attention == "sdpa" and not stock_class._supports_sdpa:
            attention = "eager"
        return stock_class._from_config(config.base_config, attn_implementation=attention)

    def _init_weights(self, module: nn.Module) -> None:
        self.model._init_weights(module)

    def get_input_embeddings(self) -> Any:
        """Return the table of word embeddings."""
        return self.model.get_input_embeddings()

    def set_input_embeddings(self, value: nn.Module) -> None:
        """Replace the word embeddings."""
        self.model.set_input_embeddings(value)

    def copy_last_exit(self) -> None:
        """Initialise all early exits with the weights of the last one."""
        exits: Any = self.exits
        for exit in exits:
            exit.copy_weights(self.head)

    @property
    def layers(self) -> ExitableLayers:
        """The layers of the network."""
        return next(part for part in self.model.modules() if isinstance(part, ExitableLayers))

    # ---- What the rest of the package asks

    @property
    def max_updates(self) -> int:
        """The number of exits."""
        return len(self.config.exits)

    @property
    def longest_sequence(self) -> int | None:
        """The most tokens of a text; None: any number."""
        positions = longest_sequence(self.model)
        return self.config.max_position_embeddings if positions is None else positions

    @property
    def vocabulary_size(self) -> int | None:
        """The number of pieces in the vocabulary."""
        return int(self.config.vocab_size)

    @property
    def is_causal(self) -> bool:
        """Whether tokens see only those before them."""
        return type(self.config.base_config) not in MODEL_FOR_MASKED_LM_MAPPING

    def set_step(self, step: int, total: int) -> None:
        """Set the completed and all optimiser steps, on which curriculum and layer dropout depend."""
        self._step, self._total = step, total

    def take_padding(self, token: int | None) -> None:
        """Set the tokenizer's id of padding if the configuration has none."""
        if self.config.pad_token_id is None:
            self.config.pad_token_id = token

    @property
    def readout_work(self) -> float:
        """Multiply-accumulates of a prediction: the weights of a head."""
        return float(count_layer_macs(self.exits[0] if len(self.exits) and self.exits[0].head else self.head))

    def price(self, trace: DepthTrace) -> Work:
        """Return the multiply-accumulates of a traced batch, without predictions; see `readout_work`.

        A layer takes its weights a token, and 2 D_q a pair of query and key, where D_q is the width of all queries.
        """
        ran, updates = trace.executed, trace.updates
        device, by_token = updates.device, updates.dim() == 2
        lengths = (trace.valid.sum(dim=1) if ran.tokens is None else ran.tokens).double()
        width = ran.width if ran.width is not None else updates.shape[1] if by_token else lengths.max()
        width = torch.as_tensor(width, dtype=torch.float64, device=device).max()
        token, pair = (sums.to(device) for sums in self._cumulative_macs)

        def compute_macs(exits: Tensor, length: Tensor) -> Tensor:  # of a token of a text of this length
            seen = ran.memory_length + ((length + 1) / 2 if self.is_causal else length)
            return token[exits.long()] + pair[exits.long()] * seen

        everything = len(updates) * width
        executed = everything * compute_macs(torch.as_tensor(ran.steps, device=device), width)
        if ran.computed is not None:
            queries, pairs = (counts.to(token) for counts in (ran.computed.queries, ran.computed.pairs))
            executed = (queries * token.diff()[: len(queries)] + pairs * pair.diff()[: len(pairs)]).sum()
        units, length = trace.valid.double(), lengths
        if by_token:
            length = length.unsqueeze(1)
        else:
            units = units * lengths
        most = torch.full_like(updates, trace.max_updates)
        return Work(
            executed=executed,
            dense=everything * compute_macs(updates.max(), width),
            adaptive=(units * compute_macs(updates, length)).sum(),
            full=(units * compute_macs(most, length)).sum(),
        )

    @cached_property
    def _cumulative_macs(self) -> tuple[Tensor, Tensor]:
        """Multiply-accumulates of a token, and of a pair, until every exit, from 0 exits on, float64 (N + 1,) each."""
        base: Any = self.config.base_config
        heads = base.num_attention_heads
        pair = 2.0 * heads * (getattr(base, "head_dim", None) or base.hidden_size // heads)
        numbers = [0, *self.config.exits]
        token = [float(sum(count_layer_macs(self.layers[layer]) for layer in range(number))) for number in numbers]
        return torch.tensor(token, dtype=torch.float64), pair * torch.tensor(numbers, dtype=torch.float64)

    # ---- The forward pass

    def begin(self, inputs: Mapping[str, Any], use_cache: bool = False) -> RunningTexts:
        """Embed texts; see `begin_texts` for the arguments.

        Raises:
            DataError: If there is not exactly one of ids and embeddings.
        """
        ids, embedded = inputs.get("input_ids"), inputs.get("inputs_embeds")
        if (ids is None) == (embedded is None):
            raise DataError("input_ids, inputs_embeds: give exactly one of them")
        words: Any = ids if embedded is None else embedded
        check_words(words, self.get_input_embeddings())
        with torch.set_grad_enabled(torch.is_grad_enabled() and self.config.trains == "all"):
            return begin_texts(self.model, self.layers, inputs, use_cache)

    def run_to_exit(self, running: RunningTexts, step: int) -> Tensor:
        """Run the layers until an exit, counted from 1; return the states there, (A, T, D)."""
        with torch.set_grad_enabled(torch.is_grad_enabled() and self.config.trains == "all"):
            running.run_layers(self.layers, self.config.exits[step - 1])
        return running.states

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

    def build_terms(self, total: Tensor, divergence: Tensor | None, count: Tensor) -> dict[str, LossTerm]:
        """Return the parts of the loss from weighted sums over the units, and what divides them."""
        terms = {"task": LossTerm(total, count)}
        if divergence is not None:
            terms["distillation"] = LossTerm(divergence, count, self.config.distillation)
        return terms

    def resolve_rule(self, choice: str | ExitRule | None) -> ExitRule:
        """Return the rule of a call; None: the configuration's, in training the last exit's."""
        if choice is None and not self.training:
            choice = self.config.exit_rule
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

    def predict(self, head: Any, states: Tensor, **options: Any) -> Tensor:
        """Return the logits (k, C) of a head of transformers for normed states of tokens, (k, D)."""
        logits: Tensor = head(inputs_embeds=states.unsqueeze(0), **options).logits
        return logits.squeeze(0)

    def compute_pairs(self, running: RunningTexts) -> int:
        """Count the pairs of a query and a key in one layer of the running texts."""
        texts, width = running.states.shape[:2]
        seen = (width + 1) / 2 if self.is_causal else width
        return int(texts * width * (running.memory_length + seen))


class ExitStepper:
    """Stepper of units that are read after every exit; see `adadepth.models.shared.steps.Stepper`.

    Args:
        model: Model.
        running: Texts before the first layer.
        slots: b T + t of the token at which each unit is read, int64, (K,); None: units are whole texts.
        read: Function from the number of an exit and states, (k, D) or (A, T, D), and for texts their positions in the
            batch, to what is recorded of them, (k, C).
        states: Whether to store the states after every exit.
    """

    def __init__(
        self, model: EarlyExitModel, running: RunningTexts, slots: Tensor | None, read: Any, states: bool = False
    ) -> None:
        self._model, self._running, self._slots, self._read = model, running, slots, read
        self.rows = len(running.states) if slots is None else len(slots)
        self.device = running.states.device
        self.states = [running.states] if states else None
        self._step = 0
        self._texts = torch.arange(len(running.states), device=self.device)

    @property
    def width(self) -> int:
        """Padded length T of the texts."""
        return self._running.states.shape[1]

    @property
    def computed(self) -> tuple[int, int, Tensor | int]:
        """Number of queries, keys and pairs of them in a layer of the next step."""
        tokens = self._running.states.shape[0] * self.width
        return tokens, tokens, self._model.compute_pairs(self._running)

    def advance(self) -> tuple[Tensor, None]:
        """Run the layers until the next exit, and read all units there."""
        self._step += 1
        states = self._model.run_to_exit(self._running, self._step)
        if self.states is not None:
            self.states.append(states)
        if self._slots is None:
            return self._read(self._step, states, self._texts), None
        return self._read(self._step, states.flatten(0, 1)[self._slots]), None

    def keep(self, rows: Tensor) -> None:
        """Drop all units but these positions, int64 (A',), and the texts without any."""
        if self._running.cache is not None:  # later tokens read all layers
            self._slots = rows if self._slots is None else self._slots[rows]
            return
        texts = rows
        if self._slots is not None:
            slots = self._slots[rows]
            texts, numbers = torch.unique(slots // self.width, return_inverse=True)
            self._slots = numbers * self.width + slots % self.width
        if len(texts) < len(self._running.states):
            self._running.keep(texts)
            self._texts = self._texts[texts]


@dataclass(frozen=True)
class _ReadingRule(ExitRule):
    """An exit rule that reads states of tokens, (A, D), and makes predictions of a part of them at a time."""

    name = "reading"
    needs = frozenset({LOGITS})
    rule: ExitRule
    model: EarlyExitModel

    def start(self, rows: int, device: torch.device | str, generator: torch.Generator | None = None) -> Tensor:
        """Return the memory of the rule."""
        return self.rule.start(rows, device, generator)

    def decide(self, view: StepView, memory: Tensor) -> tuple[Tensor, Tensor]:
        """Return the decisions of the rule."""
        if LOGITS not in self.rule.reads:
            return self.rule.decide(view, memory)
        assert view.logits is not None
        decisions = [
            self.rule.decide(view._replace(logits=self.model.read(view.step, states).float()), part)
            for states, part in zip(view.logits.split(_ROWS), memory.split(_ROWS), strict=True)
        ]
        exits, memories = zip(*decisions, strict=True)
        return torch.cat(exits), torch.cat(memories)


@dataclass
class TokenRun:
    """States and exits of the tokens of a batch.

    Attributes:
        states: States at every exit, (B, T, D) each; or one tensor, at the exit of each token.
        exit_steps: Exit of each token, from 1, int64, (B, T); 0 at padding.
        execution: Computation of the batch.
        has_all_exits: Whether the states are those of all exits.
    """

    states: list[Tensor]
    exit_steps: Tensor
    execution: Execution
    has_all_exits: bool = False


class ExitLogits:
    """The predictions of every exit, (B, T, N, V), computed when they are indexed.

    `logits[rows, tokens, exits]` is indexed like a tensor and gives float32 (..., V); `logits[...]` gives all of them.
    """

    def __init__(self, model: EarlyExitForCausalLM, states: Tensor) -> None:
        self._model, self._states = model, states
        self._steps = torch.arange(1, states.shape[2] + 1, device=states.device).expand(states.shape[:3])
        self.shape = torch.Size((*states.shape[:3], model.config.vocab_size))

    def __getitem__(self, index: Any) -> Tensor:
        return self._model.read_exits(self._states[index], self._steps[index]).float()


class EarlyExitForCausalLM(CheckedGeneration, EarlyExitModel, GenerationMixin):
    """A language model."""

    mapping = MODEL_FOR_CAUSAL_LM_MAPPING
    accepts_loss_kwargs = True

    def get_output_embeddings(self) -> Any:
        """Return the matrix of the last exit's predictions."""
        return self.head.get_output_embeddings()

    def set_output_embeddings(self, value: nn.Module) -> None:
        """Replace the matrix of the last exit's predictions."""
        self.head.set_output_embeddings(value)

    @can_return_tuple
    def forward(
        self,
        input_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
        position_ids: Tensor | None = None,
        past_key_values: Cache | None = None,
        inputs_embeds: Tensor | None = None,
        labels: Tensor | None = None,
        use_cache: bool | None = None,
        output_hidden_states: bool | None = None,
        logits_to_keep: int | Tensor = 0,
        exit_rule: str | ExitRule | None = None,
        run_all_steps: bool | None = None,
        generator: torch.Generator | None = None,
        num_targets: Mapping[str, Tensor] | None = None,
        documents: Tensor | None = None,
        **options: Unpack[LossOptions],
    ) -> EarlyExitOutput:
        """Predict the next token of every position.

        Args:
            input_ids: (B, T).
            attention_mask: 1 at real tokens, those in the cache included, (B, M + T).
            position_ids: (B, T) or (1, T); None: as the network counts them.
            past_key_values: Keys and values of earlier tokens. With a cache all layers run, for later tokens.
            inputs_embeds: (B, T, D) instead of `input_ids`.
            labels: The input ids themselves, negative where nothing is to be predicted, (B, T).
            use_cache: Whether to make a cache; None: only one that the call passes is used.
            output_hidden_states: Whether to return the states after every exit.
            logits_to_keep: Number of last positions whose predictions are returned, or their indices; 0: all.
            exit_rule: Rule that says which exit's prediction a token gets; None: the configuration's, in training the
                last exit.
            run_all_steps: Whether all layers run and all exits are recorded; None: if a loss or states need them.
            generator: Random generator for rules that draw.
            num_targets: Counts that normalise the loss parts instead of those of this batch; see `combine_terms`.
            documents: Number of each token's document, (B, T), for rows of several documents, padding as one more. A
                token sees its own document alone. Labels at the first token of a document must be negative.
            options: See `LossOptions`.

        Raises:
            DataError: If there are documents with a cache or positions.
        """
        refuse_unknown(options, type(self).__name__)
        targets = options.get("shift_labels")
        if targets is None and labels is not None:
            targets = causal_targets(labels)
        inputs: dict[str, Any] = {
            "input_ids": input_ids, "attention_mask": attention_mask, "position_ids": position_ids,
            "past_key_values": past_key_values, "inputs_embeds": inputs_embeds,
        }  # fmt: skip
        if documents is not None:
            if past_key_values is not None or position_ids is not None:
                raise DataError("documents: not with a cache or position_ids")
            inputs |= {"position_ids": count_in_documents(documents), "attention_mask": None}  # positions of 0 mask
        recomputes = self.training and self.is_activation_checkpointing  # and would write to a cache twice
        running = self.begin(inputs, (bool(use_cache) or past_key_values is not None) and not recomputes)
        shows = bool(self.config.output_hidden_states if output_hidden_states is None else output_hidden_states)
        real = _find_real_tokens(attention_mask, running.states)
        rule, embedded = self.resolve_rule(exit_rule), running.states
        run_all = runs_all(run_all_steps, targets, training=self.training, shows=shows)
        self.draw_skipped_layers(running)
        run = (self._run_all if run_all else self._run_online)(running, rule, real, generator)
        exits = run.exit_steps
        output = EarlyExitOutput(
            past_key_values=running.cache,
            hidden_states=(embedded, *run.states) if shows else None,
            exit_steps=exits,
            trace=DepthTrace("token", exits.float(), real, self.max_updates, execution=run.execution),
        )
        if targets is not None:
            terms = self._compute_losses(run, targets, output)
            if (items := options.get("num_items_in_batch")) is not None:
                num_targets = dict.fromkeys(terms, torch.as_tensor(items, device=targets.device))
            output.loss, output.loss_parts = combine_terms(terms, num_targets)
            if self.training:
                return output
        if run.has_all_exits:
            table = torch.stack(run.states, dim=2)
            output.step_logits = ExitLogits(self, table)
            states = table.gather(2, (exits.clamp(min=1) - 1)[..., None, None].expand(-1, -1, 1, table.shape[-1]))
            states = states.squeeze(2)
        else:
            states = run.states[0]
        columns = slice(-logits_to_keep, None) if isinstance(logits_to_keep, int) else logits_to_keep
        output.logits = self.read_exits(states[:, columns], exits[:, columns].clamp(min=1))
        return output

    def _run_all(self, running: RunningTexts, rule: ExitRule, real: Tensor, generator: Any) -> TokenRun:
        """Run all layers; the rule decides afterwards."""
        states = [self.run_to_exit(running, step) for step in range(1, self.max_updates + 1)]
        if isinstance(rule, Fixed):
            exits = real * rule.k
        else:
            slots = real.flatten().nonzero().squeeze(1)
            with torch.no_grad():
                read = torch.stack([read.flatten(0, 1)[slots] for read in states], dim=1)
                exits = _scatter(apply_rule(_ReadingRule(rule, self), read, None, generator), slots, real.shape)
        execution = Execution(self.max_updates, width=real.shape[1], memory_length=running.memory_length)
        return TokenRun(states, exits, execution, has_all_exits=True)

    def _run_online(self, running: RunningTexts, rule: ExitRule, real: Tensor, generator: Any) -> TokenRun:
        """Run the layers that the exits of tokens need, and with a cache all of them, for later tokens."""
        steps, shape = self.max_updates, real.shape
        if isinstance(rule, Fixed):
            states, exits = self.run_to_exit(running, rule.k), real * rule.k
            execution = Execution(rule.k, width=shape[1])
        else:
            slots = real.flatten().nonzero().squeeze(1)
            stepper = ExitStepper(self, running, slots, lambda step, states: states)
            result = run_steps(stepper, _ReadingRule(rule, self), max_updates=steps, run_all=False, generator=generator)
            chosen = select_predictions(rule, result.logits, None, result.exit_steps).to(running.states)
            states, exits = _scatter(chosen, slots, shape), _scatter(result.exit_steps, slots, shape)
            execution = Execution(len(result.rows), width=shape[1], computed=result.computed)
        if running.cache is not None:
            self.run_to_exit(running, steps)
            execution = Execution(steps, width=shape[1], memory_length=running.memory_length)
        return TokenRun([states], exits, execution)

    def _compute_losses(self, run: TokenRun, targets: Tensor, output: EarlyExitOutput) -> dict[str, LossTerm]:
        """Return the parts of the loss, and set the losses of single tokens in the output."""
        counted = (targets >= 0).flatten().nonzero().squeeze(1)
        targets, states = targets.flatten()[counted], [read.flatten(0, 1)[counted] for read in run.states]
        pieces, weights, losses = self.config.vocab_size, self.exit_weights(), {}
        total = states[0].new_zeros((), dtype=torch.float32)
        apart = total if self.config.distillation else None
        heads = [partial(self.read, step) for step in range(1, len(states) + 1)]
        for step, (weight, read, head) in enumerate(zip(weights, states, heads, strict=True), start=1):
            if self.training and not weight:
                continue
            losses[step] = cross_entropies(read, targets, head, pieces)
            total = total + weight * losses[step].sum()
            if apart is not None and step < len(states):
                both, temperature = (head, heads[-1]), self.config.distillation_temperature
                apart = apart + weight * token_divergences(read, states[-1], both, pieces, temperature).sum()
        count = torch.full((), len(targets), device=targets.device)
        output.token_losses = losses[max(losses)].detach()
        if not self.training:
            output.step_losses = torch.stack(list(losses.values()), dim=1).detach()
            exits = run.exit_steps.flatten()[counted].clamp(min=1).unsqueeze(1)
            output.token_losses = output.step_losses.gather(1, exits - 1).squeeze(1)
        return self.build_terms(total, apart, count)

    def read_exits(self, states: Tensor, steps: Tensor) -> Tensor:
        """Return the predictions (..., V) for states (..., D) at exits by their numbers, (...)."""
        flat, numbers = states.flatten(0, -2), steps.flatten()
        present = numbers.unique().tolist() if len(self.exits) else []
        if len(present) < 2:  # all exits have the same head
            return self.read(present[0] if present else self.max_updates, flat).unflatten(0, states.shape[:-1])
        logits = None
        for step in present:
            rows = (numbers == step).nonzero().squeeze(1)
            part = self.read(step, flat[rows])
            logits = part.new_zeros(len(flat), part.shape[-1]) if logits is None else logits
            logits = logits.index_copy(0, rows, part)
        assert logits is not None
        return logits.unflatten(0, states.shape[:-1])

    def count_targets(self, batch: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Count the tokens with a token to predict, for every part of the loss."""
        return dict.fromkeys(("task", "distillation"), (causal_targets(batch["labels"]) >= 0).sum())


class _Classifier(EarlyExitModel):
    """A classifier of texts or tokens, the base class of both."""

    @can_return_tuple
    def forward(
        self,
        input_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
        token_type_ids: Tensor | None = None,
        position_ids: Tensor | None = None,
        inputs_embeds: Tensor | None = None,
        labels: Tensor | None = None,
        num_targets: Mapping[str, Tensor] | None = None,
        output_hidden_states: bool | None = None,
        exit_rule: str | ExitRule | None = None,
        run_all_steps: bool | None = None,
        generator: torch.Generator | None = None,
    ) -> EarlyExitOutput:
        """Predict; the arguments are those of `EarlyExitForCausalLM.forward`, and segments of encoders.

        Labels of texts follow `infer_problem_type`, those of tokens are classes (B, T), negative where there is none.
        """
        running = self.begin({
            "input_ids": input_ids, "attention_mask": attention_mask, "token_type_ids": token_type_ids,
            "position_ids": position_ids, "inputs_embeds": inputs_embeds,
        })  # fmt: skip
        self.draw_skipped_layers(running)
        rule = self.resolve_rule(exit_rule)
        shows = bool(self.config.output_hidden_states if output_hidden_states is None else output_hidden_states)
        run_all = runs_all(run_all_steps, labels, training=self.training, shows=shows)
        real = _find_real_tokens(attention_mask, running.states)
        slots = self._find_slots(real)
        stepper = ExitStepper(self, running, slots, self._get_reader(real), shows)
        steps = run_steps(stepper, rule, max_updates=self.max_updates, run_all=run_all, generator=generator)
        output = self._build_output(steps, rule, slots, real)
        output.hidden_states = None if stepper.states is None else tuple(stepper.states)
        if labels is not None:
            losses, counted = self._compute_losses(steps.logits, labels, slots)
            weights, apart = self.exit_weights(), None
            total = (_sum_weighted(losses, weights) * counted).sum()
            if self.config.distillation:
                early, last = steps.logits[:, :-1], steps.logits[:, -1:]
                divergence = divergences(early, last, self.config.distillation_temperature)
                apart = (_sum_weighted(divergence, weights) * counted).sum()
            output.loss, output.loss_parts = combine_terms(self.build_terms(total, apart, counted.sum()), num_targets)
        return output

    def _find_slots(self, real: Tensor) -> Tensor | None:
        """Return the `slots` of `ExitStepper` from which tokens are no padding, (B, T)."""
        raise NotImplementedError

    def _get_reader(self, real: Tensor) -> Callable[..., Tensor]:
        """Return the `read` of `ExitStepper`."""
        raise NotImplementedError

    def _build_output(self, steps: Steps, rule: ExitRule, slots: Tensor | None, real: Tensor) -> EarlyExitOutput:
        """Build the output without losses."""
        raise NotImplementedError

    def _compute_losses(self, logits: Tensor, labels: Tensor, slots: Tensor | None) -> tuple[Tensor, Tensor]:
        """Return the losses of all exits, (K, N), from logits (K, N, C), and the weights of the units, (K,)."""
        raise NotImplementedError


class EarlyExitForSequenceClassification(_Classifier):
    """A classifier or regressor of texts, which leave the batch once they have exited."""

    mapping = MODEL_FOR_SEQUENCE_CLASSIFICATION_MAPPING
    depth_unit: DepthUnit = "sequence"

    def _find_slots(self, real: Tensor) -> None:
        return None

    def _get_reader(self, real: Tensor) -> Callable[..., Tensor]:
        return partial(self._read_texts, real)

    def _read_texts(self, real: Tensor, step: int, states: Tensor, texts: Tensor) -> Tensor:
        """Read texts as transformers does: encoders by their own way of pooling, decoders at their last token."""
        mask = real[texts]
        if not self._reads_last_token:
            return self.read(step, states, attention_mask=mask.long())
        last = mask.shape[1] - 1 - mask.flip(1).long().argmax(dim=1)
        return self.read(step, states[torch.arange(len(last), device=last.device), last])

    @property
    def _reads_last_token(self) -> bool:
        return isinstance(getattr(self.head, "score", None), nn.Linear)

    def predict(self, head: Any, states: Tensor, **options: Any) -> Tensor:
        """Return the logits (A, C) of a head for normed states, of last tokens (A, D) or whole texts (A, T, D)."""
        logits: Tensor = head.score(states) if states.dim() == 2 else head(inputs_embeds=states, **options).logits
        return logits

    def _build_output(self, steps: Steps, rule: ExitRule, slots: Tensor | None, real: Tensor) -> EarlyExitOutput:
        exits = steps.exit_steps
        execution = Execution(len(steps.rows), real.sum(dim=1), steps.widths, steps.rows, steps.computed)
        valid = torch.ones_like(exits, dtype=torch.bool)
        trace = DepthTrace("sequence", exits.float(), valid, self.max_updates, execution=execution)
        logits = select_predictions(rule, steps.logits, None, exits)
        return EarlyExitOutput(logits=logits, step_logits=steps.logits, exit_steps=exits, trace=trace)

    def _compute_losses(self, logits: Tensor, labels: Tensor, slots: Tensor | None) -> tuple[Tensor, Tensor]:
        return step_losses(self.config, logits, labels)

    def count_targets(self, batch: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Count the texts with a label, for every part of the loss."""
        return dict.fromkeys(("task", "distillation"), count_sequences(self.config, batch["labels"]))


class EarlyExitForTokenClassification(_Classifier):
    """A classifier of tokens."""

    mapping = MODEL_FOR_TOKEN_CLASSIFICATION_MAPPING

    def _find_slots(self, real: Tensor) -> Tensor:
        return real.flatten().nonzero().squeeze(1)

    def _get_reader(self, real: Tensor) -> Callable[..., Tensor]:
        return self.read

    def _build_output(self, steps: Steps, rule: ExitRule, slots: Tensor | None, real: Tensor) -> EarlyExitOutput:
        assert slots is not None
        execution = Execution(len(steps.rows), width=real.shape[1], computed=steps.computed)
        updates = _scatter(steps.exit_steps, slots, real.shape).float()
        trace = DepthTrace("token", updates, real, self.max_updates, execution=execution)
        return EarlyExitOutput(trace=trace, **build_unit_fields(steps, rule, slots, (len(real), real.shape[1])))

    def _compute_losses(self, logits: Tensor, labels: Tensor, slots: Tensor | None) -> tuple[Tensor, Tensor]:
        targets = labels.flatten()[slots]
        return class_losses(logits, targets)[0], target_weights(self.config, targets)

    def count_targets(self, batch: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Count the tokens with a label, for every part of the loss."""
        return dict.fromkeys(("task", "distillation"), target_weights(self.config, batch["labels"]).sum())


def _find_real_tokens(mask: Any, states: Tensor) -> Tensor:
    """Return which of the tokens (B, T, D) are no padding, boolean (B, T)."""
    if isinstance(mask, Tensor) and mask.dim() == 2:
        return mask[:, -states.shape[1] :].bool()
    return torch.ones(states.shape[:2], dtype=torch.bool, device=states.device)


def _sum_weighted(losses: Tensor, weights: list[float]) -> Tensor:
    """Return the weighted sum of the losses of exits, (K, n), without a tensor of weights from the host."""
    return torch.stack([weight * loss for weight, loss in zip(weights, losses.unbind(dim=1), strict=False)]).sum(dim=0)


def _scatter(values: Tensor, slots: Tensor, shape: Sequence[int]) -> Tensor:
    """Return a table (B, T, ...) of the values (K, ...) of some tokens, and 0 elsewhere."""
    table = values.new_zeros(shape[0] * shape[1], *values.shape[1:])
    return table.index_copy(0, slots, values).unflatten(0, tuple(shape))
