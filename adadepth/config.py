"""Typed schema of every public key. YAML files and the command line fill it; a wrong key or type fails at composition.

Five groups say what may change a RESULT (``model``, ``dataset``, ``tokenizer``, ``trainer`` and ``seed``); ``runtime``,
``logger`` and the paths may only change speed and where things are written (see ``result_hash``). This module imports
neither torch nor transformers, so composing and checking a configuration takes a fraction of a second.
"""

import dataclasses
import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from hydra.core.config_store import ConfigStore
from omegaconf import MISSING, DictConfig, OmegaConf

# Enumerations: the member's name is what a YAML file or the command line says, and equals its value.
Task = StrEnum("Task", ["pretrain", "finetune", "language_model", "architecture_search"])
Mode = StrEnum("Mode", ["train", "evaluate", "report"])
PenaltyReduction = StrEnum("PenaltyReduction", ["sum_tokens", "mean_tokens"])
CapRemainder = StrEnum("CapRemainder", ["reference", "penalty", "forced"])
StateRule = StrEnum("StateRule", ["single", "graves", "accumulated", "basic"])
HaltingInput = StrEnum("HaltingInput", ["block_output", "block_input"])
HaltingScope = StrEnum("HaltingScope", ["token", "sequence"])
Execution = StrEnum("Execution", ["auto", "dense", "ragged"])
PositionInit = StrEnum("PositionInit", ["normal", "sinusoidal"])
Normalisation = StrEnum("Normalisation", ["sum", "mean_over_steps"])
KLDirection = StrEnum("KLDirection", ["posterior_prior", "prior_posterior"])
Prior = StrEnum("Prior", ["geometric", "uniform"])
Truncation = StrEnum("Truncation", ["renormalise", "leftover", "none"])
Readout = StrEnum("Readout", ["tokens", "pooler"])
HaltingHead = StrEnum("HaltingHead", ["mlp", "linear", "linear_cat", "linear_diff"])
DoubleCls = StrEnum("DoubleCls", ["first", "both"])
ExitWeights = StrEnum("ExitWeights", ["linear", "uniform"])
Cell = StrEnum("Cell", ["tanh", "gru"])
Mix = StrEnum("Mix", ["projected", "scalar"])
Head = StrEnum("Head", ["attention", "linear"])
AttentionScale = StrEnum("AttentionScale", ["sqrt", "linear"])
OutputActivation = StrEnum("OutputActivation", ["none", "relu"])
BranchNorm = StrEnum("BranchNorm", ["per_branch", "paper"])
SearchMethod = StrEnum("SearchMethod", ["joint", "two_phase"])
GatePath = StrEnum("GatePath", ["soft", "sampled"])
TauSchedule = StrEnum("TauSchedule", ["exponential", "linear", "cosine"])
Costs = StrEnum("Costs", ["measured", "macs"])
Stage = StrEnum("Stage", ["search", "derive", "retrain", "compare"])
RetrainFrom = StrEnum("RetrainFrom", ["scratch", "supernet"])
BaselineArchitecture = StrEnum("BaselineArchitecture", ["alternating", "paper_rule", "sandwich", "random"])
Activation = StrEnum("Activation", ["gelu", "gelu_new", "gelu_pytorch_tanh", "relu", "silu"])
Attention = StrEnum("Attention", ["eager", "sdpa", "flash_attention_2", "flex_attention"])
Source = StrEnum("Source", ["embedded", "local", "hub"])
Problem = StrEnum("Problem", ["classification", "regression"])
Representation = StrEnum("Representation", ["vectors", "tokens"])
Counted = StrEnum("Counted", ["nonzero", "positive"])
LabelledUnit = StrEnum("LabelledUnit", ["token", "sequence"])
Separator = StrEnum("Separator", ["auto", "blank_line", "file", "line", "heading"])
TokenizerKind = StrEnum("TokenizerKind", ["unigram", "word", "byte"])
Optimizer = StrEnum("Optimizer", ["adamw", "lamb"])
Schedule = StrEnum("Schedule", ["linear", "reference_linear", "constant", "cosine", "plateau"])
Precision = StrEnum("Precision", ["auto", "bf16", "fp16", "fp32"])
StatePrecision = StrEnum("StatePrecision", ["fp32", "bf16", "fp16"])
EvalStrategy = StrEnum("EvalStrategy", ["no", "steps", "epoch"])
SaveStrategy = StrEnum("SaveStrategy", ["no", "steps", "epoch", "best"])
BudgetUnit = StrEnum("BudgetUnit", ["updates", "macs", "deepest_layer", "expected_layer", "milliseconds"])
Sink = StrEnum("Sink", ["none", "wandb", "tensorboard"])
WandbMode = StrEnum("WandbMode", ["offline", "online", "disabled"])


@dataclass
class ModelConfig:
    """What every family has: a name from the registry of families, and where to start from."""

    name: str = MISSING  # family, e.g. albert_act
    pretrained: str | None = None  # folder or hub id whose weights are loaded before training


