"""The page without a browser: events of its controls, allowed hosts of its server, and its console output."""

from __future__ import annotations

import http.client
import json
import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest

from adadepth.contrib.serve.checkpoint import get_synthetic_example
from adadepth.contrib.serve.knobs import AS_TRAINED, BUDGET
from adadepth.errors import ConfigError
from tests.contrib.serve.support import serve_text_model, serve_untrained
from tests.marks_support import keep_one_quick
from tests.models_support import make_small_ponder
from tests.unit.data.tokenizers_support import tokenizer
from tests.unit.models.looped.looped_support import OURO, build_looped

pytest.importorskip("gradio")

from adadepth.contrib.serve import page as pages


@pytest.fixture(scope="module")
def configs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """Return the configurations that a browser gets for pages of drawn data, of texts, and of generated texts."""
    words = tokenizer("roberta")
    hops = serve_untrained(tmp_path_factory.mktemp("hops"), "act_hops", "budget=none", "model.num_hidden_layers=3")
    return {
        "hops": pages.build_page([hops, hops]).config,
        "ponder": pages.build_page(
            [serve_text_model(make_small_ponder(), tokenizer("bert"), initial_text="a cat")]
        ).config,
        "loops": pages.build_page(
            [serve_text_model(build_looped(**OURO | {"vocab_size": len(words)}), words, initial_text="a cat")]
        ).config,
    }


@pytest.mark.parametrize(
    ("name", "controls"),
    [
        ("hops", {"ada-set", "ada-number", "ada-board", "ada-knob", "ada-depth", "ada-wanted"}),
        ("ponder", {"ada-text", "ada-knob", "ada-depth", "ada-wanted"}),
        ("loops", {"ada-text", "ada-knob", "ada-depth", "ada-wanted", "ada-count"}),
    ],
)
def test_one_event_answers_the_last_state_of_the_controls(
    name: str, controls: set[str], configs: dict[str, Any]
) -> None:
    config = configs[name]
    names = {entry["id"]: entry["props"].get("elem_id") for entry in config["components"]}
    answers = {
        entry["id"] for entry in config["components"] if "ada-answer" in (entry["props"].get("elem_classes") or [])
    }
    answering, failing = (entry for entry in config["dependencies"] if set(entry["outputs"]) & answers)
    assert {names[number] for number in answering["inputs"]} == controls, "all of them, at every change"
    assert answering["trigger_mode"] == "always_last", "a change while it answers is answered afterwards"
    assert failing["trigger_after"] == answering["id"]
    assert failing["trigger_only_on_failure"]
    for entry in config["dependencies"]:
        if entry["backend_fn"] and entry["inputs"]:
            assert entry["trigger_mode"] == "always_last", "what the server works out of controls"
    (changed,) = answering["targets"]
    assert tuple(changed) == (answering["inputs"][0], "change"), (
        "gradio repeats a whole event, and this one has nothing else"
    )
    (changing,) = (entry for entry in config["dependencies"] if entry["outputs"] == [changed[0]])
    assert {names.get(number) for number, _ in changing["targets"]} >= controls - {
        "ada-wanted",
        "ada-set",
        "ada-number",
        "ada-count",
    }
    for entry in config["dependencies"]:
        if set(map(tuple, entry["targets"])) & set(map(tuple, changing["targets"])):
            assert entry["id"] <= changing["id"], "what one control does to others is done before they are read"


@pytest.mark.parametrize("name", ["hops", "ponder", "loops"])
def test_the_page_opens_with_an_answer(name: str, configs: dict[str, Any]) -> None:
    answers = [entry["props"] for entry in configs[name]["components"]
               if "ada-answer" in (entry["props"].get("elem_classes") or [])]  # fmt: skip
    assert answers
    assert all('data-tile="compute"' in props["value"] and "as trained" in props["value"] for props in answers)
    events = [event for entry in configs[name]["dependencies"] for _, event in entry["targets"]]
    assert "load" not in events, "it is not computed again for every visitor"


def test_every_knob_has_its_own_limits(tmp_path: Path) -> None:
    """Check the server, which gets values only; the browser moves the limits of the slider."""
    hops = serve_untrained(tmp_path, "act_hops", "budget=none", "model.num_hidden_layers=3")
    values = ["answer 1", "inside", 0, get_synthetic_example(hops, "inside", 0).board, BUDGET, 2.0]
    page = pages.build_page([hops])
    answering = next(
        function for function in page.fns.values() if function.trigger_mode == "always_last" and function.queue
    )
    assert not answering.preprocess
    assert f"{BUDGET} 2" in list(pages._respond([hops], 3, *values))[-1]
    assert "must be from" in next(iter(pages._respond([hops], 3, *values[:-1], 9.0)))


