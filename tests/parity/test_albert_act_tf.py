"""TensorFlow weights of ACT-ALBERT, in folders without other weights, against outputs of the TensorFlow reference.

`albert_act_tf.npz` has the weights of a small `TFAlbertActForPreTraining` of the repository
AntoineSimoulin/adaptive-depth-transformers (transformers 4.23, TensorFlow 2.15) by the names of its `tf_model.h5`, its
configuration, and its outputs for two texts. A stand-in for h5py returns them; with h5py installed, a real file is read
too.
"""

from __future__ import annotations

import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
import torch

from adadepth import AlbertActForPreTraining, AlbertActForSequenceClassification, AlbertActModel
from adadepth.errors import CheckpointError
from adadepth.models.folder import load_with_weights, read_config
from adadepth.runtime.files import write_atomic

STORED = np.load(Path(__file__).with_name("albert_act_tf.npz"))
ARRAYS = {name: STORED[name] for name in STORED.files if name.endswith(":0")}
IDS, MASK = torch.from_numpy(STORED["ids"]), torch.from_numpy(STORED["mask"])


def list_layers() -> dict[str, list[str]]:
    """List names of weights by top-level layer, the second part of a name."""
    layers: dict[str, list[str]] = {}
    for name in ARRAYS:
        layers.setdefault(name.split("/")[1], []).append(name)
    return layers


class Group(dict[str, Any]):
    """A group of an HDF5 file with attributes; an array is read with `[()]` from a zero-dimensional holder."""

    def __init__(self, attrs: dict[str, Any], **items: Any) -> None:
        super().__init__(items)
        self.attrs = attrs

    def __enter__(self) -> Group:
        return self

    def __exit__(self, *_: object) -> None: ...


class FakeH5(ModuleType):
    """A stand-in for h5py, whose files are those of the stored model."""

    def File(self, file: Path, mode: str) -> Group:
        if file.read_bytes() != b"h5":
            raise OSError("file signature not found")
        layers = {
            layer: Group({"weight_names": np.array(names, dtype="S")}, **{name: ARRAYS[name] for name in names})
            for layer, names in list_layers().items()
        }
        return Group({"layer_names": np.array(list(layers), dtype="S")}, **layers)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    write_atomic(tmp_path / "config.json", str(STORED["config"]))
    (tmp_path / "tf_model.h5").write_bytes(b"h5")
    return tmp_path


@pytest.fixture
def h5py(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "h5py", FakeH5("h5py"))


def check_outputs(model: Any) -> None:
    """Compare the outputs at real tokens; the reference also updates padding."""
    with torch.no_grad():
        outputs = model.eval()(input_ids=IDS, attention_mask=MASK)
    real = MASK.bool()
    expected = torch.from_numpy(STORED["out/prediction_logits"])
    torch.testing.assert_close(outputs.prediction_logits[real], expected[real], atol=1e-5, rtol=1e-5)
    sop = torch.from_numpy(STORED["out/sop_logits"])  # also uses the pooler, whose matrix is transposed
    torch.testing.assert_close(outputs.sop_logits, sop, atol=1e-5, rtol=1e-5)


def test_outputs_equal_those_of_tensorflow(folder: Path, h5py: None, tmp_path: Path) -> None:
    model, report = AlbertActForPreTraining.from_pretrained(folder, output_loading_info=True)
    assert not report["missing_keys"]
    assert not report["unexpected_keys"]
    check_outputs(model)
    model.save_pretrained(tmp_path / "converted")
    (tmp_path / "converted" / "tf_model.h5").write_bytes(b"damaged")
    check_outputs(AlbertActForPreTraining.from_pretrained(tmp_path / "converted"))  # loads the other file


def test_other_heads_and_the_command_line_load_the_file(folder: Path, h5py: None, caplog: Any) -> None:
    encoder = AlbertActForPreTraining.from_pretrained(folder).albert.state_dict()
    model = AlbertActForSequenceClassification.from_pretrained(folder, num_labels=4, num_hidden_layers=7)
    assert "lacks them: classifier.bias, classifier.weight" in caplog.text
    assert (model.config.num_hidden_layers, model.classifier.out_features) == (7, 4)
    for other in (AlbertActModel.from_pretrained(folder), model.albert):
        assert all(torch.equal(weight, encoder[name]) for name, weight in other.state_dict().items())
    config = read_config("checkpoint", str(folder))
    check_outputs(load_with_weights("checkpoint", str(folder), AlbertActForPreTraining, config))


def test_a_missing_package_and_a_damaged_file_give_one_line(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    config = read_config("checkpoint", str(folder))
    monkeypatch.setitem(sys.modules, "h5py", None)
    advice = r"\(tf_model\.h5\) alone, and the package h5py is missing; install it with pip install h5py"
    with pytest.raises(CheckpointError, match=rf"^{folder}: .*{advice}$"):
        AlbertActModel.from_pretrained(folder)
    with pytest.raises(CheckpointError, match=rf"^checkpoint={folder}: .*{advice}$"):
        load_with_weights("checkpoint", str(folder), AlbertActForPreTraining, config)
    monkeypatch.setitem(sys.modules, "h5py", FakeH5("h5py"))
    (folder / "tf_model.h5").write_bytes(b"damaged")
    with pytest.raises(CheckpointError, match=r"its tf_model\.h5 is damaged \(file signature not found\)"):
        AlbertActModel.from_pretrained(folder)


def test_a_folder_without_weights_is_refused_with_the_supported_files(folder: Path) -> None:
    (folder / "tf_model.h5").unlink()
    with pytest.raises(OSError, match=r"model\.safetensors"):
        AlbertActModel.from_pretrained(folder)


def test_a_real_file_is_read(folder: Path) -> None:
    library = pytest.importorskip("h5py")
    with library.File(folder / "tf_model.h5", "w") as file:
        file.attrs["layer_names"] = np.array(list(list_layers()), dtype="S")
        for layer, names in list_layers().items():
            group = file.create_group(layer)
            group.attrs["weight_names"] = np.array(names, dtype="S")
            for name in names:
                group.create_dataset(name, data=ARRAYS[name])
    check_outputs(AlbertActForPreTraining.from_pretrained(folder))
