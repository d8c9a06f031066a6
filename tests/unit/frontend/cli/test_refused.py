from __future__ import annotations

import pytest

from pagewire.frontend.cli.flags import engine_flags, server_flags
from pagewire.frontend.cli.refused import _NEEDLESS, _NOT_YET, explain_unknown_command, explain_unknown_flag

KNOWN = [flag.name for flag in [*engine_flags(), *server_flags()]]


def test_a_flag_that_was_built_is_no_longer_refused():
    built = {name.removeprefix("--") for name in KNOWN}
    assert built.isdisjoint(_NOT_YET)
    assert built.isdisjoint(_NEEDLESS)
    assert set(_NOT_YET).isdisjoint(_NEEDLESS)


@pytest.mark.parametrize(
    ("flag", "part"),
    [
        ("--quantization", "--quantization is not supported yet"),
        ("-q", "-q is not supported yet"),
        ("--speculative_config", "--speculative-config is not supported yet"),
        ("--speculative-config.method", "speculative decoding"),
        ("-dp", "not supported yet"),
        ("--enable-chunked-prefill", "is not needed"),
        ("--no-enable-chunked-prefill", "is not needed"),
        ("-O2", "is not needed"),
        ("--enforce-eager=true", "--enforce-eager is not needed"),
        ("--max-num-seq", "did you mean --max-num-seqs?"),
        ("--zzz", "unknown flag --zzz."),
        ("--there", "--there is a flag of `pagewire other`."),
    ],
)
def test_each_unknown_flag_gets_the_line_that_helps(flag: str, part: str):
    assert part in explain_unknown_flag(flag, KNOWN, {"--there": "pagewire other"})


def test_an_unknown_command_lists_what_there_is():
    assert explain_unknown_command("qqq", ["serve", "engine"]) == "unknown command 'qqq'. There are: engine, serve."
    assert explain_unknown_command("Serve", ["serve", "engine"]) == "unknown command 'Serve'; did you mean serve?"
