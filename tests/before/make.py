"""Make the stored runs beside this file with the code that is imported; README.md names the commits.

python tests/before/make.py [NAME ...]
"""

from __future__ import annotations

import json
import os
import random
import shutil
import signal
import sys
import tempfile
from pathlib import Path
from typing import Any

os.environ |= {"OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1", "MPLBACKEND": "Agg"}

import torch
from safetensors.torch import save_file
from tokenizers import Tokenizer, models, pre_tokenizers, processors
from transformers import BertConfig, BertModel, LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

import adadepth
from adadepth import tasks
from adadepth.runs.checkpoints import MANIFEST, seal_checkpoint
from adadepth.training.trainer import DepthTrainer
from tests.configs.support import configured

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE))
from runs import RUNS, list_evaluation_overrides  # noqa: E402

WORDS = "the cat sat on a mat and then it slept for some hours in warm sun while birds sang".split()  # noqa: SIM905
CHAT_TEMPLATE = (
    "{% for message in messages %}{{ message['role'] }} {{ message['content'] }} </s> {% endfor %}"
    "{% if add_generation_prompt %}assistant {% endif %}"
)
STOP_AFTER = 3
# Files that loading, evaluating and resuming do not read.
LEFT_OUT = (
    "figures", "tables", "report.html", "training_args.bin", "predictions", "halting.json", "grids.json", "exits.json",
    "sentences.jsonl", "depth_by_class.csv", "retrained", "derived", "architectures.json",
    "matched_baseline.json", "README.md",
)  # fmt: skip


def main() -> None:
    torch.set_num_threads(1)
    names = sys.argv[1:] or list(RUNS)
    if not sys.argv[1:]:
        write_inputs(HERE / "inputs")
    for name in names:
        with tempfile.TemporaryDirectory() as scratch:
            os.chdir(scratch)
            shutil.copytree(HERE / "inputs", scratch, dirs_exist_ok=True)
            shutil.rmtree(HERE / name, ignore_errors=True)
            make(name, HERE / name)


def make(name: str, folder: Path) -> None:
    """Stop a run in its third update, resume it, and evaluate the result."""
    stop(name)
    (directory,) = Path("outputs").glob("*/*")
    run = directory.rename(directory.with_name("run"))
    for path in run.rglob("*.json"):
        path.write_text(path.read_text().replace(directory.name, "run"))
    for checkpoint in run.glob("checkpoints/*"):
        if checkpoint.name != f"checkpoint-{STOP_AFTER}":
            shutil.rmtree(checkpoint)
    seal(run)
    store_run(run, folder / "stopped")
    tasks.run(configured(*RUNS[name], f"resume={run}"))
    shutil.rmtree(run / "checkpoints")
    (run / "metrics.jsonl").unlink()
    store_run(run, folder / "finished")
    overrides = ("mode=evaluate", f"checkpoint={run}", "output_dir=evaluated")
    tasks.run(configured(*list_evaluation_overrides(name), *overrides))
    (record,) = Path("evaluated").glob("*/*/run.json")
    (folder / "evaluated.json").write_text(json.dumps(json.loads(record.read_text())["final_metrics"], indent=2) + "\n")
    for model_folder in ("model", "supernet"):
        if (run / model_folder).is_dir():
            save_file(compute_outputs(run / model_folder), folder / f"{model_folder}.safetensors")


def stop(name: str) -> None:
    """Train until a signal comes, as when a queue ends a job."""
    step, done = DepthTrainer.training_step, []

    def count_and_stop(*args: Any, **kwargs: Any) -> Any:
        done.append(None)
        if len(done) == STOP_AFTER:
            os.kill(os.getpid(), signal.SIGTERM)
        return step(*args, **kwargs)

    DepthTrainer.training_step = count_and_stop
    try:
        tasks.run(configured(*RUNS[name]))
    except SystemExit:
        return
    finally:
        DepthTrainer.training_step = step
    raise AssertionError(f"{name} was not stopped")


def store_run(run: Path, folder: Path) -> None:
    """Copy the files that tests read, without the names of this machine."""
    shutil.copytree(run, folder, ignore=shutil.ignore_patterns(*LEFT_OUT))
    for path in folder.rglob("run.json"):
        record = json.loads(path.read_text())
        record_fields = {key: value for key, value in record.items() if key not in ("command", "hardware")}
        path.write_text(json.dumps(record_fields | {"hardware": {"processes": 1}}, indent=2) + "\n")
    settings = folder / "config.yaml"
    settings.write_text(settings.read_text().replace(f"{Path.cwd()}/", ""))
    seal(folder)


def seal(run: Path) -> None:
    """Write the manifests of checkpoints again, whose files were changed or left out."""
    for path in run.glob(f"checkpoints/*/{MANIFEST}"):
        seal_checkpoint(path.parent)


