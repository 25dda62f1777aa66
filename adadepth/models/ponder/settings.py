"""Settings of PonderALBERT and PonderNet's recurrent cell, and their validation."""

from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from adadepth.config import ExperimentConfig, ModelConfig, family_name
from adadepth.config.choices import KLDirection, Prior, Truncation
from adadepth.config.declaration import FINITE, OPEN_SHARE, at_least, setting
from adadepth.errors import ConfigError
from adadepth.models.shared.albert.settings import AlbertSettings

Normalisation = StrEnum("Normalisation", ["sum", "mean_over_steps"])
Readout = StrEnum("Readout", ["tokens", "pooler"])
HaltingHead = StrEnum("HaltingHead", ["mlp", "linear", "linear_cat", "linear_diff"])
DoubleClsChoice = StrEnum("DoubleClsChoice", ["first", "both"])
CellKind = StrEnum("CellKind", ["tanh", "gru"])


@dataclass
class PonderSettings:
    """Settings of PonderNet's halting distribution (Banino et al. 2021): prior, loss weight and truncation."""

    prior: Prior = setting(
        Prior.geometric,
        "prior of the halting distribution; uniform keeps all steps in training (Ouro)",
        more="`geometric` is PonderNet's. `uniform` rewards entropy and prefers no step (Ouro, arXiv 2510.25741).",
    )
    target_halt_probability: float | None = setting(
        None, "halting probability of the geometric prior, with a mean depth of about its inverse; None: 0.1",
        OPEN_SHARE, hub=0.1,
        more="Before truncation, the mean of the prior is exactly the inverse.",
    )  # fmt: skip
    kl_penalty_factor: float = setting(0.01, "beta, weight of the divergence from the prior", at_least(0))
    kl_direction: KLDirection = setting(
        KLDirection.posterior_prior,
        "direction of the divergence: KL(p || prior) as in PonderNet, or the reverse as in PALBERT",
        more="`prior_posterior`: KL(prior || p).",
    )
    truncation: Truncation = setting(
        Truncation.leftover, "treatment of the probability mass beyond the last step", hub="renormalise",
        more="It applies to posterior and prior: `renormalise` spreads the mass (PonderNet, the reference code), "
            "`leftover` gives it to the last step, `none` drops it from the posterior, which then sums to less "
            "than one. `palbert` is PALBERT's code: as `none`, and p_n = 0.05 / N once the sum has exceeded 0.95.",
    )  # fmt: skip
    halt_bias_init: float = setting(
        0.0, "initial halting bias; negative starts deep, positive starts shallow", FINITE,
        more="At 0 the halting probability of every step is one half.",
    )  # fmt: skip
    exit_rule: str = setting(
        "quantile:0.5", "exit rule that selects the step of the prediction; see docs/exit_rules.md", hub="sample",
        more="It is the default rule of calls, in the syntax of `adadepth.halting.exit_rules.parse_rule`.",
    )  # fmt: skip


@dataclass
class PonderAlbertSettings(PonderSettings, AlbertSettings):
    """PonderALBERT: each sequence stops at a step of the ALBERT block by a learned halting distribution."""

    name: str = family_name("ponder_albert")
    ce_normalisation: Normalisation = setting(
        Normalisation.sum,
        "reduction of the expected loss; mean_over_steps: also divide by the number of steps",
        more="`sum`: the task loss is the expectation. The reference code divides by the number of steps.",
    )
    readout: Readout = setting(
        Readout.tokens, "input of the heads: two [CLS] tokens (PonderALBERT), or the pooled first token (PALBERT)",
        shape=True,
        more="`tokens`: the classifier reads the first token and the halting head the second, so texts begin with two "
        "[CLS]; no pooler, no dropout. `pooler`: both read the pooled first token, after dropout.",
    )  # fmt: skip
    halting_head: HaltingHead = setting(
        HaltingHead.mlp, "halting head; linear_cat and linear_diff read consecutive states, as in PALBERT", shape=True,
        more="`mlp`: two layers, GELU between; `linear`; `linear_cat`: on this step's features next to the previous "
        "step's; `linear_diff`: on their difference. The first step's predecessor is zero.",
    )  # fmt: skip
    halting_head_layers: int = setting(
        1, "k in PALBERT: k > 1 puts k tanh layers before linear_cat", at_least(1), shape=True
    )
    head_size: int = setting(
        128, "inner width of the MLP heads", at_least(1), shape=True,
        more="It applies to the classifier (`readout=tokens`) and the halting head (`halting_head=mlp`).",
    )  # fmt: skip
    double_cls_pairs: DoubleClsChoice = setting(
        DoubleClsChoice.first,
        "position of the second [CLS] in a pair of texts",
        more="Only the `first` text begins with an extra [CLS], or `both` texts.",
    )


