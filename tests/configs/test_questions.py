"""What is checked of question answering and multiple choice before anything is read, and what the shipped ones say."""

from __future__ import annotations

import pytest

from adadepth.cli.validation import evaluation_metrics
from adadepth.errors import ConfigError
from adadepth.settings import ChoiceConfig, QuestionConfig
from tests.configs.support import configured


@pytest.mark.parametrize(("root", "overrides", "expected"), [
    ("ponder_cola", ["dataset=squad"],
     "model=ponder_albert: dataset=squad answers questions, for albert_act only"),
    ("act_swag", ["model=albert_pretrained"],
     "model=albert: dataset=swag chooses among endings, for albert_act only"),
    ("act_swag", ["model=pabee_pretrained"], "model=multi_exit_albert: dataset=swag chooses among endings"),
    ("act_squad", ["dataset.stride=400"],
     "dataset.stride=400: must be at most 317, what dataset.sequence_length=384 leaves after "
     "dataset.max_question_length=64 and 3 special tokens; else text between two windows is lost"),
    ("act_squad", ["dataset.stride=0"], "dataset.stride=0: "),
    ("act_squad", ["dataset.n_best=0"], "dataset.n_best=0: "),
    ("act_squad", ["dataset.max_answer_length=0"], "dataset.max_answer_length=0: "),
    ("act_squad", ["dataset.null_score_threshold=1"],
     "dataset.null_score_threshold=1.0: read only with dataset.unanswerable=true, e.g. dataset=squad_v2"),
    ("act_squad", ["dataset=squad_v2", "dataset.null_score_threshold=inf"],
     "dataset.null_score_threshold=inf: must be a finite number"),
    ("act_squad", ["dataset.labels=[yes,no]"],
     "dataset.labels=['yes', 'no']: questions are answered with text, not with a class"),
    ("act_squad", ["dataset.metrics=[accuracy]"], "dataset.metrics=accuracy: not a metric of question answering"),
    ("act_squad", ["dataset.source=embedded"],
     "dataset.source=embedded: squad is read from the hub or local files"),
    ("act_squad", ["model.readout_weight=0.5"],
     "model.readout_weight=0.5: question answering has no readouts; set it to 0"),
    ("act_squad", ["mode=evaluate", "checkpoint=x", "exit_rules=[all]"],
     "exit_rules=['all']: dataset=squad answers questions; read only with classes, values and tags"),
    ("act_swag", ["mode=evaluate", "checkpoint=x", "exit_rules=[all]"],
     "exit_rules=['all']: dataset=swag chooses among endings; read only with classes, values and tags"),
    ("act_squad", ["trainer.metric_for_best_model=eval_exact"],
     "trainer.metric_for_best_model=eval_exact: "),
    ("act_swag", ["dataset.metrics=[f1]"], "dataset.metrics=f1: not a metric of multiple choice"),
    ("act_swag", ["dataset.context_columns=[a,b,c]"],
     "dataset.context_columns=['a', 'b', 'c']: must name one column, or two; the second begins every ending"),
    ("act_swag", ["dataset.ending_columns=[ending0]"],
     "dataset.ending_columns=['ending0']: must name two columns at least"),
    ("act_swag", ["dataset.ending_columns=[sent1,ending0]"],
     "dataset.ending_columns=['sent1', 'ending0']: the column sent1 is named twice"),
    ("act_swag", ["dataset.labels=[a,b]"],
     "dataset.labels=['a', 'b']: must name each of the 4 dataset.ending_columns, in order"),
])  # fmt: skip
def test_a_wrong_setting_is_one_line(root: str, overrides: list[str], expected: str) -> None:
    with pytest.raises(ConfigError) as raised:
        configured(root, *overrides)
    assert expected in str(raised.value)
    assert "\n" not in str(raised.value)


@pytest.mark.parametrize(("root", "overrides", "settings"), [
    ("act_squad", [], (384, 5e-5, 48, 3649, 365)),
    ("act_squad", ["dataset=squad_v2", "trainer=albert_squad_v2"], (512, 3e-5, 48, 8144, 814)),
    ("act_swag", [], (128, 2e-5, 32, 12000, 1000)),
])  # fmt: skip
def test_the_settings_are_the_published_ones(root: str, overrides: list[str], settings: tuple[float, ...]) -> None:
    config = configured(root, *overrides)
    trainer = config.trainer
    batch = trainer.per_device_train_batch_size * trainer.gradient_accumulation_steps
    found = (
        config.dataset.sequence_length, trainer.learning_rate, batch, trainer.max_steps, trainer.warmup_steps,
    )  # fmt: skip
    assert found == settings
    assert (trainer.optimizer, trainer.weight_decay, trainer.adam_epsilon) == ("adamw", 0.01, 1e-6)


def test_windows_are_those_of_the_published_code() -> None:
    dataset = configured("act_squad").dataset
    assert isinstance(dataset, QuestionConfig)
    assert (dataset.stride, dataset.max_question_length, dataset.max_answer_length, dataset.n_best) == (128, 64, 30, 20)
    assert configured("act_squad", "dataset=squad_v2").dataset.unanswerable
    assert isinstance(configured("act_swag").dataset, ChoiceConfig)


def test_an_evaluation_measures_what_is_named() -> None:
    assert evaluation_metrics(configured("act_squad")) == (
        "loss", "task_loss", "ponder_loss", "score", "exact_match", "f1",
    )  # fmt: skip
    assert evaluation_metrics(configured("act_swag"))[-2:] == ("score", "accuracy")
    assert configured("act_squad", "trainer.metric_for_best_model=eval_f1", "optimise=eval/f1")
