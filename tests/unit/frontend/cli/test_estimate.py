"""`pagewire estimate` as it is typed: what it prints, its exit codes, and what it refuses."""

from __future__ import annotations

import json

import pytest

from pagewire.frontend.cli.main import run


def asked(capsys: pytest.CaptureFixture[str], *args: str) -> tuple[int, str]:
    """The exit code and what was printed."""
    code = run(["estimate", *args])
    return code, capsys.readouterr().out


def test_70b_at_4096_tokens_and_the_mistake_of_counting_all_heads(capsys: pytest.CaptureFixture[str]):
    code, text = asked(capsys, "llama-3-70b", "--context-len", "4096", "--num-requests", "32")
    assert code == 0
    assert "320 KiB a token" in text
    assert "a request of 4,096 tokens: 1.25 GiB" in text
    assert "32 such requests: 40.00 GiB" in text
    assert "Counting all 64 heads would give 10.00 GiB a request, 8 times too much" in text


def test_the_command_of_the_documents(capsys: pytest.CaptureFixture[str]):
    code, text = asked(capsys, "llama-3.1-70b", "--gpu", "h200", "--tp", "2")
    assert code == 0
    assert "2 x NVIDIA H200 (tp 2), memory each:" in text
    for part in ("weights", "left for KV", "Fits: ", "Longest context of one request: 131,072", "sums between devices"):
        assert part in text


def test_a_mixture_says_how_much_of_it_computes_a_token(capsys: pytest.CaptureFixture[str]):
    code, text = asked(capsys, "qwen3-30b-a3b", "--gpu", "h200")
    assert code == 0
    assert "Mixtures in 48 layers: 128 experts of 768 channels, 8 a token" in text
    assert "Weights: 30.53 billion (3.35 compute a token)" in text
    assert all(part in text for part in ("router", "experts, gate and up", "experts, down"))


def test_what_does_not_fit_has_exit_code_1_and_what_does(capsys: pytest.CaptureFixture[str]):
    code, text = asked(capsys, "llama-3.1-405b", "--gpu", "h100", "-tp", "8")
    assert code == 1
    assert "Does not fit: " in text
    assert "16 (tp 8 x pp 2)" in text
    rows = [line.split() for line in text.splitlines() if line.startswith(("h100 ", "h200 ", "mi300x "))]
    assert ["h200", "bfloat16", "8"] in [row[:3] for row in rows]
    assert ["h100", "fp8", "8"] in [row[:3] for row in rows]


def test_too_many_requests_do_not_fit_either(capsys: pytest.CaptureFixture[str]):
    code, text = asked(capsys, "llama-3.1-8b", "--gpu", "l4", "--num-requests", "1000")
    assert code == 1
    assert "Does not fit: 1,000 requests of 4,096 tokens; there is room for " in text


def test_underscores_units_and_json(capsys: pytest.CaptureFixture[str]):
    code, text = asked(capsys, "llama-3.1-8b", "--gpu=H200", "--context_len", "8K", "--json")
    assert code == 0
    assert json.loads(text)["question"]["context_len"] == 8192


@pytest.mark.parametrize(
    ("args", "part"),
    [
        ([], "MODEL"),
        (["lama-8b"], "those are llama-3.2-1b"),
        (["llama-3-8b", "--gpu", "h300"], "did you mean h200"),
        (["llama-3-8b", "--context-len", "8193"], "beyond the model's longest, 8192"),
        (["llama-3-8b", "--context-len", "100", "--output-len", "100"], "leaves no prompt"),
        (["llama-3-8b", "--tp", "2"], "need --gpu"),
        (["llama-3-8b", "--gpu", "h100", "--tp", "3"], "32 heads"),
        (["llama-3-8b", "--gpu", "t4", "--weights", "bfloat16"], "give float16"),
        (["llama-3-8b", "--max-model-len", "5"], "use --context-len"),
        (["llama-3-8b", "--gpus", "h100"], "did you mean --gpu?"),
        (["./nothing-here"], "no such file or directory"),
        (["org/repo:Q4_K_M"], "fetch it, and name the file"),
        (["estimat"], "unknown"),
    ],
)
def test_what_can_not_be_answered_is_one_line(args: list[str], part: str, capsys: pytest.CaptureFixture[str]):
    assert run(args if args == ["estimat"] else ["estimate", *args]) == 2
    err = capsys.readouterr().err
    assert part in err
    assert err.count("\n") == 1
