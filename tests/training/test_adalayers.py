"""Adalayers from the command's settings to its files: tasks, baselines, the cache of states, resume, evaluation."""

import itertools
import json
import logging
import shutil
from pathlib import Path

import pytest
import torch
from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, processors
from transformers import (
    AutoModelForSequenceClassification,
    AutoModelForTokenClassification,
    BertConfig,
    BertModel,
    PreTrainedTokenizerFast,
)

from adadepth import tasks
from adadepth.errors import CheckpointError, ConfigError, DataError, UserError
from tests.configs.support import BASELINES, ROOTS, configured
from tests.marks_support import keep_one_quick, mark_mostly_slow
from tests.pages_support import check_costs
from tests.training.support import assert_same_end, copy_interrupted_run, read_log, run_config

ROOT = Path(__file__).resolve().parents[2]
WORDS = "the cat sat on a mat and then it slept for some hours in warm sun while birds sang"
ADALAYERS = [root for root in ROOTS if root.startswith("adalayers")]
SMALL = ("model.project_dim=16", "model.attention_heads_num=2", "model.dim_feedforward=16")


@pytest.fixture(scope="module")
def base(tmp_path_factory):
    """Save a small BERT with its tokenizer, as the hub would give it."""
    folder = tmp_path_factory.mktemp("base")
    torch.manual_seed(0)
    pieces = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *dict.fromkeys(WORDS.split())]
    config = BertConfig(
        vocab_size=len(pieces), hidden_size=16, num_hidden_layers=3, num_attention_heads=2, intermediate_size=32,
        max_position_embeddings=128, initializer_range=0.5,
    )  # fmt: skip
    BertModel(config).save_pretrained(folder)
    vocabulary = {piece: number for number, piece in enumerate(pieces)}
    tokenizer = Tokenizer(models.WordLevel(vocabulary, unk_token="[UNK]"))
    tokenizer.normalizer = normalizers.Lowercase()
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer.post_processor = processors.TemplateProcessing(
        single="[CLS]:0 $A:0 [SEP]:0", pair="[CLS]:0 $A:0 [SEP]:0 $B:1 [SEP]:1",
        special_tokens=[("[CLS]", 2), ("[SEP]", 3)],
    )  # fmt: skip
    PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, pad_token="[PAD]", unk_token="[UNK]", cls_token="[CLS]", sep_token="[SEP]",
        mask_token="[MASK]",
    ).save_pretrained(folder)  # fmt: skip
    return folder


def write_table(folder, config, rows=40):
    """Write sentences in the columns of a task: `sat` decides the class, and every `cat` is an entity."""
    folder.mkdir()
    dataset = config.dataset
    splits = {dataset.train_split, *dataset.evaluation_splits} - {"held_out"}
    words = WORDS.split()
    for number, split in enumerate(sorted(splits)):
        with (folder / f"{split}.jsonl").open("w") as file:
            for row in range(rows):
                sentence = [words[(row * 7 + 3 * position + number) % len(words)] for position in range(3 + row % 5)]
                if hasattr(dataset, "token_column"):
                    tags = ["B-PER" if word == "cat" else "O" for word in sentence]
                    record = {dataset.token_column: sentence, dataset.tag_column: tags}
                else:
                    label = row / rows if dataset.problem == "regression" else int("sat" in sentence)
                    record = dict.fromkeys(dataset.text_columns or ["sentence"], " ".join(sentence)) | {"label": label}
                file.write(json.dumps(record) + "\n")
    return folder


def build_config(tmp_path, base, root, *overrides):
    """Return the configuration of a root on the small base and a local table, at the debug length."""
    table = tmp_path / "table"
    tagged = ["dataset.labels=[O,B-PER,I-PER]"] if "conll" in root else []
    overrides_of_test = [f"model.base_model={base}", *SMALL, *tagged, "model.classes_weights=null"]
    overrides_of_test += ["dataset.source=local", f"dataset.path={table}"] * (root != "adalayers_tiny")
    overrides_of_test.append("dataset.sequence_length=128")  # all that the base reads
    config = configured(
        root, "debug=default", f"output_dir={tmp_path}/out", f"dataset.cache_dir={tmp_path}/cache",
        "trainer.disable_tqdm=true", *overrides_of_test, *overrides,
    )  # fmt: skip
    if not table.exists():
        write_table(table, config)
    return config


