"""`pagewire bench serve`: one run with its table, or several runs whose figures share one."""

from __future__ import annotations

import itertools
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from datetime import datetime
from pathlib import Path

import msgspec
import uvloop

from pagewire.ipc.errors import ConfigError, MachineError

from ...http.listener import allow_many_connections
from ..dataset.datasets import SampleRequest
from ..report.config import check_report
from ..report.run import save_report
from ..report.runs import Document, describe_machine, named_runs, run_name
from .comparison import ComparedRun, compare, comparison_json, comparison_table, run_line
from .config import BenchServeConfig, LoadPoint, Target
from .load import LoadRun, Say, run_load
from .metrics import RequestOutcome, summarize
from .plot import check_plot, save_plot
from .report import comparison_filename, result_filename, result_json, result_table

_FAILED = 1
_INTERRUPTED = 130  # 128 + SIGINT, as shells report it
_MAX_ERRORS_SHOWN = 5
_COMPARED_PERCENTILES = (50.0, 99.0)


def run(config: BenchServeConfig, say: Say) -> int:
    """Run the benchmark.

    Args:
        config: what to send, where to, and what to show.
        say: prints a line.

    Returns:
        The exit code: 0, or 1 if every request of a run failed, or 130 after Ctrl-C.

    Raises:
        ConfigError: the dataset, or the place for the result, can't be used.
        MachineError: the server can't be reached, or its answer to the test request is no stream of tokens.
    """
    folder = _result_folder(config)
    if config.plot is not None:
        check_plot(Path(config.plot))
    if config.report is not None:
        check_report(Path(config.report), "--report")
    allow_many_connections()
    return _run_several(config, folder, say) if config.is_comparison else _run_one(config, folder, say)


def _run_one(config: BenchServeConfig, folder: Path | None, say: Say) -> int:
    current = LoadRun()
    try:
        uvloop.run(run_load(config, current, say))
    except KeyboardInterrupt:
        return _report_interrupted(config, current, say)
    metrics = summarize(
        current.ended, duration_s=current.duration_s, percentiles=config.percentiles, limits_ms=config.limits_ms
    )
    say(result_table(metrics, config))
    _say_errors(current.ended, say)
    now = datetime.now().astimezone()
    if folder is not None:
        document = result_json(metrics, config, model=current.model, outcomes=current.ended, now=now)
        _save(folder / result_filename(config, model=current.model, now=now), document, say)
    if config.report is not None:
        detailed = result_json(metrics, config, model=current.model, outcomes=current.ended, now=now, detailed=True)
        _report([(current.model, detailed)], config, config.report, say)
    return 0 if metrics.completed else _FAILED


def _run_several(config: BenchServeConfig, folder: Path | None, say: Say) -> int:
    """Run every server under every load, one after the other, so that they do not disturb each other."""
    runs: list[ComparedRun] = []
    exit_code = 0
    try:
        for one in _compared_runs(config, say):
            if one is None or not one.metrics.completed:
                exit_code = _FAILED
            if one is not None:
                runs.append(one)
                say(run_line(one))
                _say_errors(one.outcomes, say)
    except KeyboardInterrupt:
        say(f"Interrupted: {len(runs)} runs had ended.")
        exit_code = _INTERRUPTED
    if not runs:
        return exit_code
    rows = compare(runs)
    say(comparison_table(rows))
    now = datetime.now().astimezone()
    if folder is not None:
        _save(folder / comparison_filename(config, now=now), comparison_json(runs, now), say)
    if config.plot is not None:
        save_plot(rows, Path(config.plot), title=f"{config.dataset.dataset_name}, {runs[0].model}")
        say(f"Drawn to {config.plot}.")
    if config.report is not None:
        documents = comparison_json(runs, now, detailed=True)["runs"]
        _report([(run_name(document), document) for document in documents], config, config.report, say)
    return exit_code


