"""Some rows of a store as examples."""

from __future__ import annotations

from typing import Any, Generic, TypeVar

import numpy as np
from torch.utils.data import Dataset

from adadepth.data.text.layout import Layout

Store = TypeVar("Store")


class StoredExamples(Dataset[dict[str, Any]], Generic[Store]):
    """One example for each of some rows.

    Args:
        store: Tokens and labels of all rows.
        rows: Those of the set, (examples,).
        layout: Special tokens and length of a sequence.
    """

    def __init__(self, store: Store, rows: np.ndarray, layout: Layout) -> None:
        self.store = store
        self.rows = rows
        self.layout = layout

    def __len__(self) -> int:
        return len(self.rows)
