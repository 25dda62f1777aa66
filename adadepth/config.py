"""Typed schema of every public key. YAML files and the command line fill it; a wrong key or type fails at composition.

Five groups say what may change a RESULT (``model``, ``dataset``, ``tokenizer``, ``trainer`` and ``seed``); ``runtime``,
``logger`` and the paths may only change speed and where things are written (see ``adadepth.results``). This module
imports neither torch nor transformers, so composing and checking a configuration takes a fraction of a second.
"""

from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from adadepth.choices import TauSchedule
from adadepth.declaration import (
    BELOW_ONE,
    FINITE,
    MISSING,
    OPEN_SHARE,
    POSITIVE,
    SHARE,
    Allowed,
    at_least,
    between,
    setting,
)

# Enumerations: the member's name is what a YAML file or the command line says, and equals its value.
Task = StrEnum("Task", ["pretrain", "finetune", "language_model", "architecture_search"])
Mode = StrEnum("Mode", ["train", "evaluate", "predict", "probe", "report"])
SearchMethod = StrEnum("SearchMethod", ["joint", "two_phase"])
GatePath = StrEnum("GatePath", ["soft", "sampled"])
Costs = StrEnum("Costs", ["measured", "macs"])
Stage = StrEnum("Stage", ["search", "derive", "retrain", "compare"])
RetrainFrom = StrEnum("RetrainFrom", ["scratch", "supernet"])
BaselineArchitecture = StrEnum("BaselineArchitecture", ["alternating", "paper_rule", "sandwich", "random"])
Activation = StrEnum("Activation", ["gelu", "gelu_new", "gelu_pytorch_tanh", "relu", "silu"])
Attention = StrEnum("Attention", ["eager", "sdpa", "flash_attention_2", "flex_attention"])
Source = StrEnum("Source", ["embedded", "local", "hub", "auto"])
Problem = StrEnum("Problem", ["classification", "regression"])
Representation = StrEnum("Representation", ["vectors", "tokens"])
Counted = StrEnum("Counted", ["nonzero", "positive"])
Symmetries = StrEnum("Symmetries", ["none", "sudoku", "square"])
CellCount = StrEnum("CellCount", ["givens", "path_length"])
LabelledUnit = StrEnum("LabelledUnit", ["token", "sequence"])
LabelledPieces = StrEnum("LabelledPieces", ["first", "all"])
Separator = StrEnum("Separator", ["auto", "blank_line", "file", "line", "heading"])
TokenizerKind = StrEnum("TokenizerKind", ["unigram", "word", "byte"])
Optimizer = StrEnum("Optimizer", ["adamw", "adam", "lamb"])
Schedule = StrEnum("Schedule", ["linear", "reference_linear", "constant", "cosine", "plateau"])
Precision = StrEnum("Precision", ["auto", "bf16", "fp16", "fp32"])
StatePrecision = StrEnum("StatePrecision", ["fp32", "bf16", "fp16"])
EvalStrategy = StrEnum("EvalStrategy", ["no", "steps", "epoch"])
SaveStrategy = StrEnum("SaveStrategy", ["no", "steps", "epoch", "best"])
BudgetUnit = StrEnum("BudgetUnit", ["updates", "macs", "deepest_layer", "expected_layer", "milliseconds"])
TrackerMode = StrEnum("TrackerMode", ["offline", "online", "disabled"])
Kept = StrEnum("Kept", ["report", "model"])

# Ranges of one setting each.
_SEED = Allowed(lambda value: 0 <= value < 2**32, "from 0 to 2^32 - 1")
_UPDATES = Allowed(lambda value: value == -1 or value >= 1, "at least 1, or -1 for num_train_epochs")
_UP_TO_HALF = Allowed(lambda value: 0 < value <= 0.5, "above 0 and at most 0.5")


def family_name(name: str) -> Any:
    """The field `name` of a family's settings; its descriptor and its configuration's `model_type` follow from it."""
    return setting(name, "the family", in_model=False)


@dataclass
class ModelConfig:
    """What every family has: a name from the registry of families, and where to start from."""

    name: str = family_name(MISSING)
    pretrained: str | None = setting(None, "folder or hub id whose weights are loaded before training", in_model=False)


