"""By what a run is known to the next start of its launch."""

from __future__ import annotations

import pytest

from adadepth.runtime.launchers import launches, list_restartable_launches

JOB = {"SLURM_JOB_ID": "77", "TORCHELASTIC_RUN_ID": "mine"}
COUNTS = {"SLURM_RESTART_COUNT": "0", "TORCHELASTIC_RESTART_COUNT": "0"}


@pytest.fixture(autouse=True)
def _no_launcher(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in (*JOB, *COUNTS, "SUBMITIT_LOCAL_JOB_ID"):
        monkeypatch.delenv(name, raising=False)


def given(monkeypatch: pytest.MonkeyPatch, **variables: str) -> None:
    for name, value in variables.items():
        monkeypatch.setenv(name, value)


def test_without_a_launcher_nothing_starts_again() -> None:
    assert launches() == list_restartable_launches() == []


def test_a_number_counts_when_its_launcher_says_that_it_comes_again(monkeypatch: pytest.MonkeyPatch) -> None:
    given(monkeypatch, **JOB, **COUNTS)
    assert launches()[:2] == ["slurm 77", "torchrun mine"]
    assert not {"slurm 77", "torchrun mine"} & set(list_restartable_launches())
    given(monkeypatch, SLURM_RESTART_COUNT="1")
    assert list_restartable_launches()[0] == "slurm 77"
    assert "torchrun mine" not in list_restartable_launches()


def test_torchrun_without_a_number_is_known_by_its_process(monkeypatch: pytest.MonkeyPatch) -> None:
    given(monkeypatch, TORCHELASTIC_RUN_ID="none")
    assert launches() == list_restartable_launches()
    (parent,) = launches()
    assert parent.startswith("process ")