@dataclass
class AlbertModelConfig(ModelConfig):
    """Plain ALBERT (Lan et al. 2020), every layer of it: the baseline, and the geometry of the families built on it.

    Sizes left at null are those of ``pretrained``, or ALBERT's own where there is none.
    """

    name: str = "albert"  # the family
    vocab_size: int | None = None  # None: as many as the tokenizer has
    embedding_size: int | None = None  # E, width of the factorised embeddings
    hidden_size: int | None = None  # H, width of the block
    num_hidden_layers: int | None = None  # L, most iterations of the shared block
    num_attention_heads: int | None = None  # must divide hidden_size
    intermediate_size: int | None = None  # F, inner width of the feed-forward part
    hidden_act: Activation | None = None  # of the feed-forward part
    hidden_dropout_prob: float = 0.0  # after the embeddings, the attention and the feed-forward part
    attention_probs_dropout_prob: float = 0.0  # on the attention weights
    classifier_dropout_prob: float = 0.1  # before a classification head
    max_position_embeddings: int | None = None  # longest sequence the model can read, in tokens
    initializer_range: float = 0.02  # standard deviation of the initial weights
    layer_norm_eps: float = 1e-12  # added to the variance
    attn_implementation: Attention | None = None  # None: the best that torch offers here


@dataclass
class AlbertActModelConfig(AlbertModelConfig):
    """ACT-ALBERT: one shared ALBERT block applied until every token has halted (Simoulin & Crabbé 2021)."""

    name: str = "albert_act"  # the family
    act_epsilon: float = 0.01  # a token halts when its summed probability exceeds 1 - act_epsilon
    act_penalty: float = 1e-3  # tau, weight of the ponder cost N + R in the loss
    readout_weight: float = 0.0  # of the loss that reads the head after every iteration; 0: only the last one is read
    penalty_reduction: PenaltyReduction = PenaltyReduction.sum_tokens  # over tokens; always a mean over sequences
    cap_remainder: CapRemainder = CapRemainder.reference  # what a token that reaches L without halting pays and weighs
    state_rule: StateRule = StateRule.single  # how the iterations' states are mixed
    halting_input: HaltingInput = HaltingInput.block_output  # what the halting unit reads
    halting_scope: HaltingScope = HaltingScope.token  # one decision a token, or one a sequence
    halt_bias_init: float = 0.0  # initial halting bias; negative starts deep, positive starts shallow
    recall: bool = False  # the block reads the embedded input again in every iteration
    fixed_depth: int | None = None  # updates of every token, and nobody halts: the rival of equal work
    position_init: PositionInit = PositionInit.normal  # initial position embeddings; sinusoidal: neighbours are alike
    execution: Execution = Execution.auto  # update all tokens until the last has halted, or running ones only


@dataclass
class PonderSettings:
    """The halting distribution of PonderNet (Banino et al. 2021), whatever computes the steps."""

    prior: Prior = Prior.geometric  # what the distribution is drawn to; uniform keeps all steps in training (Ouro)
    target_halt_probability: float | None = None  # of the geometric prior, with a mean of about its inverse; None: 0.1
    kl_penalty_factor: float = 0.01  # beta, weight of the divergence from the prior
    kl_direction: KLDirection = KLDirection.posterior_prior  # KL(p || prior), PonderNet's; the other is PALBERT's
    truncation: Truncation = Truncation.leftover  # what becomes of the mass beyond the last step
    halt_bias_init: float = 0.0  # initial halting bias; negative starts deep, positive starts shallow
    exit_rule: str = "quantile:0.5"  # which step's prediction counts; docs/exit_rules.md lists the rules


@dataclass
class PonderAlbertModelConfig(PonderSettings, AlbertModelConfig):
    """PonderALBERT: a halting distribution over the iterations of ALBERT's block, one a sequence."""

    name: str = "ponder_albert"  # the family
    ce_normalisation: Normalisation = Normalisation.sum  # mean_over_steps divides the expected loss by the steps too
    readout: Readout = Readout.tokens  # heads read the two [CLS] (PonderALBERT), or the pooled first one (PALBERT)
    halting_head: HaltingHead = HaltingHead.mlp  # linear_cat, linear_diff: PALBERT's, on consecutive states
    halting_head_layers: int = 1  # PALBERT's k: k > 1 puts k tanh layers before linear_cat
    head_size: int = 128  # inner width of the MLP heads
    double_cls_pairs: DoubleCls = DoubleCls.first  # where a pair gets the second [CLS]


@dataclass
class MultiExitAlbertModelConfig(AlbertModelConfig):
    """ALBERT with a classifier at every iteration, trained jointly (PABEE, Zhou et al. 2020): a baseline."""

    name: str = "multi_exit_albert"  # the family
    exit_weights: ExitWeights = ExitWeights.linear  # of the steps' losses: their number (PABEE), or equal
    exit_rule: str = "patience:3"  # which step's prediction counts; docs/exit_rules.md lists the rules