@dataclass
class MaskingConfig:
    """Masked-language-model corruption (ALBERT: n-grams of whole words, favouring short ones)."""

    probability: float = setting(0.15, "share of the tokens selected for prediction", OPEN_SHARE)
    max_predictions: int | None = setting(20, "most selected tokens a sequence; None: no limit", at_least(1))
    max_ngram: int = setting(3, "longest masked n-gram, in words; length n is drawn with weight 1/n", at_least(1))
    mask_share: float = setting(0.8, "of the selected: replaced by [MASK]", SHARE)
    random_share: float = setting(0.1, "of the selected: replaced by a random token; the rest is kept", SHARE)
    whole_word: bool = setting(True, "select all pieces of a word together")


@dataclass
class DatasetConfig:
    """What every data set has."""

    name: str = setting(MISSING, "shown in reports")
    sequence_length: int = setting(128, "tokens, including [CLS] and [SEP] where there are any", at_least(8))
    cache_dir: str | None = setting(None, "prepared data; None: the user's cache folder", neutral=True)


@dataclass
class ExamplesConfig(DatasetConfig):
    """Data that consist of examples, in any order."""

    max_evaluation_examples: int | None = setting(2000, "None: all", at_least(1), debug=8)
    pad_to_length: bool = setting(False, "pad every batch to sequence_length: fixed shapes for compiled runs")


def local_or_hub(source: Source, path: Any) -> Source:
    """What `auto` means, decided once, so that whoever reads a configuration sees where its data came from."""
    if source is not Source.auto:
        return source
    return Source.local if path else Source.hub


@dataclass
class TextConfig(DatasetConfig):
    """Running text, wherever it is."""

    source: Source = setting(
        Source.embedded, "Python's own documentation, local files, or the hub; auto: local where path names files"
    )
    path: Any = setting(None, "local: a file, a folder, a glob, or a list of these (text, jsonl, parquet)")
    hub: list[dict[str, Any]] = setting([], "hub: entries {path, name, split, rows_per_document}")
    text_column: str = setting("text", "for jsonl, parquet and hub data")
    evaluation_path: Any = setting(
        None, "local held-out text; None: that of a folder with valid files, or a part of the text is set aside"
    )
    evaluation_hub: list[dict[str, Any]] = setting([], "hub: held-out text, entries like those of `hub`")
    evaluation_fraction: float = setting(0.05, "share of the text set aside", OPEN_SHARE)

    def __post_init__(self) -> None:
        self.source = local_or_hub(self.source, self.path)


@dataclass
class StreamConfig(TextConfig):
    """Text as contiguous streams, read from beginning to end by a model that remembers."""

    test_path: Any = setting(
        None, "local: a further text that selects nothing; None: that of a folder with test files, or none"
    )
    test_hub: list[dict[str, Any]] = setting([], "hub: entries like those of `hub`")
    append_eos: bool = setting(True, "a token after every line; without it blank lines vanish")
    evaluation_length: int | None = setting(
        None, "tokens of a segment in evaluation; None: sequence_length", at_least(1)
    )
    max_evaluation_tokens: int | None = setting(None, "use only the first so many; None: all", at_least(1), debug=400)


@dataclass
class CorpusConfig(TextConfig, ExamplesConfig):
    """A pretraining corpus and how examples are cut from it."""

    document_separator: Separator = setting(Separator.auto, "what ends a document in plain text")
    streaming: bool = setting(False, "read hub or local data while training instead of preparing it")
    shuffle_buffer: int = setting(10000, "examples, streaming only", at_least(1))
    max_documents: int | None = setting(None, "use only the first documents", at_least(2), debug=20)
    short_sequence_probability: float = setting(0.1, "share of examples cut to a random shorter length", SHARE)
    sentence_order: bool = setting(True, "build segment pairs, half of them swapped")
    masking: MaskingConfig = setting(MaskingConfig, "which tokens are predicted")


@dataclass
class HubTable:
    """A data set of the hub."""

    path: str | None = setting(None, "its name there, or a local folder in its layout")
    name: str | None = setting(None, "of one of its configurations")


@dataclass
class TableConfig(ExamplesConfig):
    """Rows of a table, whatever is to be predicted of them."""

    source: Source = setting(
        Source.hub, "the hub, local files, or Python's own documentation; auto: local where path names files"
    )
    path: Any = setting(
        None, "local: a folder with {train,validation,test}.{parquet,jsonl,...}, or a mapping split: file"
    )
    hub: HubTable = setting(HubTable, "with source=hub")
    labels: list[str] | None = setting(None, "names of the classes or tags in order; None: those of the data")
    metrics: list[str] = setting(["accuracy"], "the task's; eval/score is their mean")
    train_split: str = setting("train", "its name in the data")
    evaluation_splits: list[str] = setting(["validation"], "the first one selects the model")
    held_out: float | None = setting(
        None, "share of the training rows set aside as the evaluation split held_out", OPEN_SHARE
    )
    max_train_examples: int | None = setting(
        None, "use only so many, evenly spread over the data", at_least(1), debug=64
    )

    def __post_init__(self) -> None:
        self.source = local_or_hub(self.source, self.path)


