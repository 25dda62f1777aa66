"""Language models over contiguous streams: memory, accumulation, processes, resume, phases, perplexities."""

import logging
import math
from itertools import combinations, pairwise
from types import SimpleNamespace

import pytest
import torch
from tokenizers import Tokenizer, models
from transformers import GenerationConfig, PreTrainedTokenizerFast
from transformers.trainer_utils import align_special_tokens

from adadepth import tasks
from adadepth.errors import ConfigError, DataError
from adadepth.models import ParXLForCausalLM
from adadepth.models.looped.configuration import LoopedConfig
from adadepth.models.par_xl.configuration import ParXLConfig
from adadepth.models.par_xl.modeling import Context
from adadepth.tasks.identity import store_special_tokens
from adadepth.tasks.language_model import load_data, set_text_ends
from adadepth.training.arguments import training_arguments
from tests.configs.support import configured
from tests.training.stream_support import JOINT, TRAINING_ONLY, build_stream_config, build_stream_trainer
from tests.training.support import clone_parameters, collect_losses

TWO_PHASE = ("search.method=two_phase", "search.gate_learning_rate=3e-2")
NETWORK = "par_network"


@pytest.mark.parametrize(
    ("workers", "accumulation", "search"),
    [
        pytest.param(0, 1, JOINT, marks=pytest.mark.slow),
        (2, 2, JOINT),
        pytest.param(0, 2, (*TWO_PHASE, "search.weights_only=2"), marks=pytest.mark.slow),
        pytest.param(0, 1, (*TWO_PHASE, "search.weights_only=2", "search.path=sampled"), marks=pytest.mark.slow),
    ],
)
def test_resume_is_bit_exact_with_its_memory(tmp_path, workers, accumulation, search):
    overrides = (
        *TRAINING_ONLY, *search, "trainer.max_steps=14", f"trainer.gradient_accumulation_steps={accumulation}",
        f"runtime.num_workers={workers}", "trainer.save_strategy=steps", "trainer.save_steps=1",
        "trainer.save_total_limit=null", "model.hidden_dropout_prob=0.1",
        f"trainer.per_device_train_batch_size={8 // accumulation}",
    )  # fmt: skip
    config = build_stream_config(tmp_path, *overrides)
    whole = build_stream_trainer(config, tmp_path / "whole")
    whole.train()
    epoch = whole.data.train.steps_per_epoch
    assert epoch + 2 < 14, f"an epoch has {epoch} updates: too long for this test"
    for step in (epoch, epoch + 2):
        resumed = build_stream_trainer(config, tmp_path / f"resumed-{step}")
        resumed.train(resume_from_checkpoint=str(tmp_path / "whole" / f"checkpoint-{step}"))
        for name, value in clone_parameters(whole).items():
            assert torch.equal(value, clone_parameters(resumed)[name]), f"{name} after resuming at step {step}"
        assert collect_losses(whole) == collect_losses(resumed)


def test_cutoffs_are_the_cheapest_for_the_training_text(tmp_path):
    """Compare with all cutoffs that the vocabulary allows, by the tokens that a prediction is computed for."""
    config = build_stream_config(tmp_path, "model.cutoffs=[]", "model.cutoff_clusters=4", root=NETWORK)
    data = load_data(config, training_arguments(config, tmp_path / "unused"), config.tokenizer)
    text = next(iter(data.train.streams.values())).store.tokens.tolist()
    size = len(data.tokenizer)

    def count_computed(cutoffs):
        edges = [*cutoffs, size]
        tails = {word: stop - start for start, stop in pairwise(edges) for word in range(start, stop)}
        return sum(cutoffs[0] + tails.get(token, 0) for token in text)

    tasks.run(config)
    (model,) = tmp_path.glob("outputs/*/*/model")
    cutoffs = ParXLForCausalLM.from_pretrained(model).config.cutoffs
    assert count_computed(cutoffs) == min(count_computed(other) for other in combinations(range(1, size), 3))


# A warm temperature keeps the gradient of the gates away from Adam's epsilon, where rounding decides.
@pytest.mark.slow
@pytest.mark.parametrize("search", [JOINT, (*TWO_PHASE, "search.weights_only=1", "search.tau_end=1")])
def test_micro_batches_are_rows_of_one_batch(tmp_path, search):
    trained = []
    for batch, accumulation in ((8, 1), (4, 2)):
        sizes = (f"trainer.per_device_train_batch_size={batch}", f"trainer.gradient_accumulation_steps={accumulation}")
        config = build_stream_config(tmp_path, *TRAINING_ONLY, *search, "trainer.max_steps=6", *sizes)
        trainer = build_stream_trainer(config, tmp_path / str(batch))
        trainer.train()
        trained.append((clone_parameters(trainer), collect_losses(trainer)))
    for name, value in trained[0][0].items():
        torch.testing.assert_close(trained[1][0][name], value, atol=2e-5, rtol=1e-4, msg=name)
    assert trained[1][1] == pytest.approx(trained[0][1], rel=1e-5)


