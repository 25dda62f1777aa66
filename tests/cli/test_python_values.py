"""Values as Python and W&B's agents write them, names that YAML reads as other types, and names of files."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from hydra.core.override_parser.overrides_parser import OverridesParser

from adadepth.cli.command_line import from_python
from adadepth.cli.yaml_files import check_yaml
from adadepth.errors import ConfigError
from tests.cli.support import Command, Jobs, Refusal


@pytest.mark.parametrize(("value", "expected"), [
    ("None", None), ("{'neg': 1, 'pos': 2.5}", {"neg": 1, "pos": 2.5}), ("{'a:b (c)': None}", {"a:b (c)": None}),
    ("['a', None, True]", ["a", None, True]), ("{'train': ['a(1).csv', \"it's\"]}", {"train": ["a(1).csv", "it's"]}),
    ("{'train': 'a\\\\'}", {"train": "a\\"}), ("['a','b']", ["a", "b"]), ("{neg: 1}", {"neg": 1}),
    ("[a,b]", ["a", "b"]), ("None,1", None),
    ("5", 5), ("nan", None), ("{}", {}), ("[[", None), ("null", None), ("'None'", "None"),
])  # fmt: skip
def test_python_literals_are_read_as_in_python(value: str, expected: Any) -> None:
    written = from_python(f"key={value}")
    if value in ("None,1", "nan", "[["):
        assert written == f"key={value}"
    else:
        assert OverridesParser.create().parse_override(written).value() == expected


@pytest.mark.parametrize(("value", "names"), [
    ("[false,true]", ["false", "true"]), ("[no, yes]", ["no", "yes"]), ("[1.0,2.0]", ["1.0", "2.0"]),
    ("[1_0,null]", ["1_0", "null"]), ("['a','b']", ["a", "b"]), ("[a b,c/d]", ["a b", "c/d"]),
])  # fmt: skip
def test_class_names_are_texts(value: str, names: list[str]) -> None:
    assert OverridesParser.create().parse_override(from_python(f"dataset.labels={value}")).value() == names


def test_an_agents_values_reach_the_configuration(command: Command, jobs: Jobs) -> None:
    arguments = ["--dataset.class_weights={'neg': 1, 'pos': 3}", "--dataset.max_train_examples=None", "dataset=table"]
    command("--config-name=act_cola", "dataset.path=x", "dataset.labels=[1.0,true]", *arguments).checked()
    dataset: Any = jobs[0].dataset
    assert (dataset.class_weights, dataset.max_train_examples) == ({"neg": 1, "pos": 3}, None)
    assert dataset.labels == ["1.0", "true"]


@pytest.mark.parametrize("name", ["a(1).csv", "a[1].csv", "a=1.csv", "a,b.csv"])
def test_special_characters_in_file_names_ask_for_quotes(refused: Refusal, name: str) -> None:
    unquoted = f"dataset.path={{train: {name}, validation: b.csv}}"
    quoted = f'dataset.path={{train: "{name}", validation: "b.csv"}}'
    assert (f"put quotes around a text with such characters: '{quoted}'") in refused(
        "--config-name=ponder_tiny", "dataset=table", unquoted
    )
    assert OverridesParser.create().parse_override(quoted).value() == {"train": name, "validation": "b.csv"}


@pytest.mark.parametrize(("text", "line", "name", "other"), [
    ("dataset:\n  labels: [no, yes]\n", 2, "no", "False"), ("labels:\n- a\n- off\n", 3, "off", "False"),
    ("dataset:\n  class_weights: {yes: 2}\n", 2, "yes", "True"), ("labels: [1_0, x]\n", 1, "1_0", "10"),
    ("labels: [~, x]\n", 1, "~", "None"), ("labels: [true, x]\n", 1, "true", "True"),
])  # fmt: skip
def test_a_class_that_yaml_reads_as_another_type_is_a_text(
    tmp_path: Path, text: str, line: int, name: str, other: str
) -> None:
    file = tmp_path / "mine.yaml"
    file.write_text(text)
    with pytest.raises(ConfigError) as raised:
        check_yaml(file)
    assert str(raised.value) == (
        f"{file}, line {line}: the class {name} is {other} in YAML; write it in quotes: '{name}'"
    )


def test_classes_that_yaml_reads_as_texts_are_unchanged(tmp_path: Path) -> None:
    file = tmp_path / "mine.yaml"
    file.write_text(
        "dataset:\n  labels: ['no', \"yes\", 1, 2.5, a b, ${name}, 2020-01-01]\n  class_weights: {no1: 2}\n"
    )
    check_yaml(file)