TABLE = ("dataset=table", "dataset.text_columns=[sentence]", "dataset.source=local")


def run_on_base(tmp_path, base, root, *overrides):
    return run_config(build_config(tmp_path, base, root, *overrides))


@pytest.mark.parametrize("root", mark_mostly_slow(ADALAYERS, lambda root: root == "adalayers_conll"))
def test_every_root_trains_and_is_evaluated_again(root, tmp_path, base):
    directory, metric = run_on_base(tmp_path, base, root)
    record = json.loads((directory / "run.json").read_text())
    assert record["status"] == "finished"
    for name in ("config.yaml", "metrics.jsonl", "halting.json", "report.html", "figures/layers.png"):
        assert (directory / name).stat().st_size > 0, name
    check_costs(directory)
    halting = json.loads((directory / "halting.json").read_text())
    assert halting["unit"] == "task"
    if "conll" not in root:  # the verdict tests the share of right texts by the error over these
        assert halting["classes"]["all"]["accuracy"] == pytest.approx(record["final_metrics"]["eval/accuracy"])
    assert sum(halting["layers"]["weights"]) == pytest.approx(1)
    auto = AutoModelForTokenClassification if "conll" in root else AutoModelForSequenceClassification
    model = auto.from_pretrained(directory / "model")
    assert model.config.model_type == "adalayers"
    assert not any(name.startswith("model.") for name in _list_saved_weights(directory)), (
        "the frozen base is not saved again"
    )
    again = build_config(tmp_path, base, root, "mode=evaluate", f"checkpoint={directory}")
    assert tasks.run(again) == pytest.approx(metric)


def _list_saved_weights(directory):
    from safetensors import safe_open

    with safe_open(directory / "model" / "model.safetensors", "pt") as file:
        return list(file.keys())


@pytest.mark.slow
@pytest.mark.parametrize(
    ("root", "baseline"),
    [*itertools.product(["adalayers", "adalayers_conll"], BASELINES)],
)
def test_every_baseline_trains_every_kind_of_task(root, baseline, tmp_path, base):
    options = TABLE if root == "adalayers" else ()
    options = (*options, f"baseline={baseline}")
    directory, _ = run_on_base(tmp_path, base, root, *options)
    weights = json.loads((directory / "halting.json").read_text())["layers"]["weights"]
    one = {"one_layer": 1, "last_layer": 3, "linear_probe": 3, "full_finetune": 3}.get(baseline)
    if one is not None:
        assert weights == [float(state == one) for state in range(4)]
    elif baseline == "uniform":
        assert weights == pytest.approx([0.25] * 4)
    saved = [name for name in _list_saved_weights(directory) if name.startswith("model.")]
    assert bool(saved) == (baseline == "full_finetune")


@pytest.mark.slow
@pytest.mark.parametrize("task", ["cola", "mnli", "stsb"])  # one text, pairs of three classes, scores
def test_glue_tasks_train(task, tmp_path, base):
    directory, metric = run_on_base(tmp_path, base, "adalayers", f"dataset={task}", "trainer=head")
    record = json.loads((directory / "run.json").read_text())
    assert record["final_metrics"]["eval/score"] == metric
    assert record["status"] == "finished"


@pytest.mark.slow
@pytest.mark.parametrize("dataset", ["wikiann", "ud_pos", "tagging_table"])
def test_every_tagging_data_set_trains(dataset, tmp_path, base):
    directory, metric = run_on_base(
        tmp_path, base, "adalayers", f"dataset={dataset}", "dataset.labels=[O,B-PER,I-PER]", "trainer=head"
    )
    metrics = json.loads((directory / "run.json").read_text())["final_metrics"]
    assert metrics["eval/score"] == metric
    assert ("eval/token_accuracy" in metrics) == (dataset == "ud_pos")
    assert ("eval/entity_f1" in metrics) == (dataset != "ud_pos")


