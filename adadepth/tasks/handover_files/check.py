"""Compare the model in this folder, as an engine runs it, with the answers of the program that exported it.

    python check.py                                     # engine.py runs the files of this folder
    python check.py --url http://localhost:8000/v1      # a server with OpenAI's completions runs them

The file check.json has the inputs, the answers, and the tolerance for the number format of the weights. A token or
label that is nearly tied with the next one may be another one. The exit status is 0 if all answers agree, 1 if one
differs, and 2 if the engine or the server cannot be asked.
"""

from __future__ import annotations

import argparse
import importlib
import json
import math
import sys
import urllib.error
import urllib.request
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple


class CheckResult(NamedTuple):
    """Result of one input: whether it agrees, a number that measures the difference, and a description in words."""

    agrees: bool
    difference: float
    description: str


def compute_log_probability(logits: Sequence[Sequence[float]], token_ids: Sequence[int]) -> float:
    """Return the mean log probability of the tokens of an input after the first one.

    Args:
        logits: Logits at every position, (T, vocabulary).
        token_ids: Token ids, (T,).
    """
    total = sum(log_softmax(row)[following] for row, following in zip(logits, token_ids[1:], strict=False))
    return total / (len(token_ids) - 1)


def log_softmax(row: Sequence[float]) -> list[float]:
    """Return the log probabilities of a row of logits."""
    highest = max(row)
    normaliser = highest + math.log(sum(math.exp(value - highest) for value in row))
    return [value - normaliser for value in row]


def compare_language(entry: Mapping[str, Any], tolerance: float, engine: Any, model: Any) -> CheckResult:
    """Compare the log probability of an input, and its greedy continuation as far as it is not a tie."""
    token_ids, expected = entry["token_ids"], entry["continuation"]
    probability = compute_log_probability(engine.compute_logits(model, token_ids), token_ids)
    difference = abs(probability - entry["log_probability"])
    count = len(expected["token_ids"])
    answer = list(engine.generate(model, token_ids, count)) if count else []
    is_same = answer[: expected["certain"]] == expected["token_ids"][: expected["certain"]]
    words = f"log probability {probability:.5f}, expected {entry['log_probability']:.5f}"
    return CheckResult(
        difference <= tolerance and is_same, difference, words if is_same else f"{words}; continuation {answer}"
    )


def compare_logits(entry: Mapping[str, Any], tolerance: float, engine: Any, model: Any) -> CheckResult:
    """Compare the logits of the classes of a text."""
    logits = engine.compute_logits(model, entry["token_ids"], **entry.get("other_inputs", {}))[0]
    pairs = zip(logits, entry["logits"], strict=True)
    difference = max(abs(value - expected) for value, expected in pairs)
    return CheckResult(difference <= tolerance, difference, f"logits {[round(value, 4) for value in logits]}")


def compare_labels(entry: Mapping[str, Any], tolerance: float, engine: Any, model: Any) -> CheckResult:
    """Compare the class of every token or cell, except for ties, and the probability of the expected class."""
    rows = engine.compute_logits(model, entry["token_ids"], **entry.get("other_inputs", {}))
    classes = [max(range(len(row)), key=row.__getitem__) for row in rows]
    pairs = enumerate(zip(classes, entry["classes"], strict=True))
    wrong = [position for position, (label, expected) in pairs if label != expected and position not in entry["ties"]]
    labelled = zip(rows, entry["classes"], entry["probabilities"], strict=True)
    difference = max(abs(math.exp(log_softmax(row)[label]) - expected) for row, label, expected in labelled)
    where = f", at {wrong[:5]}" if wrong else ""
    words = f"{len(wrong)} of {len(classes)} labels differ{where}; probabilities by {difference:.1g}"
    return CheckResult(difference <= tolerance and not wrong, difference, words)


COMPARE = {"language": compare_language, "text": compare_logits, "tokens": compare_labels}
DIFFERENCES = {
    "language": "difference of log probabilities",
    "text": "difference of logits",
    "tokens": "difference of probabilities",
}