def test_two_phases_alternate(tmp_path):
    config = build_stream_config(
        tmp_path, *TRAINING_ONLY, *TWO_PHASE, "search.weights_only=2", "trainer.max_steps=8", "trainer.warmup_steps=0"
    )
    trainer = build_stream_trainer(config, tmp_path / "run")
    seen, states = [], [clone_parameters(trainer)]
    step = trainer.training_step

    def watch(model, inputs, *rest):
        seen.append(inputs["stream"])
        return step(model, inputs, *rest)

    class Watch(type(trainer.callback_handler.callbacks[-1])):
        def on_step_end(self, args, state, control, **kwargs):
            states.append(clone_parameters(trainer))

    trainer.training_step = watch
    trainer.add_callback(Watch())
    trainer.train()
    assert seen == ["weights"] * 6 + ["architecture"] + ["weights"]  # 2 alone, then every fifth
    for before, after, stream in zip(states, states[1:], seen, strict=False):
        moved = {name for name in before if not torch.equal(before[name], after[name])}
        assert (moved == {"gates"}) if stream == "architecture" else ("gates" not in moved and moved)


def test_perplexities_are_those_of_a_plain_loop(tmp_path):
    """Compute exp of the mean loss of all tokens; the same total over words, and over characters in bits."""
    config = build_stream_config(
        tmp_path, *TRAINING_ONLY, "dataset.max_evaluation_tokens=null",
        "trainer.per_device_eval_batch_size=1", "model.memory_length=4", root=NETWORK,
    )  # fmt: skip
    trainer = build_stream_trainer(config, tmp_path / "run")
    metrics = trainer.evaluate()
    text = (tmp_path / "text.txt").read_text().splitlines(keepends=True)
    data, model = trainer.data, trainer.model.eval()
    held_out = text[-round(0.2 * len(text)) :]
    tokens = [2, *(token for line in held_out for token in [*data.tokenizer(line.strip())["input_ids"], 2])]
    assert len(tokens) - 1 == data.evaluation["held_out"].tokens
    total, memory = 0.0, None
    with torch.no_grad():
        for start in range(0, len(tokens) - 1, 8):
            piece = torch.tensor([tokens[start : start + 9]])
            logits = model(piece[:, :-1], memory=memory, context=Context(4, None, False))
            memory = logits.memory
            total -= sum(float(logits.logits[0, i, piece[0, i + 1]]) for i in range(piece.shape[1] - 1))
    words = sum(len(line.split()) + 1 for line in held_out)  # the end of a line counts as a word
    assert metrics["eval_loss"] == pytest.approx(total / (len(tokens) - 1), rel=1e-5)
    assert metrics["eval_perplexity"] == pytest.approx(math.exp(total / (len(tokens) - 1)), rel=1e-4)
    assert metrics["eval_word_perplexity"] == pytest.approx(math.exp(total / words), rel=1e-4)
    characters, size = len("".join(held_out)), len("".join(held_out).encode())
    assert metrics["eval_bits_per_character"] == pytest.approx(total / math.log(2) / characters, rel=1e-5)
    assert metrics["eval_bits_per_byte"] == pytest.approx(total / math.log(2) / size, rel=1e-5)


def test_a_supernet_is_evaluated_in_three_ways_and_as_the_original(tmp_path):
    config = build_stream_config(
        tmp_path, *TRAINING_ONLY, *JOINT, "search.seed_evaluation=true", "search.sampled_paths=3"
    )
    trainer = build_stream_trainer(config, tmp_path / "run")
    with torch.no_grad():
        trainer.model.gates.copy_(torch.tensor([[3.0, 0.0, 0.0], [0.0, 2.0, 0.0], [0.0, 0.0, 1.0]]))
    trainer.model.set_step(0, 10)
    first = trainer.evaluate()
    reported = trainer.last_reports["soft"].statistics["evaluations"]
    assert all(reported[name]["loss"] == first[f"eval_{name}/loss"] for name in ("argmax", "sampled", "noisy"))
    second = trainer.evaluate()
    for name in ("loss", "perplexity", "argmax/loss", "sampled/perplexity_std", "noisy/batch_perplexity"):
        assert first[f"eval_{name}"] == second[f"eval_{name}"]
    assert len({first[f"eval_{name}"] for name in ("loss", "argmax/loss", "sampled/loss", "noisy/loss")}) == 4
    statistics = trainer.last_reports["soft"].statistics
    assert statistics["architecture"]["string"] == "sf-"
    assert set(statistics["evaluations"]) == {"soft", "argmax", "sampled", "noisy"}
    assert statistics["cost"]["executed_over_full"] > statistics["cost"]["adaptive_over_full"]


