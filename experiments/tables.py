"""Tables in Markdown, under a header that says how they came about."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from experiments.scales import scale_of
from slimilar.utils.row_ledger import RowLedger


def table(head: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    """Return a Markdown table; None is shown as a dash.

    >>> print(table(["a", "b"], [[1, None]]))
    | a | b |
    |---|---|
    | 1 | – |
    """
    lines = [f"| {' | '.join(head)} |", f"|{'---|' * len(head)}"]
    lines += [f"| {' | '.join('–' if cell is None else str(cell) for cell in row)} |" for row in rows]
    return "\n".join(lines)


def percent(value: float | None, digits: int = 2) -> str | None:
    """Return a number that counts in hundredths."""
    return None if value is None else f"{value:.{digits}f} %"


def tick(value: bool | None) -> str | None:
    """Return a tick or a cross, as the paper does."""
    return None if value is None else ("✓" if value else "✗")


def apart(ledger: RowLedger) -> str:
    """Return a sentence on how fitted networks are fine-tuned, where it is not as all others."""
    fitted = ledger.header["settings"]["scale"].get("fitted")
    if not fitted:
        return ""
    kept = ", and batch norms keep their statistics" if fitted["freeze_statistics"] else ""
    return f" Fitted networks are fine-tuned in as many steps, but at a rate of {fitted['lr']:g}{kept}."


def _took(ledger: RowLedger) -> str:
    """Return the time of all rows. Rows without `cpu` are older; the header holds the processor time of those."""
    cpu = ledger.header.get("processor_seconds", 0) + sum(row.get("cpu", 0) for row in ledger.rows)
    known = f"{cpu:.0f} s of processor time, " if cpu else ""
    return f"{known}{sum(row['seconds'] for row in ledger.rows):.0f} s"


def _commits(ledger: RowLedger) -> str:
    """Return by which commits of the code rows were made, as far as they say it."""
    found = list(dict.fromkeys(r["commit"] for r in ledger.rows if r.get("commit")))
    return f" Made by commit {', '.join(found)}." if found else ""


def _precision(ledger: RowLedger) -> str:
    """Return a sentence on the rows whose trainings ran in mixed precision, where there are any.

    >>> from pathlib import Path
    >>> ledger = RowLedger(Path("none.jsonl"))
    >>> ledger.rows = [{"method": "NS", "precision": "bfloat16"}, {"method": "Ours"}]
    >>> _precision(ledger)
    ' Trained in bfloat16 mixed precision: NS; all others in float32.'
    """
    mixed: dict[str, list[str]] = {}
    for row in ledger.rows:
        if "precision" in row:
            name = row["method"] + ("" if row.get("own", True) else " + reconstruction")
            mixed.setdefault(row["precision"], []).append(name)
    said = [
        f" Trained in {precision} mixed precision: {', '.join(dict.fromkeys(names))}; all others in float32."
        for precision, names in mixed.items()
    ]
    return "".join(said)


def document(ledger: RowLedger, body: str, images: Sequence[str], trainings: Sequence[object] = ()) -> str:
    """Return the page of an experiment: header, trainings under way, table, figures."""
    header = ledger.header
    versions = ", ".join(f"{name} {version}" for name, version in header["versions"].items())
    scale = scale_of(header["settings"]["scale"]["name"])
    waiting = ["Under way, and not in the table yet:", "", *(f"- {t}" for t in trainings), ""]
    lines = [
        f"# {header['experiment']}",
        "",
        f"    {header['command']}",
        "",
        f"Scale `{scale.name}`: {scale.about}. Seed {header['seed']}. {versions}. {header['hardware']}.",
        f"Started {header['started']}; {_took(ledger)} on the clock of a machine that was shared.{_commits(ledger)}",
        f"Settings and all numbers: `{ledger.path.name}`.{_precision(ledger)}",
        "",
        *(waiting if trainings else []),
        body,
        "",
        *(f"![{header['experiment']}]({name})\n" for name in images),
    ]
    return "\n".join(lines).rstrip() + "\n"
