from __future__ import annotations

import pytest

from pagewire.frontend.cli.needless import Needless, drop_flags, find_needless, is_redundant, turn_switches
from pagewire.frontend.cli.refused import BENCH_SERVE, SERVING


@pytest.mark.parametrize(
    ("args", "kept", "num_lines"),
    [
        (["m", "--task", "generate", "--port", "1"], ["m", "--port", "1"], 1),
        (["--task=auto", "--runner", "generate", "m"], ["m"], 2),
        (["--task", "score"], ["--task", "score"], 0),
        (["--task"], ["--task"], 0),
        (["--", "--task", "generate"], ["--", "--task", "generate"], 0),
        (["--logprobs-mode", "raw_logprobs", "m"], ["m"], 1),
        (["--structured-outputs-config", '{"backend": "xgrammar"}', "m"], ["m"], 1),
        (["--structured-outputs-config.backend", "guidance", "m"], ["m"], 1),
    ],
)
def test_flags_that_ask_for_what_is_done_anyway_are_dropped_with_a_line(
    args: list[str], kept: list[str], num_lines: int
):
    assert_dropped(args, kept, num_lines)


@pytest.mark.parametrize(
    "args",
    [
        ["--enable-chunked-prefill"],
        ["--no-enable-chunked-prefill"],
        ["--enable_chunked_prefill"],
        ["--swap-space", "4"],
        ["--swap-space=4"],
        ["--swap_space", "4"],
        ["--compilation-config", '{"level": 3}'],
        ["--compilation-config.level", "3"],
        ["-cc.level=3"],
        ["-O2"],
        ["-O", "2"],
        ["-O.level=3"],
        ["--cudagraph-capture-sizes", "1", "2", "4"],
        ["--swap-space", "-1"],
    ],
)
def test_flag_without_a_meaning_is_dropped_with_its_values_and_one_line(args: list[str]):
    assert_dropped(["m", *args], ["m"], 1)
    assert_dropped([*args, "--port", "1"], ["--port", "1"], 1)


def test_value_that_is_missing_takes_no_flag_for_one():
    assert_dropped(["--swap-space", "--port", "1"], ["--port", "1"], 1)


def test_switch_takes_no_argument_for_its_value():
    assert_dropped(["--trust-remote-code", "m"], ["m"], 1)


def test_what_the_command_has_or_nobody_knows_is_left_alone():
    args = ["-q", "awq", "--no-swap-space", "1", "--offload", "x", "-O"]
    assert drop_flags(args, {"swap-space": Needless("")}, {}) == (args, [])


def test_other_side_of_a_switch_is_known_unless_the_command_has_it():
    needless = {"disable-x": Needless("y", 0)}
    assert drop_flags(["--enable-x", "m"], needless, {}) == (["m"], ["--enable-x has no meaning here: y."])
    assert drop_flags(["--enable_x", "m"], needless, {}, {"--enable-x"}) == (["--enable_x", "m"], [])


def test_switches_may_be_turned_by_enable_and_disable():
    args = ["--disable-x", "--enable_y", "--disable-z", "--enable-x", "--disable-x=1", "--", "--disable-x"]
    turned = ["--no-enable-x", "--no-disable-y", "--disable-z", "--enable-x", "--disable-x=1", "--", "--disable-x"]
    assert turn_switches(args, {"enable-x", "disable-y"}) == turned


def test_each_line_names_the_flag_and_the_reason():
    _, lines = drop_flags(["--no-use-v2-block-manager"], SERVING.needless, {})
    assert lines == ["--no-use-v2-block-manager has no meaning here: there is one block manager."]


def test_each_command_has_its_own():
    assert find_needless("--tokenizer", BENCH_SERVE.needless) is not None
    assert find_needless("--tokenizer", SERVING.needless) is None


@pytest.mark.parametrize("value", ['{"backend": "auto", "x": 1}', '{"backend": "mine"}', "{", "auto", 3, None])
def test_json_with_a_key_that_would_change_something_is_not_dropped(value: object):
    assert not is_redundant("--structured-outputs-config", value, SERVING.redundant)


def test_mapping_of_a_config_file_is_read_like_json():
    assert is_redundant("--structured_outputs_config", {"backend": "auto"}, SERVING.redundant)


def assert_dropped(args: list[str], kept: list[str], num_lines: int) -> None:
    remaining, lines = drop_flags(args, SERVING.needless, SERVING.redundant)
    assert remaining == kept
    assert len(lines) == num_lines