@dataclass
class LabelledConfig(TableConfig):
    """Sentences or pairs of sentences with a class or a value: GLUE's tasks, and any table of that shape."""

    text_columns: list[str] = setting(["sentence"], "one, or two for pairs")
    label_column: str = setting("label", "a class number, a class name, or a value")
    problem: Problem = setting(Problem.classification, "of classes, or of one value")
    test_splits: list[str] = setting(["test"], "without labels, for submission; may be absent", neutral=True)
    test_hub: dict[str, Any] = setting(
        {}, "hub: test splits that are data sets of their own there, {SPLIT: {path, name, split}}", neutral=True
    )
    submission: list[str] = setting([], "GLUE's file names, one a test split", neutral=True)
    difficulty_column: str | None = setting(None, "whole numbers from 0 on: how hard a row is; None: not known")


@dataclass
class SentEvalConfig(LabelledConfig):
    """A probing task of SentEval (Conneau et al. 2018), or any file of that format."""

    task: str | None = setting(None, "TASK.txt in the folder dataset.path: past_present, tree_depth, bigram_shift, ...")


@dataclass
class AgreementConfig(LabelledConfig):
    """Number of a verb from the words before it (Linzen, Dupoux and Goldberg 2016)."""


@dataclass
class TaggingConfig(TableConfig):
    """Sentences as lists of words with a tag each: named entities, parts of speech."""

    token_column: str = setting("tokens", "lists of words")
    tag_column: str = setting("ner_tags", "lists of tags: class numbers or names")
    labelled_pieces: LabelledPieces = setting(
        LabelledPieces.first, "of a word that is cut in pieces; all: those after B-X are I-X"
    )
    metrics: list[str] = setting(["entity_f1"], "token_accuracy where tags mark no entities")


@dataclass
class QuestionConfig(TableConfig):
    """Questions about a text that holds their answers, in the columns of SQuAD (Rajpurkar et al. 2016, 2018)."""

    sequence_length: int = setting(384, "tokens of a window: the question and a part of its context", at_least(8))
    question_column: str = setting("question", "texts")
    context_column: str = setting("context", "texts")
    answers_column: str = setting("answers", "{text: [...], answer_start: [...]}: texts, and their first characters")
    id_column: str | None = setting("id", "in predictions; None: the row's number")
    stride: int = setting(128, "context tokens from the beginning of a window to that of the next one", at_least(1))
    max_question_length: int = setting(64, "tokens; longer questions are cut", at_least(1))
    max_answer_length: int = setting(30, "tokens; longer spans are not predicted", at_least(1))
    n_best: int = setting(20, "starts and ends of a window that are combined to spans", at_least(1))
    unanswerable: bool = setting(False, "questions may have no answer, which is then predicted at [CLS]")
    null_score_threshold: float = setting(0.0, "no answer where its score exceeds the best span's by more", FINITE)
    metrics: list[str] = setting(["exact_match", "f1"], "as SQuAD's script defines them")


@dataclass
class ChoiceConfig(TableConfig):
    """One of several endings of a text, in columns of their own: SWAG (Zellers et al. 2018)."""

    context_columns: list[str] = setting(["sent1", "sent2"], "a text; the second begins endings")
    ending_columns: list[str] = setting([f"ending{number}" for number in range(4)], "the choices")
    label_column: str = setting("label", "number of the right ending from 0 on, or its name in labels")


@dataclass
class TreebankConfig(ExamplesConfig):
    """Words with part of speech, relation and head, by which mode=evaluate tells the depths of a model's tokens."""

    path: Any = setting(
        None, "a folder of CoNLL-U files, a file, a glob, a list, or a mapping split: file; None: the hub"
    )
    hub: HubTable = setting(HubTable, "read without a path")
    evaluation_splits: list[str] | None = setting(None, "None: validation and test, or all there is without these")
    max_evaluation_examples: int | None = setting(None, "sentences of a split; None: all", at_least(1), debug=8)
    masking: MaskingConfig = setting(MaskingConfig, "of a model that predicts masked words: which ones")


