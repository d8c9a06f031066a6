"""What a run of strikes showed: the figures of docs/reliability.md."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

from .streams import Clients
from .strikes import HealthWatch, Strike, Striker

_SHOWN = 10  # of each kind of failure
_RESTARTS = re.compile(r'^pagewire[:_]restarts_total\{[^}]*process="(\w+)"[^}]*\} (\S+)$', re.MULTILINE)


def percentile(values: Sequence[float], share: float) -> float:
    """Return the value that so large a share of the values does not exceed; NaN of no values."""
    if not values:
        return float("nan")
    return sorted(values)[min(int(share * len(values)), len(values) - 1)]


def read_restarts(metrics: str) -> dict[str, int]:
    """Return how often each kind of process was started again, by what /metrics says."""
    return {process: int(float(count)) for process, count in _RESTARTS.findall(metrics)}


def recoveries(
    strikes: Sequence[Strike], outages: Iterable[tuple[float, float]]
) -> dict[tuple[str, str], list[tuple[float, float]]]:
    """Return (seconds until /health was no 200, seconds until it was again) by target and action.

    Only outages that one strike alone made are counted.
    """
    found: dict[tuple[str, str], list[tuple[float, float]]] = {}
    ends = [strike.time_s for strike in strikes[1:]] + [float("inf")]
    outages = list(outages)
    for strike, next_s in zip(strikes, ends, strict=True):
        mine = [outage for outage in outages if strike.time_s <= outage[0] < next_s]
        if not strike.is_while_recovering and mine and mine[0][1] < next_s:
            began, ended = mine[0]
            found.setdefault((strike.target, strike.action), []).append((began - strike.time_s, ended - strike.time_s))
    return found


def print_report(
    clients: Clients, striker: Striker, health: HealthWatch, restarts: dict[str, int], seconds: float
) -> None:
    """Print all figures of a run."""
    strikes = striker.strikes
    print(f"\n{len(strikes)} strikes in {seconds:.0f} s")
    for target in ("core", "executor"):
        counts = {
            action: sum((strike.target, strike.action) == (target, action) for strike in strikes)
            for action in ("kill", "stop")
        }
        print(
            f"  {target:<9} killed {counts['kill']:4}, stopped {counts['stop']:4}, "
            f"restarts by /metrics {restarts.get(target, 0):4}"
        )
    num_prefill = sum(strike.num_prefilling > 0 for strike in strikes)
    num_recovering = sum(strike.is_while_recovering for strike in strikes)
    print(
        f"  while a stream waited for its first token: {num_prefill}; "
        f"while another restart was under way: {num_recovering}"
    )
    print("seconds from a strike until /health was no 200 (p50, max), and until it was 200 again (p50, p99, max):")
    for (target, action), times in sorted(recoveries(strikes, health.outages).items()):
        noticed, back = ([pair[index] for pair in times] for index in (0, 1))
        print(
            f"  {target:<9} {action}  {percentile(noticed, 0.5):5.2f} {max(noticed):5.2f}   "
            f"{percentile(back, 0.5):5.2f} {percentile(back, 0.99):5.2f} {max(back):5.2f}   ({len(times)} times)"
        )
    pauses = clients.pauses_s
    print(
        f"pause of a stream: p50 {percentile(pauses, 0.5):.2f} s, p99 {percentile(pauses, 0.99):.2f} s, "
        f"max {max(pauses, default=float('nan')):.2f} s ({len(pauses)} pauses)"
    )
    print(
        f"complete answers: {sum(clients.num_answers.values())}, of them {clients.num_answers[0.0]} greedy and "
        f"{clients.num_answers[1.0]} at temperature 1"
    )
    for name, problems in (("lost streams", clients.lost), ("differing answers", clients.differing)):
        print(f"{name}: {len(problems)}")
        for problem in problems[:_SHOWN]:
            print(f"  {problem}")
    print(f"looks at /live that were no 200: {health.num_failed_live}")
