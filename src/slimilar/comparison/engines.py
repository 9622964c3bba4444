"""Where the work is done: in this process, in several, or on a cluster. All end with the same rows."""

from __future__ import annotations

import importlib
import multiprocessing
import os
import signal
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import torch

from slimilar.comparison.rows import ComparisonRow
from slimilar.comparison.tasks import Task
from slimilar.comparison.terms import Opener, Subject, Terms
from slimilar.comparison.work import Bench
from slimilar.errors import InvalidInput, SlimilarError, TrainingError
from slimilar.utils.suggestions import choose

ENGINES = ("local", "ray")


@dataclass(frozen=True)
class Failed:
    """A piece of work that cannot be done, and why."""

    reason: str


Outcome = ComparisonRow | Failed | None


@dataclass(frozen=True, eq=False)
class WorkerSetup:
    """What a process must know to take part; everything in it can be sent to another machine."""

    opener: Opener
    terms: Terms
    folder: Path
    threads: int

    def bench(self) -> Bench:
        """Open the subject, and work with no more threads than allowed."""
        torch.set_num_threads(self.threads)
        return Bench(self.opener(), self.terms, self.folder)


class Engine(Protocol):
    """Takes tasks up to its capacity and hands back one outcome after the other."""

    capacity: int

    def submit(self, task: Task) -> None:
        """Begin a task."""

    def next(self) -> tuple[Task, Outcome]:
        """Wait for a task to end."""


def attempt(bench: Bench, task: Task) -> Outcome:
    """Perform a task; what Slimilar refuses on purpose is an outcome, not the end of everything."""
    try:
        return bench.perform(task)
    except SlimilarError as error:
        return Failed(str(error))


@contextmanager
def engine(
    name: str, subject: Subject | Opener, terms: Terms, folder: Path, jobs: int, threads: int | None
) -> Iterator[Engine]:
    """Yield the engine of a name; whatever it started ends with it."""
    choose(name, ENGINES, "engine")
    if jobs < 1 or (threads is not None and threads < 1):
        raise InvalidInput(f"jobs and threads must be at least 1, got {jobs} and {threads}")
    opener = _opener(subject)
    share = threads or max(1, torch.get_num_threads() // jobs)
    setup = WorkerSetup(opener, terms, folder.absolute(), share)
    kinds: dict[str, Callable[..., Any]] = {"local": _processes if jobs > 1 else _here, "ray": _ray}
    with kinds[name](setup, jobs) as found:
        yield found


def _opener(subject: Subject | Opener) -> Opener:
    return _Given(subject) if isinstance(subject, Subject) else subject


@dataclass(frozen=True, eq=False)
class _Given:
    subject: Subject

    def __call__(self) -> Subject:
        return self.subject


# --- this process -----------------------------------------------------------------------------------------------


class _Here:
    capacity = 1

    def __init__(self, bench: Bench) -> None:
        self.bench = bench
        self.task: Task | None = None

    def submit(self, task: Task) -> None:
        self.task = task

    def next(self) -> tuple[Task, Outcome]:
        assert self.task is not None
        return self.task, attempt(self.bench, self.task)


@contextmanager
def _here(setup: WorkerSetup, jobs: int) -> Iterator[Engine]:
    before = torch.get_num_threads()
    try:
        yield _Here(setup.bench())
    finally:
        torch.set_num_threads(before)


# --- several processes ------------------------------------------------------------------------------------------

_bench: Bench | None = None  # of a process that works for another


def _begin(setup: WorkerSetup) -> None:
    """Prepare a process for work: Ctrl-C is its parent's business, and it does not outlive its parent."""
    global _bench
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    threading.Thread(target=_follow_parent, daemon=True).start()
    _bench = setup.bench()


def _follow_parent() -> None:
    parent = multiprocessing.parent_process()
    if parent is not None:
        parent.join()
        os.kill(os.getpid(), signal.SIGTERM)


def _work(task: Task) -> Outcome:
    assert _bench is not None
    return attempt(_bench, task)


class _Processes:
    def __init__(self, pool: ProcessPoolExecutor, jobs: int) -> None:
        self.pool, self.capacity = pool, jobs
        self.running: dict[Future[Outcome], Task] = {}

    def submit(self, task: Task) -> None:
        try:
            self.running[self.pool.submit(_work, task)] = task
        except BrokenProcessPool as error:
            raise _broken() from error

    def next(self) -> tuple[Task, Outcome]:
        done = next(iter(wait(self.running, return_when=FIRST_COMPLETED).done))
        try:
            return self.running.pop(done), done.result()
        except BrokenProcessPool as error:
            raise _broken() from error


def _broken() -> TrainingError:
    return TrainingError(
        "a worker process ended unexpectedly: it was killed, or ran out of memory. "
        "Finished rows are kept; run the same command again to resume, perhaps with fewer jobs"
    )


@contextmanager
def _processes(setup: WorkerSetup, jobs: int) -> Iterator[Engine]:
    # Spawned, not forked: a process in which torch has started threads must not fork.
    others = set(multiprocessing.active_children())
    context = multiprocessing.get_context("spawn")
    pool = ProcessPoolExecutor(jobs, context, _begin, (setup,))
    try:
        yield _Processes(pool, jobs)
        pool.shutdown()
    except BaseException:
        pool.shutdown(wait=False, cancel_futures=True)
        for child in set(multiprocessing.active_children()) - others:
            child.terminate()
        raise


# --- a cluster --------------------------------------------------------------------------------------------------

_benches: dict[str, Bench] = {}  # of a Ray worker, which may serve several comparisons


def _work_anywhere(name: str, setup: WorkerSetup, task: Task) -> Outcome:
    """Perform a task in any process of a cluster; those that come back find the subject open."""
    if name not in _benches:
        _benches.clear()
        _benches[name] = setup.bench()
    return attempt(_benches[name], task)


class _Ray:
    def __init__(self, ray: Any, setup: WorkerSetup, capacity: int) -> None:
        self.ray, self.capacity = ray, capacity
        gpus = 1 if ray.cluster_resources().get("GPU") else 0
        self.remote = ray.remote(num_cpus=setup.threads, num_gpus=gpus)(_work_anywhere)
        self.name, self.setup = os.urandom(8).hex(), ray.put(setup)
        self.running: dict[Any, Task] = {}

    def submit(self, task: Task) -> None:
        self.running[self.remote.remote(self.name, self.setup, task)] = task

    def next(self) -> tuple[Task, Outcome]:
        (done, *_), _ = self.ray.wait(list(self.running))
        return self.running.pop(done), self.ray.get(done)

    def stop(self) -> None:
        for reference in self.running:
            self.ray.cancel(reference, force=True)


@contextmanager
def _ray(setup: WorkerSetup, jobs: int) -> Iterator[Engine]:
    """Work on the cluster that RAY_ADDRESS names, or one that runs here already, or one started for this."""
    try:
        ray = importlib.import_module("ray")
    except ImportError as error:
        raise InvalidInput("engine 'ray' needs Ray; run: pip install 'slimilar[ray]'") from error
    started = not ray.is_initialized()
    if started:
        ray.init(log_to_driver=False, logging_level="error", include_dashboard=False)
    found = _Ray(ray, setup, jobs)
    try:
        yield found
    finally:
        found.stop()
        if started:
            ray.shutdown()