@pytest.mark.slow
@pytest.mark.parametrize("root", ["adalayers", "adalayers_conll"])
def test_training_from_the_cache_is_training_without_it(root, tmp_path, base):
    options = TABLE if root == "adalayers" else ()
    options = (*options, "trainer.max_steps=6", "trainer.eval_steps=3", "trainer.save_steps=3")
    cached, _ = run_on_base(tmp_path, base, root, *options)
    online, _ = run_on_base(tmp_path, base, root, *options, "features.cache=false")
    for cached_line, online_line in zip(read_log(cached), read_log(online), strict=True):
        for name in cached_line.keys() | online_line.keys():
            if name.startswith(("cost/", "figures/")) or isinstance(cached_line[name], dict):
                continue  # what ran is not the same
            assert cached_line[name] == pytest.approx(online_line[name], rel=1e-4, abs=1e-6), name
    executed = [json.loads((path / "halting.json").read_text())["cost"]["executed_macs"] for path in (cached, online)]
    assert executed[0] < executed[1] / 3, "the base did not run"


@pytest.mark.slow
def test_half_precision_states_are_close(tmp_path, base):
    runs = [
        run_on_base(tmp_path, base, "adalayers", *TABLE, f"features.precision={name}")[0]
        for name in ("fp32", "bf16", "fp16")
    ]
    losses = [json.loads((path / "run.json").read_text())["final_metrics"]["eval/loss"] for path in runs]
    assert losses[1] == pytest.approx(losses[0], rel=2e-2)
    assert losses[2] == pytest.approx(losses[0], rel=2e-3)


@pytest.mark.slow
def test_runs_share_cached_states_and_announce_their_size(tmp_path, base, monkeypatch, caplog):
    caplog.set_level(logging.INFO)
    run_on_base(tmp_path, base, "adalayers", *TABLE)
    assert "GiB" in caplog.text

    def fail(self, *args, **kwargs):
        raise AssertionError("the base ran again")

    monkeypatch.setattr(BertModel, "forward", fail)
    run_on_base(tmp_path, base, "adalayers", *TABLE, "seed=3", "baseline=last_layer")


@pytest.mark.slow
@pytest.mark.parametrize("budget", [(), ("budget=blocks", "budget.target=1", "budget.ramp=0.5")])
def test_a_resumed_run_is_the_run_that_was_never_stopped(budget, tmp_path, base):
    overrides = (
        *TABLE, "trainer.max_steps=6", "trainer.eval_steps=2", "trainer.save_steps=2", "trainer.save_total_limit=null",
        "model.cutoff_warmup_steps=3", "model.distribution_cutoff=0.2", *budget,
    )  # fmt: skip
    whole, _ = run_on_base(tmp_path, base, "adalayers", *overrides)
    stopped = copy_interrupted_run(2, whole, tmp_path)
    tasks.run(build_config(tmp_path, base, "adalayers", *overrides, f"resume={stopped}"))
    assert_same_end(stopped, whole)


BUDGET = (
    "model.alpha_distribution=60", "model.distribution_cutoff=0.1", "model.attention_dropout_prob=0",
    "trainer.learning_rate=1e-2",
)  # fmt: skip


def read_budget_lines(directory):
    rows = [line for line in read_log(directory) if "budget/measured" in line]
    return [[line[f"budget/{name}"] for name in ("target", "measured", "multiplier")] for line in rows]


