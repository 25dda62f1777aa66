"""The folder of a trained model: its files and card, its upload to the hub, and loading without a run."""

from __future__ import annotations

import json
import logging
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
import transformers
from huggingface_hub import ModelCard

from adadepth import AlbertActForPreTraining, Pipeline, PonderAlbertForSequenceClassification, tasks
from adadepth.config.export import ExportConfig
from adadepth.errors import ConfigError
from adadepth.runs.hub import open_repository, push
from adadepth.runs.model_card import write_card, write_layout_card
from tests.configs.support import configured
from tests.hub_support import Hub, serve_hub
from tests.models_support import make_small_config
from tests.unit.models.early_exit.early_exit_support import build_early_exit

TINY = ("ponder_tiny", "debug=default", "trainer.disable_tqdm=true", "model.exit_rule=quantile:0.5")


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch) -> Iterator[Hub]:
    with serve_hub(monkeypatch) as server:
        yield server


@pytest.fixture(scope="module")
def uploaded_run(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Hub]:
    """Return the folder of a run that uploaded its model, and the hub that has it."""
    output = tmp_path_factory.mktemp("output")
    with pytest.MonkeyPatch.context() as patch, serve_hub(patch) as server:
        config = configured(
            *TINY, f"output_dir={output}", "trainer.push_to_hub=true", "trainer.hub_model_id=us/pondering",
            "trainer.hub_private_repo=true",
        )  # fmt: skip
        tasks.run(config)
    (record,) = output.glob("*/*/run.json")
    return record.parent, server


def test_the_hub_has_the_model_folder_and_nothing_else(uploaded_run: tuple[Path, Hub]) -> None:
    run, hub = uploaded_run
    files = {path.name: path.read_bytes() for path in (run / "model").iterdir()}
    assert hub.files == {"us/pondering": files}
    assert hub.created[0]["visibility"] == "private"
    assert set(files) == {
        "README.md", "config.json", "model.safetensors", "modeling_adadepth.py", "tokenizer.json",
        "tokenizer_config.json",
    }  # fmt: skip
    assert json.loads((run / "run.json").read_text())["pushed_to"] == f"{hub.address}/us/pondering"


def test_only_checkpoints_hold_the_pickled_arguments(uploaded_run: tuple[Path, Hub]) -> None:
    run, _ = uploaded_run
    assert {path.parent.parent.name for path in run.rglob("training_args.bin")} == {"checkpoints"}


def test_the_card_cites_the_papers_of_its_family_alone(uploaded_run: tuple[Path, Hub]) -> None:
    run, _ = uploaded_run
    _, _, papers = (run / "model" / "README.md").read_text().partition("Also cite the papers of the model family")
    assert re.findall(r"^- (\w+).*?\((\d+)\)", papers, flags=re.M) == [
        ("Banino", "2021"), ("Lan", "2019"), ("Balagansky", "2022"),
    ]  # fmt: skip


def test_the_card_says_what_the_run_measured(uploaded_run: tuple[Path, Hub]) -> None:
    run, _ = uploaded_run
    metrics = json.loads((run / "run.json").read_text())["final_metrics"]
    card = ModelCard.load(run / "model" / "README.md")
    results = {result.metric_type: result for result in card.data.eval_results}
    assert results["accuracy"].metric_value == pytest.approx(metrics["eval/accuracy"])
    assert (results["accuracy"].dataset_name, results["accuracy"].dataset_split) == ("bigram_shift", "validation")
    assert card.data.pipeline_tag == results["accuracy"].task_type == "text-classification"
    assert card.data.library_name == "adadepth"
    assert {"adadepth", "ponder_albert"} <= set(card.data.tags)
    rows = dict(re.findall(r"^\| ([^|]+) \| ([^|]+) \|$", card.text, flags=re.MULTILINE))
    assert float(rows["mean updates per unit"]) == pytest.approx(metrics["halting/all/mean"], rel=1e-3)
    assert float(rows["adaptive_over_full"]) == pytest.approx(metrics["cost/adaptive_over_full"], rel=1e-3)
    assert rows["model.num_hidden_layers"] == "6"
    rule = json.loads((run / "model" / "config.json").read_text())["exit_rule"]
    assert f"decided by the exit rule `{rule}`. The figures were measured with it at the end of the run" in card.text
    assert "on the evaluation set validation of these data" in card.text
    for part in ("seed 0", "## Limits", "@software{adadepth", "PonderNet: Learning to Ponder", "from adadepth import"):
        assert part in card.text
    assert str(run.parent.parent) not in card.text


def test_names_and_values_are_words_of_a_card_and_no_markup(tmp_path: Path) -> None:
    hostile = "x`\n\n---\nlicense: evil\n# <script>alert(1)</script> | [a](b)"
    config = configured("act_tiny", "debug=default")
    config.name = config.dataset.name = hostile
    record = {"final_metrics": {"eval/loss": 1.0}}
    text = write_card(tmp_path, config, record, AlbertActForPreTraining(make_small_config()), hostile).read_text()
    card = ModelCard(text)
    assert card.data.license == "apache-2.0"
    assert card.data.model_name == hostile
    assert r"x\` --- license: evil \# \<script\>alert(1)\</script\> \| \[a\](b)" in card.text
    assert hostile.splitlines()[-1] not in card.text
    assert not re.search(r"(?<!\\)<script", card.text)


