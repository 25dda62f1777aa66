"""Low-rank adapters (LoRA, Hu et al. 2021, arXiv 2106.09685) in training, with PEFT's layers inside the model.

In training, the matrices of the base are frozen, and W0 x becomes W0 x + (alpha / r) B A x. Task heads and halting
heads are trained in full. At the end, the adapters are added to the matrices, so that the saved model is a plain
checkpoint.
This is the only module that imports PEFT.
"""

from __future__ import annotations

import warnings
from collections.abc import Collection, Iterator
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch import nn

from adadepth.config import ExperimentConfig, Mode
from adadepth.config.experiment import LoraConfig
from adadepth.errors import ConfigError, nearest
from adadepth.models.adapter_weights import write_scale
from adadepth.models.contract import ReadsCachedStates
from adadepth.training.extension import Extension
from adadepth.training.muon import find_hidden_matrices

ADAPTER = "adapter"  # folder of a run
_PREFIX = "base_model.model."  # of the names in PEFT's files


def trains_adapters(config: ExperimentConfig) -> bool:
    """Return whether the command trains low-rank adapters. Other modes read weights that have them already."""
    return config.mode is Mode.train and config.trainer.lora.rank is not None


def add_adapters(model: Any, settings: LoraConfig) -> None:
    """Freeze a model, insert adapters into its matrices, and train its heads in full.

    Args:
        model: A `DepthModel` with pretrained weights, which is changed in place.
        settings: Settings `trainer.lora` with a rank.

    Raises:
        ConfigError: If a name of the settings fits no module, or the base of the model is frozen anyway.
    """
    from peft import inject_adapter_in_model

    if isinstance(model, ReadsCachedStates):
        raise ConfigError(f"trainer.lora.rank={settings.rank}: {type(model).__name__} trains no matrix of its base")
    if not (adapted := list_adapted_modules(model, settings)):
        raise ConfigError(
            f"trainer.lora.rank={settings.rank}: {type(model).__name__} trains no matrix of a hidden layer here"
        )
    trained = list_trained_modules(model, settings, adapted)
    _refuse_frozen(model, "target_modules", adapted)
    _refuse_frozen(model, "modules_to_save", trained if settings.modules_to_save is not None else [])
    config = _build_peft_config(model, settings, adapted, [])  # heads are trained in place, without copies
    model.requires_grad_(False)
    with warnings.catch_warnings():
        # PEFT finds tied layers by their names, such as `lm_head`. Heads of exits are copies, and layers that share a
        # matrix get no adapter.
        warnings.filterwarnings("ignore", message="Model has `tie_word_embeddings=True`")
        inject_adapter_in_model(config, model)
    for name in trained:
        model.get_submodule(name).requires_grad_(True)
    model.freeze_untrained()  # such as a halting unit that no loss reads


def list_adapted_modules(model: Any, settings: LoraConfig) -> list[str]:
    """Return the names of the linear layers that get an adapter.

    The default is every layer of hidden states; where the network is frozen, it is every layer of `list_copied_layers`.
    """
    linear = {name: module for name, module in model.named_modules() if isinstance(module, nn.Linear)}
    if settings.target_modules is not None:
        names = _match_names("target_modules", settings.target_modules, list(linear))
        holders = _list_holders(model)
        for name in names:
            if twins := [other for other in holders[id(linear[name].weight)] if other != name]:
                raise ConfigError(
                    f"trainer.lora.target_modules: {name!r} shares its matrix with {twins[0]!r}, which has no adapter; "
                    f"modules_to_save=[{name.rpartition('.')[2]}] trains both in full"
                )
        return names
    if copied := model.list_copied_layers():
        return [name for name in linear if name in copied]
    hidden = {id(weight) for weight in find_hidden_matrices(model)}
    return [name for name, module in linear.items() if id(module.weight) in hidden]


def list_trained_modules(model: Any, settings: LoraConfig, adapted: Collection[str]) -> list[str]:
    """Return the names of the modules that are trained in full.

    The default is every task head and halting head, without the layers that get an adapter, and except one that holds
    the output matrix of a language model. A head that the configuration freezes is none of them.

    Args:
        model: A `DepthModel`, before or after it got adapters.
        settings: Settings `trainer.lora` with a rank.
        adapted: Names of the layers that get or have an adapter.
    """
    if settings.modules_to_save is not None:
        return _match_names("modules_to_save", settings.modules_to_save, [name for name, _ in model.named_modules()])
    reads_words = model.vocabulary_size is not None
    embeddings = (model.get_input_embeddings(), model.get_output_embeddings()) if reads_words else ()
    words = {id(weight) for module in embeddings if module is not None for weight in module.parameters()}
    heads = dict(_open_heads(model, sorted(model.list_heads()), adapted))
    trained = [
        name
        for name, head in heads.items()
        if any(weight.requires_grad for weight in head.parameters())
        and not words & {id(weight) for weight in head.parameters()}
    ]
    return [part for name in trained for part in _separate(model, name, trained)]


