"""Preparing a long text: rates beside the tokenizer's own, resident memory, the same bytes for any processes and kills.

    python benchmarks/preparation.py --text FILE --folder SCRATCH [--megabytes 1000] [--kind sequences lines]
        [--workers 1 2] [--kills 5] [--json FILE]

The text is the lines of FILE, shuffled anew each time they are repeated, until it is so long. `sequences` are prepared
as pretraining is, `lines` as streams and packed blocks are; the text is one file. Each preparation is a process of its
own with an empty cache; at the end the arrays' checksums are compared. With `--kills` one more, with the most workers,
is killed so often (SIGKILL, at even times of what it took before) and begun again.

A rate is characters a second: of `encode_batch` on one thread, right after each preparation, on its sentences or
lines; of the preparation as a whole, from the first file that is read to the last array that is sealed, with the start
of its processes. Beside seconds stand processor seconds, of all processes together, which say what it costs where a
machine is shared. Memory is what the processes have resident, looked at twice a second: of each, and of all together
once with the pages that they share counted in each (RSS), once divided among them (PSS). Linux only.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import random
import resource
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Any

from adadepth.config.data import CausalConfig, CorpusConfig, Separator, Source
from adadepth.config.experiment import TokenizerConfig
from adadepth.data.pretraining.load import load_pretraining_data
from adadepth.data.streams.blocks import load_text_blocks
from adadepth.data.text.local_files import read_lines, split_documents
from adadepth.data.text.passages import split_sentences

KINDS = ("sequences", "lines")
VOCABULARY, LEARNED_FROM = 8000, 20_000  # pieces, and rows that they are learned from
SAMPLE = 4 * 10**6  # characters that the tokenizer's own rate is measured on
LOOKS = 0.5  # seconds between two looks at memory


def write_text(source: Path, target: Path, size: int) -> None:
    """Write the lines of a text again and again, each time in another order, until there are so many bytes."""
    lines, written, order = source.read_bytes().splitlines(keepends=True), 0, random.Random(0)
    with target.open("wb") as stream:
        while written < size:
            order.shuffle(lines)
            written += stream.write(b"".join(lines))


def settings(kind: str, text: Path, cache: Path, workers: int) -> tuple[Any, TokenizerConfig]:
    """Return the data and tokenizer configuration of a run with this text."""
    fields: dict[str, Any] = {
        "source": Source.local, "path": str(text), "cache_dir": str(cache), "prepare_workers": workers,
        "document_separator": Separator.blank_line, "evaluation_fraction": 0.01, "sequence_length": 128,
    }  # fmt: skip
    data = CorpusConfig(name="text", **fields) if kind == "sequences" else CausalConfig(name="text", **fields)
    return data, TokenizerConfig(vocab_size=VOCABULARY, train_documents=LEARNED_FROM)


def prepare(kind: str, text: Path, cache: Path, workers: int) -> Any:
    """Prepare the text as a run does."""
    data, tokenizer = settings(kind, text, cache, workers)
    return load_pretraining_data(data, tokenizer, 0) if kind == "sequences" else load_text_blocks(data, tokenizer)


def rows_of(kind: str, text: Path) -> Iterator[str]:
    """Return the texts that the tokenizer learns from: sentences or lines."""
    lines = read_lines("dataset.path", text)
    if kind == "lines":
        return lines
    return (sentence for document in split_documents(lines, "blank_line") for sentence in split_sentences(document))


def own_rate(kind: str, text: Path, tokenizer: Any) -> dict[str, float]:
    """Characters a second, and a processor's second, of the library's `encode_batch` on one thread."""
    rows, size = [], 0
    for row in islice(rows_of(kind, text), SAMPLE):
        rows.append(row)
        size += len(row) + 1
        if size >= SAMPLE:
            break
    os.environ["TOKENIZERS_PARALLELISM"] = "false"
    begun, worked = time.perf_counter(), time.process_time()
    tokenizer.backend_tokenizer.encode_batch(rows, add_special_tokens=False)
    return {"wall": size / (time.perf_counter() - begun), "processor": size / (time.process_time() - worked)}


def started(kind: str, text: Path, cache: Path, workers: int) -> subprocess.Popen[bytes]:
    """Start a preparation as a separate process."""
    given = ["--prepare", kind, str(text), str(cache), str(workers)]
    return subprocess.Popen([sys.executable, __file__, *given], start_new_session=True)


def resident(session: int) -> dict[int, int]:
    """Bytes that each process of a session has resident."""
    found = {}
    for status in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = status.read_text().rpartition(")")[2].split()
        except OSError:  # it has ended
            continue
        if int(fields[3]) == session:
            found[int(status.parent.name)] = int(fields[21]) * resource.getpagesize()
    return found


def proportional(process: int) -> int:
    """Bytes that a process has resident, shared pages divided among those that share them; 0 if it has ended."""
    try:
        lines = Path(f"/proc/{process}/smaps_rollup").read_text().splitlines()
    except OSError:
        return 0
    return next((int(line.split()[1]) * 1024 for line in lines if line.startswith("Pss:")), 0)


def measured(kind: str, text: Path, cache: Path, workers: int) -> dict[str, Any]:
    """Run a preparation to its end; return seconds, processor seconds and peak resident memory."""
    before, begun = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter()
    process, most, divided, each = started(kind, text, cache, workers), 0, 0, dict[int, int]()
    while process.poll() is None:
        now = resident(process.pid)
        most, divided = max(most, sum(now.values())), max(divided, sum(map(proportional, now)))
        each = {name: max(size, each.get(name, 0)) for name, size in (each | now).items()}
        time.sleep(LOOKS)
    if process.returncode:
        raise SystemExit(f"a preparation ended with status {process.returncode}")
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return {
        "seconds": time.perf_counter() - begun,
        "processor_seconds": sum(getattr(after, f"ru_{of}") - getattr(before, f"ru_{of}") for of in ("utime", "stime")),
        "resident_sum": most,
        "proportional_sum": divided,
        "resident_each": sorted(each.values(), reverse=True)[: workers + 1],
    }


def checksums(cache: Path) -> dict[str, str]:
    """Of all arrays."""
    found = {}
    for file in sorted(cache.glob("*/*.npy")):
        with file.open("rb") as stream:
            found[f"{file.parent.name}/{file.name}"] = hashlib.file_digest(stream, "blake2b").hexdigest()
    return found


def killed(kind: str, text: Path, cache: Path, workers: int, kills: int, seconds: float) -> dict[str, Any]:
    """Kill and restart a preparation at `kills` evenly spaced times of `seconds`, and measure the last run."""
    alive = []
    for _ in range(kills):
        process = started(kind, text, cache, workers)
        time.sleep(seconds / (kills + 1))
        alive.append(process.poll() is None)
        process.send_signal(signal.SIGKILL)  # its workers end with it
        process.wait()
    return {"kills": sum(alive), **measured(kind, text, cache, workers)}


def run_kind(kind: str, text: Path, options: argparse.Namespace) -> Iterator[dict[str, Any]]:
    """Yield a row for every number of workers, and one for the kills."""
    characters = sum(len(line) + 1 for line in read_lines("dataset.path", text))
    about = {"kind": kind, "bytes": text.stat().st_size, "characters": characters}
    known: dict[str, str] = {}
    seconds: dict[int, float] = {}
    for workers in options.workers:
        cache = options.folder / f"{kind}-{workers}"
        found = measured(kind, text, cache, workers)
        tokenizer = prepare(kind, text, cache, workers).tokenizer
        own, seconds[workers] = own_rate(kind, text, tokenizer), found["seconds"]
        sums = checksums(cache)
        known = known or sums
        yield about | {
            "workers": workers,
            **found,
            "own": own,
            "same_bytes": sums == known,
            **shares(about, found, own),
        }
    if options.kills:
        cache, workers = options.folder / f"{kind}-killed", max(options.workers)
        found = killed(kind, text, cache, workers, options.kills, seconds[workers])
        yield about | {"workers": workers, **found, "same_bytes": checksums(cache) == known}


def shares(about: dict[str, Any], found: dict[str, Any], own: dict[str, float]) -> dict[str, float]:
    """Return the preparation's rate as a share of the tokenizer's alone, by wall clock and by processor seconds."""
    return {
        "rate": about["characters"] / found["seconds"],
        "share_of_own": about["characters"] / found["seconds"] / own["wall"],
        "share_of_own_by_processor": about["characters"] / found["processor_seconds"] / own["processor"],
    }


def main() -> None:
    """Print a line of JSON for every preparation."""
    if sys.argv[1:2] == ["--prepare"]:
        kind, text, cache, workers = sys.argv[2:]
        prepare(kind, Path(text), Path(cache), int(workers))
        return
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--text", type=Path, required=True)
    parser.add_argument("--folder", type=Path, required=True, help="for the text and the caches; left behind")
    parser.add_argument("--megabytes", type=float, default=1000)
    parser.add_argument("--kind", nargs="+", choices=KINDS, default=list(KINDS))
    parser.add_argument("--workers", type=int, nargs="+", default=[1, 2])
    parser.add_argument("--kills", type=int, default=5)
    options = parser.parse_args()
    options.folder.mkdir(parents=True, exist_ok=True)
    text = options.folder / f"text-{options.megabytes:g}.txt"
    if not text.exists():
        write_text(options.text, text, round(options.megabytes * 10**6))
    for kind in options.kind:
        for row in run_kind(kind, text, options):
            print(json.dumps({"ended": time.strftime("%H:%M:%S"), **row}), flush=True)


if __name__ == "__main__":
    main()
