"""Saved language models in other libraries: pipelines, PEFT and lm-eval-harness."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
import transformers
from transformers import AutoModelForCausalLM, AutoTokenizer, DataCollatorForLanguageModeling, Trainer

from adadepth import tasks
from adadepth.tasks import language_model
from tests.configs.support import configured

pytestmark = pytest.mark.slow
ROOT = Path(__file__).resolve().parents[2]
DATA = ("dataset=stream_python_docs", "dataset.append_eos=false", "tokenizer=words")


_SMALL = (
    "debug=default", "tokenizer=words", "dataset.append_eos=false", "dataset.sequence_length=64",
    "model.hidden_size=32", "model.intermediate_size=64", "model.num_attention_heads=2",
)  # fmt: skip
BLOCKS = {
    "looped": ("loop_tiny", *_SMALL),
    "early exit": ("exit_tiny", *_SMALL, "model.num_hidden_layers=3", "model.exit_layers=[1]", "model.exit_heads=own"),
}


@pytest.fixture(scope="module", params=BLOCKS)
def block_run(request, tmp_path_factory) -> tuple[Path, tuple[str, ...]]:
    """Return a run of a family that is trained on blocks of text, and its settings."""
    settings, out = BLOCKS[request.param], tmp_path_factory.mktemp("blocks")
    tasks.run(configured(*settings, "trainer.max_steps=30", "trainer.disable_tqdm=true", f"output_dir={out}"))
    (folder,) = out.glob(f"{settings[0]}/*")
    return folder, settings


@pytest.fixture(scope="module")
def run(tmp_path_factory) -> Path:
    """Train on whole words of the embedded corpus with an adaptive softmax, and return the run."""
    out = tmp_path_factory.mktemp("language")
    tasks.run(
        configured(
            "par_network", "debug=default", *DATA, "model.architecture=sfs-", "trainer.max_steps=60",
            "trainer.disable_tqdm=true", f"output_dir={out}",
        )
    )  # fmt: skip
    (folder,) = out.glob("par_network/*")
    return folder


def test_pipeline_generates_text_of_blocks(block_run):
    assert_generates(block_run[0])


def test_pipeline_generates_text(run):
    assert_generates(run)


def assert_generates(run):
    generate = transformers.pipeline("text-generation", model=str(run / "model"))
    options = {"max_new_tokens": 8, "do_sample": False, "suppress_tokens": generate.tokenizer.all_special_ids}
    texts = ["the value of the", "if a", "this function returns a list"]
    alone = [generate(text, **options)[0]["generated_text"] for text in texts]
    assert all(answer.startswith(text) and len(answer) > len(text) for answer, text in zip(alone, texts, strict=True))
    together = generate(texts, **options, batch_size=3)
    assert [answers[0]["generated_text"] for answers in together] == alone, "padded on the left, nothing else changes"


def test_lora_trains(run, tmp_path):
    assert_lora_trains(run, tmp_path, ["query", "key_value", "position", "output"])


def test_lora_trains_on_blocks(block_run, tmp_path):
    assert_lora_trains(block_run[0], tmp_path, ["q_proj", "o_proj", "lm_head"])


def assert_lora_trains(run, tmp_path, matrices):
    peft = pytest.importorskip("peft")
    model, tokenizer = AutoModelForCausalLM.from_pretrained(run / "model"), AutoTokenizer.from_pretrained(run / "model")
    before = {name: weight.clone() for name, weight in model.named_parameters()}
    settings = peft.LoraConfig(r=4, lora_alpha=32, target_modules=matrices, task_type="CAUSAL_LM")
    adapted = peft.get_peft_model(model, settings)
    data = [{"input_ids": tokenizer("the dog sat on the mat and slept for hours").input_ids}] * 32
    trainer = Trainer(
        adapted,
        transformers.TrainingArguments(
            str(tmp_path), report_to=[], save_strategy="no", use_cpu=True, disable_tqdm=True, num_train_epochs=4,
            learning_rate=1e-2,
        ),
        data_collator=DataCollatorForLanguageModeling(tokenizer, mlm=False), train_dataset=data, eval_dataset=data,
    )  # fmt: skip
    start = trainer.evaluate()["eval_loss"]
    trainer.train()
    assert trainer.evaluate()["eval_loss"] < start - 0.5
    for name, weight in adapted.base_model.model.named_parameters():
        if "lora" not in name:
            assert torch.equal(weight, before[name.replace("base_layer.", "")]), name
    adapted.save_pretrained(tmp_path / "adapter")
    loaded = peft.PeftModel.from_pretrained(AutoModelForCausalLM.from_pretrained(run / "model"), tmp_path / "adapter")
    ids = torch.tensor([data[0]["input_ids"]])
    torch.testing.assert_close(loaded.eval()(ids).logits, adapted.eval()(ids).logits)
    options = {"max_new_tokens": 5, "do_sample": False}
    assert torch.equal(adapted.generate(ids, **options), adapted.merge_and_unload().generate(ids, **options))


def run_harness(run, tmp_path, window):
    """Return the results of lm-eval-harness on the first held-out document, by the documented example."""
    command = [
        sys.executable, str(ROOT / "examples" / "run_lm_eval.py"), "run", "--model", "hf", "--model_args",
        f"pretrained={run / 'model'},max_length={window}", "--tasks", "python_docs", "--include_path",
        str(ROOT / "examples" / "lm_eval_tasks"), "--device", "cpu", "--limit", "1", "--output_path", str(tmp_path),
    ]  # fmt: skip
    environment = os.environ | {"PYTHONPATH": str(ROOT), "HF_HUB_OFFLINE": "1", "HF_DATASETS_OFFLINE": "1"}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=600, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    (file,) = tmp_path.rglob("results_*.json")
    return json.loads(file.read_text())["results"]["python_docs"]


def evaluate_ours(run, tmp_path, *settings):
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(ROOT / "examples" / "lm_eval_tasks")
        from python_docs import documents

    words = len(documents()["test"][0]["text"].split())
    return language_model.evaluate(
        configured(
            *settings, "mode=evaluate", f"checkpoint={run}", f"output_dir={tmp_path}",
            f"dataset.max_evaluation_tokens={words}",
        )
    )  # fmt: skip


@pytest.mark.parametrize(
    ("window", "context"),
    [
        (512, ("context.memory_length=512",)),
        (32, ("dataset.evaluation_length=32", "context.memory_length=0")),
    ],
    ids=["everything", "windows"],
)
def test_the_harness_agrees(run, tmp_path, window, context):
    """Compare perplexities; both begin a document with <eos>, and both show a word one of these:

    * all words before it: a window, or a memory, as long as the document;
    * those of its own 32 words: windows without overlap, or segments without memory.
    """
    pytest.importorskip("lm_eval")
    actual = run_harness(run, tmp_path / "harness", window)
    row = ("par_network", "debug=default", *DATA, "trainer.per_device_eval_batch_size=1")
    expected = evaluate_ours(run, tmp_path / "ours", *row, *context)
    assert actual["word_perplexity,none"] == pytest.approx(expected["eval/word_perplexity"], rel=1e-5)


def test_the_harness_agrees_on_blocks(block_run, tmp_path):
    """Compare perplexities: a block of 64 positions predicts 63 tokens, and so does a window of that length."""
    pytest.importorskip("lm_eval")
    folder, settings = block_run
    actual = run_harness(folder, tmp_path / "harness", 63)
    expected = evaluate_ours(folder, tmp_path / "ours", *settings)
    assert actual["word_perplexity,none"] == pytest.approx(expected["eval/word_perplexity"], rel=1e-5)