def _refuse_frozen(model: nn.Module, key: str, names: list[str]) -> None:
    """Raise an error if the configuration of a model freezes one of the modules that shall be trained.

    Raises:
        ConfigError: If a module has no trainable weight.
    """
    for name in names:
        if not any(weight.requires_grad for weight in model.get_submodule(name).parameters()):
            raise ConfigError(f"trainer.lora.{key}: {name!r} is frozen in this model, whose other parts are trained")


def _list_holders(model: nn.Module) -> dict[int, list[str]]:
    """Return the names of the modules that hold each weight, by its id. A tied weight has several."""
    holders: dict[int, list[str]] = {}
    for name, module in model.named_modules():
        for weight in module.parameters(recurse=False):
            holders.setdefault(id(weight), []).append(name)
    return holders


def _open_heads(model: nn.Module, names: list[str], adapted: Collection[str]) -> Iterator[tuple[str, nn.Module]]:
    """Yield heads by name, with their parts instead of a head that is a list or has a layer with an adapter.

    PEFT can replace neither by a copy that is trained in full.
    """
    for name in names:
        module = model.get_submodule(name)
        if isinstance(module, nn.ModuleList) or any(layer.startswith(f"{name}.") for layer in adapted):
            yield from _open_heads(model, [f"{name}.{part}" for part, _ in module.named_children()], adapted)
        elif name not in adapted:
            yield name, module


def _separate(model: nn.Module, name: str, trained: Collection[str]) -> Iterator[str]:
    """Yield a module, or its parts if PEFT would find one of `trained` in it, too, as `head` in `exits.0.head`.

    PEFT finds modules by the ends of their names, and reads no module within another one.
    """
    module = model.get_submodule(name)
    inner = [part for part, _ in module.named_modules(prefix=name) if part != name]
    if not any(part.endswith(other) for part in inner for other in trained):
        yield name
        return
    for part, _ in module.named_children():
        yield from _separate(model, f"{name}.{part}", trained)


def _match_names(key: str, names: list[str], modules: list[str]) -> list[str]:
    """Return the modules whose name, or its end after a dot, is in the list."""
    for name in names:
        if not any(_match_end(module, name) for module in modules):
            ends = sorted({module.rpartition(".")[2] for module in modules})
            raise ConfigError(f"trainer.lora.{key}: the model has no {name!r}{nearest(name, ends)}")
    return [module for module in modules if any(_match_end(module, name) for name in names)]


def _match_end(module: str, name: str) -> bool:
    return module == name or module.endswith(f".{name}")


def _build_peft_config(model: Any, settings: LoraConfig, adapted: list[str], trained: list[str]) -> Any:
    from peft import LoraConfig as PeftConfig

    assert settings.rank is not None, "validated"
    alpha: Any = settings.alpha  # PEFT declares a whole number, and takes any
    return PeftConfig(
        base_model_name_or_path=model.name_or_path or None,
        r=settings.rank,
        lora_alpha=alpha,
        lora_dropout=settings.dropout,
        target_modules=adapted,
        modules_to_save=trained or None,
    )


def _list_adapted_layers(model: nn.Module) -> Iterator[tuple[str, Any]]:
    from peft.tuners.lora import LoraLayer

    yield from [(name, module) for name, module in model.named_modules() if isinstance(module, LoraLayer)]


def save_adapter(model: Any, settings: LoraConfig, folder: Path) -> None:
    """Write adapters and heads of a trained model in PEFT's format, for the base model that it started from.

    Args:
        model: Model with adapters.
        settings: Settings `trainer.lora` of the run.
        folder: New folder.
    """
    layers = dict(_list_adapted_layers(model))
    trained, holders = list_trained_modules(model, settings, layers), _list_holders(model)
    weights = [weight for name in trained for weight in model.get_submodule(name).parameters()]
    twins = {twin for weight in weights for twin in holders[id(weight)]}  # PEFT would leave their share as it was
    trained += sorted(twin for twin in twins if not any(f"{twin}.".startswith(f"{name}.") for name in trained))
    config = _build_peft_config(model, settings, sorted(layers), trained)
    config.inference_mode = True
    stored = {
        name.replace(".default.", "."): value for name, value in model.state_dict().items() if ".lora_" in name
    } | {f"{head}.{name}": value for head in trained for name, value in model.get_submodule(head).state_dict().items()}
    config.save_pretrained(folder)
    copies = {_PREFIX + name: value.detach().cpu().clone().contiguous() for name, value in stored.items()}
    save_file(copies, folder / "adapter_model.safetensors", {"format": "pt"})


@torch.no_grad()
def merge_adapters(model: Any) -> None:
    """Add the adapters to the matrices of a model, which has plain linear layers afterwards."""
    for name, layer in _list_adapted_layers(model):
        layer.merge()
        parent, _, child = name.rpartition(".")
        setattr(model.get_submodule(parent), child, layer.get_base_layer())


class AdapterScale(Extension):
    """Extension that records the scale of the adapters in every checkpoint, with which other modes read it.

    Args:
        settings: Settings `trainer.lora` with a rank.
    """

    def __init__(self, settings: LoraConfig) -> None:
        assert settings.rank is not None, "validated"
        self._scale = settings.alpha / settings.rank

    def save(self, checkpoint: Path, process: int) -> None:
        """Write the scale on the main process."""
        if process == 0:
            write_scale(checkpoint, self._scale)
