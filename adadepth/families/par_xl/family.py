"""What is known of the PAR Transformer-XL."""

from adadepth.config import BudgetUnit
from adadepth.families.par_xl.settings import ParXLSettings
from adadepth.families.registry import Budgeting, Family, Searching

_MODELING = "adadepth.families.par_xl.modeling"

FAMILY = Family(
    settings=ParXLSettings,
    config="adadepth.families.par_xl.configuration:ParXLConfig",
    heads={"language_model": f"{_MODELING}:ParXLForCausalLM", "search": f"{_MODELING}:ParXLSupernet"},
    auto={"AutoModel": "adadepth.families.par_xl.stack:ParXLModel"},
    public={"derive_par_xl": "adadepth.families.par_xl.derive:derive"},
    tokenizer="transformers:PreTrainedTokenizerFast",
    budget=Budgeting(trained=(BudgetUnit.milliseconds,), checks=("adadepth.families.par_xl.checks:check_budget",)),
    depth="num_hidden_layers",
    settle="adadepth.families.par_xl.cutoffs:settle_cutoffs",
    search=Searching(
        setting="architecture",
        memory="memory_length",
        costs="adadepth.families.par_xl.latency:operation_costs",
        derive="adadepth.families.par_xl.derive:derive",
        baselines="adadepth.families.par_xl.architectures:baseline_architectures",
        macs="adadepth.families.par_xl.pricing:architecture_macs",
        time="adadepth.families.par_xl.latency:model_latencies",
    ),
    reads=frozenset({"search", "context"}),
    checks=("adadepth.families.par_xl.checks:check_settings",),
)
