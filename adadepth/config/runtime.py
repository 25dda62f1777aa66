"""Processes, threads and compilation: what may change the speed but never the result."""

from dataclasses import dataclass

from adadepth.declaration import between, setting


@dataclass
class RuntimeConfig:
    """Settings that may change the speed but never the result."""

    num_workers: int = setting(0, "data loading processes", between(0, 1024))
    compile: bool = setting(False, "torch.compile")
    threads: int | None = setting(None, "CPU threads of torch; None: torch's default", between(1, 1024))
    offline: bool = setting(False, "never look at the hub: a missing name fails at once")
    trust_remote_code: bool = setting(
        False, "run the code that comes with a model, a tokenizer or a metric which names it; a line says of which"
    )
