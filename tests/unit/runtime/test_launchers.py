"""Identifiers by which a restarted launch finds its run."""

from __future__ import annotations

import pytest

from adadepth.runtime.launchers import launches, list_restartable_launches

JOB = {"SLURM_JOB_ID": "77", "TORCHELASTIC_RUN_ID": "mine"}
COUNTS = {"SLURM_RESTART_COUNT": "0", "TORCHELASTIC_RESTART_COUNT": "0"}


@pytest.fixture(autouse=True)
def _remove_launcher_variables(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in (*JOB, *COUNTS, "SUBMITIT_LOCAL_JOB_ID"):
        monkeypatch.delenv(name, raising=False)


def set_variables(monkeypatch: pytest.MonkeyPatch, **variables: str) -> None:
    for name, value in variables.items():
        monkeypatch.setenv(name, value)


def test_a_run_without_a_launcher_has_no_identifier() -> None:
    assert launches() == list_restartable_launches() == []


def test_a_job_is_restartable_only_if_its_launcher_counts_restarts(monkeypatch: pytest.MonkeyPatch) -> None:
    set_variables(monkeypatch, **JOB, **COUNTS)
    assert launches()[:2] == ["slurm 77", "torchrun mine"]
    assert not {"slurm 77", "torchrun mine"} & set(list_restartable_launches())
    set_variables(monkeypatch, SLURM_RESTART_COUNT="1")
    assert list_restartable_launches()[0] == "slurm 77"
    assert "torchrun mine" not in list_restartable_launches()


def test_torchrun_without_an_id_is_identified_by_its_process(monkeypatch: pytest.MonkeyPatch) -> None:
    set_variables(monkeypatch, TORCHELASTIC_RUN_ID="none")
    assert launches() == list_restartable_launches()
    (parent,) = launches()
    assert parent.startswith("process ")
