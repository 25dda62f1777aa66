"""Fine-tuning from the command's settings to its files: every family, resume, seeds, exit rules, submissions."""

import csv
import itertools
import json

import pytest
import torch
from transformers import AutoModelForSequenceClassification

from adadepth import tasks
from adadepth.errors import ConfigError, UserError
from tests.configs.support import GLUE, configured
from tests.marks_support import keep_one_quick, mark_mostly_slow
from tests.pages_support import check_costs
from tests.training.finetune_support import SMALL
from tests.training.support import assert_same_end, copy_interrupted_run, run_debug

SENTENCE = "the cat sat on a mat and then it slept for some hours in the warm sun while birds sang"


def write_table(folder, config):
    """Write files in the columns of a task, with enough rows to train, evaluate and submit."""
    folder.mkdir()
    dataset = config.dataset
    classes = dataset.labels or ["0", "1"]
    splits = {dataset.train_split: 12, **dict.fromkeys(dataset.evaluation_splits, 9)}
    splits |= dict.fromkeys(dataset.test_splits, 5)
    for number, (split, rows) in enumerate(splits.items()):
        with (folder / f"{split}.jsonl").open("w") as file:
            for row in range(rows):
                texts = [
                    " ".join(SENTENCE.split()[(row + shift + number) % 7 :][:6])
                    for shift in range(len(dataset.text_columns))
                ]
                regression = dataset.problem == "regression"
                label = round(5 * row / rows, 2) if regression else row % len(classes)
                label = -1 if split in dataset.test_splits else label
                record = dict(zip(dataset.text_columns, texts, strict=True)) | {"label": label, "idx": row}
                file.write(json.dumps(record) + "\n")


@pytest.mark.parametrize(
    ("family", "task"),
    mark_mostly_slow(
        itertools.product(["ponder", "act"], GLUE),
        lambda case: case == ("act", "cola"),
    ),
)
def test_every_glue_configuration_trains_from_our_own_pretraining(family, task, tmp_path, pretrained):
    root = f"{family}_{task}"
    overrides = (f"model.pretrained={pretrained}", "dataset.source=local", f"dataset.path={tmp_path}/table")
    write_table(tmp_path / "table", configured(root))
    directory, metric = run_debug(tmp_path / "out", root, *overrides)
    record = json.loads((directory / "run.json").read_text())
    assert record["status"] == "finished"
    assert record["final_metrics"]["eval/score"] == metric
    if task == GLUE[0]:  # one run of each family
        check_costs(directory)
    for name in ("config.yaml", "metrics.jsonl", "halting.json", "depth_by_class.csv", "report.html"):
        assert (directory / name).stat().st_size > 0, name
    config = configured(root)
    for stem in config.dataset.submission:
        with (directory / "submission" / f"{stem}.tsv").open() as file:
            rows = list(csv.DictReader(file, delimiter="\t"))
        assert [row["index"] for row in rows] == [str(number) for number in range(5)]
        if task in ("mnli", "qnli", "rte"):
            assert {row["prediction"] for row in rows} <= set(config.dataset.labels)
    model = AutoModelForSequenceClassification.from_pretrained(directory / "model")
    assert model.config.model_type == {"ponder": "ponder_albert", "act": "albert_act"}[family]
    assert model.config.hidden_size == 32, "sizes come from the pretrained weights"


FAMILIES = (
    "ponder_albert_mini", "albert_mini", "pabee_mini", "albert_act_pretrained", "ponder_albert_pretrained",
    "palbert_pretrained", "albert_pretrained", "pabee_pretrained",
)  # fmt: skip


@pytest.mark.parametrize("model", mark_mostly_slow(FAMILIES, lambda model: model == "pabee_mini"))
def test_every_family_trains_and_is_evaluated_again(model, tmp_path, pretrained):
    overrides = [f"model={model}", *SMALL]
    if model.endswith("_pretrained"):
        overrides = [f"model={model}", f"model.pretrained={pretrained}", "dataset.sequence_length=32"]
    directory, metric = run_debug(tmp_path / "out", "ponder_tiny", *overrides)
    again = configured(
        "ponder_tiny", *overrides[:1], "dataset.sequence_length=32", "dataset.max_evaluation_examples=8",
        "mode=evaluate", f"checkpoint={directory}", f"output_dir={tmp_path}/again",
    )  # fmt: skip
    assert tasks.run(again) == pytest.approx(metric)
    halting = json.loads((directory / "halting.json").read_text())
    assert halting["unit"] == ("token" if "act" in model else "sequence")
    assert (directory / "exits.json").exists() == any(name in model for name in ("ponder", "palbert", "pabee"))


