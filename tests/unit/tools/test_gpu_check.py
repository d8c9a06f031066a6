"""The check of a GPU, as far as it can be tried without one: it finds planted errors, keeps its time, reports right."""

from __future__ import annotations

import dataclasses
import importlib
import random
import subprocess
import sys
from pathlib import Path

import msgspec
import pytest
import torch

from pagewire.checkpoint.loading import load_model_config
from pagewire.frontend.bench.dataset.synthetic import WORDS, random_words
from pagewire.frontend.tokenizer.tokenizer import load_tokenizer
from pagewire.gpu_executor.kernels.reference.reference_ops import ReferenceOps
from pagewire.gpu_executor.kernels.select import select_ops
from pagewire.ipc.errors import ConfigError, MachineError
from pagewire.ipc.outputs import StepStats
from tools.gpu_check import hugging_face, presence
from tools.gpu_check.__main__ import main
from tools.gpu_check.checkpoint import write_checkpoint
from tools.gpu_check.offline import Sample, decode_window, percentile
from tools.gpu_check.op_rates import OpRates
from tools.gpu_check.parts import BUDGET_S, PARTS, Part, SkipPart, run_all, run_part
from tools.gpu_check.records import (
    AnyRecord,
    Ceiling,
    Check,
    Machine,
    OfflineRun,
    PartEnd,
    RecordWriter,
    ServedRun,
    read_records,
)
from tools.gpu_check.roof import data_sheet
from tools.gpu_check.setting import Setting, Share, make_setting
from tools.gpu_check.settling import settle


@pytest.fixture
def setting(tmp_path: Path) -> Setting:
    return make_setting("cpu", tmp_path)


class TestRecords:
    def test_records_come_back_as_they_were(self, tmp_path: Path):
        records: list[AnyRecord] = [
            Ceiling(name="copy", value=4000.0, unit="GB/s"),
            Check(op="rms_norm", case="3 x 4", error=None, limit=0.1, failure="boom"),
            PartEnd(part="ceilings", outcome="done", seconds=1.0),
        ]
        writer = RecordWriter(tmp_path / "records")
        for record in records:
            writer.add(record)
        assert read_records(tmp_path / "records") == records

    def test_a_line_that_was_cut_off_is_left_out(self, tmp_path: Path):
        path = tmp_path / "records"
        RecordWriter(path).add(Ceiling(name="read", value=1.0, unit="GB/s"))
        with path.open("ab") as file:
            file.write(b'{"type":"Ceil')
        assert len(read_records(path)) == 1

    def test_no_file_is_no_records(self, tmp_path: Path):
        assert read_records(tmp_path / "none") == []


