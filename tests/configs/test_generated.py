"""What is checked of generated data before anything is drawn, and that the shipped roots fit together."""

from __future__ import annotations

import pytest

from adadepth.cli.validation import evaluation_metrics
from adadepth.errors import ConfigError
from adadepth.settings.kinds import problem_of
from tests.configs.support import configured


@pytest.mark.parametrize(("root", "overrides", "expected"), [
    ("act_maze", ["dataset.walls=1"], "dataset.walls=1.0: "),
    ("act_maze", ["dataset.size=1"], "dataset.size=1: a maze needs at least 2"),
    ("act_maze", ["dataset.size=20", "dataset.sequence_length=400", "dataset.beyond_sizes=[]"],
     "dataset.size=20: must be at most dataset.field=12"),
    ("act_maze", ["dataset.beyond_sizes=[8]"],
     "dataset.beyond_sizes=[8]: must be above dataset.size=8 and at most 12, each once"),
    ("act_maze", ["dataset.beyond_sizes=[14]"], "dataset.sequence_length=144: the largest maze has 196 cells"),
    ("act_maze", ["dataset.field=17"],
     "dataset.field=17: the model has only model.max_position_embeddings=12 positions"),
    ("act_maze", ["model=ponder_albert_mini"],
     "model=ponder_albert: dataset=maze labels symbols of its own, for albert_act"),
    ("act_hops", ["dataset.train_hops=[3,8]"],
     "dataset.train_hops=[3, 8]: must be [lowest, highest] within 0 and dataset.nodes / 2 - 1 = 7"),
    ("act_hops", ["dataset.beyond_hops=[7]"],
     "dataset.beyond_hops=[7]: must be [lowest, highest] within 0 and dataset.nodes / 2 - 1 = 7"),
    ("act_hops", ["dataset.colours=9"], "dataset.colours=9: must be from 2 to 8"),
    ("act_hops", ["dataset.nodes=20"], "dataset.sequence_length=16: there are dataset.nodes=20"),
    ("act_addition", ["dataset.digits=24", "dataset.beyond_digits=[]", "dataset.sequence_length=24"],
     "dataset.digits=24: must be below dataset.field=24: a sum has a digit more"),
    ("act_addition", ["dataset.beyond_digits=[20,20]"],
     "dataset.beyond_digits=[20, 20]: must be above dataset.digits=12 and at most 23, each once"),
    ("act_addition", ["dataset.sequence_length=16"], "dataset.sequence_length=16: the longest sum has 21 digits"),
    ("act_addition", ["dataset.nines=-0.1"], "dataset.nines=-0.1: "),
    ("act_addition", ["optimise=eval/accuracy"], "optimise=eval/accuracy: "),
])  # fmt: skip
def test_a_wrong_setting_is_one_line(root: str, overrides: list[str], expected: str) -> None:
    with pytest.raises(ConfigError) as raised:
        configured(root, *overrides)
    assert len([line for line in str(raised.value).splitlines() if expected in line]) == 1


@pytest.mark.parametrize("root", ["act_maze", "act_hops", "act_addition", "act_pos"])
def test_token_tasks_select_on_their_accuracy(root: str) -> None:
    config = configured(root)
    assert problem_of(config.dataset) == "tagging"
    assert {"score", "token_accuracy"} <= set(evaluation_metrics(config))


@pytest.mark.parametrize("dataset", ["ud_pos", "wikiann", "conll2003", "tagging_table"])
@pytest.mark.parametrize("model", ["albert_act_mini", "albert_act_pretrained"])
def test_act_takes_every_tagging_data_set(dataset: str, model: str) -> None:
    given = ["dataset.path=folder"] if dataset == "tagging_table" else []
    assert configured("act_pos", f"dataset={dataset}", f"model={model}", *given).model.name == "albert_act"


def test_the_sequence_form_of_pointers_is_for_every_family() -> None:
    for model in ("ponder_albert_mini", "pabee_mini", "albert_mini"):
        config = configured("ponder_tiny", "dataset=hops_sequence", f"model={model}")
        assert problem_of(config.dataset) == "classification"
        assert "accuracy" in evaluation_metrics(config)
