"""The order in which training reads the corpus: rows of tokens, each at a place that gives it for good."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt


class Stream:
    """Rows of `length` + 1 tokens. In each epoch the documents are joined in another order, cut into rows, and the rows
    are shuffled. Seed and place determine a row, so a run goes on from a number."""

    def __init__(
        self, tokens: npt.NDArray[np.uint16], starts: npt.NDArray[np.int64], length: int, seed: int
    ) -> None:
        self.tokens, self.starts, self.length, self.seed = tokens, starts, length, seed
        self.rows_of_epoch = (len(tokens) - 1) // length
        if not self.rows_of_epoch:
            raise ValueError(f"{len(tokens)} tokens are not enough for a row of {length + 1}")
        self._epoch = -1
        self._joined = tokens
        self._order = np.empty(0, np.int64)

    def rows(self, place: int, count: int) -> npt.NDArray[np.int64]:
        """The rows from a place on, (count, length + 1)."""
        return np.stack([self._row(i) for i in range(place, place + count)])

    def _row(self, place: int) -> npt.NDArray[np.int64]:
        epoch, number = divmod(place, self.rows_of_epoch)
        if epoch != self._epoch:
            random = np.random.default_rng((self.seed, epoch))
            documents = random.permutation(len(self.starts) - 1)
            pieces = [self.tokens[self.starts[i] : self.starts[i + 1]] for i in documents]
            self._joined, self._epoch = np.concatenate(pieces), epoch
            self._order = random.permutation(self.rows_of_epoch)
        begin = self._order[number] * self.length
        return self._joined[begin : begin + self.length + 1].astype(np.int64)