@dataclass
class PonderRnnModelConfig(PonderSettings, ModelConfig):
    """The recurrent cell of PonderNet's parity experiment."""

    name: str = "ponder_rnn"  # the family
    hidden_size: int = 128  # units of the cell
    num_steps: int = 20  # N, most steps
    cell: Cell = Cell.tanh  # the papers' cell, or a gated one


@dataclass
class AdaLayersModelConfig(ModelConfig):
    """Adalayers (Dremov 2024): a learned distribution over the layers of a frozen transformer feeds a small head."""

    name: str = "adalayers"  # the family
    base_model: str = MISSING  # the transformer: folder, hub id, or package:NAME/FOLDER
    base_revision: str | None = None  # of a hub id: branch, tag or commit
    freeze_base_model: bool = True  # false: fine-tune it as well
    save_base: bool = False  # also save a frozen base, which is otherwise named and checked by its hash
    include_embeddings: bool = True  # whether the embeddings' output counts as a layer
    layers_num: int | None = None  # with seed_compat: only the first so many states; None: all of the base's
    mix: Mix = Mix.projected  # the weighted sum is of projected states (Adalayers) or of raw ones (ELMo's scalar mix)
    project_dim: int = 128  # k, width of the head
    alpha_distribution: float = 10.0  # the weights are softmax(alpha p)
    distribution_cutoff: float = 0.0  # weights up to this are 0; below 1 / layers
    cutoff_warmup_steps: int = 0  # updates before the cutoff begins: a layer once cut rarely returns
    topk_distribution: int | None = None  # most layers with weight
    lambda_distribution_entropy: float = 0.0  # weight of the weights' entropy in the loss; positive sharpens
    lambda_distribution_depth: float = 0.0  # weight of the expected depth, as a share of the base's, in the loss
    freeze_distribution: bool = False  # keep the uniform weights
    pick_one_layer_only: int | None = None  # all weight on one layer: its number, negative from the end
    distribution_lr_multiplier: float = 1.0  # learning rate of p over that of the head
    head: Head = Head.attention  # what reads the mix: attention, or a linear probe
    attention_heads_num: int = 16  # must divide project_dim
    attention_layers_num: int = 1  # encoder layers of a tagging head
    dim_feedforward: int = 1024  # their inner width
    attention_dropout_prob: float | None = 0.1  # on projections, positions and head
    add_pos_embeddings: bool = False  # sinusoidal positions before the head
    classes_weights: list[float] | None = None  # of the classes in the loss
    focal_loss_enabled: bool = False  # tagging: alpha (1 - p)^gamma weighs the loss of each word
    focal_loss_gamma: float = 2.0  # gamma
    focal_loss_alpha: float = 0.25  # alpha
    seed_compat: bool = False  # the original's slips that change numbers: docs/adalayers.md lists them
    attn_implementation: Attention | None = None  # of the base; None: the best that torch offers here


@dataclass
class ParXLModelConfig(ModelConfig):
    """PAR-XL: a Transformer-XL whose blocks attend, feed forward or vanish (Mandava et al. 2020)."""

    name: str = "par_xl"  # the family
    architecture: str | None = None  # one of s, f and - for every block; None: the supernet, which has all of them
    vocab_size: int | None = None  # None: as many as the tokenizer has
    hidden_size: int = 128  # d, width of the blocks
    num_hidden_layers: int = 6  # N, blocks of the supernet; an architecture has as many as it has characters
    num_attention_heads: int = 4  # must divide hidden_size
    intermediate_size: int = 512  # inner width of the feed-forward blocks
    hidden_act: Activation = Activation.relu  # of the feed-forward blocks
    memory_length: int = 16  # M, positions before the segment that attention sees
    cutoffs: list[int] = field(default_factory=list)  # of the adaptive softmax: where rarer words begin; []: none
    proj_factor: int = 4  # each cluster of rarer words is so many times narrower
    softmax_bias: bool = False  # biases of the output layer
    tie_word_embeddings: bool = False  # one matrix for input and output words
    hidden_dropout_prob: float = 0.1  # after the embeddings and every branch, and before the output layer
    attention_probs_dropout_prob: float = 0.0  # on the attention weights
    activation_dropout_prob: float = 0.0  # inside the feed-forward blocks
    attention_scale: AttentionScale = AttentionScale.sqrt  # scores are divided by sqrt(d / heads); linear: the original
    attention_out_act: OutputActivation = OutputActivation.none  # after attention's last projection; relu: the original
    branch_norm: BranchNorm = BranchNorm.per_branch  # a norm in each branch, or one after their mixture
    share_position_bias: bool = True  # u and v are the same in all blocks (Transformer-XL)
    projection_bias: bool = False  # biases in attention's projections
    layer_norm_eps: float = 1e-5  # added to the variance
    initializer_range: float = 0.02  # standard deviation of the initial weights
    attn_implementation: Attention | None = None  # None: the best that torch offers here


