"""The table of slow readers says what the rounds showed."""

from __future__ import annotations

from tools.measure_slow_readers import Run, row, share_of


def test_share_of_values_is_counted_from_below():
    values = [float(value) for value in range(1, 101)]
    assert share_of(values, 0.99) == 100.0
    assert share_of(values, 0.5) == 51.0
    assert share_of([7.0], 0.99) == 7.0


def test_line_takes_all_rounds_together_and_names_the_extremes():
    runs = [
        Run([10.0, 10.0, 10.0], [1.0, 1.0, 2.0], cpu_us=40.0, grown_mib=0.5, num_bytes_taken=0.0),
        Run([12.0, 12.0, 30.0], [1.0, 3.0, 9.0], cpu_us=50.0, grown_mib=-0.25, num_bytes_taken=0.0),
    ]
    line = row("50 slow", runs)
    assert "11.00 ms between tokens (rounds 10.00 to 12.00), p99 30.00, longest 30.0" in line
    assert "core to client 1.50 ms, p99 9.00" in line
    assert "45 us of processor time a token; memory +0.5 MiB" in line
