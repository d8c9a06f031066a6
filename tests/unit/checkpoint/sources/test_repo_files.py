"""The needed files follow from the names alone."""

from __future__ import annotations

import pytest

from pagewire.checkpoint.sources.repo_files import choose_gguf, companion_files, group_gguf, safetensors_files
from pagewire.ipc.errors import ConfigError


def test_companions_are_the_configuration_and_tokenizer_at_the_top() -> None:
    files = ["config.json", "tokenizer.json", "tokenizer.model", "merges.txt", "chat_template.jinja", "README.md"]
    others = ["onnx/config.json", "original/params.json", "pytorch_model.bin", "notes.txt", "model.safetensors"]
    assert companion_files(files + others) == sorted(set(files) - {"README.md"})


def test_the_standard_file_counts_alone_and_consolidated_ones_never() -> None:
    assert safetensors_files(["model.safetensors", "model-int8.safetensors"]) == ["model.safetensors"]
    assert safetensors_files(["a.safetensors", "consolidated.00.safetensors", "x/b.safetensors"]) == ["a.safetensors"]


@pytest.mark.parametrize(
    ("name", "tag"),
    [
        ("SmolLM2-135M-Instruct.Q4_1.gguf", "Q4_1"),
        ("Qwen3-8B-Q4_K_M.gguf", "Q4_K_M"),
        ("qwen2.5-0.5b-instruct-q5_k_m.gguf", "q5_k_m"),
        ("Qwen3-8B-UD-Q4_K_XL.gguf", "UD-Q4_K_XL"),
        ("model-IQ2_XXS.gguf", "IQ2_XXS"),
        ("model-BF16.gguf", "BF16"),
        ("ggml-model-f16.gguf", "f16"),
        ("gpt-mxfp4.gguf", "mxfp4"),
        ("phi-2.gguf", None),
    ],
)
def test_tag_is_the_quantization_at_the_end_of_the_name(name: str, tag: str | None) -> None:
    assert [group.tag for group in group_gguf([name])] == [tag]


def test_shards_form_one_group_and_companions_of_other_kinds_are_left_out() -> None:
    files = [f"Q8_0/big-Q8_0-0000{number}-of-00003.gguf" for number in (3, 1, 2)]
    groups = group_gguf([*files, "mmproj-big-f16.gguf", "big.imatrix.gguf", "README.md", "big-Q4_0.gguf"])
    assert [(group.tag, group.files, group.num_shards) for group in groups] == [
        ("Q8_0", tuple(sorted(files)), 3),
        ("Q4_0", ("big-Q4_0.gguf",), 1),
    ]


def test_choice_is_exact_in_any_case_and_by_file_name() -> None:
    groups = group_gguf(["m-Q4_K_M.gguf", "m-Q4_K_S.gguf", "m-UD-Q4_K_M.gguf", "m.gguf"])

    def chosen(wanted: str) -> str:
        return choose_gguf(groups, "acme/m", wanted).files[0]

    assert chosen("q4_k_s") == "m-Q4_K_S.gguf"
    assert chosen("Q4_K_M") == "m-Q4_K_M.gguf"
    assert chosen("ud-q4_k_m") == "m-UD-Q4_K_M.gguf"
    assert chosen("M.gguf") == "m.gguf"


def test_ambiguous_absent_and_incomplete_choices_list_what_there_is() -> None:
    def message(files: list[str], wanted: str | None) -> str:
        with pytest.raises(ConfigError) as caught:
            choose_gguf(group_gguf(files), "acme/m", wanted)
        return caught.value.message

    two = ["a-Q4_0.gguf", "b-Q4_0.gguf"]
    assert message(two, "Q4_0") == "acme/m: 'Q4_0' fits a-Q4_0.gguf, b-Q4_0.gguf; name the file instead"
    assert message(["m-Q4_0.gguf", "m.gguf"], "Q8_0") == (
        "acme/m: has no GGUF model 'Q8_0'; available are Q4_0, m.gguf"
    )
    assert "TAG being one of Q4_0, Q8_0" in message(["m-Q4_0.gguf", "m-Q8_0.gguf"], None)
    assert "has 1 of 2 files" in message(["m-Q4_0-00001-of-00002.gguf"], "Q4_0")
    assert "holds no GGUF file" in message(["README.md"], None)
