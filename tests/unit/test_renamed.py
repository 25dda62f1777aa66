"""Former names of packages, which can still be imported."""

import importlib
import sys

import pytest

from adadepth.renamed import RENAMED


@pytest.mark.parametrize("old", RENAMED)
def test_a_package_can_be_imported_by_its_former_name_with_a_warning(old):
    for name in [name for name in sys.modules if name == old or name.startswith(f"{old}.")]:
        del sys.modules[name]
    with pytest.warns(FutureWarning, match=rf"{old} is now {RENAMED[old]}"):
        module = importlib.import_module(old)
    assert module is importlib.import_module(RENAMED[old])


def test_a_class_is_the_same_under_both_names():
    with pytest.warns(FutureWarning):
        former = importlib.import_module("adadepth.families.contract")
    assert former.DepthModel is importlib.import_module("adadepth.models.contract").DepthModel
    assert former.__name__ == former.__spec__.name == "adadepth.models.contract"


def test_an_unknown_name_is_not_found():
    with pytest.raises(ModuleNotFoundError, match=r"adadepth\.famille"):
        importlib.import_module("adadepth.famille")