@pytest.mark.slow
@pytest.mark.parametrize(
    "option",
    ["trainer=finetune", "trainer=finetune_lamb", "trainer=scratch", "trainer=parity"],
)
def test_every_trainer_of_fine_tuning_runs(option, tmp_path):
    directory, _ = run_debug(tmp_path / "out", "ponder_tiny", option, *SMALL, "trainer.save_steps=2")
    assert json.loads((directory / "run.json").read_text())["status"] == "finished"


@pytest.mark.slow
@pytest.mark.parametrize(("root", "overrides"), keep_one_quick(2, [
    ("ponder_parity", ("dataset.size=12", "dataset.train_ones=[1,6]", "dataset.extrapolation_ones=[7,12]",
                       "dataset.easy_ones=4")),
    ("ponder_tiny", ("dataset=parity", *SMALL, "dataset.size=12", "dataset.train_ones=[1,6]",
                     "dataset.extrapolation_ones=[7,12]")),
]))  # fmt: skip
def test_parity_reports_every_range(root, overrides, tmp_path):
    directory, _ = run_debug(tmp_path / "out", root, "trainer.max_steps=2", *overrides)
    metrics = json.loads((directory / "run.json").read_text())["final_metrics"]
    ranges = ["interpolation", "extrapolation"]
    assert metrics["eval/accuracy"] is not None
    assert all(f"eval/{name}/accuracy" in metrics for name in ranges[1:])
    exits = json.loads((directory / "exits.json").read_text())["sets"]
    assert list(exits) == ranges
    assert any(name.startswith("difficulty") for name in exits[ranges[0]]["classes"])


@pytest.mark.slow
def test_exit_rules_are_compared_on_one_checkpoint(tmp_path, capsys):
    trained, _ = run_debug(tmp_path / "out", "ponder_tiny", *SMALL)
    out = tmp_path / "compared"
    config = configured(
        "ponder_tiny", "mode=evaluate", f"checkpoint={trained}", "exit_rules=[all]", f"output_dir={out}",
        "dataset.sequence_length=32", "dataset.max_evaluation_examples=16", "adopt_rule=true",
    )  # fmt: skip
    tasks.run(config)
    (directory,) = out.glob("*/*")
    (study,) = json.loads((directory / "exit_rules.json").read_text())["sets"].values()
    rows = {row["rule"]: row for row in study["rows"]}
    assert {"sample", "expectation", "fixed:4", "quantile:0.5", "patience:2", "oracle"} <= rows.keys()
    assert rows["fixed:2"]["mean_updates"] == 2
    assert rows["fixed:2"]["macs_ratio"] == pytest.approx(2, rel=0.2)
    assert set(rows["fixed:4"]["seconds"]) == {"1", "8", "32"}
    assert "patience:2" in (directory / "report.html").read_text()
    printed = capsys.readouterr().out
    assert "patience:2" in printed
    advised = study["advice"]["rule"]["rule"]
    assert f"advice: use model.exit_rule={advised}, " in printed or advised == "fixed:4"
    model = AutoModelForSequenceClassification.from_pretrained(directory / "model")
    assert model.config.exit_rule == advised
    assert model(torch.tensor([[2, 9, 7, 3]])).exit_steps.max() <= 4


@pytest.mark.slow
@pytest.mark.parametrize(("model", "rule", "message"), [
    ("albert_mini", "quantile:0.5", "albert predicts after its last step only"),
    ("pabee_mini", "quantile:0.5", "needs halting probabilities"),
    ("ponder_albert_mini", "fixed:9", "the model has 4 steps"),
    ("ponder_albert_mini", "entrpy:0.5", "did you mean 'entropy'?"),
])  # fmt: skip
def test_an_unsupported_exit_rule_is_a_one_line_error(model, rule, message, tmp_path):
    trained, _ = run_debug(tmp_path / "out", "ponder_tiny", f"model={model}", *SMALL)
    config = configured(
        "ponder_tiny", f"model={model}", "mode=evaluate", f"checkpoint={trained}", f"exit_rules=[{rule}]",
        "dataset.sequence_length=32", f"output_dir={tmp_path}/refused",
    )  # fmt: skip
    with pytest.raises(ConfigError, match=message) as caught:
        tasks.run(config)
    assert "\n" not in str(caught.value)
    assert not (tmp_path / "refused").exists()


@pytest.mark.parametrize(("overrides", "message"), [
    (("model.exit_rule=entropy",), "model.exit_rule: exit rule 'entropy': a parameter is missing"),
    (("model=pabee_mini", "model.exit_rule=quantile"), "model.exit_rule: .*needs halting probabilities"),
])  # fmt: skip
def test_a_wrong_exit_rule_of_the_model_fails_before_anything_is_written(overrides, message, tmp_path):
    with pytest.raises(UserError, match=message):
        run_debug(tmp_path / "out", "ponder_tiny", *overrides, *SMALL)
    assert not (tmp_path / "out").exists()