def _report(named: Sequence[tuple[str, Document]], config: BenchServeConfig, path: str, say: Say) -> None:
    """Write the page of some runs, with what they were told and where the load came from."""
    told = {**_changed(config.dataset), **_changed(config)}
    facts = {"settings": " ".join(f"{name}={value}" for name, value in told.items()), "machine": describe_machine()}
    runs = named_runs((name, {**document, **facts}) for name, document in named)
    save_report(runs, Path(path), title="pagewire bench serve")
    say(f"Reported in {path}.")


def _changed(config: msgspec.Struct) -> dict[str, object]:
    """Return the settings that are not the defaults; never a key."""
    defaults, values = msgspec.structs.asdict(type(config)()), msgspec.structs.asdict(config)
    hidden = ("api_key", "dataset", "report")
    return {name: value for name, value in values.items() if value != defaults[name] and name not in hidden}


def _compared_runs(config: BenchServeConfig, say: Say) -> Iterator[ComparedRun | None]:
    """Yield the runs as they end; None for one that could not take place, whose reason was said."""
    for index, (point, number) in enumerate(itertools.product(config.points, range(config.rounds))):
        requests: Sequence[SampleRequest] = ()
        for target in config.targets:
            current = LoadRun(requests=requests)
            single = config.single_run(target, point, index)
            try:
                uvloop.run(run_load(single, current, say, watches_server=True))
            except (MachineError, ConfigError) as exc:
                if isinstance(exc, ConfigError) and not (index or requests):
                    raise  # the first run of all: nothing is lost, and the others would fail alike
                say(f"{target.name}: {exc.message}")
                yield None
                continue
            requests = current.requests  # chosen by the first server's tokenizer, the same for all
            yield _compared(single, current, target, point, number)


def _compared(config: BenchServeConfig, current: LoadRun, target: Target, point: LoadPoint, number: int) -> ComparedRun:
    percentiles = tuple(dict.fromkeys((*config.percentiles, *_COMPARED_PERCENTILES)))
    metrics = summarize(
        current.ended, duration_s=current.duration_s, percentiles=percentiles, limits_ms=config.limits_ms
    )
    return ComparedRun(
        target=target,
        point=point,
        round=number,
        config=config,
        model=current.model,
        metrics=metrics,
        server=current.server,
        outcomes=current.ended,
    )


def _report_interrupted(config: BenchServeConfig, current: LoadRun, say: Say) -> int:
    """Show what an interrupted run measured; it is no result, so it is not saved."""
    if current.ended:
        duration_s = max(outcome.start_s + outcome.latency_s for outcome in current.ended)
        metrics = summarize(
            current.ended,
            duration_s=duration_s or time.perf_counter() - current.began_s,
            percentiles=config.percentiles,
            limits_ms=config.limits_ms,
        )
        say(result_table(metrics, config))
        _say_errors(current.ended, say)
    say(f"Interrupted: {len(current.ended)} of {config.dataset.num_prompts} requests had ended. Nothing was saved.")
    return _INTERRUPTED


def _say_errors(outcomes: Sequence[RequestOutcome], say: Say) -> None:
    counts = Counter(outcome.error for outcome in outcomes if outcome.error)
    for error, count in counts.most_common(_MAX_ERRORS_SHOWN):
        say(f"{count} failed: {error}")
    if len(counts) > _MAX_ERRORS_SHOWN:
        say(f"and {len(counts) - _MAX_ERRORS_SHOWN} other errors; --save-result --save-detailed keeps them all.")


def _result_folder(config: BenchServeConfig) -> Path | None:
    """Return where the result goes, made before the run: an hour's figures must not be lost to a wrong name."""
    if not config.save_result:
        return None
    folder = Path(config.result_dir or ".")
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as exc:
        raise ConfigError(f"--result-dir {folder} can't be made: {exc.strerror}.") from exc
    return folder


def _save(path: Path, document: object, say: Say) -> None:
    try:
        path.write_bytes(msgspec.json.encode(document) + b"\n")
    except OSError as exc:
        raise MachineError(f"{path} can't be written: {exc.strerror}.") from exc
    say(f"Saved to {path}.")
