"""analyze() and prune(): the only place where everything meets."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor, nn

from slimilar.calibration.batches import batch_size, gather, labelled_batches, to_batches
from slimilar.calibration.calibration_set import MAX_IMAGES, Progress, wants_synthesis
from slimilar.calibration.synthesis import synthesize
from slimilar.criteria import ENOUGH, Criterion, Sight, Weights, automatic, facts, make
from slimilar.criteria.base import check_needs, check_training, phases_of
from slimilar.criteria.candidates import ALTERNATIVES, Candidate, best
from slimilar.criteria.candidates import compare as held_out_scores
from slimilar.errors import InvalidInput, NothingToPrune, UnreachableBudget, VerificationError
from slimilar.graph.groups import ChannelGroup, Frozen, Residual
from slimilar.graph.reasons import FreezeKind
from slimilar.graph.structure import Structure
from slimilar.planning.cost import CostModel, cost_model, count, human
from slimilar.planning.plan import Budget, Cut, Orders, Plan, check_threshold, nothing
from slimilar.reconstruction.apply import (
    SUBSTITUTES,
    leave_room,
    program_of,
    settle,
    substituted,
)
from slimilar.similarity.linkage import Linkage
from slimilar.similarity.removal_order import Cluster, RemovalOrder
from slimilar.surgery.probe import find_structure
from slimilar.surgery.retrace import Mismatch, retrace
from slimilar.surgery.rewrite import Kept, Surgery, operate, surgery
from slimilar.surgery.verify import verify as compare
from slimilar.utils.modules import check_model, named_modules, named_tensors
from slimilar.utils.pytree import Example
from slimilar.utils.suggestions import choose

Stream = Residual | Literal["auto"]
HISTORY = "slimilar_surgery"  # the attribute in which a pruned model remembers how it was made from its class


@dataclass(frozen=True, eq=False)
class Result:
    """A smaller model, and how it came about."""

    model: nn.Module
    cut: Cut
    plan: Plan
    surgery: Surgery  # what was done to the original, as plain data
    error: float | None  # largest relative difference from the masked original; None if not verified
    substitute: str = "none"  # what the consumers of removed channels do instead
    images: Tensor | None = None  # those synthesised for calibration, if any
    scores: Mapping[str, float] = field(default_factory=dict)  # candidate -> divergence on held-out images
    notes: tuple[str, ...] = ()  # what "auto" decided, and why

    @property
    def kept(self) -> Mapping[str, tuple[int, ...]]:
        """The channels that stayed, by group."""
        return self.cut.kept

    @property
    def clusters(self) -> Mapping[str, tuple[Cluster, ...]]:
        """The clusters behind them: a representative and its members each."""
        return self.cut.clusters

    def summary(self) -> str:
        """Return what was done, as a table."""
        before, after = self.cut.before, self.cut.cost
        lines = [f"{'layer':<40} {'before':>7} {'after':>7}"]
        lines += [f"{g.name:<40} {g.width:>7} {self.cut.widths[g.name]:>7}" for g in self.plan.groups]
        for label, kind in (("FLOPs", "flops"), ("MACs", "macs"), ("parameters", "params")):
            a, b = getattr(before, kind), getattr(after, kind)
            lines.append(f"{label}: {human(a)} -> {human(b)} (-{1 - b / max(1, a):.1%})")
        lines.append(f"threshold {self.cut.threshold:.4g}, {len(self.plan.frozen)} groups left whole")
        lines += self.notes
        return "\n".join(lines)


def analyze(
    model: nn.Module,
    example: Example = None,
    *,
    criterion: Criterion | str = "similarity",
    calibration: Any = None,
    labels: Tensor | None = None,
    linkage: Linkage = "average",
    residual: Stream = "inner",
    exclude: Iterable[str | nn.Module] = (),
    min_channels: int = 1,
    seed: int = 0,
    progress: Progress | None = None,
) -> Plan:
    """Find out what can be pruned and what every cut costs. The model is not touched.

    `example` is an input the model takes: a tensor, a tuple of arguments, or a dict of keyword arguments.
    `calibration` is a tensor of unlabelled images, or an iterable of batches, for criteria that look at activations.
    `labels` are those of the images, for criteria that follow the loss; batches of (images, labels) will do too.

    >>> net = nn.Sequential(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.ReLU(), nn.Conv2d(8, 4, 3))
    >>> _ = nn.init.normal_(net[1].weight), nn.init.normal_(net[1].bias)
    >>> [group.name for group in analyze(net, torch.zeros(1, 3, 8, 8)).groups]
    ['0']
    """
    model = check_model(model)
    _check_example(example)
    _check_options(residual, min_channels)
    chosen, declared = make(criterion, linkage), facts(criterion)
    excluded = _excluded(model, exclude)
    tensors = named_tensors(model)
    _check_finite(model, tensors)
    weights = Weights(tensors, phases=phases_of(model))
    check_needs(chosen, declared, calibration is not None, labels=True)
    check_training(chosen, declared, weights)
    batches, known = (
        ([], None)
        if calibration is None
        else labelled_batches(calibration, labels, example, batch_size(example), MAX_IMAGES)
    )
    check_needs(chosen, declared, calibration is not None, known is not None)
    structure = find_structure(model, example, _streams(residual, chosen))
    costs = cost_model(structure.trace, structure.grouping)
    sight = None
    if batches:
        program = program_of(model, example, structure, len(batches[0]))
        sight = Sight(structure.trace, structure.grouping, costs, program, batches, seed, progress, known)
    return _plan(replace(weights, sight=sight), structure, costs, chosen, excluded, min_channels)


def prune(
    model: nn.Module,
    example: Example = None,
    *,
    threshold: float | None = None,
    flops: Budget | None = None,
    macs: Budget | None = None,
    params: Budget | None = None,
    ratio: float | None = None,
    quantile: float | None = None,
    round_to: int = 1,
    thresholds: Mapping[str, float] | None = None,
    criterion: Criterion | str = "auto",
    substitute: str = "auto",
    calibration: Any = None,
    labels: Tensor | None = None,
    linkage: Linkage = "average",
    residual: Stream = "inner",
    exclude: Iterable[str | nn.Module] = (),
    min_channels: int = 1,
    verify: bool = True,
    seed: int = 0,
    progress: Progress | None = None,
) -> Result:
    """Return a NEW, smaller model of the same class; the given one is left as it was.

    `calibration` is a tensor of unlabelled images, an iterable of batches, or "synthesize". With 32 images or
    more, "auto" chooses channels by what the output feels (for a budget), with fewer by the paper's similarity, and
    fits the consumers by least squares to the images and, where the network takes them for the same, their mirror
    images; without any, consumers take in what the channels that left are expected to have said, given batch norms and
    filters alone. How far to go: a `threshold`, a budget (`flops`, `macs`,
    `params`), a `ratio` of channels that every layer loses, or a `quantile` of all channels.

    >>> net = nn.Sequential(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.ReLU(), nn.Conv2d(8, 4, 3))
    >>> _ = nn.init.normal_(net[1].weight), nn.init.normal_(net[1].bias)
    >>> result = prune(net, torch.zeros(1, 3, 8, 8), flops=0.5)
    >>> result.cut.flops <= 0.5 * result.cut.before.flops
    True
    """
    if threshold is not None:
        check_threshold(threshold)
    choose(substitute, SUBSTITUTES, "substitute")
    model = check_model(model)
    _check_example(example)
    images = None
    if wants_synthesis(calibration):
        if criterion != "auto":  # said before minutes of synthesis
            check_needs(make(criterion, linkage), facts(criterion), images=True, labels=False)
        calibration = images = synthesize(model, example, seed=seed, progress=progress)
    elif calibration is not None:  # once: a generator has no second pass, a shuffled loader another one
        calibration, beside = gather(calibration, MAX_IMAGES)
        labels = beside if labels is None else labels
    amount = 0 if calibration is None else len(calibration)
    asked, wanted = criterion, automatic(amount, threshold) if criterion == "auto" else criterion
    notes: tuple[str, ...] = ()
    if asked == "auto" and 0 < amount < ENOUGH:
        to_batches(calibration, example, batch_size(example))  # what is wrong with them is said all the same
        calibration, notes = None, (_few(amount),)

    def candidate(name: str, criterion: Criterion | str, residual: Stream, fitted: bool = True) -> Candidate:
        plan = analyze(
            model, example, criterion=criterion, calibration=calibration, labels=labels, linkage=linkage,
            residual=residual, exclude=exclude, min_channels=min_channels, seed=seed, progress=progress,
        )  # fmt: skip
        if not plan.groups:
            raise nothing(plan.frozen)
        how = settle(substitute, model, example, plan)
        room = leave_room(model, example, plan, flops, params) if how != "none" else (flops, params)
        cut = plan.at(
            threshold, flops=room[0], macs=macs, params=room[1], ratio=ratio, quantile=quantile,
            round_to=round_to, thresholds=thresholds,
        )  # fmt: skip
        return Candidate(name, plan, cut, fitted)

    chosen = candidate(wanted if isinstance(wanted, str) else wanted.name, wanted, residual)
    how = settle(substitute, model, example, chosen.plan)
    scores: dict[str, float] = {}
    if asked == "auto" and wanted == "span" and how == "linear" and calibration is not None:
        streams: tuple[Stream, ...] = ("inner",) if residual == "auto" else ()
        others = [_attempt(candidate, "span, inner channels", wanted, stream) for stream in streams]
        others += [_attempt(candidate, name, name, residual) for name in ALTERNATIVES]
        free = [replace(c, name=f"{c.name}, data-free", fitted=False) for c in others[-1:] if c is not None]
        candidates = [chosen, *(c for c in others if c is not None), *free]
        scores = held_out_scores(model, example, candidates, calibration, seed, progress)
        chosen = next(c for c in candidates if c.name == best(scores))
        notes = (_told(chosen.name, scores),)
    result = apply(
        model, example, chosen.plan, chosen.cut, substitute=how, calibration=calibration if chosen.fitted else None,
        verify=verify, seed=seed, progress=progress,
    )  # fmt: skip
    return replace(result, images=images, scores=scores, notes=notes)


def _attempt(
    make_candidate: Callable[[str, Criterion | str, Stream], Candidate],
    name: str,
    criterion: Criterion | str,
    residual: Stream,
) -> Candidate | None:
    """Return a candidate, or None where its criterion has no order for the layers or cannot reach the budget."""
    try:
        return make_candidate(name, criterion, residual)
    except (NothingToPrune, UnreachableBudget):
        return None


def _few(amount: int) -> str:
    return (
        f"{amount} images are too few to fit to some and measure on others: pruned without data; pass "
        f"{ENOUGH} or more"
    )


def _told(name: str, scores: Mapping[str, float]) -> str:
    listed = ", ".join(f"{other} {score:.4f}" for other, score in scores.items())
    return f"chosen on held-out images: {name} (divergence: {listed})"


def apply(
    model: nn.Module,
    example: Example,
    plan: Plan,
    cut: Cut,
    *,
    substitute: str = "none",
    calibration: Any = None,
    verify: bool = True,
    seed: int = 0,
    progress: Progress | None = None,
) -> Result:
    """Carry out a cut of a plan; one plan serves many cuts."""
    model = check_model(model)
    how = settle(choose(substitute, SUBSTITUTES, "substitute"), model, example, plan)
    done, small = _operated(model, plan.structure, cut.mask)
    error = _verified(model, small, example, plan.structure, cut.mask) if verify else None
    result = Result(small, cut, plan, done, error)
    if how == "none" or cut.mask.all():
        return result
    made = substituted(model, example, plan, cut, how, calibration, seed, progress)
    if verify and made.cut is not cut:  # consumers chose other channels
        plain = operate(model, surgery(plan.structure.trace, plan.structure.grouping, made.cut.mask))
        error = _verified(model, plain, example, plan.structure, made.cut.mask)
    done = _remember(model, made.model, made.surgery)
    cut = replace(made.cut, cost=count(made.model, example)) if done.biases else made.cut
    return Result(made.model, cut, plan, done, error, how)


def _operated(model: nn.Module, structure: Structure, mask: Kept) -> tuple[Surgery, nn.Module]:
    """Return the surgery from the first original on, and the smaller model, which remembers it."""
    now = surgery(structure.trace, structure.grouping, mask)
    small = operate(model, now)
    return _remember(model, small, now), small


def _remember(model: nn.Module, small: nn.Module, now: Surgery) -> Surgery:
    """Return the surgery from the first original on; the smaller model remembers it too."""
    before = getattr(model, HISTORY, None)
    done = before.then(now) if isinstance(before, Surgery) else now
    setattr(small, HISTORY, done)
    return done


def remove_channels(
    model: nn.Module,
    example: Example,
    channels: Mapping[str, Sequence[int]],
    *,
    verify: bool = True,
) -> nn.Module:
    """Return a NEW module without the given output channels of the named layers, and all that is coupled to them.

    >>> net = nn.Sequential(nn.Conv2d(3, 8, 3), nn.ReLU(), nn.Conv2d(8, 4, 3))
    >>> remove_channels(net, torch.zeros(1, 3, 8, 8), {"0": [1, 6]})[0].out_channels
    6
    """
    model = check_model(model)
    _check_example(example)
    structure = find_structure(model, example, "joint")
    mask = np.ones(structure.grouping.unit_count, np.bool_)
    for name, wanted in channels.items():
        _mark(model, structure, name, wanted, mask)
    for start, group in zip(structure.grouping.offsets, structure.grouping.groups, strict=True):
        if not mask[start : start + group.width].any():
            raise InvalidInput(
                f"at least one channel of {group.name} must stay, got a request to remove all {group.width}"
            )
    _, small = _operated(model, structure, mask)
    if verify:
        _verified(model, small, example, structure, mask)
    return small


def _mark(model: nn.Module, structure: Structure, name: str, wanted: Sequence[int], mask: Kept) -> None:
    """Mark the units behind some output channels of a layer as removed."""
    producers = {structure.trace.ops[w.op].module: w for w in reversed(structure.trace.writes)}
    layer = choose(name, [n for n, _ in model.named_modules() if n], "layer")
    if layer not in producers:
        raise InvalidInput(
            f"channels can be removed from a layer that writes them (convolution, linear), got {layer!r}, "
            f"a {type(model.get_submodule(layer)).__name__}"
        )
    units = structure.grouping.unit_of[producers[layer].atoms]
    for channel in wanted:
        if not 0 <= channel < len(units):
            raise InvalidInput(f"channels of {layer} must be from 0 to {len(units) - 1}, got {channel}")
        unit = int(units[channel])
        reason = _why_fixed(structure, layer, unit)
        if reason:
            raise InvalidInput(f"channel {channel} of {layer} has to stay: {reason}")
        mask[unit] = False


def _why_fixed(structure: Structure, layer: str, unit: int) -> str | None:
    grouping = structure.grouping
    if unit < 0:
        reasons = [f.reason for f in grouping.frozen if f.name == layer]
        return reasons[0] if reasons else _reason_of(structure, layer)
    g = int(np.searchsorted(grouping.offsets, unit, side="right")) - 1
    return grouping.groups[g].fixed.get(unit - grouping.offsets[g])


def _reason_of(structure: Structure, layer: str) -> str:
    """Return why the channels of a layer that is not named in `frozen` itself have to stay."""
    found = structure.trace
    label = found.together
    write = next(w for w in found.writes if found.ops[w.op].module == layer)
    mine = set(label[write.atoms[write.atoms >= 0]].tolist())
    for freeze in found.freezes:
        if mine & set(label[freeze.atoms].tolist()):
            return freeze.reason
    return "it is the only channel"


# --- checks ---------------------------------------------------------------------------------------------------


def _check_example(example: Example) -> None:
    if example is None:
        raise InvalidInput(
            "an example input must be given so that the model can be traced, got none: "
            "pass for instance torch.randn(1, 3, 224, 224)"
        )


def _streams(residual: Stream, criterion: Criterion) -> Residual:
    """Return what "auto" stands for: a criterion that measures damage may take stream channels where it is less."""
    if residual != "auto":
        return residual
    return "joint" if criterion.name == "span" else "inner"


def _check_options(residual: str, min_channels: int) -> None:
    if residual not in ("inner", "select", "joint", "auto"):
        raise InvalidInput(f'residual must be "inner", "select", "joint" or "auto", got {residual!r}')
    if isinstance(min_channels, bool) or not isinstance(min_channels, int) or min_channels < 1:
        raise InvalidInput(f"min_channels must be a whole number of at least 1, got {min_channels!r}")


def _check_finite(model: nn.Module, tensors: Mapping[str, Tensor]) -> None:
    """Refuse NaN, and infinity in parameters and in norms; other buffers hold it on purpose: masks, limits."""
    bounds = {
        f"{path}.{name}" if path else name
        for path, module in named_modules(model).items()
        if getattr(module, "running_var", None) is None
        for name in module._buffers
    }
    for name, tensor in tensors.items():
        if not tensor.is_floating_point() or tensor.is_meta:
            continue
        # A sum with NaN or infinity in it is not finite, and much cheaper than looking at each; it may overflow.
        if math.isfinite(tensor.detach().sum()):
            continue
        sound, what = (
            (~torch.isnan(tensor), "NaN") if name in bounds else (torch.isfinite(tensor), "NaN or infinity")
        )
        if not bool(sound.all()):
            raise InvalidInput(f"weights must be finite, got {what} in {name}; has training diverged?")


def _excluded(model: nn.Module, exclude: Iterable[str | nn.Module]) -> set[str]:
    """Return the names of all modules that are, or lie in, an excluded one."""
    if isinstance(exclude, str | nn.Module):
        exclude = [exclude]
    names = {id(m): n for n, m in named_modules(model).items()}
    found = set()
    for entry in exclude:
        if isinstance(entry, nn.Module) and id(entry) not in names:
            raise InvalidInput(
                f"exclude must name modules of this model, got a foreign {type(entry).__name__}"
            )
        name = (
            names[id(entry)]
            if isinstance(entry, nn.Module)
            else choose(entry, list(names.values()), "exclude")
        )
        found |= {n for n in names.values() if n == name or n.startswith(f"{name}.") or not name}
    return found


def _plan(
    weights: Weights,
    structure: Structure,
    costs: CostModel,
    criterion: Criterion,
    excluded: set[str],
    least: int,
) -> Plan:
    frozen = list(structure.grouping.frozen)
    open_groups = []
    for group in structure.grouping.groups:
        if excluded & set(group.producers):
            frozen.append(Frozen(group.name, group.width, "excluded", FreezeKind.EXCLUDED))
        else:
            open_groups.append(group)
    answers = criterion.orders(open_groups, weights)
    groups: list[ChannelGroup] = []
    orders: list[RemovalOrder] = []
    for group, answer in zip(open_groups, answers, strict=True):
        if isinstance(answer, str):
            frozen.append(Frozen(group.name, group.width, answer))
        else:
            groups.append(group)
            orders.append(answer)
    return Plan(tuple(groups), tuple(frozen), Orders(orders), structure, costs, least, criterion.name)


# --- verification ---------------------------------------------------------------------------------------------


def _verified(
    model: nn.Module, small: nn.Module, example: Example, structure: Structure, mask: Kept
) -> float:
    """Compare with the masked original; on a mismatch name the group at fault."""
    try:
        return compare(model, small, example, structure.trace, structure.grouping, mask)
    except Exception as error:
        at_fault = _at_fault(model, example, structure, mask)
        detail = str(error) if isinstance(error, VerificationError) else f"the smaller model raised: {error}"
        raise VerificationError(
            f"{detail}; at fault: {at_fault}. Exclude it (exclude=[...]) and report the model, please"
        ) from error


def _at_fault(model: nn.Module, example: Example, structure: Structure, mask: Kept) -> str:
    """Return the first group whose removal alone does not keep the channels in their place."""
    for start, group in zip(structure.grouping.offsets, structure.grouping.groups, strict=True):
        alone = np.ones_like(mask)
        alone[start : start + group.width] = mask[start : start + group.width]
        if alone.all():
            continue
        try:
            retrace(model, example, structure, alone)
            only = operate(model, surgery(structure.trace, structure.grouping, alone))
            compare(model, only, example, structure.trace, structure.grouping, alone)
        except Mismatch as fault:
            return f"group {group.name} ({fault.fact})"
        except Exception:
            return f"group {group.name}"
    return "the groups together"
