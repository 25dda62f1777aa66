"""transformers' own tests of models on every public model class."""

import pytest

from tests.ecosystem.families_under_test import CASES
from tests.ecosystem.model_tests import build_test_classes

pytestmark = pytest.mark.slow
globals().update(build_test_classes(CASES))
del build_test_classes
