"""The four stages of an architecture search: in one run, one by one, interrupted, with several seeds; shipped
configurations.
"""

import json
import shutil
from pathlib import Path

import pytest
import torch
from omegaconf import OmegaConf
from transformers import AutoModelForCausalLM, AutoTokenizer

from adadepth import tasks
from adadepth.errors import CheckpointError, ConfigError
from adadepth.models import ParXLForCausalLM, ParXLSupernet
from adadepth.models.par_xl import latency
from adadepth.tasks import architecture_search
from tests.configs.support import configured
from tests.marks_support import mark_mostly_slow
from tests.pages_support import check_costs
from tests.training.stream_support import build_stream_config, write_text
from tests.training.support import mark_interrupted

ROOT = Path(__file__).resolve().parents[2]
BASELINES = ("alternating", "paper_rule", "sandwich", "random")
# The run that the tests of this module share, evaluated and saved in its middle and at its end.
WHOLE = (
    "search.method=two_phase", "search.weights_only=1", "trainer.max_steps=8", "trainer.eval_steps=4",
    "trainer.save_steps=4", "seed=3",
)  # fmt: skip


def find_run(folder):
    (run,) = folder.glob("outputs/*/*")
    return run


def read_record_of_run(folder):
    return json.loads((folder / "run.json").read_text())


def forget(run, *keys):
    """Remove keys from the record of a run, as if it was killed before it recorded them."""
    record = {key: value for key, value in read_record_of_run(run).items() if key not in keys}
    (run / "run.json").write_text(json.dumps(record | {"status": "running"}))


@pytest.fixture(scope="module")
def finished_search(tmp_path_factory):
    folder = tmp_path_factory.mktemp("search")
    return find_run_and_metric(folder, tasks.run(build_stream_config(folder, *WHOLE)))


def find_run_and_metric(folder, metric):
    return find_run(folder), metric


@pytest.mark.slow
def test_one_run_searches_derives_retrains_and_compares(finished_search):
    run, metric = finished_search
    record = read_record_of_run(run)
    assert record["status"] == "finished"
    assert set(record["architectures"]) == {"derived", *BASELINES}
    assert record["final_metrics"]["eval/loss"] == metric
    retrained = read_record_of_run(run / "retrained" / "derived")["final_metrics"]
    assert metric == retrained["eval/loss"]
    for name in ("soft", "argmax", "sampled"):
        assert record["final_metrics"][f"search/{name}/perplexity"] > 1
    for name in BASELINES:
        assert record["final_metrics"][f"search/compare/{name}/perplexity"] > 1
    comparison = json.loads((run / "architectures.json").read_text())
    assert [row["name"] for row in comparison["rows"]] == ["derived", "derived", *BASELINES]
    assert all(row["seconds"]["T=8, M=8, batch=2"]["median"] > 0 for row in comparison["rows"])
    compared = {name for name in record["verdict"]["worth"]["figures"] if name.startswith("gain_over_architecture")}
    assert compared == {f"gain_over_architecture/{name}" for name in BASELINES}
    assert record["verdict"]["worth"]["answer"] in ("yes", "partly", "no")


@pytest.mark.slow
def test_the_derived_network_is_the_argmax_of_the_supernet(finished_search):
    """Compare losses: the derived network has that of the supernet with its most probable operations."""
    run, _ = finished_search
    supernet = ParXLSupernet.from_pretrained(run / "supernet")
    derived = ParXLForCausalLM.from_pretrained(run / "derived" / "model")
    assert derived.config.architecture == supernet.architecture() == read_record_of_run(run)["architectures"]["derived"]
    argmax = read_record_of_run(run)["final_metrics"]["search/argmax/loss"]
    assert read_record_of_run(run / "derived")["final_metrics"]["eval/loss"] == pytest.approx(argmax, rel=1e-6)


