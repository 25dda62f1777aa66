"""Preparation of a long text: rates beside the tokenizer's own, resident memory, and equal bytes after kills.

    python benchmarks/preparation.py --text FILE --folder SCRATCH [--megabytes 1000] [--kind sequences lines]
        [--workers 1 2] [--kills 5] [--json FILE]

The text is the lines of FILE, repeated in a new random order until it is long enough. `sequences` are prepared as for
pretraining, `lines` as for streams and packed blocks; the text is one file. Each preparation is a process with an empty
cache; at the end the checksums of the arrays are compared. With `--kills`, one more preparation with the most workers
is killed so often (SIGKILL, at even intervals of the time it took before) and restarted.

A rate is characters a second: of `encode_batch` on one thread, right after each preparation, on its sentences or lines;
of the whole preparation, from the first file that is read to the last array that is sealed, with the start of its
processes. Processor seconds of all processes together stand beside seconds, since they do not depend on other programs
of the machine. Memory is the resident memory of the processes, measured twice a second: of each, and of all together
once with shared pages counted in each (RSS), once divided among them (PSS). Linux only.
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
VOCABULARY, LEARNED_FROM = 8000, 20_000  # pieces, and rows from which they are learned
SAMPLE = 4 * 10**6  # characters for the tokenizer's own rate
INTERVAL = 0.5  # seconds between two measurements of memory


def write_text(source: Path, target: Path, size: int) -> None:
    """Write the lines of a text repeatedly, each time in another order, until there are so many bytes."""
    lines, written, order = source.read_bytes().splitlines(keepends=True), 0, random.Random(0)
    with target.open("wb") as stream:
        while written < size:
            order.shuffle(lines)
            written += stream.write(b"".join(lines))


def make_settings(kind: str, text: Path, cache: Path, workers: int) -> tuple[Any, TokenizerConfig]:
    """Return the data and tokenizer configuration of a run with this text."""
    fields: dict[str, Any] = {
        "source": Source.local, "path": str(text), "cache_dir": str(cache), "prepare_workers": workers,
        "document_separator": Separator.blank_line, "evaluation_fraction": 0.01, "sequence_length": 128,
    }  # fmt: skip
    data = CorpusConfig(name="text", **fields) if kind == "sequences" else CausalConfig(name="text", **fields)
    return data, TokenizerConfig(vocab_size=VOCABULARY, train_documents=LEARNED_FROM)


def prepare(kind: str, text: Path, cache: Path, workers: int) -> Any:
    """Prepare the text as a run does."""
    data, tokenizer = make_settings(kind, text, cache, workers)
    return load_pretraining_data(data, tokenizer, 0) if kind == "sequences" else load_text_blocks(data, tokenizer)


def iterate_rows(kind: str, text: Path) -> Iterator[str]:
    """Return the texts that the tokenizer learns from: sentences or lines."""
    lines = read_lines("dataset.path", text)
    if kind == "lines":
        return lines
    return (sentence for document in split_documents(lines, "blank_line") for sentence in split_sentences(document))


def measure_tokenizer_rate(kind: str, text: Path, tokenizer: Any) -> dict[str, float]:
    """Measure characters a second, and a processor's second, of the library's `encode_batch` on one thread."""
    rows, size = [], 0
    for row in islice(iterate_rows(kind, text), SAMPLE):
        rows.append(row)
        size += len(row) + 1
        if size >= SAMPLE:
            break
    os.environ["TOKENIZERS_PARALLELISM"] = "false"
    start, processor_start = time.perf_counter(), time.process_time()
    tokenizer.backend_tokenizer.encode_batch(rows, add_special_tokens=False)
    return {"wall": size / (time.perf_counter() - start), "processor": size / (time.process_time() - processor_start)}


def start_preparation(kind: str, text: Path, cache: Path, workers: int) -> subprocess.Popen[bytes]:
    """Start a preparation as a separate process."""
    arguments = ["--prepare", kind, str(text), str(cache), str(workers)]
    return subprocess.Popen([sys.executable, __file__, *arguments], start_new_session=True)


def read_resident_bytes(session: int) -> dict[int, int]:
    """Return the resident bytes of each process of a session."""
    sizes = {}
    for status in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = status.read_text().rpartition(")")[2].split()
        except OSError:  # it has ended
            continue
        if int(fields[3]) == session:
            sizes[int(status.parent.name)] = int(fields[21]) * resource.getpagesize()
    return sizes


def read_proportional_bytes(process: int) -> int:
    """Return the resident bytes of a process, with shared pages divided among their owners; 0 if it has ended."""
    try:
        lines = Path(f"/proc/{process}/smaps_rollup").read_text().splitlines()
    except OSError:
        return 0
    return next((int(line.split()[1]) * 1024 for line in lines if line.startswith("Pss:")), 0)


def measure_preparation(kind: str, text: Path, cache: Path, workers: int) -> dict[str, Any]:
    """Run a preparation to its end, and return seconds, processor seconds and peak resident memory."""
    before, start = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter()
    process, most, divided, peaks = start_preparation(kind, text, cache, workers), 0, 0, dict[int, int]()
    while process.poll() is None:
        sizes = read_resident_bytes(process.pid)
        most, divided = max(most, sum(sizes.values())), max(divided, sum(map(read_proportional_bytes, sizes)))
        peaks = {name: max(size, peaks.get(name, 0)) for name, size in (peaks | sizes).items()}
        time.sleep(INTERVAL)
    if process.returncode:
        raise SystemExit(f"a preparation ended with status {process.returncode}")
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return {
        "seconds": time.perf_counter() - start,
        "processor_seconds": sum(
            getattr(after, f"ru_{kind_of_time}") - getattr(before, f"ru_{kind_of_time}")
            for kind_of_time in ("utime", "stime")
        ),
        "resident_sum": most,
        "proportional_sum": divided,
        "resident_each": sorted(peaks.values(), reverse=True)[: workers + 1],
    }


def compute_checksums(cache: Path) -> dict[str, str]:
    """Return the checksums of all arrays."""
    digests = {}
    for file in sorted(cache.glob("*/*.npy")):
        with file.open("rb") as stream:
            digests[f"{file.parent.name}/{file.name}"] = hashlib.file_digest(stream, "blake2b").hexdigest()
    return digests


def measure_with_kills(kind: str, text: Path, cache: Path, workers: int, kills: int, seconds: float) -> dict[str, Any]:
    """Kill and restart a preparation at `kills` evenly spaced times of `seconds`, and measure the last run."""
    alive = []
    for _ in range(kills):
        process = start_preparation(kind, text, cache, workers)
        time.sleep(seconds / (kills + 1))
        alive.append(process.poll() is None)
        process.send_signal(signal.SIGKILL)  # its workers end with it
        process.wait()
    return {"kills": sum(alive), **measure_preparation(kind, text, cache, workers)}


def run_kind(kind: str, text: Path, options: argparse.Namespace) -> Iterator[dict[str, Any]]:
    """Yield a row for every number of workers, and one for the kills."""
    characters = sum(len(line) + 1 for line in read_lines("dataset.path", text))
    setting = {"kind": kind, "bytes": text.stat().st_size, "characters": characters}
    reference: dict[str, str] = {}
    seconds: dict[int, float] = {}
    for workers in options.workers:
        cache = options.folder / f"{kind}-{workers}"
        row = measure_preparation(kind, text, cache, workers)
        tokenizer = prepare(kind, text, cache, workers).tokenizer
        tokenizer_rate, seconds[workers] = measure_tokenizer_rate(kind, text, tokenizer), row["seconds"]
        sums = compute_checksums(cache)
        reference = reference or sums
        yield setting | {
            "workers": workers,
            **row,
            "own": tokenizer_rate,
            "same_bytes": sums == reference,
            **compute_rates(setting, row, tokenizer_rate),
        }
    if options.kills:
        cache, workers = options.folder / f"{kind}-killed", max(options.workers)
        row = measure_with_kills(kind, text, cache, workers, options.kills, seconds[workers])
        yield setting | {"workers": workers, **row, "same_bytes": compute_checksums(cache) == reference}


def compute_rates(setting: dict[str, Any], row: dict[str, Any], tokenizer_rate: dict[str, float]) -> dict[str, float]:
    """Return the preparation's rate as a share of the tokenizer's alone, by wall clock and by processor seconds."""
    return {
        "rate": setting["characters"] / row["seconds"],
        "share_of_own": setting["characters"] / row["seconds"] / tokenizer_rate["wall"],
        "share_of_own_by_processor": setting["characters"] / row["processor_seconds"] / tokenizer_rate["processor"],
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