def compute_outputs(folder: Path) -> dict[str, torch.Tensor]:
    """Return a batch, and the outputs of a model for it."""
    inputs = make_batch(folder)
    name = json.loads((folder / "config.json").read_text())["architectures"][0]
    model = getattr(adadepth, name).from_pretrained(folder).eval()
    with torch.no_grad():
        model_outputs = model(**inputs)
    tensors = {
        key: value for key, value in model_outputs.items() if key.endswith("logits") and isinstance(value, torch.Tensor)
    }
    tensors["updates"] = model_outputs["trace"].updates
    return {key: value.contiguous().clone() for key, value in tensors.items()} | {
        f"inputs/{key}": value for key, value in inputs.items()
    }


def make_batch(folder: Path) -> dict[str, torch.Tensor]:
    config, generator = json.loads((folder / "config.json").read_text()), torch.Generator().manual_seed(0)
    if config["model_type"] == "ponder_rnn":
        return {"inputs": torch.randint(-1, 2, (3, config["input_size"]), generator=generator).float()}
    if config["model_type"] == "trm":
        return {"input_ids": torch.randint(1, config["vocab_size"], (3, config["cells"]), generator=generator)}
    vocabulary = config.get("vocab_size") or BertConfig.from_pretrained("base").vocab_size
    ids = torch.randint(5, vocabulary, (3, 10), generator=generator)
    if config["model_type"] == "par_xl":
        return {"input_ids": ids}
    mask = (torch.arange(10) < torch.tensor([[10], [7], [4]])).long()
    return {"input_ids": ids * mask, "attention_mask": mask}


def write_inputs(folder: Path) -> None:
    """Write a text, a table, a base, and conversations with a decoder for them."""
    shutil.rmtree(folder, ignore_errors=True)
    (folder / "table").mkdir(parents=True)
    generator = random.Random(0)
    lines = [" ".join(generator.choices(WORDS, k=generator.randint(3, 9))) for _ in range(200)]
    (folder / "text.txt").write_text("".join(f"{line}\n" for line in lines))
    for split, rows in (("train", lines[:48]), ("validation", lines[48:72])):
        examples = [json.dumps({"sentence": row, "label": int("sat" in row)}) for row in rows]
        (folder / "table" / f"{split}.jsonl").write_text("\n".join(examples) + "\n")
    write_base(folder / "base")
    write_conversations(folder / "chat.jsonl", lines)
    write_decoder(folder / "decoder")


def write_conversations(file: Path, lines: list[str]) -> None:
    rows = [
        [{"role": "user", "content": question}, {"role": "assistant", "content": answer}]
        for question, answer in zip(lines[:60:2], lines[1:60:2], strict=True)
    ]
    file.write_text("".join(f"{json.dumps({'messages': row})}\n" for row in rows))


def write_decoder(folder: Path) -> None:
    """Write a Llama of four layers, whose tokenizer has a chat template."""
    torch.manual_seed(0)
    pieces = ["<pad>", "<unk>", "</s>", "user", "assistant", *WORDS]
    config = LlamaConfig(
        vocab_size=len(pieces), hidden_size=16, num_hidden_layers=4, num_attention_heads=2, intermediate_size=16,
        max_position_embeddings=64, initializer_range=0.3, bos_token_id=None, eos_token_id=2, pad_token_id=0,
    )  # fmt: skip
    LlamaForCausalLM(config).save_pretrained(folder)
    tokenizer = Tokenizer(models.WordLevel({piece: number for number, piece in enumerate(pieces)}, unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    words = PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, pad_token="<pad>", unk_token="<unk>", eos_token="</s>", split_special_tokens=False
    )
    words.chat_template = CHAT_TEMPLATE
    words.save_pretrained(folder)


def write_base(folder: Path) -> None:
    torch.manual_seed(0)
    pieces = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *WORDS]
    config = BertConfig(
        vocab_size=len(pieces), hidden_size=16, num_hidden_layers=3, num_attention_heads=2, intermediate_size=16,
        max_position_embeddings=16, initializer_range=0.5,
    )  # fmt: skip
    BertModel(config).save_pretrained(folder)
    vocabulary = {piece: number for number, piece in enumerate(pieces)}
    tokenizer = Tokenizer(models.WordLevel(vocabulary, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer.post_processor = processors.TemplateProcessing(
        single="[CLS]:0 $A:0 [SEP]:0", pair="[CLS]:0 $A:0 [SEP]:0 $B:1 [SEP]:1",
        special_tokens=[("[CLS]", 2), ("[SEP]", 3)],
    )  # fmt: skip
    PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, pad_token="[PAD]", unk_token="[UNK]", cls_token="[CLS]", sep_token="[SEP]",
        mask_token="[MASK]",
    ).save_pretrained(folder)  # fmt: skip


if __name__ == "__main__":
    main()