@pytest.mark.slow
@pytest.mark.parametrize("blocks", [1, 2])
def test_a_budget_keeps_at_most_its_blocks(blocks, tmp_path, base):
    """Check training from the cache, the saved model, and its evaluation."""
    overrides = ("budget=blocks", f"budget.target={blocks}", "trainer.max_steps=40", "trainer.logging_steps=1")
    steps = ("trainer.eval_steps=20", "trainer.save_steps=20")
    directory, metric = run_on_base(tmp_path, base, "adalayers", *TABLE, *BUDGET, *overrides, *steps)
    depths = read_budget_lines(directory)
    assert depths[0][:2] == [3.0, 3.0]
    assert max(measured for _, measured, _ in depths[17:]) <= blocks  # hold and ramp are 16 of 40 updates
    paid = [line["train/budget_loss"] for line in read_log(directory) if "train/budget_loss" in line]
    assert any(paid[:16])
    assert not any(paid[16:]), "barred layers pay no budget loss"
    weights = json.loads((directory / "halting.json").read_text())["layers"]["weights"]
    assert weights[blocks + 1 :] == [0.0] * (3 - blocks)
    assert sum(weights) == pytest.approx(1)
    again = build_config(tmp_path, base, "adalayers", *TABLE, *BUDGET, "mode=evaluate", f"checkpoint={directory}")
    assert tasks.run(again) == pytest.approx(metric)


@pytest.mark.slow
def test_a_budget_of_expected_layers_is_met(tmp_path, base):
    overrides = ("budget=layers", "budget.target=1.2", "budget.hold=0", "budget.ramp=0", "trainer.max_steps=150")
    steps = ("trainer.logging_steps=1", "trainer.eval_steps=150", "trainer.save_steps=150", "trainer.max_grad_norm=1")
    soft = ("model.alpha_distribution=10", "model.distribution_cutoff=0", "trainer.learning_rate=3e-3")
    directory, _ = run_on_base(tmp_path, base, "adalayers", *TABLE, *BUDGET, *soft, *overrides, *steps)
    depths = [measured for _, measured, _ in read_budget_lines(directory)]
    assert depths[0] == pytest.approx(1.5)
    assert sum(depths[-30:]) / 30 == pytest.approx(1.2, rel=0.05)


@pytest.mark.slow
@pytest.mark.parametrize("unit", ["deepest_layer", "expected_layer", "macs"])
def test_a_budget_does_not_depend_on_micro_batches(unit, tmp_path, base):
    target = 0.4 if unit == "macs" else 1
    runs = []
    for batch, accumulation in ((8, 1), (2, 4)):
        overrides = (f"trainer.per_device_train_batch_size={batch}",
                     f"trainer.gradient_accumulation_steps={accumulation}",
                     "trainer.max_steps=4", "trainer.eval_steps=4", "trainer.save_steps=4", "trainer.logging_steps=1",
                     f"budget.unit={unit}", f"budget.target={target}", "budget.hold=0", "budget.ramp=1")  # fmt: skip
        directory, _ = run_on_base(tmp_path, base, "adalayers", *TABLE, *BUDGET, *overrides)
        losses = [line["train/budget_loss"] for line in read_log(directory) if "train/budget_loss" in line]
        runs.append([number for entry in read_budget_lines(directory) for number in entry] + losses)
    assert runs[1] == pytest.approx(runs[0], rel=1e-4)
    assert runs[0][-1] != 0, "something is paid"


def test_a_trained_model_is_cut_to_blocks(tmp_path, base):
    directory, _ = run_on_base(tmp_path, base, "adalayers", *TABLE, "trainer.max_steps=2")
    overrides = ("mode=evaluate", f"checkpoint={directory}", "budget.targets=[1,2,3]")
    cut, _ = run_on_base(tmp_path, base, "adalayers", *TABLE, *overrides)
    budgets = json.loads((cut / "budgets.json").read_text())
    assert [(row["target"], row["mean"]) for row in budgets["rows"]] == [
        (None, 3.0),
        (1.0, 1.0),
        (2.0, 2.0),
        (3.0, 3.0),
    ]
    assert budgets["rows"][3]["metrics"]["loss"] == budgets["rows"][0]["metrics"]["loss"]
    assert budgets["measured_on"] == len(range(1, budgets["fitted_on"] + budgets["measured_on"], 2))