@pytest.mark.slow
def test_the_report_shows_heat_map_and_comparison(finished_search):
    run, _ = finished_search
    check_costs(run)
    page = (run / "report.html").read_text()
    assert "alternating" in page
    assert read_record_of_run(run)["architectures"]["derived"] in page
    for name in ("gates.png", "gates.gif", "architectures.png"):
        assert (run / "figures" / name).is_file(), "drawn by the README's run"
    assert len(list((run / "figures" / "gates").glob("step_*.png"))) >= 2
    assert "figures/gates/step_" in (run / "metrics.jsonl").read_text()


@pytest.mark.slow
def test_the_model_of_the_run_is_the_retrained_network(finished_search):
    run, _ = finished_search
    model = AutoModelForCausalLM.from_pretrained(run / "model")
    tokenizer = AutoTokenizer.from_pretrained(run / "model")
    ids = tokenizer("the cat sat", return_tensors="pt")["input_ids"]
    logits = model(ids).logits
    torch.testing.assert_close(logits.exp().sum(dim=-1), torch.ones(1, ids.shape[1]))


@pytest.mark.slow
def test_separate_stages_equal_one_run(finished_search, tmp_path):
    run, metric = finished_search
    shutil.copy(run.parents[2] / "text.txt", tmp_path / "text.txt")
    tasks.run(build_stream_config(tmp_path, *WHOLE, "search.stages=[search]"))
    copy = find_run(tmp_path)
    assert read_record_of_run(copy)["status"] == "finished"
    assert not (copy / "derived").exists()
    with pytest.raises(CheckpointError, match="no network has been derived yet; add the stage derive"):
        tasks.run(build_stream_config(tmp_path, *WHOLE, "search.stages=[retrain]", f"resume={copy}"))
    for stage in ("derive", "retrain", "compare"):
        last = tasks.run(build_stream_config(tmp_path, *WHOLE, f"search.stages=[{stage}]", f"resume={copy}"))
    assert last == metric
    assert read_record_of_run(copy)["architectures"] == read_record_of_run(run)["architectures"]


@pytest.mark.slow
def test_a_run_stopped_between_networks_resumes_there(finished_search, tmp_path, monkeypatch):
    run, metric = finished_search
    shutil.copy(run.parents[2] / "text.txt", tmp_path / "text.txt")
    retrain = architecture_search._retrain

    def stop_before_the_sandwich(search, name, architecture):
        if name == "sandwich":
            raise KeyboardInterrupt
        retrain(search, name, architecture)

    monkeypatch.setattr(architecture_search, "_retrain", stop_before_the_sandwich)
    with pytest.raises(KeyboardInterrupt):
        tasks.run(build_stream_config(tmp_path, *WHOLE))
    stopped = find_run(tmp_path)
    assert read_record_of_run(stopped)["status"] == "interrupted"
    find_earlier_run = (stopped / "retrained" / "derived" / "run.json").stat().st_mtime
    monkeypatch.undo()
    assert tasks.run(build_stream_config(tmp_path, *WHOLE, f"resume={stopped}")) == metric
    assert read_record_of_run(stopped)["status"] == "finished"
    assert (stopped / "retrained" / "derived" / "run.json").stat().st_mtime == find_earlier_run


@pytest.mark.slow
def test_cutoffs_from_the_text_are_those_of_every_network(tmp_path, capsys):
    overrides = ("model.cutoffs=[]", "model.cutoff_clusters=3", "trainer.max_steps=2", "search.baselines=[alternating]")
    tasks.run(build_stream_config(tmp_path, *overrides, "search.stages=[search,derive]"))
    run = find_run(tmp_path)
    cutoffs = ParXLSupernet.from_pretrained(run / "supernet").config.cutoffs
    assert len(cutoffs) == 2
    (line,) = [line for line in capsys.readouterr().out.splitlines() if line.startswith("derived from the")]
    assert line == f"derived from the training text: model.cutoffs={cutoffs}"
    settings = OmegaConf.load(run / "config.yaml").model
    assert (settings.cutoffs, settings.cutoff_clusters) == (cutoffs, None)
    tasks.run(build_stream_config(tmp_path, *overrides, f"resume={run}", "search.stages=[retrain]"))
    for model in (run / "derived" / "model", run / "model", run / "retrained" / "alternating" / "model"):
        assert ParXLForCausalLM.from_pretrained(model).config.cutoffs == cutoffs


