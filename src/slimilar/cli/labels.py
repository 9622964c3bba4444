"""Whether the labels of images are the classes of a model."""

from __future__ import annotations

from typing import TYPE_CHECKING

from slimilar.errors import DataError
from slimilar.utils.wording import listed

if TYPE_CHECKING:
    from slimilar.cli.model_source import OpenedModel
    from slimilar.data import ImageFiles, Images

_SHOWN = 5  # names of classes


def described_classes(found: Images | ImageFiles) -> str:
    """Return a remark on the folders that number the labels: networks trained with another order fail silently."""
    from slimilar.data import ImageFiles

    if not isinstance(found, ImageFiles) or not found.class_names:
        return ""
    return f", labelled from 0 in the order of the folders {listed(found.class_names, _SHOWN)}"


def check_labels(what: str, found: Images | ImageFiles, opened: OpenedModel, learns: bool = False) -> None:
    """Raise where labels cannot be the classes of a model: its outputs would be compared with others.

    Folders are numbered by their names, so fewer folders than classes are numbered in another way than the classes.
    A model that ``learns`` its classes from them takes fewer.
    """
    from slimilar.data import ImageFiles

    outputs = classes_of(opened)
    if outputs is None or not len(found):
        return
    highest = int(found.labels.max())
    if isinstance(found, ImageFiles) and len(found.class_names) != outputs:
        if len(found.class_names) > outputs or not learns:
            raise DataError(
                f"{what} must hold one folder for each of the {outputs} classes that the model distinguishes, but "
                f"holds {len(found.class_names)}; name a folder with these classes"
            )
    elif highest >= outputs:
        raise DataError(
            f"{what} must be labelled with the classes of the model, 0 to {outputs - 1}, but has label {highest}; pass "
            "--data with images of these classes"
        )


def classes_of(opened: OpenedModel) -> int | None:
    """Return how many classes a model distinguishes; None if it is no classifier."""
    import torch

    from slimilar.utils.modules import eval_view

    if len(opened.shapes) > 1:
        return None
    with torch.no_grad():
        scores = eval_view(opened.model)(opened.example())
    return scores.shape[1] if isinstance(scores, torch.Tensor) and scores.ndim == 2 else None
