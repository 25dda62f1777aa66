"""The published code of Ouro, Huginn, retrofits and Nanbeige, imported from a folder to compare with this project.

`ADADEPTH_PUBLISHED_CODE` names a folder with `modeling_ouro.py` (ByteDance/Ouro-1.4B), `raven_modeling_minimal.py` and
`raven_config_minimal.py` (seal-rg/recurrent-pretraining), `raven_modeling_minimal_llama.py` and
`raven_modeling_minimal_olmo.py` (mcleish7/retrofitting-recurrence), and `modeling_nanbeige.py` and
`configuration_nanbeige.py` (Nanbeige/Nanbeige4.2-3B). They were written for older versions of transformers. Modules
that they import and that no longer exist are replaced here; their arithmetic is unchanged. Tests of missing files are
skipped.
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


def require_files(*files: str) -> Any:
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


def build_ouro(**fields: Any) -> Any:
    """Build a small Ouro with random weights."""
    with _make_importable():
        module = importlib.import_module("published.modeling_ouro")
        return _draw_weights(module.OuroForCausalLM(OuroConfig(**fields)))


def build_huginn(**fields: Any) -> Any:
    """Build a small Huginn with random weights."""
    with _make_importable():
        module = importlib.import_module("published.raven_modeling_minimal")
        config_class = importlib.import_module("published.raven_config_minimal").RavenConfig
    module.RavenForCausalLM.tie_weights = lambda self, *_, **__: setattr(
        self.lm_head, "weight", self.transformer.wte.weight
    )
    module.RavenPreTrainedModel._tied_weights_keys = {"lm_head.weight": "transformer.wte.weight"}
    return _draw_weights(module.RavenForCausalLM(config_class(**fields)))


def build_retrofit(kind: str, fields: dict[str, Any]) -> Any:
    """Build a small retrofitted decoder with random weights, `llama` or `olmo2`, from all fields of its config.json."""
    with _make_importable():
        module = importlib.import_module(f"published.raven_modeling_minimal_{kind.removesuffix('2')}")
        config_class = importlib.import_module("published.raven_config_minimal").RavenConfig
        parameters = inspect.signature(config_class).parameters
        config = config_class(**{name: value for name, value in fields.items() if name in parameters})
        for name, value in fields.items():  # as older transformers do with fields that a class does not have
            if name not in ("model_type", "architectures", "rope_scaling"):
                setattr(config, name, value)
        scaling = fields.get("rope_scaling") or {"rope_type": "default"}
        config.rope_parameters = {"rope_theta": fields["rope_theta"], **scaling}
        module.RavenPreTrainedModel._tied_weights_keys = {}
        return _draw_weights(module.RavenForCausalLM(config))


def build_nanbeige(**fields: Any) -> Any:
    """Build a small Nanbeige with random weights."""
    with _make_importable():
        module = importlib.import_module("published.modeling_nanbeige")
        config = module.NanbeigeConfig(**fields)
        config.rope_scaling, config._attn_implementation = None, "eager"
        module.NanbeigeForCausalLM._tied_weights_keys = {"lm_head.weight": "model.embed_tokens.weight"}
        return _draw_weights(module.NanbeigeForCausalLM(config))


def _draw_weights(model: Any) -> Any:
    """Draw every weight: norms of 1, biases of 0 and small matrices would hide differences."""
    generator = torch.Generator().manual_seed(7)
    with torch.no_grad():
        for name, weight in model.named_parameters():
            spread = 0.3 if "norm" in name or "ln_f" in name or "bias" in name else weight.shape[-1] ** -0.5
            middle = 1.0 if "norm" in name or "ln_f" in name else 0.0
            weight.copy_(middle + spread * torch.randn(weight.shape, generator=generator))
    return model.eval()


@contextmanager
def _make_importable() -> Iterator[None]:
    """Make the folder importable as a package, with the parts of the library that its files import."""
    assert FOLDER is not None
    package = ModuleType("published")
    package.__path__ = [str(Path(FOLDER))]
    sys.modules.setdefault("published", package)
    configuration = ModuleType("published.configuration_ouro")
    configuration.OuroConfig = OuroConfig  # type: ignore[attr-defined]
    sys.modules.setdefault("published.configuration_ouro", configuration)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(masking_utils, "create_causal_mask", _mask(masking_utils.create_causal_mask))
        patch.setitem(modeling_rope_utils.ROPE_INIT_FUNCTIONS, "default", _compute_frequencies)
        patch.setitem(sys.modules, "transformers.modeling_attn_mask_utils", _build_mask_module())
        patch.setattr(transformers, "PretrainedConfig", PreTrainedConfig, raising=False)
        for auto in (transformers.AutoConfig, transformers.AutoModel, transformers.AutoModelForCausalLM):
            patch.setattr(auto, "register", lambda *_, **__: None)  # ours are registered for these model types
        yield


def _build_mask_module() -> ModuleType:
    """Return a replacement of a module that the library no longer has; only SDPA attention uses its class."""
    module = ModuleType("transformers.modeling_attn_mask_utils")
    converter = type("AttentionMaskConverter", (), {"_ignore_causal_mask_sdpa": staticmethod(lambda **_: False)})
    module.AttentionMaskConverter = converter  # type: ignore[attr-defined]
    return module


def _mask(create: Any) -> Any:
    def create_mask(*, input_embeds: torch.Tensor, cache_position: torch.Tensor, **rest: Any) -> Any:
        return create(inputs_embeds=input_embeds, **rest)

    return create_mask


def _compute_frequencies(config: Any, device: Any = None, **_: Any) -> tuple[torch.Tensor, float]:
    """Return the default rotary frequencies, which the library no longer has in its table."""
    exponents = torch.arange(0, config.head_dim, 2, dtype=torch.int64).float() / config.head_dim
    return 1.0 / config.rope_theta**exponents, 1.0