@pytest.mark.slow
def test_the_rate_halves_when_the_metric_stands_still(tmp_path, base):
    overrides = ("trainer.max_steps=8", "trainer.eval_steps=1", "trainer.save_steps=1", "trainer.plateau_patience=1",
                 "trainer.learning_rate=1e-6", "trainer.plateau_min_lr=0")  # fmt: skip
    directory, _ = run_on_base(tmp_path, base, "adalayers", *TABLE, *overrides)
    rates = [line["train/learning_rate"] for line in read_log(directory) if "train/learning_rate" in line]
    assert rates[-1] < rates[0] / 3


@pytest.mark.parametrize(("overrides", "error", "message"), keep_one_quick(3, [
    (("model.distribution_cutoff=0.25",), ConfigError, "distribution_cutoff=0.25"),
    (("model.pick_one_layer_only=4",), ConfigError, "pick_one_layer_only=4"),
    (("model.topk_distribution=5",), ConfigError, "topk_distribution=5"),
    (("model.classes_weights=[1,2,3]",), ConfigError, "classes_weights"),
    (("model.base_model=/nowhere/at/all",), UserError, "model.base_model=/nowhere/at/all"),
    (("dataset.sequence_length=256",), UserError, "dataset.sequence_length=256: "),
    (("model.pretrained=x",), ConfigError, "model.pretrained=x: set model.base_model instead"),
    (("model.layers_num=2",), ConfigError, "model.layers_num=2: only used with model.seed_compat=true"),
    (("features.limit_gib=1e-6",), DataError, "features.limit_gib"),
    ((*BUDGET, "budget=blocks", "budget.target=4"), ConfigError, "budget.target=4: must be at most 3, in"),
]))  # fmt: skip
def test_a_mistake_is_one_line_and_leaves_nothing(overrides, error, message, tmp_path, base):
    with pytest.raises(error, match=message) as caught:
        run_on_base(tmp_path, base, "adalayers", *TABLE, "tokenizer.path=" + str(base), *overrides)
    assert "\n" not in str(caught.value)
    assert not (tmp_path / "out").exists()


def test_without_a_network_the_error_names_local_alternatives(tmp_path, base):
    """Check the advice: the tokenizer is that of the base, so training one would not help."""
    with pytest.raises(DataError, match="model=adalayers_minilm needs no network") as caught:
        run_on_base(tmp_path, base, "adalayers", *TABLE, "tokenizer.path=nobody/roberta")
    assert str(caught.value).startswith("tokenizer.path=nobody/roberta: ")
    assert "\n" not in str(caught.value)
    configured("adalayers", *TABLE, f"dataset.path={tmp_path}", "model=adalayers_minilm")  # there is such an option


@pytest.mark.slow
def test_a_head_is_not_evaluated_on_another_base(tmp_path, base):
    folder = shutil.copytree(base, tmp_path / "base")
    directory, _ = run_on_base(tmp_path, folder, "adalayers", *TABLE)
    torch.manual_seed(1)
    BertModel(BertConfig.from_pretrained(base)).save_pretrained(folder)
    with pytest.raises(CheckpointError, match="base_model") as caught:
        tasks.run(build_config(tmp_path, folder, "adalayers", *TABLE, "mode=evaluate", f"checkpoint={directory}"))
    assert "\n" not in str(caught.value)


@pytest.mark.slow
def test_the_tiny_experiment_runs_without_a_network(tmp_path):
    config = configured(
        "adalayers_tiny", "debug=default", f"output_dir={tmp_path}/out", f"dataset.cache_dir={tmp_path}/cache",
        "dataset.max_train_examples=64", "trainer.disable_tqdm=true",
    )  # fmt: skip
    tasks.run(config)
    (directory,) = (tmp_path / "out").glob("*/*")
    assert json.loads((directory / "halting.json").read_text())["max_depth"] == 6