@dataclass
class MaskingConfig:
    """Masked-language-model corruption (ALBERT: n-grams of whole words, favouring short ones)."""

    probability: float = 0.15  # share of the tokens selected for prediction
    max_predictions: int | None = 20  # most selected tokens a sequence; None: no limit
    max_ngram: int = 3  # longest masked n-gram, in words; length n is drawn with weight 1/n
    mask_share: float = 0.8  # of the selected: replaced by [MASK]
    random_share: float = 0.1  # of the selected: replaced by a random token; the rest is kept
    whole_word: bool = True  # select all pieces of a word together


@dataclass
class DatasetConfig:
    """What every data set has."""

    name: str = MISSING  # shown in reports
    sequence_length: int = 128  # tokens, including [CLS] and [SEP] where there are any
    cache_dir: str | None = None  # prepared data; None: the user's cache folder


@dataclass
class ExamplesConfig(DatasetConfig):
    """Data that consist of examples, in any order."""

    max_evaluation_examples: int | None = 2000  # None: all
    pad_to_length: bool = False  # pad every batch to sequence_length: fixed shapes for compiled runs


@dataclass
class TextConfig(DatasetConfig):
    """Running text, wherever it is."""

    source: Source = Source.embedded  # Python's own documentation, local files, or data sets of the hub
    path: Any = None  # local: a file, a folder, a glob, or a list of these (text, jsonl, parquet)
    hub: list[dict[str, Any]] = field(default_factory=list)  # hub: entries {path, name, split, rows_per_document}
    text_column: str = "text"  # for jsonl, parquet and hub data
    evaluation_path: Any = None  # local held-out text; None: a part of the text is set aside
    evaluation_fraction: float = 0.05  # share of the text set aside


@dataclass
class StreamConfig(TextConfig):
    """Text as contiguous streams, read from beginning to end by a model that remembers."""

    test_path: Any = None  # local: a further text that selects nothing
    evaluation_hub: list[dict[str, Any]] = field(default_factory=list)  # hub: entries like those of `hub`
    test_hub: list[dict[str, Any]] = field(default_factory=list)  # hub: entries like those of `hub`
    append_eos: bool = True  # a token after every line; without it blank lines vanish
    evaluation_length: int | None = None  # tokens of a segment in evaluation; None: sequence_length
    max_evaluation_tokens: int | None = None  # use only the first so many; None: all


@dataclass
class CorpusConfig(TextConfig, ExamplesConfig):
    """A pretraining corpus and how examples are cut from it."""

    document_separator: Separator = Separator.auto  # what ends a document in plain text
    streaming: bool = False  # read hub or local data while training instead of preparing it
    shuffle_buffer: int = 10000  # examples, streaming only
    max_documents: int | None = None  # use only the first documents
    short_sequence_probability: float = 0.1  # share of examples cut to a random shorter length
    sentence_order: bool = True  # build segment pairs, half of them swapped
    masking: MaskingConfig = field(default_factory=MaskingConfig)  # which tokens are predicted


@dataclass
class HubTable:
    """A data set of the hub."""

    path: str | None = None  # its name there, or a local folder in its layout
    name: str | None = None  # of one of its configurations


@dataclass
class TableConfig(ExamplesConfig):
    """Rows of a table, whatever is to be predicted of them."""

    source: Source = Source.hub  # a data set of the hub, local files, or sentences of Python's own documentation
    path: Any = None  # local: a folder with {train,validation,test}.{parquet,jsonl,...}, or a mapping split: file
    hub: HubTable = field(default_factory=HubTable)  # with source=hub
    labels: list[str] | None = None  # names of the classes or tags in order; None: those of the data
    metrics: list[str] = field(default_factory=lambda: ["accuracy"])  # the task's; eval/score is their mean
    train_split: str = "train"  # its name in the data
    evaluation_splits: list[str] = field(default_factory=lambda: ["validation"])  # the first one selects the model
    held_out: float | None = None  # share of the training rows set aside as the evaluation split held_out
    max_train_examples: int | None = None  # use only so many, evenly spread over the data


@dataclass
class LabelledConfig(TableConfig):
    """Sentences or pairs of sentences with a class or a value: GLUE's tasks, and any table of that shape."""

    text_columns: list[str] = field(default_factory=lambda: ["sentence"])  # one, or two for pairs
    label_column: str = "label"  # a class number, a class name, or a value
    problem: Problem = Problem.classification  # of classes, or of one value
    test_splits: list[str] = field(default_factory=lambda: ["test"])  # without labels, for submission; may be absent
    submission: list[str] = field(default_factory=list)  # GLUE's file names, one a test split


@dataclass
class TaggingConfig(TableConfig):
    """Sentences as lists of words with a tag each: named entities, parts of speech."""

    token_column: str = "tokens"  # lists of words
    tag_column: str = "ner_tags"  # lists of tags: class numbers or names
    metrics: list[str] = field(default_factory=lambda: ["entity_f1"])  # token_accuracy where tags mark no entities