@pytest.mark.slow
def test_every_seed_is_a_run_and_a_summary_joins_them(tmp_path, capsys):
    output = (f"output_dir={tmp_path}/out", "trainer.disable_tqdm=true")
    metric = tasks.run(configured("ponder_tiny", "debug=default", "seeds=3", "seed=5", *SMALL, *output))
    directories = sorted((tmp_path / "out").glob("*/*"))
    assert len(directories) == 4
    summary = next(path for path in directories if (path / "seeds.json").exists())
    seeds = json.loads((summary / "seeds.json").read_text())
    assert seeds["seeds"] == [5, 6, 7]
    scores = [
        json.loads((path / "run.json").read_text())["final_metrics"]["eval/score"]
        for path in directories
        if path != summary
    ]
    assert seeds["metrics"]["eval/score"]["mean"] == pytest.approx(sum(scores) / 3)
    assert metric == pytest.approx(sum(scores) / 3)
    assert len({json.loads((path / "run.json").read_text())["seed"] for path in directories if path != summary}) == 3
    assert "+-" in capsys.readouterr().out
    assert {(summary / folder).resolve() for folder in seeds["runs"].values()} == {*directories} - {summary}
    page = (summary / "report.html").read_text()
    assert page.index("Over 3 seeds") < page.index('id="training"'), "the runs stand side by side below their means"


@pytest.mark.slow
def test_a_resumed_fine_tuning_is_the_run_that_was_never_stopped(tmp_path):
    overrides = (*SMALL, "trainer.max_steps=6", "trainer.eval_steps=2", "trainer.save_steps=2",
                 "model.exit_rule=sample", "trainer.save_total_limit=null",
                 "model.hidden_dropout_prob=0.1")  # fmt: skip
    whole, _ = run_debug(tmp_path / "out", "ponder_tiny", *overrides)
    stopped = copy_interrupted_run(2, whole, tmp_path)
    tasks.run(configured("ponder_tiny", "debug=default", "trainer.disable_tqdm=true", *overrides, f"resume={stopped}"))
    assert_same_end(stopped, whole)


@pytest.mark.slow
def test_sampled_exits_are_drawn_alike_in_every_evaluation(tmp_path):
    trained, _ = run_debug(tmp_path / "out", "ponder_tiny", *SMALL, "model.exit_rule=sample")
    means = set()
    for number in range(2):
        config = configured(
            "ponder_tiny", "mode=evaluate", f"checkpoint={trained}", "dataset.sequence_length=32",
            "dataset.max_evaluation_examples=64", f"output_dir={tmp_path}/{number}",
        )  # fmt: skip
        tasks.run(config)
        (record,) = (tmp_path / str(number)).glob("*/*/run.json")
        means.add(json.loads(record.read_text())["final_metrics"]["halting/exit_step/mean"])
    assert len(means) == 1
    assert 1 < means.pop() < 4, "drawn, not all alike"


def test_labels_out_of_range_are_a_one_line_error(tmp_path):
    folder = tmp_path / "table"
    folder.mkdir()
    for split in ("train", "validation"):
        rows = [{"sentence": "a cat sat", "label": label} for label in (0, 1, 7)]
        (folder / f"{split}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    with pytest.raises(UserError, match="label") as caught:
        run_debug(
            tmp_path / "out",
            "ponder_cola",
            "model=ponder_albert_mini",
            *SMALL,
            "dataset.source=local",
            f"dataset.path={folder}",
        )
    assert "\n" not in str(caught.value)


@pytest.mark.slow
def test_a_checkpoint_with_several_layer_groups_is_a_one_line_error(tmp_path):
    from transformers import AlbertConfig, AlbertModel

    config = AlbertConfig(
        vocab_size=120, embedding_size=16, hidden_size=32, num_hidden_layers=4, num_attention_heads=2,
        intermediate_size=64, num_hidden_groups=2,
    )  # fmt: skip
    AlbertModel(config).save_pretrained(tmp_path / "groups")
    with pytest.raises(UserError, match="group") as caught:
        run_debug(
            tmp_path / "out", "ponder_tiny", "model=ponder_albert_pretrained", f"model.pretrained={tmp_path}/groups",
            "tokenizer.path=null", "tokenizer.vocab_size=120", "model.vocab_size=120",
        )  # fmt: skip
    assert "\n" not in str(caught.value)