@dataclass
class PonderRnnSettings(PonderSettings, ModelConfig):
    """Recurrent cell of PonderNet's parity experiment."""

    name: str = family_name("ponder_rnn")
    hidden_size: int = setting(128, "H, number of units of the cell", at_least(1), shape=True, debug=16)
    num_steps: int = setting(20, "N, maximum number of steps", at_least(1))
    cell: CellKind = setting(CellKind.tanh, "recurrent cell: plain, as in the papers, or gated", shape=True)


# Halting bias with which a halting probability and its gradient are exactly 0 in float32.
_NEVER_HALTS = -1e4


def fix_ponder_steps(model: PonderAlbertSettings, depth: int) -> dict[str, Any]:
    """Return the settings of the PonderALBERT that predicts after `depth` steps, and learns from this step alone.

    Raises:
        ConfigError: If `model.pretrained` has a trained halting head.
    """
    if model.pretrained is not None:
        from adadepth.models.folder import read_config  # imports transformers, which `--help` does not need

        if read_config("model.pretrained", model.pretrained).model_type == model.name:
            raise ConfigError(f"model.pretrained={model.pretrained}: its halting head is trained and would halt")
    return {"num_hidden_layers": depth, "ce_normalisation": Normalisation.sum} | _fix_exit(depth)


def fix_rnn_steps(model: PonderRnnSettings, depth: int) -> dict[str, Any]:
    """Return the settings of the recurrent cell that predicts after `depth` steps, and learns from this step alone."""
    return {"num_steps": depth} | _fix_exit(depth)


def _fix_exit(depth: int) -> dict[str, Any]:
    """Return the settings with which the last step has the whole halting distribution, and no prior pulls at it."""
    return {
        "exit_rule": f"fixed:{depth}",
        "halt_bias_init": _NEVER_HALTS,
        "truncation": Truncation.leftover,
        "kl_penalty_factor": 0.0,
    }


def check_prior(config: ExperimentConfig) -> Iterator[str]:
    """Yield an error if a halting probability is set for the uniform prior, which has none."""
    model = config.model
    assert isinstance(model, PonderSettings)
    probability = model.target_halt_probability
    if model.prior is Prior.uniform and probability is not None:
        yield (
            f"model.target_halt_probability={probability}: only used with model.prior=geometric; with "
            "model.prior=uniform set it to null"
        )


def check_budget(config: ExperimentConfig) -> Iterator[str]:
    """Yield an error if the prior favours another depth than the target of a depth budget."""
    model = config.model
    assert isinstance(model, PonderSettings)
    if model.prior is Prior.geometric and model.kl_penalty_factor > 0:
        yield (
            f"budget.target={config.budget.target:g}: model.prior=geometric also penalises depth; set "
            "model.prior=uniform and model.target_halt_probability=null, or model.kl_penalty_factor=0"
        )


def check_halting_head(config: ExperimentConfig) -> Iterator[str]:
    """Yield an error if several layers are set for a halting head that supports only one."""
    model = config.model
    assert isinstance(model, PonderAlbertSettings)
    layers = model.halting_head_layers
    if layers > 1 and model.halting_head is not HaltingHead.linear_cat:
        yield f"model.halting_head_layers={layers}: only used with model.halting_head=linear_cat"


def first_tokens(model: Any) -> dict[str, Any]:
    """Return the number of [CLS] tokens at the start of a text, from the settings or the model's configuration."""
    return {
        "cls_tokens": 2 if model.readout == Readout.tokens else 1,
        "double_cls_pairs": str(model.double_cls_pairs),
    }