@dataclass
class QuestionConfig(TableConfig):
    """Questions about a text that holds their answers, in the columns of SQuAD (Rajpurkar et al. 2016, 2018)."""

    sequence_length: int = 384  # tokens of a window: the question and a part of its context
    question_column: str = "question"  # texts
    context_column: str = "context"  # texts
    answers_column: str = "answers"  # {text: [...], answer_start: [...]}: texts, and their first characters
    id_column: str | None = "id"  # in predictions; None: the row's number
    stride: int = 128  # context tokens from the beginning of a window to that of the next one
    max_question_length: int = 64  # tokens; longer questions are cut
    max_answer_length: int = 30  # tokens; longer spans are not predicted
    n_best: int = 20  # starts and ends of a window that are combined to spans
    unanswerable: bool = False  # questions may have no answer, which is then predicted at [CLS]
    null_score_threshold: float = 0.0  # no answer where its score exceeds the best span's by more
    metrics: list[str] = field(default_factory=lambda: ["exact_match", "f1"])  # as SQuAD's script defines them


@dataclass
class ChoiceConfig(TableConfig):
    """One of several endings of a text, in columns of their own: SWAG (Zellers et al. 2018)."""

    context_columns: list[str] = field(default_factory=lambda: ["sent1", "sent2"])  # a text; the second begins endings
    ending_columns: list[str] = field(default_factory=lambda: [f"ending{number}" for number in range(4)])  # the choices
    label_column: str = "label"  # number of the right ending from 0 on, or its name in labels


@dataclass
class GeneratedConfig(ExamplesConfig):
    """Examples that are drawn afresh in every epoch, and of which it is known how much computing a unit needs."""

    train_examples: int = 100000  # an epoch


@dataclass
class ParityConfig(GeneratedConfig):
    """Is the number of ones odd? The task of ACT (Graves 2016) and PonderNet."""

    representation: Representation = Representation.vectors  # for a recurrent cell, or as tokens
    size: int = 64  # values, each 0, 1 or -1
    train_ones: list[int] = field(default_factory=lambda: [1, 64])  # lowest and highest number of ones
    easy_epochs: int = 0  # epochs at first in which no training example has more ones than easy_ones
    easy_ones: int | None = None  # with easy_epochs: easy examples first make hard ones learnable sooner
    extrapolation_ones: list[int] | None = None  # also evaluated: a range that training does not see
    counted: Counted = Counted.nonzero  # whether -1 counts as a one


@dataclass
class FieldConfig(GeneratedConfig):
    """Generated examples that lie at a random place of a larger field, so that larger ones can be read as well."""

    field: int = 16  # positions along each side; the model needs as many


@dataclass
class MazeConfig(FieldConfig):
    """Can a cell be reached from the start? A cell's difficulty is its distance."""

    size: int = 8  # cells along each side
    walls: float = 0.4  # share of cells that are walls
    beyond_sizes: list[int] = field(default_factory=lambda: [12])  # also evaluated: sizes that training does not see


@dataclass
class HopsConfig(GeneratedConfig):
    """Which colour do pointers lead to? A node's difficulty is how many pointers must be followed."""

    unit: LabelledUnit = LabelledUnit.token  # every node has a label, or the sequence has that of one marked node
    nodes: int = 16  # of an example
    colours: int = 4  # of the nodes that do not point to another
    train_hops: list[int] = field(default_factory=lambda: [0, 5])  # lowest and highest difficulty of labelled nodes
    beyond_hops: list[int] | None = field(default_factory=lambda: [6, 7])  # also evaluated: not seen in training


@dataclass
class AdditionConfig(FieldConfig):
    """The sum of two numbers, a column a token; a column's difficulty is how far away its carry is decided."""

    digits: int = 12  # of each number
    nines: float = 0.5  # share of columns whose digits sum to 9, which hand a carry on
    beyond_digits: list[int] = field(default_factory=lambda: [20])  # also evaluated: longer numbers


@dataclass
class TokenizerConfig:
    """An existing tokenizer, or one trained on the corpus."""

    path: str | None = None  # folder or hub id; None: train one
    kind: TokenizerKind = TokenizerKind.unigram  # pieces of words; streams of text also take whole words, or bytes
    vocab_size: int | None = 8000  # of a trained tokenizer; of words, None: all
    lowercase: bool = True  # of a trained tokenizer
    symbols: list[str] = field(default_factory=list)  # of a trained tokenizer: what is never taken apart
    train_documents: int | None = None  # train on the first documents only