@dataclass
class GeneratedConfig(ExamplesConfig):
    """Examples that are drawn afresh in every epoch, and of which it is known how much computing a unit needs."""

    train_examples: int = setting(100000, "an epoch", at_least(1))


@dataclass
class ParityConfig(GeneratedConfig):
    """Is the number of ones odd? The task of ACT (Graves 2016) and PonderNet."""

    representation: Representation = setting(Representation.vectors, "for a recurrent cell, or as tokens")
    size: int = setting(64, "values, each 0, 1 or -1", at_least(1))
    train_ones: list[int] = setting([1, 64], "lowest and highest number of ones")
    easy_epochs: int = setting(
        0, "epochs at first in which no training example has more ones than easy_ones", at_least(0)
    )
    easy_ones: int | None = setting(None, "with easy_epochs: easy examples first make hard ones learnable sooner")
    extrapolation_ones: list[int] | None = setting(None, "also evaluated: a range that training does not see")
    counted: Counted = setting(Counted.nonzero, "whether -1 counts as a one")


@dataclass
class FieldConfig(GeneratedConfig):
    """Generated examples that lie at a random place of a larger field, so that larger ones can be read as well."""

    field: int = setting(16, "positions along each side; the model needs as many", at_least(1))


@dataclass
class MazeConfig(FieldConfig):
    """Can a cell be reached from the start? A cell's difficulty is its distance."""

    size: int = setting(8, "cells along each side", at_least(1))
    walls: float = setting(0.4, "share of cells that are walls", BELOW_ONE)
    beyond_sizes: list[int] = setting([12], "also evaluated: sizes that training does not see")


@dataclass
class HopsConfig(GeneratedConfig):
    """Which colour do pointers lead to? A node's difficulty is how many pointers must be followed."""

    unit: LabelledUnit = setting(
        LabelledUnit.token, "every node has a label, or the sequence has that of one marked node"
    )
    nodes: int = setting(16, "of an example", at_least(2))
    colours: int = setting(4, "of the nodes that do not point to another", between(2, 8))
    train_hops: list[int] = setting([0, 5], "lowest and highest difficulty of labelled nodes")
    beyond_hops: list[int] | None = setting([6, 7], "also evaluated: not seen in training")


@dataclass
class AdditionConfig(FieldConfig):
    """The sum of two numbers, a column a token; a column's difficulty is how far away its carry is decided."""

    digits: int = setting(12, "of each number", at_least(1))
    nines: float = setting(0.5, "share of columns whose digits sum to 9, which hand a carry on", BELOW_ONE)
    beyond_digits: list[int] = setting([20], "also evaluated: longer numbers")


@dataclass
class DrawnPuzzleConfig(GeneratedConfig):
    """Generated puzzles: a grid is given, its solution is the answer, and all cells have to be right."""

    metrics: list[str] = setting(["exact_accuracy", "cell_accuracy"], "eval/score is their mean")
    symmetries: bool = setting(True, "training sees each puzzle under a symmetry drawn anew in every epoch")


@dataclass
class SudokuConfig(DrawnPuzzleConfig):
    """Sudoku with one solution each. A puzzle's difficulty is how many rounds of simple conclusions fill it."""

    size: int = setting(6, "digits, and cells along each side", Allowed(lambda size: size in (4, 6, 9), "4, 6 or 9"))
    blanks: int | None = setting(None, "no more of a puzzle; None: as many as leave one solution", at_least(1))


@dataclass
class MazePathConfig(DrawnPuzzleConfig):
    """The shortest way from start to goal, where there is but one. A maze's difficulty is its length."""

    size: int = setting(10, "cells along each side", at_least(3))
    walls: float = setting(0.4, "share of cells that are walls", BELOW_ONE)


@dataclass
class PuzzleTableConfig(TableConfig):
    """Puzzles of a table, written with a character a cell: Sudoku-Extreme, Maze-Hard."""

    question_column: str = setting("question", "texts")
    answer_column: str = setting("answer", "texts of the same length")
    difficulty_column: str | None = setting(
        None, "whole numbers from 0 on; None: cells whose answer is not what is given"
    )
    symbols: str = setting(".123456789", "of a cell, in puzzle and answer; the first one is token 1")
    counted: CellCount = setting(
        CellCount.givens, "what reports tell steps by, with columns of whole numbers; path_length: of a maze's answer"
    )
    symmetries: Symmetries = setting(
        Symmetries.none, "training sees each puzzle under one drawn anew in every epoch: of Sudoku, or of a square"
    )
    metrics: list[str] = setting(["exact_accuracy", "cell_accuracy"], "eval/score is their mean")