def test_every_batch_of_a_noisy_evaluation_draws_its_noise(tmp_path):
    """Check that draws differ, as in the original: one draw for all batches would be the perplexity of one path."""
    config = build_stream_config(tmp_path, *TRAINING_ONLY, *JOINT, "search.seed_evaluation=true")
    trainer = build_stream_trainer(config, tmp_path / "run")
    trainer.model.set_step(3, 10)
    noise_of_update, temperature = trainer.model._noise, trainer.model.temperature
    noises = []

    def note(model, args, kwargs):
        if kwargs.get("gates") == "noisy":
            noises.append(model._noise)

    with trainer.model.register_forward_pre_hook(note, with_kwargs=True):
        trainer.evaluate()
    assert len(noises) == len(trainer.data.evaluation["held_out"])
    assert len({tuple(noise.flatten().tolist()) for noise in [noise_of_update, *noises]}) == len(noises) + 1
    assert trainer.model.temperature == temperature
    trainer.model.set_step(3, 10)
    assert torch.equal(trainer.model._noise, noise_of_update)


def test_the_length_of_the_memory_changes_the_loss(tmp_path):
    """Evaluate with three memories: each gives another loss, and none that of segments by themselves."""
    losses = {}
    for memory in (0, 3, 40):
        config = build_stream_config(tmp_path, *TRAINING_ONLY, f"context.memory_length={memory}", root=NETWORK)
        losses[memory] = build_stream_trainer(config, tmp_path / "run").evaluate()["eval_loss"]
    assert len(set(losses.values())) == 3


def test_a_fixed_network_trains_and_is_evaluated_again(tmp_path):
    trained = tasks.run(build_stream_config(tmp_path, root=NETWORK))
    (run,) = (tmp_path / "outputs").glob("par_network/*")
    again = ("debug=default", "mode=evaluate", f"checkpoint={run}", f"output_dir={tmp_path}/again")
    assert tasks.run(configured(NETWORK, *again)) == pytest.approx(trained, rel=1e-6)
    for file in (run / "model").glob("tokenizer*"):
        file.unlink()
    with pytest.raises(DataError, match=r"^tokenizer\.path=.*/model: .*give one with tokenizer\.path=\.\.\.$"):
        tasks.run(configured(NETWORK, *again))


MISTAKES = [
    (("model.architecture=sfx",), "model.architecture='sfx': 'x' at block 3"),
    (("model.cutoffs=[6,4]", *JOINT), "model.cutoffs=[6, 4]: "),
    (("model.cutoffs=[6,4000]", *JOINT), "model.cutoffs=[6, 4000]"),
    (("search.tau_end=0",), "search.tau_end=0.0: "),
    (("search.tau_start=-1",), "search.tau_start=-1.0: "),
    (("trainer.per_device_train_batch_size=500",), "trainer.per_device_train_batch_size"),
]


@pytest.mark.parametrize(("overrides", "message"), MISTAKES, ids=str)
def test_a_mistake_is_a_one_line_error(tmp_path, overrides, message):
    root = NETWORK if overrides[0].startswith("model.architecture") else "par_tiny"
    with pytest.raises((ConfigError, DataError)) as caught:
        tasks.run(build_stream_config(tmp_path, *overrides, root=root))
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)
    assert not list((tmp_path / "outputs").glob("*/*"))


def test_text_ends_do_not_come_from_another_family_s_vocabulary(tmp_path):
    """Check for huggingface/transformers#31362: the trainer kept end token 2, the family's default, beside 6.

    In this vocabulary 2 is a word, and every generated text ended behind it.
    """
    words = {word: number for number, word in enumerate(["the", "a", "of", "to", "in", "<unk>", "<|endoftext|>"])}
    core = Tokenizer(models.WordLevel(words, unk_token="<unk>"))
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=core, unk_token="<unk>", eos_token="<|endoftext|>")
    config = ParXLConfig(vocab_size=len(words), cutoffs=[3])
    model = SimpleNamespace(config=config, generation_config=GenerationConfig.from_model_config(config))
    assert model.generation_config.eos_token_id == 2
    set_text_ends(model, tokenizer.eos_token_id)
    align_special_tokens(model, tokenizer)
    assert model.generation_config.eos_token_id == 6
    assert (model.config.eos_token_id, model.config.bos_token_id) == (6, 6)


@pytest.mark.parametrize(("end", "is_warned"), [(None, False), (2, True)])
def test_transformers_warns_only_of_special_tokens_that_differ(end, is_warned, caplog):
    core = Tokenizer(models.WordLevel({"the": 0, "<pad>": 1, "<unk>": 2, "<eos>": 3}, unk_token="<unk>"))
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=core, pad_token="<pad>", eos_token="<eos>")
    model = SimpleNamespace(config=LoopedConfig(eos_token_id=end), generation_config=GenerationConfig())
    store_special_tokens(model, tokenizer)
    library = logging.getLogger("transformers.trainer_utils")
    library.addHandler(caplog.handler)
    try:
        align_special_tokens(model, tokenizer)
    finally:
        library.removeHandler(caplog.handler)
    assert ("Updated tokens: {'eos_token_id': 3}" in caplog.text) == is_warned == bool(caplog.text)
    assert (model.config.pad_token_id, model.config.eos_token_id, model.config.bos_token_id) == (1, 3, None)
