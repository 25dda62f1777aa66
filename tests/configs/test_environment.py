"""Values from environment variables: files of a run store the reference, and a resumed run resolves it again."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest
import yaml
from omegaconf import OmegaConf

from adadepth.cli.validation import build_config
from adadepth.config.env_redaction import record_env_references, redact_env_values, with_references
from adadepth.errors import DataError
from adadepth.report.pages import write_report
from adadepth.runs.directory import get_plain_settings, open_run, read_record
from tests.configs.support import compose_config, configured
from tests.pages_support import read_report

SECRET = "hunter2-of-the-cluster"


def test_a_runs_files_have_references_instead_of_values(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TOKEN", SECRET)
    node = compose_config("act_tiny")
    node.logger.entity = "team-${oc.env:TOKEN}"
    node.logger.tags = ["${ oc.env:TOKEN, none }", "plain"]
    node.logger.project = "${logger.entity}"
    node.logger.group = "${.entity}"
    node.model.pretrained = "${oc.env:TOKEN}"
    config = build_config(node)
    assert (config.logger.entity, config.logger.project) == (f"team-{SECRET}", f"team-{SECRET}")
    assert config.logger.tags == [SECRET, "plain"]
    with open_run(config, tmp_path) as run:
        run.update(data={"tokenizer": {"path": SECRET}})
    for path in tmp_path.iterdir():
        assert SECRET not in path.read_text()
    assert SECRET not in str(get_plain_settings(config))  # the settings of trackers
    written = yaml.safe_load((tmp_path / "config.yaml").read_text())
    assert written["logger"]["entity"] == "team-${oc.env:TOKEN}"
    assert OmegaConf.load(tmp_path / "config.yaml").logger.group == f"team-{SECRET}"  # read again


def test_an_error_has_references_instead_of_values(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Check that references replace values, but not wherever a short value occurs by chance."""
    monkeypatch.setenv("TOKEN", SECRET)
    monkeypatch.setenv("LONGER", f"{SECRET}-2")
    monkeypatch.setenv("SHORT", "1")
    node = compose_config("act_tiny")
    node.logger.entity, node.logger.project, node.logger.group = (
        f"${{oc.env:{name}}}" for name in ("TOKEN", "SHORT", "LONGER")
    )
    config = build_config(node)
    with pytest.raises(DataError), open_run(config, tmp_path):
        raise DataError(f"https://hub/{SECRET}/x: 11 of 1 failed, {SECRET}-2 too")
    message = "DataError: https://hub/${oc.env:TOKEN}/x: 11 of 1 failed, ${oc.env:LONGER} too"
    assert read_record(tmp_path)["error"] == message


def test_a_path_that_contains_a_value_is_written_with_its_reference(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Check the folder of a run whose name comes from the environment."""
    monkeypatch.setenv("TOKEN", SECRET)
    monkeypatch.setattr("sys.argv", ["run.py", "name=x-${oc.env:TOKEN}", f"checkpoint=out/x-{SECRET}/run"])
    node = compose_config("act_tiny")
    node.name = "x-${oc.env:TOKEN}"
    config = dataclasses.replace(build_config(node), rival_of=f"out/x-{SECRET}/run")
    with open_run(config, tmp_path) as run:
        run.update(evaluated=f"out/{config.name}/run/model")
    record = read_record(tmp_path)
    assert record["evaluated"] == "out/x-${oc.env:TOKEN}/run/model"
    assert record["command"].endswith(" 'checkpoint=out/x-${oc.env:TOKEN}/run'")
    assert "Evaluated" in (page := write_report(read_report(tmp_path)).read_text())
    assert SECRET not in page + (tmp_path / "run.json").read_text() + (tmp_path / "config.yaml").read_text()
    assert get_plain_settings(config)["rival_of"] == "out/x-${oc.env:TOKEN}/run"


def test_words_of_the_program_are_not_replaced(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("STAGE", "train")
    node = compose_config("act_tiny")
    node.logger.group = "${oc.env:STAGE}"
    with open_run(build_config(node), tmp_path):
        pass
    assert (read_record(tmp_path)["mode"], read_record(tmp_path)["status"]) == ("train", "finished")


def test_the_next_configuration_forgets_the_values(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TOKEN", SECRET)
    node = compose_config("act_tiny")
    node.logger.entity = "${oc.env:TOKEN}"
    build_config(node)
    assert get_plain_settings(configured("act_tiny", "logger.entity=mine"))["logger"]["entity"] == "mine"


@pytest.mark.parametrize(
    "written",
    [
        "${oc.select:logger.entity}", "${oc.decode:${oc.env:TOKEN}}", "${oc.select:nothing,${oc.env:TOKEN}}",
        "a ${oc.create:${oc.env:TOKEN}} b", "${logger.tags.0}", "${oc.deprecated:logger.entity}",
    ],
)  # fmt: skip
def test_indirect_references_are_written_unresolved(written: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TOKEN", "sekretvalue")
    node = OmegaConf.create({"logger": {"entity": "${oc.env:TOKEN}", "tags": ["${oc.env:TOKEN}"], "group": written}})
    record_env_references(node)
    plain = {"logger": {"entity": "sekretvalue", "tags": ["sekretvalue"], "group": str(node.logger.group)}}
    assert with_references(plain)["logger"]["group"] == written
    assert "sekretvalue" not in str(with_references(plain))
    assert "sekretvalue" not in redact_env_values(f"of {node.logger.group}")
    OmegaConf.clear_cache(node)
    assert OmegaConf.create({"a": "${oc.env:TOKEN}"}).a == "sekretvalue"  # the resolver is OmegaConf's own again


def test_other_interpolations_are_resolved(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TOKEN", "sekretvalue")
    node = OmegaConf.create(
        {"name": "run", "group": "${name}", "bad": "${oc.select:${gone}}", "env": "${oc.env:TOKEN}"}
    )
    record_env_references(node)
    assert with_references({"name": "run", "group": "run", "env": "x"}) == {
        "name": "run", "group": "run", "env": "${oc.env:TOKEN}",
    }  # fmt: skip
