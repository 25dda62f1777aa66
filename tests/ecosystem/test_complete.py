"""No public model class is left out of the tests of this folder by oversight."""

from transformers import PreTrainedModel

import adadepth
from adadepth.models import public_names
from tests.ecosystem.families_under_test import CASES

# Stock classifiers are dynamic classes of transformers' own names.
TEMPLATES = {"StockForSequenceClassification", "StockForTokenClassification"}


def test_every_public_model_class_is_under_test():
    public = {name: getattr(adadepth, name) for name in public_names()}
    models = {each.__name__ for each in public.values() if isinstance(each, type) and issubclass(each, PreTrainedModel)}
    tested = {model.__name__ for case in CASES for model in case.models()}
    assert models - tested == TEMPLATES
