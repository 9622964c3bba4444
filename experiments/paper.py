"""The numbers that the paper prints (arXiv 1908.02620, Table 1), so that ours can stand beside them."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class PaperRow:
    """A line of Table 1 (a): accuracy and the share that was pruned in %, FLOPs in millions."""

    dataset: str
    network: str
    method: str
    accuracy: float
    flops: float
    pruned: float | None = None
    threshold: float | None = None


@dataclass(frozen=True)
class Drop:
    """A line of Table 1 (b) or (c): change of top-1 and top-5 accuracy, share pruned in %, FLOPs in billions."""

    method: str
    top1: float
    top5: float | None
    flops: float
    pruned: float
    threshold: float | None = None
    seconds: float | None = None
    saved: float | None = None


# method: (automatic, pre-train): is the architecture found by the method; does it take a trained network as it is?
PROPERTIES = {
    "Ours": (True, True),
    "NS": (True, False),
    "SSL": (True, False),
    "RDF": (True, True),
    "PFGM": (False, True),
    "SFP": (False, True),
    "TN": (False, True),
    "CP": (False, True),
}

TABLE_1A = (
    PaperRow("CIFAR-10", "VGG-16", "Base", 93.39, 627.36),
    PaperRow("CIFAR-10", "VGG-16", "Ours", 92.71, 182.31, 70.94, 0.25),
    PaperRow("CIFAR-10", "VGG-16", "NS", 92.33, 182.47, 70.92),
    PaperRow("CIFAR-10", "VGG-16", "SSL", 91.65, 248.94, 60.32),
    PaperRow("CIFAR-10", "VGG-16", "RDF", 91.84, 314.33, 49.90),
    PaperRow("CIFAR-10", "ResNet-110", "Base", 94.65, 341.23),
    PaperRow("CIFAR-10", "ResNet-110", "Ours", 94.25, 141.27, 58.60, 0.225),
    PaperRow("CIFAR-10", "ResNet-110", "NS", 93.57, 141.77, 58.45),
    PaperRow("CIFAR-10", "ResNet-110", "PFGM", 93.73, 177.38, 48.02),
    PaperRow("CIFAR-10", "ResNet-110", "SFP", 93.38, 217.38, 36.30),
    PaperRow("CIFAR-100", "VGG-16", "Base", 72.10, 627.45),
    PaperRow("CIFAR-100", "VGG-16", "Ours", 71.22, 334.16, 46.74, 0.20),
    PaperRow("CIFAR-100", "VGG-16", "NS", 68.82, 441.89, 29.57),
    PaperRow("CIFAR-100", "VGG-16", "SSL", 68.80, 374.10, 40.38),
    PaperRow("CIFAR-100", "VGG-16", "RDF", 69.63, 388.53, 38.08),
    PaperRow("CIFAR-100", "ResNet-110", "Base", 75.62, 341.28),
    PaperRow("CIFAR-100", "ResNet-110", "Ours", 74.56, 153.73, 54.96, 0.19),
    PaperRow("CIFAR-100", "ResNet-110", "NS", 73.67, 153.96, 54.89),
    PaperRow("CIFAR-100", "ResNet-110", "SSL", 71.28, 161.95, 52.55),
    PaperRow("CIFAR-100", "ResNet-110", "RDF", 71.52, 190.03, 44.32),
)

TABLE_1B = (
    Drop("Ours", -0.80, -0.34, 4.44, 45.90, threshold=0.10),
    Drop("TN", -3.26, -1.53, 5.23, 36.27),
    Drop("NS", -2.16, -1.17, 4.49, 45.37),
    Drop("CP", -3.25, None, 5.49, 33.13),
    Drop("PFGM", -1.32, -0.55, 4.46, 45.74),
    Drop("SFP", -1.54, -0.81, 5.23, 36.27),
)

BATCH = 256  # FLOPs and seconds of Table 1 (c) are for a batch of so many images
TABLE_1C = (
    Drop("Ours", 0.08, 0.07, 1472, 29.97, 0.06, 0.429, 24.74),
    Drop("Ours", -0.48, -0.19, 1262, 39.99, 0.08, 0.391, 31.40),
    Drop("Ours", -1.15, -0.57, 1052, 49.99, 0.11, 0.362, 36.67),
    Drop("Ours", -2.66, -1.43, 839, 60.03, 0.13, 0.331, 41.93),
)

ARCHITECTURE_CUT = 0.80  # the share of FLOPs that the figure of architectures has pruned
TYPICAL_LAMBDA = 1e-2  # 'a small value of magnitude ~ 10^-2' (section 3.3)


def base(dataset: str, network: str) -> PaperRow:
    """Return the line of an unpruned network.

    >>> base("CIFAR-10", "VGG-16").flops
    627.36
    """
    return next(r for r in TABLE_1A if (r.dataset, r.network, r.method) == (dataset, network, "Base"))
