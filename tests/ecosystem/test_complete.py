"""Coverage of all public model classes by the tests of this directory."""

from transformers import PreTrainedModel

import adadepth
from adadepth.models import public_names
from tests.ecosystem.families_under_test import CASES

# Stock classifiers are dynamic classes with names of transformers.
TEMPLATES = {"StockForSequenceClassification", "StockForTokenClassification"}


def test_every_public_model_class_is_under_test():
    public = {name: getattr(adadepth, name) for name in public_names()}
    models = {
        member.__name__
        for member in public.values()
        if isinstance(member, type) and issubclass(member, PreTrainedModel)
    }
    tested = {model.__name__ for case in CASES for model in case.models()}
    assert models - tested == TEMPLATES
