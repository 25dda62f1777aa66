"""Every public model class passes transformers' own tests of models."""

import pytest

from tests.ecosystem.families_under_test import CASES
from tests.ecosystem.model_tests import test_classes

pytestmark = pytest.mark.slow
globals().update(test_classes(CASES))
del test_classes