@pytest.fixture(scope="module")
def address(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Serve a page with drawn data, and yield its address."""
    hops = serve_untrained(tmp_path_factory.mktemp("served"), "act_hops", "budget=none", "model.num_hidden_layers=3")
    page = pages.build_page([hops])
    yield urlsplit(pages.launch_page(page, "127.0.0.1", 0)).netloc
    page.close(verbose=False)


def send_request(
    address: str, method: str, path: str, body: Any = None, **headers: str
) -> tuple[int, dict[str, str], str]:
    """Return status, headers and text of a response."""
    connection = http.client.HTTPConnection(address, timeout=60)
    content = None if body is None else json.dumps(body)
    all_headers = {"Content-Type": "application/json"} | {
        key.replace("_", "-"): value for key, value in headers.items()
    }
    connection.request(method, path, content, all_headers)
    answer = connection.getresponse()
    response_parts = answer.status, {key.lower(): value for key, value in answer.getheaders()}, answer.read().decode()
    connection.close()
    return response_parts


@pytest.mark.parametrize("path", ["/", "/config", "/gradio_api/info", "/gradio_api/queue/join", "/theme.css", "/none"])
@pytest.mark.parametrize("method", ["GET", "POST", "OPTIONS"])
def test_other_sites_are_refused(method: str, path: str, address: str) -> None:
    body = {"data": [], "fn_index": 0, "session_hash": "x"} if method == "POST" else None
    evil = "http://evil.example"
    preflight = {"Access_Control_Request_Method": "POST"} if method == "OPTIONS" else {}
    for headers in ({"Host": "evil.example", "Origin": evil}, {"Host": "evil.example"}, {"Origin": evil}):
        status, response_headers, _ = send_request(address, method, path, body, **headers, **preflight)
        assert status == 403
        assert not any(name.startswith("access-control") for name in response_headers)
    assert send_request(address, "GET", "/config", Origin=f"http://{address}")[0] == 200


FORGED: tuple[Any, ...] = (
    [], [None], ["x"] * 9, [{"a": 1}] * 6, [[1]] * 6, [True] * 6, [{"__type__": "update"}] * 6,
    [{"path": "/etc/passwd", "meta": {"_type": "gradio.FileData"}}] * 6,
    ["answer", "no set", 0, "x", AS_TRAINED, 0.5], ["answer", "inside", 1e999, "x", AS_TRAINED, 0.5],
    ["answer", "inside", 0, "x", "no knob", float("nan")],
)  # fmt: skip


def test_forged_requests_are_lines_of_the_console(address: str, capfd: pytest.CaptureFixture[str]) -> None:
    dependencies = json.loads(send_request(address, "GET", "/config")[2])["dependencies"]
    count = 0
    for number in [*(dependency["id"] for dependency in dependencies if not dependency["queue"]), -1, 10**20]:
        for data in FORGED:
            count += 1
            body = {"data": data, "fn_index": number, "session_hash": "x", "trigger_id": 10**9, "event_data": data}
            assert send_request(address, "POST", "/gradio_api/run/predict", body)[0] in (200, 422, 500)
    queued = next(dependency["id"] for dependency in dependencies if dependency["queue"])
    for data in FORGED:
        body = {"data": data, "fn_index": queued, "session_hash": "forged", "trigger_id": None, "event_data": data}
        assert send_request(address, "POST", "/gradio_api/queue/join", body)[0] == 200
    events = ""
    connection = http.client.HTTPConnection(address, timeout=60)
    connection.request("GET", "/gradio_api/queue/data?session_hash=forged")
    stream = connection.getresponse()
    while events.count('"process_completed"') < len(FORGED):
        events += stream.readline().decode()
    connection.close()
    captured = capfd.readouterr()
    lines = (captured.out + captured.err).splitlines()
    assert 0 < len(lines) <= count + len(FORGED)
    assert {re.match(r"request failed\b.*: \w+|.*: \w*Error: ", line) is not None for line in lines} == {True}, lines


def test_a_port_taken_meanwhile_is_a_one_line_error(address: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pages, "find_free_port", lambda host, port: int(address.rpartition(":")[2]))
    page = pages.build_page([serve_text_model(make_small_ponder(), tokenizer("bert"))])
    with pytest.raises(ConfigError, match=r"^serve\.host=127\.0\.0\.1 serve\.port=\d+: cannot be opened"):
        pages.launch_page(page, "127.0.0.1", 0)


@pytest.mark.parametrize("host", keep_one_quick(2, ["localhost", "::1"]))
def test_the_page_opens_at_any_address_and_behind_a_proxy(host: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("HTTP_PROXY", "http_proxy", "ALL_PROXY"):
        monkeypatch.setenv(name, "http://127.0.0.1:9")
    monkeypatch.setenv("no_proxy", "mine")
    monkeypatch.delenv("NO_PROXY", raising=False)
    page = pages.build_page([serve_text_model(make_small_ponder(), tokenizer("bert"))])
    netloc = urlsplit(pages.launch_page(page, host, 0)).netloc
    assert send_request(netloc, "GET", "/config")[0] == 200
    assert (os.environ["no_proxy"], "NO_PROXY" in os.environ) == ("mine", False)
    page.close(verbose=False)
