"""The published code of Ouro, Huginn, retrofits and Nanbeige, run beside this project's where a folder has it.

`ADADEPTH_PUBLISHED_CODE` names a folder with `modeling_ouro.py` (ByteDance/Ouro-1.4B), `raven_modeling_minimal.py` and
`raven_config_minimal.py` (seal-rg/recurrent-pretraining), `raven_modeling_minimal_llama.py` and
`raven_modeling_minimal_olmo.py` (mcleish7/retrofitting-recurrence), and `modeling_nanbeige.py` and
`configuration_nanbeige.py` (Nanbeige/Nanbeige4.2-3B). They were written for older transformers: what
these files import and find no more is put beside them here, and their arithmetic is left alone. Files that are not
there skip their tests.
"""

from __future__ import annotations

import importlib
import inspect
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch
import transformers
from transformers import PreTrainedConfig, masking_utils, modeling_rope_utils

FOLDER = os.environ.get("ADADEPTH_PUBLISHED_CODE")


def need(*files: str) -> Any:
    """Skip a test unless the folder has these files."""
    missing = [file for file in files if FOLDER is None or not Path(FOLDER, file).is_file()]
    return pytest.mark.skipif(bool(missing), reason=f"ADADEPTH_PUBLISHED_CODE names no folder with {missing}")


class OuroConfig(PreTrainedConfig):
    """The fields that the published modeling file reads."""

    model_type = "ouro_as_published"

    def __init__(self, **fields: Any) -> None:
        self.attention_dropout, self.sliding_window, self.rope_scaling, self.use_cache = 0.0, None, None, False
        self.layer_types = ["full_attention"] * fields["num_hidden_layers"]
        super().__init__(**{"pad_token_id": None, **fields})
        for name, value in fields.items():
            setattr(self, name, value)


def ouro(**fields: Any) -> Any:
    """A small Ouro with random weights."""
    with _importable():
        module = importlib.import_module("published.modeling_ouro")
        return _drawn(module.OuroForCausalLM(OuroConfig(**fields)))


def huginn(**fields: Any) -> Any:
    """A small Huginn with random weights."""
    with _importable():
        module = importlib.import_module("published.raven_modeling_minimal")
        config_class = importlib.import_module("published.raven_config_minimal").RavenConfig
    module.RavenForCausalLM.tie_weights = lambda self, *_, **__: setattr(
        self.lm_head, "weight", self.transformer.wte.weight
    )
    module.RavenPreTrainedModel._tied_weights_keys = {"lm_head.weight": "transformer.wte.weight"}
    return _drawn(module.RavenForCausalLM(config_class(**fields)))


def retrofit(kind: str, fields: dict[str, Any]) -> Any:
    """A small retrofitted decoder with random weights, `llama` or `olmo2`, by all fields of its configuration file."""
    with _importable():
        module = importlib.import_module(f"published.raven_modeling_minimal_{kind.removesuffix('2')}")
        config_class = importlib.import_module("published.raven_config_minimal").RavenConfig
        known = inspect.signature(config_class).parameters
        config = config_class(**{name: value for name, value in fields.items() if name in known})
        for name, value in fields.items():  # as older transformers do with fields that a class does not have
            if name not in ("model_type", "architectures", "rope_scaling"):
                setattr(config, name, value)
        scaling = fields.get("rope_scaling") or {"rope_type": "default"}
        config.rope_parameters = {"rope_theta": fields["rope_theta"], **scaling}
        module.RavenPreTrainedModel._tied_weights_keys = {}
        return _drawn(module.RavenForCausalLM(config))


def nanbeige(**fields: Any) -> Any:
    """A small Nanbeige with random weights."""
    with _importable():
        module = importlib.import_module("published.modeling_nanbeige")
        config = module.NanbeigeConfig(**fields)
        config.rope_scaling, config._attn_implementation = None, "eager"
        module.NanbeigeForCausalLM._tied_weights_keys = {"lm_head.weight": "model.embed_tokens.weight"}
        return _drawn(module.NanbeigeForCausalLM(config))


def _drawn(model: Any) -> Any:
    """Every weight drawn: initial norms of 1, biases of 0 and small matrices would let much pass for equal."""
    generator = torch.Generator().manual_seed(7)
    with torch.no_grad():
        for name, weight in model.named_parameters():
            spread = 0.3 if "norm" in name or "ln_f" in name or "bias" in name else weight.shape[-1] ** -0.5
            middle = 1.0 if "norm" in name or "ln_f" in name else 0.0
            weight.copy_(middle + spread * torch.randn(weight.shape, generator=generator))
    return model.eval()


@contextmanager
def _importable() -> Iterator[None]:
    """The folder as a package, in a library that has what it imports."""
    assert FOLDER is not None
    package = ModuleType("published")
    package.__path__ = [str(Path(FOLDER))]
    sys.modules.setdefault("published", package)
    configuration = ModuleType("published.configuration_ouro")
    configuration.OuroConfig = OuroConfig  # type: ignore[attr-defined]
    sys.modules.setdefault("published.configuration_ouro", configuration)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(masking_utils, "create_causal_mask", _mask(masking_utils.create_causal_mask))
        patch.setitem(modeling_rope_utils.ROPE_INIT_FUNCTIONS, "default", _frequencies)
        patch.setitem(sys.modules, "transformers.modeling_attn_mask_utils", _masks())
        patch.setattr(transformers, "PretrainedConfig", PreTrainedConfig, raising=False)
        for auto in (transformers.AutoConfig, transformers.AutoModel, transformers.AutoModelForCausalLM):
            patch.setattr(auto, "register", lambda *_, **__: None)  # ours are registered for these model types
        yield


def _masks() -> ModuleType:
    """Stand-in for a module that the library has no more, whose class only attention by SDPA uses."""
    module = ModuleType("transformers.modeling_attn_mask_utils")
    converter = type("AttentionMaskConverter", (), {"_ignore_causal_mask_sdpa": staticmethod(lambda **_: False)})
    module.AttentionMaskConverter = converter  # type: ignore[attr-defined]
    return module


def _mask(create: Any) -> Any:
    def named_as_before(*, input_embeds: torch.Tensor, cache_position: torch.Tensor, **rest: Any) -> Any:
        return create(inputs_embeds=input_embeds, **rest)

    return named_as_before


def _frequencies(config: Any, device: Any = None, **_: Any) -> tuple[torch.Tensor, float]:
    """The default positions, which the library's table of them no longer has."""
    exponents = torch.arange(0, config.head_dim, 2, dtype=torch.int64).float() / config.head_dim
    return 1.0 / config.rope_theta**exponents, 1.0
