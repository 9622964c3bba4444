r"""Images from a trained network alone: they match the running statistics of its batch norms.

Starting from noise with the spectrum of natural images, and their colours, each batch is optimised so that in front
of every batch norm the mean and spread of its channels are the running ones, with a little pressure to be recognisable
as some class and to be smooth. No data is needed, and the images hold nothing that is not in the weights.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress

import torch
from torch import Tensor, nn
from torch.nn import functional

from slimilar.errors import InvalidInput
from slimilar.utils.batch_halving import halving
from slimilar.utils.modules import copy_with, device_of
from slimilar.utils.pytree import Example, arguments, tensors_in

_COLOURING = 100  # steps

Progress = Callable[[str, int, int], None]


def synthesize(
    model: nn.Module,
    example: Example,
    *,
    count: int = 768,
    steps: int = 160,
    batch: int = 128,
    seed: int = 0,
    progress: Progress | None = None,
) -> Tensor:
    """Return images of the example's shape that match the model's batch-norm statistics. The model is not modified.

    Half of the `count` images are optimised for `steps` steps, in batches of `batch`; the others are their horizontal
    flips.
    """
    wanted = _images(example)
    frozen = (
        copy_with(model, {n: t.detach() for n, t in model.named_parameters()}).eval().requires_grad_(False)
    )
    frozen.float()  # half precision would not hold the small steps
    frozen.to(memory_format=torch.channels_last)  # type: ignore[call-overload]  # torch's own hints do not know it
    norms = [m for m in frozen.modules() if _has_statistics(m)]
    if not norms:
        raise InvalidInput(
            "to synthesize images a model must have batch norms with running statistics, got none: "
            "pass real images as calibration"
        )

    def made(size: int) -> Tensor:
        return _batches(frozen, norms, (-(-count // 2), *wanted.shape[1:]), steps, size, seed, progress)

    images = halving(min(batch, -(-count // 2)), made, device_of(model)).to(wanted.dtype)
    return torch.cat([images, images.flip(-1)])[:count]


def _batches(
    model: nn.Module, norms: list[nn.Module], shape: tuple[int, ...], steps: int, batch: int, seed: int,
    progress: Progress | None,
) -> Tensor:  # fmt: skip
    """Return so many images, made in batches."""
    generator, device = torch.Generator().manual_seed(seed), device_of(model)
    count, made = shape[0], list[Tensor]()
    for first in range(0, count, batch):
        noise = _natural_noise((min(batch, count - first), *shape[1:]), generator).to(device)
        if not made:
            shift, scale = _colours(model, norms, noise[:32])

        def report(step: int, first: int = first) -> None:
            if progress is not None:
                progress("synthesising images", first // batch * steps + step, -(-count // batch) * steps)

        made.append(_optimised(model, norms, noise * scale + shift, steps, generator, report))
    return torch.cat(made).contiguous()


def _images(example: Example) -> Tensor:
    tensors = list(tensors_in(arguments(example)))
    if len(tensors) != 1 or tensors[0].ndim != 4:
        raise InvalidInput(
            "to synthesize images a model must take one tensor (N, C, H, W), pass real images instead"
        )
    return tensors[0]


def _has_statistics(module: nn.Module) -> bool:
    return isinstance(module, nn.modules.batchnorm._BatchNorm) and module.running_mean is not None


def _natural_noise(shape: tuple[int, ...], generator: torch.Generator) -> Tensor:
    """Return noise whose amplitude falls as 1/f, as that of natural images does, scaled to unit variance."""
    spectrum = torch.fft.fft2(torch.randn(shape, generator=generator))
    rows, cols = torch.fft.fftfreq(shape[-2])[:, None], torch.fft.fftfreq(shape[-1])[None]
    frequency = (rows.square() + cols.square()).sqrt().clamp_min(1 / max(shape[-2:]))
    noise: Tensor = torch.fft.ifft2(spectrum / frequency).real
    size = noise.std(dim=(1, 2, 3), keepdim=True).clamp_min(1e-6)
    return noise.div(size)


class _Enough(Exception):
    """The first batch norm has been reached."""


def _colours(model: nn.Module, norms: list[nn.Module], noise: Tensor) -> tuple[Tensor, Tensor]:
    """Return the shift and scale of each channel with which noise comes nearest to the first batch norm's statistics.

    How a network's images were normalised is not known, and the later steps hardly correct a wrong mean. Only
    the first layers run here, so it takes next to no time.
    """
    shift = torch.zeros(noise.shape[1], 1, 1, device=noise.device, requires_grad=True)
    stretch = torch.zeros_like(shift, requires_grad=True)
    optimizer = torch.optim.Adam([shift, stretch], lr=0.05)

    def stop(norm: nn.Module, inputs: tuple[Tensor, ...]) -> None:
        raise _Enough

    with torch.enable_grad(), _watching(norms) as found:
        hooks = [norm.register_forward_pre_hook(stop) for norm in norms]
        try:
            for _ in range(_COLOURING):
                found.clear()
                optimizer.zero_grad()
                with suppress(_Enough):
                    model(noise * stretch.exp() + shift)
                if not found or not found[0].requires_grad:  # a batch norm that does not depend on the images
                    break
                found[0].backward()
                optimizer.step()
        finally:
            for hook in hooks:
                hook.remove()
    return shift.detach(), stretch.detach().exp()


@contextmanager
def _watching(norms: list[nn.Module]) -> Iterator[list[Tensor]]:
    """Collect, while the model runs, how far each batch norm's input is from its running statistics."""
    found: list[Tensor] = []

    def compare(norm: nn.Module, inputs: tuple[Tensor, ...]) -> None:
        x = inputs[0]
        axes = [0, *range(2, x.ndim)]
        mean, variance = x.mean(axes), x.var(axes, unbiased=False)
        kept_mean, kept_variance = norm.get_buffer("running_mean"), norm.get_buffer("running_var")
        scale = (kept_variance + 1e-5).sqrt()
        found.append(
            ((mean - kept_mean) / scale).square().mean()
            + ((variance + 1e-8).sqrt() / scale - 1).square().mean()
        )

    hooks = [norm.register_forward_pre_hook(compare) for norm in norms]
    try:
        yield found
    finally:
        for hook in hooks:
            hook.remove()


def _optimised(
    model: nn.Module, norms: list[nn.Module], images: Tensor, steps: int, generator: torch.Generator,
    report: Callable[[int], None],
) -> Tensor:  # fmt: skip
    images = images.clone().requires_grad_(True)
    optimizer = torch.optim.Adam([images], lr=0.05, betas=(0.5, 0.9))
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, steps)
    labels: Tensor | None = None
    with torch.enable_grad(), _watching(norms) as found:
        for step in range(steps):
            found.clear()
            optimizer.zero_grad()
            out = model(images)
            loss = torch.stack(found).mean() + 0.01 * _roughness(images)
            if isinstance(out, Tensor) and out.ndim == 2 and out.shape[1] > 1:
                if labels is None:
                    labels = torch.randint(out.shape[1], (len(out),), generator=generator).to(out.device)
                loss = loss + 0.1 * functional.cross_entropy(out, labels)
            loss.backward()
            optimizer.step()
            schedule.step()
            report(step + 1)
    return images.detach()


def _roughness(images: Tensor) -> Tensor:
    """Return the total variation: the mean squared difference of neighbours."""
    return images.diff(dim=2).square().mean() + images.diff(dim=3).square().mean()