@pytest.mark.parametrize(
    ("rule", "sentence"),
    [
        (None, "It has its full depth: every token gets 4 updates."),
        ("fixed:2", "Its depth is fixed: every token gets 2 of 4 updates."),
        ("margin:0.5", "Its depth is adaptive: the model decides it for every token."),
    ],
)
def test_a_card_says_whether_depth_is_adaptive(rule: str | None, sentence: str, tmp_path: Path) -> None:
    model = build_early_exit(exit_rule=rule)
    assert model.max_updates == 4
    assert f"with adadepth. {sentence}\n" in write_card(tmp_path, configured("exit_tiny"), {}, model, "a").read_text()


def test_foreign_weights_do_not_get_this_package_s_license(tmp_path: Path) -> None:
    config = configured("exit_retrofit", f"model.pretrained={tmp_path}", "model.trains=all")
    card = ModelCard(write_card(tmp_path, config, {}, build_early_exit(), "a").read_text())
    assert card.data.license is None


@pytest.mark.parametrize("is_untrained", [True, False])
def test_the_card_of_a_network_without_its_exits_has_no_figures_of_exits(is_untrained: bool, tmp_path: Path) -> None:
    model = build_early_exit(exit_heads="own", exit_rule="margin:0.5", exit_layers=[2])
    scores = {"eval/loss": 3.0, "eval/lm_loss_step_1": 4.0, "halting/all/mean": 2.5}
    record = {"parameters": 999_999, "final_metrics": scores}
    (tmp_path / "plain").mkdir()
    write_card(tmp_path, configured("exit_tiny"), record, model, "a")
    model.drop_exits()
    settings = ExportConfig(layout="llama", drop_exits=True)
    path = write_layout_card(tmp_path / "plain", tmp_path, model, settings, is_untrained=is_untrained)
    card = ModelCard.load(path)
    size = sum(weight.numel() for weight in model.parameters())
    assert card.data.eval_results is None
    origin = "the frozen network of a run of adadepth" if is_untrained else "trained with adadepth"
    depth = f"{size:,} parameters), {origin}, without early exits. It has its full depth: all 4 layers for every token."
    assert depth in card.text
    assert ("trained with adadepth" in card.text, "dataset.cache_dir" in card.text or "| model." in card.text) == (
        not is_untrained, not is_untrained,
    )  # fmt: skip
    assert not re.search("999,999|lm_loss_step|mean updates per unit|adaptive:|2 updates", card.text)
    headings = re.findall("^## (.*)$", card.text, flags=re.MULTILINE)
    expected = ["Use", "Results", "Depth and compute", "Training", "Limits", "Licence and citation"]
    assert headings == expected


def test_the_pipeline_of_transformers_reads_the_folder_as_training_did(uploaded_run: tuple[Path, Hub]) -> None:
    """Check for a fault: training added a second [CLS], and the pipeline did not."""
    folder = str(uploaded_run[0] / "model")
    theirs = transformers.pipeline("text-classification", model=folder)
    for text in ("The modules are imported once.", "A is list a sequence."):
        scores = {prediction["label"]: prediction["score"] for prediction in theirs(text, top_k=None)}
        assert Pipeline.from_pretrained(folder)(text)[0].scores == scores
        assert theirs.tokenizer(text)["input_ids"][:2] == [theirs.tokenizer.cls_token_id] * 2


def test_a_model_can_be_pushed_from_python(uploaded_run: tuple[Path, Hub], hub: Hub) -> None:
    model = PonderAlbertForSequenceClassification.from_pretrained(uploaded_run[0] / "model")
    model.push_to_hub("us/by_hand")
    assert {"config.json", "model.safetensors", "modeling_adadepth.py"} <= set(hub.files["us/by_hand"])


@pytest.mark.slow
def test_the_default_repository_name_is_that_of_the_experiment(hub: Hub) -> None:
    assert open_repository(configured("ponder_tiny", "trainer.push_to_hub=true")) == "someone/ponder_tiny"
    assert open_repository(configured("ponder_tiny")) is None


def test_a_refusal_of_the_hub_ends_a_run_before_training(hub: Hub, monkeypatch: pytest.MonkeyPatch, tmp_path) -> None:
    monkeypatch.setenv("HF_TOKEN", "hf_wrong")
    config = configured(*TINY, f"output_dir={tmp_path}/out", "trainer.push_to_hub=true")
    with pytest.raises(ConfigError, match=r"trainer\.hub_model_id=ponder_tiny: the hub rejected the upload") as caught:
        tasks.run(config)
    assert "\n" not in str(caught.value)
    assert not (tmp_path / "out").exists()


def test_a_failed_upload_is_only_a_warning(hub: Hub, tmp_path: Path, caplog) -> None:
    (tmp_path / "config.json").write_text("{}")
    hub.refuses = True
    with caplog.at_level(logging.WARNING, logger="adadepth"):
        assert push(tmp_path, "us/x", "a message") is None
    assert f"try again with: hf upload us/x {tmp_path}" in caplog.text