@dataclass
class TrainerConfig:
    """Fields of ``transformers.TrainingArguments`` under their own names, then adadepth's own."""

    max_steps: int = 300  # optimizer updates; -1: num_train_epochs decides
    num_train_epochs: float = 3.0  # with max_steps=-1
    per_device_train_batch_size: int = 16  # sequences a device and micro-batch
    per_device_eval_batch_size: int = 32  # sequences a device
    gradient_accumulation_steps: int = 1  # micro-batches an update
    learning_rate: float = 1e-3  # peak
    weight_decay: float = 0.01  # not on biases and layer norms
    adam_beta1: float = 0.9  # decay of the first moment, of either optimizer
    adam_beta2: float = 0.999  # decay of the second moment
    adam_epsilon: float = 1e-6  # added to the root of the second moment
    max_grad_norm: float = 1.0  # global norm, clipped once per update; 0: no clipping
    warmup_steps: float = 0  # updates; below 1: share of all updates
    logging_steps: int = 10  # updates between two lines of training metrics
    eval_strategy: EvalStrategy = EvalStrategy.steps  # evaluate every eval_steps updates, every epoch, or never
    eval_steps: int | None = 100  # updates
    eval_on_start: bool = True  # also evaluates the untrained model: its depth explains collapsed runs
    save_strategy: SaveStrategy = SaveStrategy.steps  # best: whenever the best metric improves
    save_steps: int = 100  # updates; a multiple of eval_steps if the best model is loaded at the end
    save_total_limit: int | None = 2  # the best checkpoint is always among those kept
    load_best_model_at_end: bool = True  # report and keep the best evaluated weights, not the last
    metric_for_best_model: str | None = "eval_loss"  # under the name transformers knows
    greater_is_better: bool | None = False  # of metric_for_best_model
    tf32: bool | None = None  # Ampere and later; None: torch's default
    gradient_checkpointing: bool = False  # recompute the block in the backward pass
    torch_compile_backend: str | None = None  # with runtime.compile
    torch_compile_mode: str | None = None  # with runtime.compile
    ddp_backend: str | None = None  # None: nccl on GPUs, gloo on CPUs
    ddp_find_unused_parameters: bool | None = False  # True hides parameters that never train
    ddp_bucket_cap_mb: int | None = None  # size of a gradient bucket
    ddp_broadcast_buffers: bool | None = None  # None: unless gradients are checkpointed
    ddp_timeout: int = 1800  # seconds
    fsdp: bool = False  # shard parameters over processes
    fsdp_config: Any = None  # FSDP's own settings: a JSON file or a mapping
    deepspeed: Any = None  # a DeepSpeed configuration: a JSON file or a mapping
    dataloader_drop_last: bool = False  # leave out an incomplete last batch
    dataloader_pin_memory: bool = True  # faster copies to a GPU
    dataloader_persistent_workers: bool = False  # keep workers from one epoch to the next
    dataloader_prefetch_factor: int | None = None  # batches a worker, with runtime.num_workers > 0
    full_determinism: bool = False  # slower kernels, the same bits
    use_cpu: bool = False  # ignore GPUs
    disable_tqdm: bool | None = None  # None: a bar where there is a terminal
    # adadepth's own
    optimizer: Optimizer = Optimizer.adamw  # lamb: the published recipe's
    schedule: Schedule = Schedule.linear  # reference_linear decays from step 0; plateau when the metric stops improving
    plateau_patience: int | None = None  # evaluations without improvement before the rate is halved
    plateau_min_lr: float = 1e-6  # lowest rate of schedule=plateau
    precision: Precision = Precision.auto  # auto: bf16 where supported, else fp16 on a GPU, else fp32
    time_budget_minutes: float | None = None  # stop, save and evaluate when it is spent
    early_stopping_patience: int | None = None  # evaluations without improvement before stopping
    early_stopping_threshold: float = 0.0  # what counts as improvement
    halting_statistics: bool = True  # depth per token class at every evaluation


@dataclass
class LoggerConfig:
    """Where metrics go besides ``metrics.jsonl``, which is always written."""

    name: Sink = Sink.none  # the second place
    project: str = "adadepth"  # W&B
    entity: str | None = None  # W&B team or user
    group: str | None = None  # W&B; None: the experiment's name
    tags: list[str] = field(default_factory=list)  # W&B
    mode: WandbMode = WandbMode.offline  # W&B; offline runs are uploaded later with `wandb sync`


@dataclass
class RuntimeConfig:
    """Settings that may change the speed but never the result."""

    num_workers: int = 0  # data loading processes
    compile: bool = False  # torch.compile
    threads: int | None = None  # CPU threads of torch; None: torch's default
    offline: bool = False  # never look at the hub: a missing name fails at once


@dataclass
class FeaturesConfig:
    """Hidden states of a frozen base, computed once and read again in every epoch, run and seed."""

    cache: bool = True  # false: run the base in every epoch
    precision: StatePrecision = StatePrecision.fp32  # of the stored states; fp16 and bf16 halve the disk space
    limit_gib: float = 100.0  # refuse to write more
    batch_tokens: int = 8192  # padded tokens at once while computing


