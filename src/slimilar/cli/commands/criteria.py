"""`slimilar criteria`: the list of criteria."""

from __future__ import annotations

import dataclasses

from slimilar.cli.output import Output, escape


def criteria(out: Output) -> None:
    """List the criteria for choosing channels, and the data that each needs.

    Example: [bold]slimilar criteria[/]
    """
    from slimilar.criteria import available, facts

    known = {name: facts(name) for name in available()}
    sign = {True: "yes", False: "no"}
    rows = [
        [name, f.tag, f.needs, sign[f.automatic], sign[f.pretrained], escape(f.what)]
        for name, f in known.items()
    ]
    headings = ["criterion", "tag", "needs", "auto", "pre", "which channels are removed"]
    out.table([f"<{heading}" for heading in headings], rows)
    out.say(
        "tag: name in the paper's tables. auto: chooses the width of each layer. pre: applies to a network that was "
        "trained "
        "without it. --json adds the reconstruction of its paper. Images and labels are given with --calibrate, "
        "a training phase with slimilar train --for."
    )
    out.answer({name: dataclasses.asdict(f) for name, f in known.items()})
