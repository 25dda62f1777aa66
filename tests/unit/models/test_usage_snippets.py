"""The three usage snippets of the original PonderALBERT, run one after the other in one session.

They are unchanged except for import lines of their package and the hub's name, which is a local folder here.
"""

import functools

import pytest
import torch
from transformers import AlbertConfig, AlbertForPreTraining, AlbertTokenizer

from adadepth import PonderAlbertClassifier
from adadepth.models.depth import outputs
from tests.models_support import SMALL, make_padded_batch, make_small_multi_exit, make_small_ponder

LOADING = """
from transformers import AlbertConfig, AlbertTokenizer
from adadepth import PonderAlbertClassifier

# A blank classifier with an Albert encoder can be initialized directly using an AlbertConfig object
# and a trained tokenizer
config = AlbertConfig(num_hidden_layers=12)
tokenizer = AlbertTokenizer.from_pretrained('albert-base-v2')
model = PonderAlbertClassifier(config, tokenizer, target_halt_probability=0.2)

# Alternatively, you can initialize the classifier using pretrained weights from the HF model database.
# Since ALBERT has a variable-depth encoder, you can still set the number of layers used as you want
model = PonderAlbertClassifier.from_pretrained('albert-base-v2', num_hidden_layers=43,
                                               target_halt_probability=0.2)
"""

TRAINING = """
from adadepth import PonderClassificationLoss

# Sample dataset
texts = ['The cat sat on the mat']
labels = [0]

# Initializes the PonderNet criterion for text-classification
optimizer = torch.optim.Adam(model.parameters())
criterion = PonderClassificationLoss(kl_penalty_factor=1e-2)
model.train()

# Single parameter update
prediction = model(texts)
loss = criterion(prediction, labels)['total_loss']
loss.backward()
optimizer.step()
"""

INFERENCE = """
model.eval()

# Let's try it once
model(['My cool new text'])

# And again!
model(['My cool new text'])
"""


@pytest.fixture(scope="module")
def albert_base_v2(tmp_path_factory):
    """Return a folder with the files of `albert-base-v2` on the hub, weights and tokenizer, of a smaller model."""
    folder = tmp_path_factory.mktemp("albert-base-v2")
    torch.manual_seed(0)
    AlbertForPreTraining(AlbertConfig(**SMALL)).save_pretrained(folder)
    letters = [(letter, -4.0) for letter in "abcdefghijklmnopqrstuvwxyz"]
    special = [(token, 0.0) for token in ("<pad>", "<unk>", "[CLS]", "[SEP]", "[MASK]")]
    AlbertTokenizer(vocab=[*special, ("▁", -2.0), ("▁the", -1.0), *letters]).save_pretrained(folder)
    return str(folder)


def test_snippets_run(albert_base_v2, monkeypatch):
    # By default, AlbertConfig has the sizes of ALBERT xxlarge.
    sizes = {name: value for name, value in SMALL.items() if name != "num_hidden_layers"}
    monkeypatch.setattr("transformers.AlbertConfig", functools.partial(AlbertConfig, **sizes))
    session = {"torch": torch}

    blank, pretrained = LOADING.split("# Alternatively")
    exec(blank.replace("albert-base-v2", albert_base_v2), session)
    model = session["model"]
    assert type(model) is PonderAlbertClassifier
    assert (model.config.num_hidden_layers, model.config.target_halt_probability) == (12, 0.2)
    assert model(["The cat"]).logits.shape == (1, 2)

    exec("# Alternatively" + pretrained.replace("albert-base-v2", albert_base_v2), session)
    model = session["model"]
    assert (model.config.num_hidden_layers, model.config.target_halt_probability) == (43, 0.2)

    before = {name: parameter.detach().clone() for name, parameter in model.named_parameters()}
    exec(TRAINING, session)
    assert session["loss"].isfinite()
    assert session["prediction"].step_logits.shape == (1, 43, 2)
    assert session["prediction"].trace.execution.tokens.tolist() == [20]  # two [CLS], 17 pieces, [SEP]
    assert not {name for name, parameter in model.named_parameters() if torch.equal(parameter, before[name])}

    exec(INFERENCE, session)
    exits = {model(["My cool new text"]).exit_steps.item() for _ in range(20)}
    assert len(exits) > 1, "the halting mechanism is stochastic, so results vary"


def test_the_names_printed_by_the_original_exist(caplog):
    model = make_small_ponder(num_hidden_layers=6)
    with torch.no_grad():
        output = model(**make_padded_batch(), run_all_steps=True)
    outputs._log_new_name.cache_clear()
    with caplog.at_level("WARNING"):
        for _ in range(2):
            assert torch.equal(output["halt_probabilities"], output.halting_probabilities)
            assert output["model_halt_dist"] is output.model_halt_dist is output.posterior
            assert output["target_halt_dist"] is output.target_halt_dist is output.prior
            assert output["passes"] == output.passes == int(output.exit_steps.max()) - 1
    lines = [record.getMessage() for record in caplog.records]
    assert lines == [
        "halt_probabilities: use halting_probabilities instead",
        "model_halt_dist: use posterior instead",
        "target_halt_dist: use prior instead",
        "passes: use exit_steps instead, the exit step of every example, from 1",
    ]
    assert "passes" not in list(output)
    with pytest.raises(KeyError, match="'posteriour'"):
        output["posteriour"]
    with pytest.raises(AttributeError, match="posteriour"):
        output.posteriour  # noqa: B018


def test_the_printed_names_work_in_evaluation_with_early_exits():
    """Run the snippet of the original, which calls a model in `eval()` and prints these entries."""
    model = make_small_ponder(num_hidden_layers=6, truncation="none").eval()
    with torch.no_grad():
        early = model(**make_padded_batch(), exit_rule="quantile:0.5")
        whole = model(**make_padded_batch(), exit_rule="quantile:0.5", run_all_steps=True)
    assert int(early["passes"]) < 5
    ran = torch.arange(1, 7) <= early.exit_steps.unsqueeze(1)
    assert torch.allclose(early["model_halt_dist"].pmf, whole["model_halt_dist"].pmf * ran, atol=1e-6)
    assert torch.equal(early["target_halt_dist"].pmf, whole["target_halt_dist"].pmf)
    assert {"model_halt_dist", "target_halt_dist", "halt_probabilities"} <= {
        name for name in ("model_halt_dist", "target_halt_dist", "halt_probabilities", "posteriour")
        if hasattr(early, name)
    }  # fmt: skip
    assert early.posterior is None, "the field itself needs every step"


def test_a_model_without_a_halting_head_has_no_halting_distribution():
    with torch.no_grad():
        output = make_small_multi_exit()(**make_padded_batch())
    assert not hasattr(output, "model_halt_dist")
    assert getattr(output, "target_halt_dist", None) is None
    with pytest.raises(KeyError, match="halt_probabilities: the output has no halting_probabilities, because"):
        output["halt_probabilities"]