def test_later_stages_need_a_search(tmp_path):
    with pytest.raises(CheckpointError, match="holds no finished search; add the stage search"):
        tasks.run(build_stream_config(tmp_path, "search.stages=[derive]"))


@pytest.mark.slow
@pytest.mark.parametrize("costs", ["measured", "macs"])
def test_expected_cost_is_a_part_of_the_loss(tmp_path, costs):
    overrides = ("search.latency_weight=0.5", f"search.latency_costs={costs}", "search.stages=[search]")
    tasks.run(build_stream_config(tmp_path, *overrides))
    run = find_run(tmp_path)
    lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    assert any(line.get("train/latency_loss", 0) > 0 for line in lines)
    attention, feed_forward, identity = read_record_of_run(run)["operation_costs"]
    assert min(attention, feed_forward) > identity == 0
    assert (
        ParXLSupernet.from_pretrained(run / "supernet").config.operation_costs
        == read_record_of_run(run)["operation_costs"]
    )


MEASURED = {"s": 2e-3, "f": 1e-3, "-": 0.0}  # seconds: the alternating network of three blocks takes 5 ms
LATENCY = (
    "budget=latency", "budget.target=3", "trainer.max_steps=120", "trainer.logging_steps=1", "trainer.eval_steps=60",
    "trainer.save_steps=60", "search.gate_learning_rate=3e-2",
)  # fmt: skip


@pytest.fixture
def known_times(monkeypatch):
    monkeypatch.setattr(latency, "operation_latencies", lambda *args: MEASURED)


@pytest.mark.slow
@pytest.mark.parametrize("method", ["joint", "two_phase"])
def test_a_search_meets_a_latency_target(method, tmp_path, known_times):
    phases = ("search.weights_only=20", "search.architecture_share=0.5") if method == "two_phase" else ()
    overrides = (f"search.method={method}", *phases, "search.stages=[search,derive]")
    tasks.run(build_stream_config(tmp_path, *LATENCY, *overrides))
    run = find_run(tmp_path)
    record = read_record_of_run(run)
    assert record["operation_costs"] == [2e-3, 1e-3, 0.0]
    latency = record["latency"]
    architecture = record["architectures"]["derived"]
    assert latency["derived"] == pytest.approx(2 * architecture.count("s") + architecture.count("f")) == 3
    assert latency["is_held"]
    assert ParXLSupernet.from_pretrained(run / "supernet").architecture() == latency["string"]
    logged = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    logged = [line for line in logged if "budget/measured" in line]
    assert logged[0]["budget/target"] == 5
    assert logged[-1]["budget/target"] == 3
    if method == "two_phase":
        idle = [line["budget/multiplier"] for line in logged[:20]]
        assert idle == [0.0] * 20, "the gates do not learn yet"
        assert logged[-1]["budget/multiplier"] != 0


@pytest.mark.slow
def test_an_unreachable_latency_is_reported(tmp_path, known_times, capsys):
    tasks.run(build_stream_config(tmp_path, *LATENCY, "budget.target=3.5", "search.stages=[search,derive]"))
    latency = read_record_of_run(find_run(tmp_path))["latency"]
    assert not latency["is_held"]
    assert latency["derived"] in (3.0, 4.0)
    (line,) = [line for line in capsys.readouterr().out.splitlines() if line.startswith("latency:")]
    assert "for a target of 3.5 ms, more than 5% away: no architecture with this number of blocks is closer" in line