@dataclass
class TokenizerConfig:
    """An existing tokenizer, or one trained on the corpus."""

    path: str | None = setting(None, "folder or hub id; None: train one")
    kind: TokenizerKind = setting(
        TokenizerKind.unigram, "pieces of words; streams of text also take whole words, or bytes"
    )
    vocab_size: int | None = setting(
        8000, "of a trained tokenizer; of words, None: all", at_least(32), shape=True, debug=300
    )
    lowercase: bool = setting(True, "of a trained tokenizer")
    symbols: list[str] = setting([], "of a trained tokenizer: what is never taken apart")
    train_documents: int | None = setting(None, "train on the first documents only", at_least(1))


@dataclass
class BorrowedConfig:
    """Fields of ``transformers.TrainingArguments`` under their own names."""

    max_steps: int = setting(300, "optimizer updates; -1: num_train_epochs decides", _UPDATES, debug=2)
    num_train_epochs: float = setting(3.0, "with max_steps=-1", POSITIVE)
    per_device_train_batch_size: int = setting(16, "sequences a device and micro-batch", at_least(1), debug=4)
    per_device_eval_batch_size: int = setting(32, "sequences a device", at_least(1), neutral=True, debug=4)
    gradient_accumulation_steps: int = setting(1, "micro-batches an update", at_least(1), debug=1)
    learning_rate: float = setting(1e-3, "peak", POSITIVE)
    weight_decay: float = setting(0.01, "of matrices; see decay_vectors", at_least(0))
    adam_beta1: float = setting(0.9, "decay of the first moment, of either optimizer", BELOW_ONE)
    adam_beta2: float = setting(0.999, "decay of the second moment", BELOW_ONE)
    adam_epsilon: float = setting(1e-6, "added to the root of the second moment", POSITIVE)
    max_grad_norm: float = setting(1.0, "global norm, clipped once per update; 0: no clipping", at_least(0))
    warmup_steps: float = setting(0, "updates; below 1: share of all updates", at_least(0), debug=0)
    logging_steps: int = setting(
        10, "updates between two lines of training metrics", at_least(1), neutral=True, debug=1
    )
    eval_strategy: EvalStrategy = setting(
        EvalStrategy.steps, "evaluate every eval_steps updates, every epoch, or never", debug=EvalStrategy.steps
    )
    eval_steps: int | None = setting(100, "updates", at_least(1), debug=2)
    eval_on_start: bool = setting(True, "also evaluates the untrained model: its depth explains collapsed runs")
    save_strategy: SaveStrategy = setting(
        SaveStrategy.steps, "best: whenever the best metric improves", debug=SaveStrategy.steps
    )
    save_steps: int = setting(
        100, "updates; a multiple of eval_steps if the best model is loaded at the end", at_least(1), debug=2
    )
    save_total_limit: int | None = setting(
        2, "the best and the newest checkpoint are always kept", at_least(1), neutral=True
    )
    load_best_model_at_end: bool = setting(True, "report and keep the best evaluated weights, not the last")
    metric_for_best_model: str | None = setting("eval_loss", "under the name transformers knows")
    greater_is_better: bool | None = setting(False, "of metric_for_best_model")
    tf32: bool | None = setting(None, "Ampere and later; None: torch's default")
    gradient_checkpointing: bool = setting(False, "recompute the block in the backward pass", neutral=True)
    torch_compile_backend: str | None = setting(None, "with runtime.compile", neutral=True)
    torch_compile_mode: str | None = setting(None, "with runtime.compile", neutral=True)
    ddp_backend: str | None = setting(None, "None: nccl on GPUs, gloo on CPUs", neutral=True)
    ddp_find_unused_parameters: bool | None = setting(False, "True hides parameters that never train", neutral=True)
    ddp_bucket_cap_mb: int | None = setting(None, "size of a gradient bucket", neutral=True)
    ddp_broadcast_buffers: bool | None = setting(None, "None: unless gradients are checkpointed")
    ddp_timeout: int = setting(1800, "seconds", at_least(1), neutral=True)
    fsdp: bool = setting(False, "shard parameters over processes")
    fsdp_config: Any = setting(None, "FSDP's own settings: a JSON file or a mapping")
    deepspeed: Any = setting(None, "a DeepSpeed configuration: a JSON file or a mapping")
    dataloader_drop_last: bool = setting(False, "leave out an incomplete last batch")
    dataloader_pin_memory: bool = setting(True, "faster copies to a GPU", neutral=True)
    dataloader_persistent_workers: bool = setting(False, "keep workers from one epoch to the next", neutral=True)
    dataloader_prefetch_factor: int | None = setting(
        None, "batches a worker, with runtime.num_workers > 0", at_least(1), neutral=True
    )
    full_determinism: bool = setting(False, "slower kernels, the same bits")
    use_cpu: bool = setting(False, "ignore GPUs")
    disable_tqdm: bool | None = setting(None, "None: a bar where there is a terminal", neutral=True)
    push_to_hub: bool = setting(False, "upload the model and its card to the Hugging Face hub at the end", neutral=True)
    hub_model_id: str | None = setting(None, "its name there, OWNER/NAME; None: the experiment's", neutral=True)
    hub_private_repo: bool | None = setting(None, "who sees a new one; None: as set on the hub", neutral=True)