class TestParts:
    def run(self, tmp_path: Path, parts: list[Part], codes: dict[str, str], budget_s: float = 60.0) -> list[PartEnd]:
        def command(part: Part, share: Share) -> list[str]:
            return [sys.executable, "-c", codes[part.name], str(share.first), str(share.step)]

        records = run_all(parts, command, tmp_path / "records", budget_s, lambda line: None)
        return [record for record in records if isinstance(record, PartEnd)]

    def test_a_part_that_fails_or_hangs_costs_itself_alone(self, tmp_path: Path):
        parts = [Part("bad", "", 30.0), Part("hangs", "", 0.5), Part("good", "", 30.0)]
        codes = {
            "bad": "raise SystemExit('no such kernel')",
            "hangs": "import threading; threading.Event().wait()",
            "good": "",
        }
        bad, hangs, good = self.run(tmp_path, parts, codes)
        assert (bad.outcome, bad.reason) == ("failed", "no such kernel")
        assert hangs.outcome == "out of time"
        assert good.outcome == "done"

    def test_without_time_left_a_part_is_not_begun(self, tmp_path: Path):
        [ended] = self.run(tmp_path, [Part("late", "", 30.0)], {"late": "raise SystemExit(1)"}, budget_s=1.0)
        assert ended.outcome == "skipped"

    def test_a_part_that_lacks_what_need_not_be_there_is_skipped(self, tmp_path: Path):
        code = "import sys; sys.stderr.write('transformers is missing\\n'); raise SystemExit(3)"
        [ended] = self.run(tmp_path, [Part("other", "", 30.0)], {"other": code})
        assert (ended.outcome, ended.reason) == ("skipped", "transformers is missing")

    def test_processes_do_a_part_together(self, tmp_path: Path):
        code = (
            "import sys, threading, pathlib; share, count = map(int, sys.argv[1:]);"
            f"here = pathlib.Path({str(tmp_path)!r});"
            "(here / f'share {share}').touch();"
            # Each waits for all: they only end if they run at the same time.
            "[threading.Event().wait(0.01) for _ in iter(lambda: len(list(here.glob('share *'))) < count, False)]"
        )
        [ended] = self.run(tmp_path, [Part("shared", "", 60.0, processes=3)], {"shared": code})
        assert ended.outcome == "done"
        assert len(list(tmp_path.glob("share *"))) == 3

    def test_a_shared_part_ends_as_the_worst_of_its_processes(self, tmp_path: Path):
        fails = "import sys; sys.argv[1] == '1' and sys.exit('no such kernel')"
        hangs = "import sys, threading; sys.argv[1] == '0' and threading.Event().wait()"
        parts = [Part("fails", "", 30.0, processes=3), Part("hangs", "", 3.0, processes=2)]
        failed, late = self.run(tmp_path, parts, {"fails": fails, "hangs": hangs})
        assert (failed.outcome, failed.reason) == ("failed", "no such kernel")
        assert (late.outcome, late.reason) == ("out of time", "more than 3 s")

    def test_the_limits_leave_time_for_what_goals_need(self):
        names = [part.name for part in PARTS]
        promised = PARTS[: names.index("transformers") + 1]
        assert sum(part.limit_s for part in promised) <= BUDGET_S
        assert {"ceilings", "correctness", "engine, offline"} < {part.name for part in promised}

    def test_without_transformers_its_part_says_so(self, setting: Setting, monkeypatch: pytest.MonkeyPatch):
        monkeypatch.setitem(sys.modules, "transformers", None)
        with pytest.raises(SkipPart, match="pip install transformers"):
            list(hugging_face.run(setting))

    def test_every_part_has_a_function(self):
        for part in PARTS:
            module, _, function = part.entry.partition(":")
            assert callable(getattr(importlib.import_module(f"tools.gpu_check.{module}"), function))

    def test_a_part_writes_what_its_function_yields(self, tmp_path: Path, setting: Setting):
        run_part(PARTS[0], setting, tmp_path / "records")
        kinds = [type(record).__name__ for record in read_records(tmp_path / "records")]
        assert kinds == ["Machine", "Ceiling", "Ceiling", "Ceiling"]


