"""Marks of transformers' own tests, declared because unknown marks are errors in this project."""

import pytest

_MARKS = (
    "accelerate_tests",
    "flash_attn_test",
    "flash_attn_3_test",
    "flash_attn_4_test",
    "generate",
    "order",
    "torch_compile_test",
)


def pytest_configure(config: pytest.Config) -> None:
    for name in _MARKS:
        config.addinivalue_line("markers", f"{name}: of transformers' own tests")
