"""How far two files give the same answers, in terms of what they are used for: classes, text, boxes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from difflib import SequenceMatcher
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy import ndimage

Array = NDArray[Any]
Shares = dict[str, float | int]
Boxes = list[tuple[float, float, float, float]]  # top, left, bottom, right
_OVERLAP = 0.5  # of union: from here on two boxes are the same


def classes(before: list[Array], after: list[Array]) -> Shares:
    """Return the share of images with the same first class."""
    a, b = before[0].argmax(-1), after[0].argmax(-1)
    return {"same class": float((a == b).mean()), "classes in use": len(set(a.ravel().tolist()))}


def texts(before: list[Array], after: list[Array]) -> Shares:
    """Return the share of lines that are read as the same text, and of characters; greedy CTC."""
    read = [[text(row) for row in found[0].argmax(-1)] for found in (before, after)]
    pairs = list(zip(*read, strict=True))
    alike = [SequenceMatcher(None, a, b, autojunk=False).ratio() for a, b in pairs]
    return {
        "same text": float(np.mean([a == b for a, b in pairs])),
        "same characters": float(np.mean(alike)),
        "characters": sum(len(a) for a, _ in pairs),
    }


def text(row: Array) -> tuple[int, ...]:
    """Return the characters of a line: repetitions once, blanks (0) never.

    >>> text(np.array([0, 3, 3, 0, 3, 5]))
    (3, 3, 5)
    """
    fresh = np.append(True, row[1:] != row[:-1])
    return tuple(int(c) for c in row[fresh & (row != 0)])


def _boxes_agree(find: Callable[[Sequence[Array]], Boxes], before: list[Array], after: list[Array]) -> Shares:
    """Return the F1 of boxes: those of the original are the truth."""
    total = same = found = 0
    for k in range(len(before[0])):
        a, b = (find([part[k] for part in outputs]) for outputs in (before, after))
        total, found = total + len(a), found + len(b)
        same += matches(a, b)
    return {"same boxes (F1)": 2 * same / max(1, total + found), "boxes before": total, "boxes after": found}


def matches(first: Boxes, second: Boxes) -> int:
    """Return how many boxes have a partner of their own, best pairs first.

    >>> matches([(0, 0, 10, 10), (0, 20, 10, 30)], [(1, 0, 10, 10)])
    1
    """
    pairs = sorted(
        ((iou(a, b), i, j) for i, a in enumerate(first) for j, b in enumerate(second)), reverse=True
    )
    left, right = set[int](), set[int]()
    for overlap, i, j in pairs:
        if overlap >= _OVERLAP and i not in left and j not in right:
            left.add(i)
            right.add(j)
    return len(left)


def iou(a: tuple[float, ...], b: tuple[float, ...]) -> float:
    """Return the intersection of two boxes over their union."""
    tall, wide = min(a[2], b[2]) - max(a[0], b[0]), min(a[3], b[3]) - max(a[1], b[1])
    common = max(0.0, tall) * max(0.0, wide)
    areas = sum((box[2] - box[0]) * (box[3] - box[1]) for box in (a, b))
    return common / max(areas - common, 1e-9)


def text_boxes(before: list[Array], after: list[Array]) -> Shares:
    """Compare the boxes of connected text in maps of probability, and the area above the level."""
    a, b = before[0] > 0.3, after[0] > 0.3
    area = {"same area (IoU)": float((a & b).sum() / max(1, (a | b).sum()))}
    return _boxes_agree(_connected, before, after) | area


def _connected(outputs: Sequence[Array]) -> Boxes:
    labels, _ = ndimage.label(outputs[0][0] > 0.3)
    found = [(s[0].start, s[1].start, s[0].stop, s[1].stop) for s in ndimage.find_objects(labels)]
    return [box for box in found if (box[2] - box[0]) * (box[3] - box[1]) >= 16]


def faces(before: list[Array], after: list[Array]) -> Shares:
    """Compare the boxes that CenterFace's four maps stand for."""
    return _boxes_agree(_faces, before, after)


def _faces(outputs: Sequence[Array]) -> Boxes:
    """Decode centre, size and offset as the package does: a level of 0.2, overlaps beyond 0.3 dropped."""
    heat, size, offset = outputs[0][0], np.exp(outputs[1]) * 4, outputs[2]
    kept: Boxes = []
    for flat in np.argsort(-heat, axis=None):
        y, x = np.unravel_index(flat, heat.shape)
        if heat[y, x] <= 0.2:
            break
        tall, wide = size[:, y, x]
        top, left = (y + offset[0, y, x] + 0.5) * 4 - tall / 2, (x + offset[1, y, x] + 0.5) * 4 - wide / 2
        box = (float(top), float(left), float(top + tall), float(left + wide))
        if all(iou(box, other) <= 0.3 for other in kept):
            kept.append(box)
    return kept