def test_a_latency_beyond_every_architecture_is_refused(tmp_path, known_times):
    with pytest.raises(
        ConfigError,
        match=r"budget\.target=7: blocks of the most expensive "
        r"operation take 6 ms in total",
    ):
        tasks.run(build_stream_config(tmp_path, *LATENCY, "budget.target=7"))
    assert not (tmp_path / "outputs").exists()


@pytest.mark.slow
def test_a_resumed_budget_reuses_the_measured_costs(tmp_path, known_times, monkeypatch):
    overrides = (*LATENCY, "trainer.max_steps=8", "trainer.eval_steps=4", "trainer.save_steps=4",
                 "search.stages=[search,derive]", "trainer.save_total_limit=null")  # fmt: skip
    tasks.run(build_stream_config(tmp_path / "whole", *overrides))
    tasks.run(build_stream_config(tmp_path / "stopped", *overrides))
    whole, stopped = find_run(tmp_path / "whole"), find_run(tmp_path / "stopped")
    for path in (stopped / "supernet", stopped / "derived", stopped / "checkpoints" / "checkpoint-8"):
        shutil.rmtree(path)
    forget(stopped, "search_metrics", "architectures", "latency")
    monkeypatch.setattr(latency, "operation_latencies", lambda *args: pytest.fail("measured again"))
    tasks.run(build_stream_config(tmp_path / "stopped", *overrides, f"resume={mark_interrupted(stopped)}"))
    gates = [ParXLSupernet.from_pretrained(run / "supernet").gates for run in (whole, stopped)]
    assert torch.equal(*gates)
    assert read_record_of_run(whole)["latency"] == read_record_of_run(stopped)["latency"]


def test_times_estimated_by_macs_add_up_to_the_measured_ones(tmp_path, known_times):
    overrides = ("search.latency_costs=macs", "trainer.max_steps=2", "search.stages=[search]", "trainer.eval_steps=2")
    tasks.run(build_stream_config(tmp_path, *LATENCY, *overrides, "trainer.save_steps=2"))
    attention, feed_forward, identity = read_record_of_run(find_run(tmp_path))["operation_costs"]
    assert attention + feed_forward == pytest.approx(3e-3)
    assert attention != pytest.approx(2e-3)
    assert identity == 0


@pytest.mark.slow
def test_retraining_may_begin_with_the_weights_of_the_supernet(tmp_path):
    overrides = ("search.retrain_from=supernet", "search.baselines=[]", "search.retrain_steps=3")
    tasks.run(build_stream_config(tmp_path, *overrides))
    run = find_run(tmp_path)
    lines = (run / "retrained" / "derived" / "metrics.jsonl").read_text().splitlines()
    first = next(json.loads(line) for line in lines if "eval/loss" in line)
    untrained = read_record_of_run(run / "derived")["final_metrics"]
    assert first["step"] == 0
    assert first["eval/loss"] == pytest.approx(untrained["eval/loss"], rel=1e-6)
    rows = json.loads((run / "architectures.json").read_text())["rows"]
    assert [row["trained"] for row in rows] == ["not retrained", "from the supernet"]


@pytest.mark.slow
def test_several_seeds_report_their_agreement(tmp_path):
    tasks.run(build_stream_config(tmp_path, "seeds=2", "search.stages=[search]"))
    (summary,) = tmp_path.glob("outputs/*/*/seeds.json")
    agreement = json.loads(summary.read_text())["architecture_agreement"]
    assert agreement["pairs"] == 1
    assert 0 <= agreement["mean"] <= 1
    assert set(agreement["strings"]) == {"0", "1"}