@dataclass
class HaltingConfig:
    """A second stage of training: a trained model stays as it is, and its halting head alone learns when to stop."""

    alone: bool = False  # train nothing but the halting head of the model that model.pretrained names
    slope: float = 20.0  # how sharply the target turns from halting to going on
    threshold: float = 0.1  # of the loss: what the best further step must save to be worth it


@dataclass
class ContextConfig:
    """What attention sees in evaluation, where that differs from training."""

    memory_length: int | None = None  # positions before the segment; None: the model's
    clamp_length: int | None = None  # distances beyond count as this one; None: no limit
    same_length: bool = False  # every position sees as many others, as the first one does


@dataclass
class SearchConfig:
    """How a supernet's blocks choose their operation, and what becomes of the choice."""

    method: SearchMethod = SearchMethod.joint  # gates with the weights on the same data, or in turns on held-out data
    path: GatePath = GatePath.soft  # run all branches and mix them, or one drawn branch a block
    straight_through: bool = False  # forward the largest gate alone, backward the soft ones
    tau_start: float = 1.0  # temperature of the gates in the first update
    tau_end: float = 0.1  # and in the last one
    tau_schedule: TauSchedule = TauSchedule.exponential  # how it falls
    gate_learning_rate: float | None = None  # constant; None: that of the weights, which two_phase does not allow
    gate_weight_decay: float = 0.0  # of the gates
    gate_beta1: float = 0.9  # decay of the gates' first moment
    weights_only: float = 0.25  # two_phase: updates before the gates learn; below 1: share of all updates
    architecture_share: float = 0.2  # two_phase: of the text and of the updates, for the gates
    latency_weight: float = 0.0  # weight of the expected time, as a multiple of the alternating network's, in the loss
    latency_costs: Costs = Costs.measured  # time of a block on this machine, or its multiply-accumulates
    sampled_paths: int = 4  # evaluated paths drawn from the gates
    seed_evaluation: bool = False  # also evaluate as the original did: noisy gates, mean of the batches' perplexities
    stages: list[Stage] = field(default_factory=lambda: list(Stage))  # those already done are not done again
    retrain_from: RetrainFrom = RetrainFrom.scratch  # the derived network's initial weights
    retrain_steps: int | None = None  # updates of each retrained network; None: trainer.max_steps
    baselines: list[BaselineArchitecture] = field(default_factory=lambda: list(BaselineArchitecture))  # retrained too
    paper_ratio: int = 5  # paper_rule: one attention block in so many
    shapes: list[list[int]] = field(default_factory=list)  # [length, memory, batch] of costs; the first makes baselines
    timing_repeats: int = 20  # runs of which a latency is the median


@dataclass
class BudgetConfig:
    """Depth as something one sets: a mean that training holds, instead of a penalty whose outcome nobody knows."""

    target: float | None = None  # mean depth of a unit, in `unit`; None: no budget
    unit: BudgetUnit = BudgetUnit.updates  # of a token or sequence; docs/budget.md lists the others
    grow: float = 0.0  # share of all updates, at first, in which nobody halts and depth grows from `grow_from` to full
    grow_from: int = 2  # updates of everybody in the first of them
    hold: float = 0.15  # share of all updates at full depth after that
    ramp: float = 0.25  # share of all updates on the way from full depth to `target`
    gain: float = 1.0  # how hard the controller pulls
    targets: list[float] = field(default_factory=list)  # mode=evaluate: fit the checkpoint to each of these, in `unit`


@dataclass
class ExperimentConfig:
    """One experiment: the root of every configuration."""

    name: str = MISSING  # folder under output_dir
    task: Task = Task.pretrain  # what is trained or evaluated
    mode: Mode = Mode.train  # train, evaluate a checkpoint, or write a run's report again
    seed: int = 0  # of everything random: weights, data order, masking, dropout
    model: ModelConfig = MISSING  # group model/
    dataset: DatasetConfig = MISSING  # group dataset/
    tokenizer: TokenizerConfig = MISSING  # group tokenizer/
    trainer: TrainerConfig = MISSING  # group trainer/
    logger: LoggerConfig = MISSING  # group logger/
    features: FeaturesConfig = field(default_factory=FeaturesConfig)  # with model=adalayers_*: what is not run again
    budget: BudgetConfig = field(default_factory=BudgetConfig)  # group budget/: a mean depth to hold
    halting: HaltingConfig = field(default_factory=HaltingConfig)  # with model=ponder_*: its head in a second stage
    search: SearchConfig = field(default_factory=SearchConfig)  # of a PAR-XL architecture
    context: ContextConfig = field(default_factory=ContextConfig)  # of attention in the evaluation of a language model
    runtime: RuntimeConfig = field(default_factory=RuntimeConfig)  # speed only
    seeds: int = 1  # runs with as many consecutive seeds; above 1 the metrics are means over them
    exit_rules: list[str] = field(default_factory=list)  # mode=evaluate: compare these on one checkpoint; [all]
    optimise: str = "eval/loss"  # metric a sweep optimises; what the run returns
    checkpoint: str | None = None  # mode=evaluate: a run directory, one of its checkpoints, `latest`, or a hub id
    run: str | None = None  # mode=report: a run directory, or `latest`
    rival_of: str | None = None  # train the network of one depth and as much work as that run: a directory, or `latest`
    resume: str | None = None  # continue a run: its directory, or `latest`
    output_dir: str = "outputs"  # relative to where the command runs