@dataclass
class TrainerConfig(BorrowedConfig):
    """What transformers' trainer has, and what adadepth.training translates for it."""

    optimizer: Optimizer = setting(
        Optimizer.adamw, "adam: weight decay is a part of the gradient; lamb: ALBERT's published recipe"
    )
    decay_vectors: bool = setting(False, "weight_decay on biases and layer norms, too")
    ema_decay: float | None = setting(
        None, "evaluate and keep an exponential moving average of the weights, of this decay an update", OPEN_SHARE
    )
    schedule: Schedule = setting(
        Schedule.linear, "reference_linear decays from step 0; plateau when the metric stops improving"
    )
    plateau_patience: int | None = setting(
        None, "evaluations without improvement before the rate is halved", at_least(1)
    )
    plateau_min_lr: float = setting(1e-6, "lowest rate of schedule=plateau", at_least(0))
    precision: Precision = setting(Precision.auto, "auto: bf16 where supported, else fp16 on a GPU, else fp32")
    time_budget_minutes: float | None = setting(None, "stop, save and evaluate when it is spent", POSITIVE)
    early_stopping_patience: int | None = setting(None, "evaluations without improvement before stopping", at_least(1))
    early_stopping_threshold: float = setting(0.0, "what counts as improvement", at_least(0))
    halting_statistics: bool = setting(True, "depth per token class at every evaluation", neutral=True)


@dataclass
class LoggerConfig:
    """Where metrics go besides ``metrics.jsonl``, which is always written."""

    report_to: Any = setting(None, "trackers: a name or a list; docs/tracking.md tells them")
    project: str = setting("adadepth", "of the tracker")
    entity: str | None = setting(None, "W&B team or user, Comet workspace")
    group: str | None = setting(None, "of runs; None: the experiment's name")
    tags: list[str] = setting([], "of the run")
    mode: TrackerMode = setting(TrackerMode.offline, "W&B and Comet; offline runs are uploaded later")
    artifacts: list[Kept] = setting([], "what a tracker keeps at the end of a run")

    def __post_init__(self) -> None:
        self.report_to = _names(self.report_to)


def _names(given: Any) -> list[str]:
    """Names that were given as one, as a list, or, by several options of a group, as a mapping of each to true."""
    if isinstance(given, dict):
        given = [name for name, is_wanted in given.items() if is_wanted]
    return [name for name in ([given] if isinstance(given, str) else given or []) if name != "none"]


@dataclass
class RuntimeConfig:
    """Settings that may change the speed but never the result."""

    num_workers: int = setting(0, "data loading processes", between(0, 1024))
    compile: bool = setting(False, "torch.compile")
    threads: int | None = setting(None, "CPU threads of torch; None: torch's default", between(1, 1024))
    offline: bool = setting(False, "never look at the hub: a missing name fails at once")
    trust_remote_code: bool = setting(
        False, "run the code that comes with a model, a tokenizer or a metric which names it; a line says of which"
    )


@dataclass
class FeaturesConfig:
    """Hidden states of a frozen base, computed once and read again in every epoch, run and seed."""

    cache: bool = setting(True, "false: run the base in every epoch")
    precision: StatePrecision = setting(StatePrecision.fp32, "of the stored states; fp16 and bf16 halve the disk space")
    limit_gib: float = setting(100.0, "refuse to write more", POSITIVE, neutral=True)
    batch_tokens: int = setting(8192, "padded tokens at once while computing", at_least(1))


@dataclass
class HaltingConfig:
    """A second stage of training: a trained model stays as it is, and its halting head alone learns when to stop."""

    alone: bool = setting(False, "train nothing but the halting head of the model that model.pretrained names")
    slope: float = setting(20.0, "how sharply the target turns from halting to going on", POSITIVE)
    threshold: float = setting(0.1, "of the loss: what the best further step must save to be worth it", at_least(0))


