"""The marks that transformers' own tests bear; this project's suite is strict about marks."""

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
