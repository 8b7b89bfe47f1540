"""Beam search for the most likely labels of a CTC model's output."""

from collections import defaultdict

import torch
from numpy import logaddexp

from .errors import Error

_IMPOSSIBLE = float("-inf")


def ctc_beam_search_decoder(
    probs: torch.Tensor,
    lengths: torch.Tensor,
    blank: int = 0,
    beam_width: int = 100,
    top_paths: int = 1,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Return the most likely label sequences: log probabilities, lengths and labels.

    Args:
        probs: Log probabilities of shape (time, batch, classes).
        lengths: How many times of each sequence of the batch count.
        blank: The class that is no label.
        beam_width: How many sequences are followed.
        top_paths: How many are returned.

    Raises:
        Error: The arguments do not fit together.
    """
    if probs.dim() != 3 or not 1 <= top_paths <= beam_width:
        raise Error(
            f"probs has {probs.dim()} dimensions, top_paths is {top_paths} and "
            f"beam_width {beam_width}, but probs must have 3 (time, batch, classes), "
            "and top_paths be from 1 to beam_width."
        )
    time, batch, _ = probs.shape
    scores = torch.full((batch, top_paths), _IMPOSSIBLE)
    sizes = torch.zeros((batch, top_paths), dtype=torch.int64)
    labels = torch.full((batch, top_paths, time), blank, dtype=torch.int64)
    for index in range(batch):
        rows = probs[: int(lengths[index]), index].float().tolist()
        for path, (prefix, score) in enumerate(_search(rows, blank, beam_width)):
            if path == top_paths:
                break
            scores[index, path] = score
            sizes[index, path] = len(prefix)
            labels[index, path, : len(prefix)] = torch.tensor(prefix, dtype=torch.int64)
    return scores, sizes, labels


def _search(
    rows: list[list[float]], blank: int, width: int
) -> list[tuple[tuple[int, ...], float]]:
    """Return label sequences with their log probabilities, the most likely first."""
    # For each prefix: the log probabilities that it ends in a blank, and that it ends
    # in a label.
    beams: dict[tuple[int, ...], list[float]] = {(): [0.0, _IMPOSSIBLE]}
    for row in rows:
        grown: dict[tuple[int, ...], list[float]] = defaultdict(
            lambda: [_IMPOSSIBLE, _IMPOSSIBLE]
        )
        for prefix, (in_blank, in_label) in beams.items():
            total = logaddexp(in_blank, in_label)
            for label, score in enumerate(row):
                if label == blank:
                    _add(grown[prefix], 0, total + score)
                elif prefix and prefix[-1] == label:
                    _add(grown[prefix], 1, in_label + score)
                    _add(grown[(*prefix, label)], 1, in_blank + score)
                else:
                    _add(grown[(*prefix, label)], 1, total + score)
        best = sorted(grown.items(), key=lambda item: -logaddexp.reduce(item[1]))
        beams = dict(best[:width])
    return [
        (prefix, float(logaddexp.reduce(scores))) for prefix, scores in beams.items()
    ]


def _add(scores: list[float], index: int, value: float) -> None:
    scores[index] = logaddexp(scores[index], value)