@dataclass
class DistanceConfig:
    """How distances look to attention; the configuration of a model says it, too."""

    clamp_length: int | None = setting(None, "distances beyond count as this one; None: no limit", at_least(1))
    same_length: bool = setting(
        False,
        "every position sees as many others, as the first one does",
        more="The last `memory_length`, itself included.",
    )


@dataclass
class ContextConfig(DistanceConfig):
    """What attention sees in evaluation, where that differs from training."""

    memory_length: int | None = setting(None, "positions before the segment; None: the model's", at_least(0))


@dataclass
class GateConfig:
    """What the gates of a supernet do in training; the configuration of a model says it, too."""

    straight_through: bool = setting(False, "forward the largest gate alone, backward the soft ones")
    tau_start: float = setting(1.0, "temperature of the gates in the first update", POSITIVE)
    tau_end: float = setting(0.1, "temperature of the gates in the last update", POSITIVE)
    tau_schedule: TauSchedule = setting(
        TauSchedule.exponential, "how the temperature falls", more="See `adadepth.halting.gates.gate_temperature`."
    )


@dataclass
class SearchConfig(GateConfig):
    """How a supernet's blocks choose their operation, and what becomes of the choice."""

    method: SearchMethod = setting(
        SearchMethod.joint, "gates with the weights on the same data, or in turns on held-out data"
    )
    path: GatePath = setting(
        GatePath.soft,
        "run all branches and mix them, or one drawn branch a block",
        more="In training; `soft` mixes them with noisy weights.",
    )
    gate_learning_rate: float | None = setting(
        None, "constant; None: that of the weights, which two_phase does not allow", POSITIVE
    )
    gate_weight_decay: float = setting(0.0, "of the gates", at_least(0))
    gate_beta1: float = setting(0.9, "decay of the gates' first moment", BELOW_ONE)
    weights_only: float = setting(
        0.25, "two_phase: updates before the gates learn; below 1: share of all updates", at_least(0)
    )
    architecture_share: float = setting(0.2, "two_phase: of the text and of the updates, for the gates", _UP_TO_HALF)
    stop_unchanged: float | None = setting(
        None, "end where this share of blocks kept their operation since the evaluation before; the paper: 0.75", SHARE
    )
    latency_weight: float = setting(
        0.0, "weight of the expected time, as a multiple of the alternating network's, in the loss", at_least(0)
    )
    latency_costs: Costs = setting(Costs.measured, "time of a block on this machine, or its multiply-accumulates")
    sampled_paths: int = setting(4, "evaluated paths drawn from the gates", at_least(1), debug=2)
    seed_evaluation: bool = setting(
        False, "also evaluate as the original did: noisy gates, mean of the batches' perplexities"
    )
    stages: list[Stage] = setting(list(Stage), "those already done are not done again", neutral=True)
    retrain_from: RetrainFrom = setting(RetrainFrom.scratch, "the derived network's initial weights")
    retrain_steps: int | None = setting(None, "updates of each retrained network; None: trainer.max_steps", at_least(1))
    baselines: list[BaselineArchitecture] = setting(list(BaselineArchitecture), "retrained too")
    paper_ratio: int = setting(5, "paper_rule: one attention block in so many", at_least(1))
    shapes: list[list[int]] = setting(
        [], "[length, memory, batch] of costs; the first makes baselines", debug=[[8, 8, 2]]
    )
    timing_repeats: int = setting(20, "runs of which a latency is the median", at_least(1), neutral=True, debug=2)


@dataclass
class BudgetConfig:
    """Depth as something one sets: a mean that training holds, instead of a penalty whose outcome nobody knows."""

    target: float | None = setting(None, "mean depth of a unit, in `unit`; None: no budget", POSITIVE)
    unit: BudgetUnit = setting(BudgetUnit.updates, "of a token or sequence; docs/budget.md lists the others")
    grow: float = setting(
        0.0, "share of all updates, at first, in which nobody halts and depth grows from `grow_from` to full", SHARE
    )
    grow_from: int = setting(2, "updates of everybody in the first of them", at_least(1))
    hold: float = setting(0.15, "share of all updates at full depth after that", SHARE)
    ramp: float = setting(0.25, "share of all updates on the way from full depth to `target`", SHARE)
    gain: float = setting(1.0, "how hard the controller pulls", POSITIVE)
    targets: list[float] = setting([], "mode=evaluate: fit the checkpoint to each of these, in `unit`")