def ask_server(url: str, path: str, content: Mapping[str, Any] | None = None) -> Any:
    """Return the JSON answer of a server to a GET request, or to a POST request with the given content."""
    body = None if content is None else json.dumps(content).encode()
    request = urllib.request.Request(f"{url.rstrip('/')}/{path}", body, {"Content-Type": "application/json"})
    with urllib.request.urlopen(request, timeout=600) as answer:
        return json.load(answer)


def compare_completion(entry: Mapping[str, Any], url: str, name: str, sends_text: bool) -> CheckResult:
    """Compare the text that a server generates after an input, as far as it is not a tie."""
    expected = entry["continuation"]
    if not expected["certain"]:
        return CheckResult(True, 0.0, "the first token is a tie, so nothing is compared")
    content = {
        "model": name,
        "prompt": entry["text"] if sends_text else entry["token_ids"],
        "temperature": 0,
        "max_tokens": len(expected["token_ids"]),
        "repeat_penalty": 1.0,  # llama-cpp-python's server has a default of 1.1
    }
    answer = ask_server(url, "completions", content)
    text, count = answer["choices"][0]["text"], answer.get("usage", {}).get("prompt_tokens", len(entry["token_ids"]))
    if join_words(text).startswith(join_words(expected["certain_text"])):
        return CheckResult(True, 0.0, f"{expected['certain']} tokens compared")
    other = (
        "" if count == len(entry["token_ids"]) else f"; it reads {count} tokens instead of {len(entry['token_ids'])}"
    )
    return CheckResult(False, 0.0, f"{text!r}, expected {expected['certain_text']!r}{other}")


def join_words(text: str) -> str:
    """Return a text with single spaces, and without bytes that are no character."""
    return " ".join(text.replace("\ufffd", "").split())


def run_checks() -> int:
    """Compare all inputs, print a line for each and a summary, and return the exit status."""
    parser = argparse.ArgumentParser(
        description="Compare how an engine runs these files with the answers in check.json."
    )
    parser.add_argument("--url", help="address of a server with OpenAI's completions, such as http://localhost:8000/v1")
    parser.add_argument("--model", help="name of the model at the server; by default the first one that it lists")
    parser.add_argument("--text", action="store_true", help="send texts, for servers that take no lists of token ids")
    arguments = parser.parse_args()
    folder = Path(__file__).resolve().parent
    content = json.loads((folder / "check.json").read_text(encoding="utf-8"))
    task, entries = content["task"], content["inputs"]
    if arguments.url and task != "language":
        parser.error("--url: only language models have completions")
    try:
        if arguments.url:
            name = arguments.model or ask_server(arguments.url, "models")["data"][0]["id"]
        else:
            engine = importlib.import_module("engine")  # engine.py beside this file
            model = engine.load(folder)
        comparisons = []
        for number, entry in enumerate(entries, start=1):
            if arguments.url:
                comparison = compare_completion(entry, arguments.url, name, arguments.text)
            else:
                comparison = COMPARE[task](entry, content["tolerance"], engine, model)
            comparisons.append(comparison)
            print(f"{number}: {'agrees' if comparison.agrees else 'DIFFERS'}: {comparison.description}", flush=True)
    except urllib.error.HTTPError as error:
        advice = "" if arguments.text else "; if it takes no lists of token ids, add --text"
        print(f"{arguments.url}: {error}{advice}", file=sys.stderr)
        return 2
    except (urllib.error.URLError, TimeoutError) as error:
        print(f"{arguments.url}: {error}", file=sys.stderr)
        return 2
    agreeing = sum(comparison.agrees for comparison in comparisons)
    largest = max(comparison.difference for comparison in comparisons)
    measured = f"largest {DIFFERENCES[task]} {largest:.1g}"
    if arguments.url:
        compared = sum(entry["continuation"]["certain"] for entry in entries)
        measured = f"{compared} tokens compared"
        agreeing = agreeing if compared else 0
    print(f"{agreeing} of {len(entries)} inputs agree; {measured}")
    return 0 if agreeing == len(entries) else 1


if __name__ == "__main__":
    sys.exit(run_checks())