class TestRates:
    def test_every_op_of_a_step_is_timed(self, setting: Setting):
        rates = list(OpRates(setting, ReferenceOps()).dense_steps())
        assert {rate.op for rate in rates} == {
            "qkv", "attention", "output projection", "gate and up", "down", "output layer",
            "add_rms_norm", "silu_and_mul", "rotary", "store_kv",
        }  # fmt: skip
        assert {rate.num_rows for rate in rates} == {1, 3, 16}
        assert all(rate.seconds > 0 and rate.num_bytes > 0 for rate in rates)

    def test_copies_are_more_than_a_cache_holds_however_small_each_is(self, setting: Setting):
        rates = OpRates(dataclasses.replace(setting, device="cuda"), ReferenceOps())
        assert [rates._copies(num_bytes) for num_bytes in (4 << 20, 5 << 20, 64 << 20, 1 << 40)] == [64, 52, 4, 1]

    def test_a_weight_of_4_bits_counts_as_such(self, setting: Setting, monkeypatch: pytest.MonkeyPatch):
        rates = OpRates(setting, ReferenceOps())
        asked: list[int] = []
        monkeypatch.setattr(rates, "_copies", lambda num_bytes: asked.append(num_bytes) or 2)
        sizes = {"float16": 2 * 256 * 64, "int4": 256 * 64 * 5 // 8, "int8": 256 * 64 * 9 // 8 - 256 * 64 // 16}
        for layout in sizes:
            assert len(rates._weights(layout, 256, 64)) == 2
        assert asked == list(sizes.values())

    @pytest.mark.slow
    def test_draws_are_timed_where_the_device_draws(self, setting: Setting):
        rates = list(OpRates(setting, select_ops("triton", device=torch.device("cpu"))).dense_steps())
        draws = [rate for rate in rates if rate.op.startswith("draws")]
        assert [(rate.num_rows, rate.num_bytes) for rate in draws] == [(1, 4 * 1024), (3, 3 * 4 * 1024)]
        assert all(rate.seconds > 0 for rate in draws)


class TestDataSheets:
    @pytest.mark.parametrize(
        ("name", "sheet"),
        [
            ("NVIDIA H200", "h200"), ("NVIDIA H100 80GB HBM3", "h100"), ("NVIDIA H100 PCIe", "h100-pcie"),
            ("NVIDIA H100 NVL", "h100-nvl"), ("NVIDIA A100-SXM4-80GB", "a100"), ("NVIDIA A100-PCIE-40GB", "a100-40gb"),
            ("NVIDIA A100 80GB PCIe", "a100-pcie"), ("NVIDIA A10G", "a10"), ("NVIDIA A40", "a40"), ("Tesla T4", "t4"),
            ("NVIDIA L4", "l4"), ("NVIDIA L40S", "l40s"), ("Tesla V100-SXM2-16GB", "v100-16gb"),
            ("NVIDIA GeForce RTX 4090", "rtx-4090"), ("NVIDIA RTX 6000 Ada Generation", "rtx-6000-ada"),
            ("AMD Instinct MI300X", "mi300x"), ("AMD Instinct MI250X/MI250", "mi250x"),
            ("NVIDIA RTX A4000", None), ("NVIDIA RTX A1000", None), ("NVIDIA GeForce RTX 3090 Ti", None),
            ("NVIDIA GeForce RTX 4090 Laptop GPU", None), ("NVIDIA GH200 480GB", None), ("Quadro RTX 6000", None),
            ("NVIDIA T400", None),
        ],
    )  # fmt: skip
    def test_a_device_is_known_by_whole_words(self, name: str, sheet: str | None):
        found = data_sheet([Machine(device=name, memory_bytes=0, versions={}, date="")])
        assert (found and found.name) == sheet


class TestPresence:
    @pytest.mark.parametrize("error", [ConfigError("it is too old."), MachineError("it is taken.")])
    def test_why_a_gpu_can_not_be_checked_is_said(
        self, error: Exception, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
    ):
        def refuse(*_: object) -> None:
            raise error

        monkeypatch.setattr(presence, "select_device", refuse)
        assert presence.main() == 2
        assert capsys.readouterr().err == f"there is no GPU to check: {error}\n"

    def test_it_is_asked_in_another_process_whose_end_is_an_answer_too(self, monkeypatch: pytest.MonkeyPatch):
        def answer(code: int, errors: str) -> None:
            def run(command: list[str], **_: object) -> subprocess.CompletedProcess[str]:
                return subprocess.CompletedProcess(command, code, "", errors)

            monkeypatch.setattr(subprocess, "run", run)

        answer(0, "a warning")
        assert presence.why_no_gpu() is None
        answer(2, "a warning\nthere is no GPU to check: it is taken.\n")
        assert presence.why_no_gpu() == "there is no GPU to check: it is taken."
        answer(-11, "")
        assert presence.why_no_gpu() == "what looked for a GPU ended with exit code -11: no message"


def samples(*steps: tuple[float, int, int]) -> list[Sample]:
    """Samples of (time, prompt tokens, output tokens) as counters."""
    return [
        Sample(
            time_s,
            StepStats(
                num_steps=index,
                num_prompt_tokens=prompt,
                num_generation_tokens=output,
                num_filled_slots=prompt + output,
                device_s=0.5 * time_s,
                host_gap_s=0.01 * index,
            ),
        )
        for index, (time_s, prompt, output) in enumerate(steps)
    ]


class TestOffline:
    def test_the_window_is_where_all_decode_and_none_prefills(self):
        window = decode_window(
            samples((0, 0, 0), (1, 10, 1), (2, 20, 3), (3, 20, 5), (4, 20, 7), (6, 20, 9), (7, 20, 10)), 2
        )
        assert window is not None
        assert window.step_s == (1, 1, 2)
        assert window.context == pytest.approx((25 + 27 + 29) / 3 / 2)
        assert window.device_s == pytest.approx(2 / 3)
        assert window.host_gap_s == pytest.approx(0.01)

    def test_too_few_steps_are_no_window(self):
        assert decode_window(samples((0, 0, 0), (1, 10, 2), (2, 10, 4)), 2) is None
        assert decode_window([], 1) is None

    def test_percentiles(self):
        assert percentile([3.0, 1.0, 2.0], 0.5) == 2.0
        assert percentile([3.0, 1.0, 2.0], 0.99) == 3.0
        assert percentile([1.0], 0.99) == 1.0


class TestSettling:
    def settled(self, num_captures: int, limit_s: float = 100.0, capture_s: float = 0.3) -> tuple[bool, int]:
        """Whether it settled with an engine that captures so many graphs when it is quiet, and how many were left."""
        now, left, quiet_since = 0.0, num_captures, 0.0

        def ask() -> None:
            nonlocal now, left, quiet_since
            while left and quiet_since + 0.02 < now:
                left -= 1
                quiet_since += capture_s
            now = max(now, quiet_since) + 0.005
            quiet_since = now

        def pause(seconds: float) -> None:
            nonlocal now
            now += seconds

        return settle(ask, limit_s, clock=lambda: now, pause=pause), left

    @pytest.mark.parametrize("num_captures", [0, 1, 35])
    def test_it_waits_for_the_last_capture(self, num_captures: int):
        assert self.settled(num_captures) == (True, 0)

    def test_it_gives_up_in_time(self):
        is_settled, left = self.settled(200, limit_s=20.0)
        assert not is_settled
        assert left > 0


class TestCheckpoint:
    def test_it_has_the_shape(self, setting: Setting):
        config = load_model_config(write_checkpoint(setting.model, setting.directory / "model"))
        same = {"model_path": "", "bos_token_id": None, "eos_token_ids": ()}
        assert msgspec.structs.replace(config, **same) == setting.model

    def test_of_llama_3_1_8b_too(self, tmp_path: Path):
        model = make_setting("cuda", tmp_path).model
        config = load_model_config(write_checkpoint(model, tmp_path / "model"))
        assert config.rope_scaling == model.rope_scaling
        assert config.tokenizer_size == config.vocab_size == 128_256

    def test_words_of_benchmarks_are_one_token_each(self, setting: Setting):
        directory = write_checkpoint(setting.model, setting.directory / "model")
        tokenizer = load_tokenizer(directory)
        text = random_words(random.Random(5), 40)
        assert len(tokenizer.encode(text, add_special_tokens=False)) == 40
        assert len(WORDS) > 150


@pytest.mark.slow
def test_without_a_gpu_it_says_so_and_exits_with_2(capsys: pytest.CaptureFixture[str]):
    if torch.cuda.is_available():
        pytest.skip("there is one here")
    assert main([]) == 2
    assert capsys.readouterr().err.startswith("gpu_check: there is no GPU to check: ")


def test_a_served_run_is_held_against_what_was_published(setting: Setting):
    from tools.gpu_check.goals import goals

    run = ServedRun(
        request_rate=10.0, num_requests=100, prompt_tokens=256, output_tokens=240, output_tokens_per_s=2300.0,
        ttft_ms=(40.0, 130.0), itl_ms=(7.5, 9.0),
    )  # fmt: skip
    found = {goal.text: goal.is_met for goal in goals(setting.model, [run], None)}
    assert [is_met for text, is_met in found.items() if text.startswith("served")] == [True, True, False, True]


@pytest.mark.slow
def test_a_trial_on_a_cpu_runs_the_engine_and_writes_both_files(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    output = tmp_path / "trial"
    parts = ["--only", "ceilings", "--only", "engine, offline"]
    assert main(["--device", "cpu", "--output", str(output), *parts]) == 0
    records = msgspec.json.decode(output.with_suffix(".json").read_bytes(), type=list[AnyRecord])
    runs = [record for record in records if isinstance(record, OfflineRun)]
    assert [run.num_requests for run in runs] == [1, 3]
    assert all(run.decode_tokens_per_s and run.device_ms for run in runs)
    report = output.with_suffix(".md").read_text(encoding="utf-8")
    assert "### Offline" in report
    assert report in capsys.readouterr().out
