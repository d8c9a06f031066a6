"""What people read."""

from __future__ import annotations

from itertools import pairwise

from pagewire.checkpoint.estimate.answer import answer
from pagewire.frontend.estimate.config import EstimateConfig
from pagewire.frontend.estimate.question import make_question
from pagewire.frontend.estimate.report import report_lines


def lines_of(model: str, **options: object) -> list[str]:
    return report_lines(answer(make_question(model, EstimateConfig(**options))))  # type: ignore[arg-type]  # of their own types


def test_parts_are_set_apart_and_no_line_is_too_much():
    lines = lines_of("llama-3.1-8b", gpu="h200")
    assert lines[0].startswith("llama-3.1-8b (built-in shape): 32 layers")
    assert "" not in (lines[0], lines[-1])
    assert all(before or after for before, after in pairwise(lines))


def test_what_a_model_with_a_kv_head_for_each_head_can_not_be_mistaken_for_is_left_out():
    assert not any("Counting all" in line for line in lines_of("llama-2-7b"))
    assert any("Counting all 64 heads" in line for line in lines_of("llama-2-70b"))


def test_one_device_is_named_without_flags_and_several_with_them():
    assert "1 x NVIDIA L40S, memory:" in lines_of("llama-3.1-8b", gpu="l40s")
    several = lines_of("llama-3.1-70b", gpu="l40s", tensor_parallel_size=8, pipeline_parallel_size=2)
    assert "16 x NVIDIA L40S (tp 8, pp 2), memory each:" in several


def test_the_limit_of_one_request_of_8b_on_an_h200():
    [row] = [line for line in lines_of("llama-3.1-8b", gpu="h200", context_len=1024) if line.startswith("1 request ")]
    assert row.split() == ["1", "request", "3.16", "317", "222", "memory"]  # 15.15 GB at 4.8 TB/s


def test_too_little_room_says_how_much_there_is():
    [line] = [line for line in lines_of("llama-3.1-8b", gpu="l4", num_requests=99) if line.startswith("Does not fit")]
    assert "99 requests of 4,096 tokens; there is room for " in line
    [line] = [line for line in lines_of("llama-3.1-70b", gpu="l4") if line.startswith("Does not fit")]
    assert "too much on each device" in line