@pytest.mark.parametrize(
    "root",
    mark_mostly_slow(["par_tiny", "par_wikitext2", "par_base", "par_network"], lambda root: root == "par_tiny"),
)
def test_every_shipped_search_trains(root, tmp_path):
    """Train two updates at the debug width, on a local text where the configuration's own is not at hand."""
    texts = [str(write_text(tmp_path / f"{name}.txt", lines)) for name, lines in (("a", 500), ("b", 60), ("c", 60))]
    local = (
        f"dataset.path={texts[0]}", f"dataset.evaluation_path={texts[1]}", f"dataset.test_path={texts[2]}",
        "dataset.sequence_length=8", "dataset.evaluation_length=null",
    )  # fmt: skip
    overrides = () if root in ("par_tiny", "par_network") else (*local, "model.cutoffs=[10]", "tokenizer.vocab_size=60")
    if root == "par_wikitext2":
        overrides = (*overrides, "preset=seed", "tokenizer.symbols=[]")
    blocks = () if root == "par_network" else ("model.num_hidden_layers=3", "search.baselines=[alternating]")
    config = configured(
        root, "debug=default", f"output_dir={tmp_path / 'outputs'}", "trainer.disable_tqdm=true", *overrides, *blocks
    )
    tasks.run(config)
    record = read_record_of_run(find_run(tmp_path))
    assert record["status"] == "finished"
    assert ("eval/test/perplexity" in record["final_metrics"]) == (root in ("par_wikitext2", "par_base"))


def read_search_metrics(run):
    """Return the metrics of the search in a record, without times."""
    metrics, clock = read_record_of_run(run)["final_metrics"], ("runtime", "_second")
    return {
        name: value
        for name, value in metrics.items()
        if name.startswith("search/") and not any(word in name for word in clock)
    }


def list_logged_figures(run):
    lines = map(json.loads, (run / "metrics.jsonl").read_text().splitlines())
    return [line[name] for line in lines for name in line if name.startswith("figures/")]


@pytest.mark.slow
@pytest.mark.parametrize("window", ["supernet saved", "derived", "derived half"])
def test_a_stage_is_done_when_it_is_recorded(finished_search, tmp_path, window):
    """Check a search that was killed between writing a folder and its record: the end is the same, no line is logged
    twice.
    """
    run, metric = finished_search
    killed = tmp_path / "outputs" / run.parent.name / run.name
    shutil.copytree(run, killed)
    for name in ("retrained", "model"):
        shutil.rmtree(killed / name)
    (killed / "architectures.json").unlink()
    if window == "supernet saved":
        shutil.rmtree(killed / "derived")
        (killed / "supernet" / "config.json").unlink()
        forget(killed, "search_metrics", "architectures", "search_log", "search_steps", "saved")
    else:
        forget(killed, "architectures")
        if window == "derived half":
            (killed / "derived" / "model" / "model.safetensors").write_bytes(b"")
            forget(killed / "derived", "final_metrics")
    assert (
        tasks.run(
            build_stream_config(tmp_path, *WHOLE, f"dataset.path={run.parents[2] / 'text.txt'}", f"resume={killed}")
        )
        == metric
    )
    assert read_record_of_run(killed)["status"] == "finished"
    metrics = [read_search_metrics(folder) for folder in (run, killed)]
    assert metrics[0] == metrics[1], "the supernet is evaluated at the temperature of its last update"
    for name in ("model", "supernet", "derived/model"):
        weights = [(folder / name / "model.safetensors").read_bytes() for folder in (run, killed)]
        assert weights[0] == weights[1], name
    assert list_logged_figures(killed) == list_logged_figures(run)
    assert len(list_logged_figures(run)) == len(set(list_logged_figures(run))) > 2


@pytest.mark.slow
def test_a_missing_supernet_is_a_one_line_error(finished_search, tmp_path):
    run, _ = finished_search
    killed = tmp_path / "outputs" / run.parent.name / run.name
    shutil.copytree(run, killed)
    shutil.rmtree(killed / "supernet")
    forget(killed, "architectures")
    with pytest.raises(CheckpointError, match=r"supernet: its \S+ is missing$"):
        tasks.run(
            build_stream_config(tmp_path, *WHOLE, f"dataset.path={run.parents[2] / 'text.txt'}", f"resume={killed}")
        )