MODEL_SCHEMAS: dict[str, type[ModelConfig]] = {
    schema.name: schema
    for schema in (
        AdaLayersModelConfig,
        AlbertActModelConfig,
        AlbertModelConfig,
        MultiExitAlbertModelConfig,
        ParXLModelConfig,
        PonderAlbertModelConfig,
        PonderRnnModelConfig,
    )
}
DATASET_SCHEMAS: dict[str, type[DatasetConfig]] = {
    "addition_task": AdditionConfig,
    "corpus": CorpusConfig,
    "hops_task": HopsConfig,
    "labelled": LabelledConfig,
    "maze_task": MazeConfig,
    "multiple_choice": ChoiceConfig,
    "parity_task": ParityConfig,
    "question_answering": QuestionConfig,
    "stream": StreamConfig,
    "tagging": TaggingConfig,
}


def labels_tokens(dataset: DatasetConfig) -> bool:
    """Whether every token, or every word, of a sequence has a label, and not the sequence."""
    if isinstance(dataset, HopsConfig):
        return dataset.unit is LabelledUnit.token
    return isinstance(dataset, TaggingConfig | MazeConfig | AdditionConfig)


def positions_read(dataset: DatasetConfig) -> tuple[str, int]:
    """The setting that says how many positions a model must know, and its value."""
    if isinstance(dataset, FieldConfig):
        return "dataset.field", dataset.field
    return "dataset.sequence_length", dataset.sequence_length


# Trainer settings that transformers does not have; adadepth.training translates them.
OWN_TRAINER_FIELDS = frozenset({
    "optimizer", "schedule", "plateau_patience", "plateau_min_lr", "precision", "time_budget_minutes",
    "early_stopping_patience", "early_stopping_threshold", "halting_statistics",
})  # fmt: skip

# Trainer settings that change speed, memory or what is written, not the weights a run arrives at.
_NEUTRAL_TRAINER_FIELDS = frozenset({
    "logging_steps", "save_total_limit", "disable_tqdm", "per_device_eval_batch_size", "halting_statistics",
    "ddp_backend", "ddp_timeout", "ddp_bucket_cap_mb", "ddp_find_unused_parameters", "gradient_checkpointing",
    "torch_compile_backend", "torch_compile_mode", "dataloader_pin_memory", "dataloader_persistent_workers",
    "dataloader_prefetch_factor",
})  # fmt: skip


def register_schema() -> None:
    """Store the schemas under the names YAML files extend: ``schema`` at the root, others in their group."""
    store = ConfigStore.instance()
    store.store(name="schema", node=ExperimentConfig)
    for group, schemas in (("model", MODEL_SCHEMAS), ("dataset", DATASET_SCHEMAS)):
        for name, node in schemas.items():
            store.store(group=group, name=name, node=node)


def to_config(composed: DictConfig) -> ExperimentConfig:
    """Resolve a composed configuration into plain typed objects; raises OmegaConf's errors for missing values."""
    config = OmegaConf.to_object(composed)
    assert isinstance(config, ExperimentConfig), "the root configuration must extend the schema"
    return config


def borrowed_arguments(trainer: TrainerConfig) -> dict[str, Any]:
    """Return the settings that are ``transformers.TrainingArguments`` fields, by name."""
    values = dataclasses.asdict(trainer)
    return {name: value for name, value in values.items() if name not in OWN_TRAINER_FIELDS}


_RESULT_KEYS = (
    "task", "mode", "seed", "seeds", "exit_rules", "model", "dataset", "tokenizer", "features", "budget", "halting",
    "search", "context", "trainer",
)  # fmt: skip


def result_settings(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Select from a configuration, as nested dictionaries, what may change a result."""
    relevant = {key: settings[key] for key in _RESULT_KEYS if key in settings}  # an older run may lack a newer one
    neutral = {
        "dataset": {"cache_dir"},
        "features": {"limit_gib"},
        "search": {"stages", "timing_repeats"},
        "trainer": _NEUTRAL_TRAINER_FIELDS,
    }
    for section, names in neutral.items():
        if section not in relevant:
            continue
        relevant[section] = {name: value for name, value in relevant[section].items() if name not in names}
    return relevant


def result_hash(config: ExperimentConfig) -> str:
    """Hash (8 hexadecimal digits) of the settings that may change a result; equal for equal experiments."""
    relevant = result_settings(dataclasses.asdict(config))
    return hashlib.sha256(json.dumps(relevant, sort_keys=True).encode()).hexdigest()[:8]