@dataclass
class ExperimentConfig:
    """One experiment: the root of every configuration."""

    name: str = setting(MISSING, "folder under output_dir")
    task: Task = setting(Task.pretrain, "what is trained or evaluated")
    mode: Mode = setting(
        Mode.train, "train; evaluate, probe or ask a checkpoint; write a run's report again, or compare runs"
    )
    seed: int = setting(0, "of everything random: weights, data order, masking, dropout", _SEED)
    model: ModelConfig = setting(MISSING, "group model/")
    dataset: DatasetConfig = setting(MISSING, "group dataset/")
    tokenizer: TokenizerConfig = setting(MISSING, "group tokenizer/")
    trainer: TrainerConfig = setting(MISSING, "group trainer/")
    logger: LoggerConfig = setting(MISSING, "group logger/")
    features: FeaturesConfig = setting(FeaturesConfig, "of a frozen base: what is not run again")
    budget: BudgetConfig = setting(BudgetConfig, "group budget/: a mean depth to hold")
    halting: HaltingConfig = setting(HaltingConfig, "a second stage, in which only the halting head learns")
    search: SearchConfig = setting(SearchConfig, "task=architecture_search, and every supernet")
    context: ContextConfig = setting(ContextConfig, "of attention in the evaluation of a language model")
    runtime: RuntimeConfig = setting(RuntimeConfig, "speed only")
    seeds: int = setting(1, "runs with as many consecutive seeds; above 1 the metrics are means over them", at_least(1))
    exit_rules: list[str] = setting([], "mode=evaluate: compare these on one checkpoint; [all]")
    predictions: bool = setting(False, "task=finetune: write what is predicted of every evaluated example")
    optimise: str = setting("eval/loss", "metric a sweep optimises; what the run returns")
    checkpoint: str | None = setting(
        None, "mode=evaluate, predict or probe: a run directory, one of its checkpoints, `latest`, or a hub id"
    )
    text: Any = setting(None, "mode=predict: a text, a list of texts or of pairs of them, or @FILE with one a line")
    run: str | None = setting(None, "mode=report: a run directory, or `latest`")
    runs: list[str] = setting([], "mode=report: compare these runs, and those in these folders, on one page")
    rival_of: str | None = setting(
        None, "train the network of one depth and as much work as that run: a directory, or `latest`"
    )
    resume: str | None = setting(None, "continue a run: its directory, or `latest`")
    output_dir: str = setting("outputs", "relative to where the command runs")
    small: bool = setting(False, "a run of seconds that learns nothing: settings with a value for that take it")


DATASET_SCHEMAS: dict[str, type[DatasetConfig]] = {
    "addition_task": AdditionConfig,
    "agreement_task": AgreementConfig,
    "corpus": CorpusConfig,
    "hops_task": HopsConfig,
    "labelled": LabelledConfig,
    "maze_path_task": MazePathConfig,
    "maze_task": MazeConfig,
    "multiple_choice": ChoiceConfig,
    "parity_task": ParityConfig,
    "puzzles": PuzzleTableConfig,
    "question_answering": QuestionConfig,
    "senteval_task": SentEvalConfig,
    "stream": StreamConfig,
    "sudoku_task": SudokuConfig,
    "tagging": TaggingConfig,
    "trees": TreebankConfig,
}


def labels_tokens(dataset: DatasetConfig) -> bool:
    """Whether every token, or every word, of a sequence has a label, and not the sequence."""
    if isinstance(dataset, HopsConfig):
        return dataset.unit is LabelledUnit.token
    return isinstance(dataset, TaggingConfig | MazeConfig | AdditionConfig)


def has_puzzles(dataset: DatasetConfig) -> bool:
    """Whether an answer has many cells, all of which have to be right."""
    return isinstance(dataset, DrawnPuzzleConfig | PuzzleTableConfig)


def positions_read(dataset: DatasetConfig) -> tuple[str, int]:
    """The setting that says how many positions a model must know, and its value."""
    if isinstance(dataset, FieldConfig):
        return "dataset.field", dataset.field
    return "dataset.sequence_length", dataset.sequence_length


# Parts of a configuration that only some runs read: at their defaults they say nothing.
OPTIONAL_GROUPS: dict[str, type] = {
    "features": FeaturesConfig,
    "budget": BudgetConfig,
    "halting": HaltingConfig,
    "search": SearchConfig,
    "context": ContextConfig,
}
