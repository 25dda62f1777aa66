"""Settings of mode `export`, and the registry of the file formats that it writes, built-in or from plug-ins."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, Literal

from adadepth.config.declaration import setting
from adadepth.config.plugins import Importer, find_wrong_path, load_plugins, replace_paths
from adadepth.errors import nearest

GROUP = "adadepth.export_formats"


@dataclass
class ExportConfig:
    """Settings of mode `export`."""

    format: str = setting("safetensors", "file format: safetensors, gguf, onnx or executorch")
    layout: str | None = setting(
        None, "published layout: ouro, huginn, hrm_text, nanbeige, or the type of a decoder of transformers (llama)"
    )
    weights: str | None = setting(None, "number format of the weights, such as f16; see docs/engines.md")
    folder: str | None = setting(None, "new folder of the files")
    drop_exits: bool = setting(False, "leave out early exits, their gate and exit rule: the network at full depth")


@dataclass(frozen=True)
class ExportFormat:
    """Registry entry of a file format: the function that writes it, and what it needs.

    Attributes:
        write: Importer of a function `(model, folder, source, settings)` that writes the model into the folder. The
            folder `source` has the files of the tokenizer, and `settings` is an `ExportConfig`. It does not change the
            model, whose answers are written afterwards.
        layout: Whether `export.layout` is required, optional or refused.
        weights: Names of the number formats of weights for `export.weights`; the first one is the default.
        engine: Python file that is copied to the folder as `engine.py`: the functions with which `check.py` runs the
            written files. It imports nothing of adadepth. `load(folder)` returns the model. `compute_logits(model,
            token_ids)` returns a list of rows: (T, vocabulary or classes), or (1, classes) for a text. For a grid, it
            also gets the keywords `position_ids`, the rows of the cells, and `token_type_ids`, the columns.
            `generate(model, token_ids, count)` returns the ids of a greedy continuation. For weights without a known
            tolerance, mode `export` itself runs the file to measure one.
        use: Markdown for the model card: the engine that reads the files, and the command that starts it.
        libraries: Names of the Python modules that the function needs.
        needs: Requirement to install with pip if a library is missing.
    """

    write: Importer[Callable[[Any, Path, Path, ExportConfig], None]]
    layout: Literal["required", "optional", "refused"] = "refused"
    weights: tuple[str, ...] = ()
    engine: Path | None = None
    use: str = ""
    libraries: tuple[str, ...] = ()
    needs: str = ""


def _write_safetensors(model: Any, folder: Path, source: Path, settings: ExportConfig) -> None:
    """Write configuration, weights and generation configuration of a language model in a published layout."""
    del source
    model.save_pretrained(folder, layout=settings.layout)


_TRANSFORMERS = Path(__file__).parents[1] / "tasks" / "handover_files" / "run_transformers.py"
_FORMATS: Mapping[str, ExportFormat] = {
    "safetensors": ExportFormat(lambda: _write_safetensors, layout="required", engine=_TRANSFORMERS)
}


@cache
def export_formats() -> Mapping[str, ExportFormat]:
    """Return all file formats of mode `export` by name, from this package and from installed plug-ins.

    Raises:
        ConfigError: If a format of an installed package is broken, or its name is taken.
    """
    plugins = load_plugins(GROUP, "export format", _FORMATS, _find_problem)
    return {**_FORMATS, **{name: replace_paths(entry, ["write"]) for name, entry in plugins.items()}}


def check_export(config: Any) -> Iterator[str]:
    """Yield an error line for every setting of mode `export` that is lacking or that the file format does not have."""
    settings: ExportConfig = config.export
    formats = export_formats()
    if settings.format not in formats:
        allowed = f"{', '.join(formats)}{nearest(settings.format, formats)}"
        yield f"export.format={settings.format}: must be one of {allowed}"
        return
    entry = formats[settings.format]
    if settings.layout is None and entry.layout == "required":
        yield "export.layout: required by mode=export: ouro, huginn, hrm_text, nanbeige or a decoder, such as llama"
    if settings.folder is None:
        yield "export.folder: required by mode=export: a new folder"
    if settings.layout is not None and entry.layout == "refused":
        yield f"export.layout={settings.layout}: export.format={settings.format} has no layouts; leave it out"
    if settings.weights is not None and settings.weights not in entry.weights:
        allowed = f"one of {', '.join(entry.weights)}{nearest(settings.weights, entry.weights)}"
        yield (
            f"export.weights={settings.weights}: "
            + (f"must be {allowed}" if entry.weights else f"export.format={settings.format} keeps those of the model")
        )


def _find_problem(descriptor: object, name: str) -> str | None:
    """Return what is wrong with a plug-in's file format, or None if it is valid."""
    if not isinstance(descriptor, ExportFormat):
        return f"must be an adadepth.config.export.ExportFormat, not {type(descriptor).__name__}"
    wrong = find_wrong_path(descriptor.write)
    return None if wrong is None else f"{wrong!r} must be 'module:function'"
