"""Which requests a benchmark sends. Flags are made from these fields, as in `pagewire.ipc.config`."""

from __future__ import annotations

from typing import Annotated, Literal

import msgspec
from msgspec import Meta

from pagewire.ipc.errors import ConfigError

DatasetName = Literal["random", "sharegpt", "prefix_repetition"]


class DatasetConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The requests."""

    dataset_name: Annotated[
        DatasetName, Meta(description="random words, conversations, or random words behind a few shared prefixes.")
    ] = "random"
    dataset_path: Annotated[
        str | None, Meta(description="ShareGPT JSON file; without it the sharegpt dataset is synthetic.")
    ] = None
    num_prompts: Annotated[int, Meta(ge=1, description="Requests to measure.")] = 1000
    seed: Annotated[int, Meta(description="Of prompts and arrivals: the same seed gives the same load.")] = 0
    random_input_len: Annotated[int, Meta(ge=1, description="Prompt tokens of a random request.")] = 1024
    random_output_len: Annotated[int, Meta(ge=1, description="Output tokens of a random request.")] = 128
    random_range_ratio: Annotated[
        float, Meta(description="Random lengths are drawn from len * (1 - r) to len * (1 + r).")
    ] = 0.0
    sharegpt_output_len: Annotated[
        int | None, Meta(description="Output tokens of every conversation, instead of its reply's length.")
    ] = None
    prefix_repetition_prefix_len: Annotated[int, Meta(ge=1, description="Tokens of a shared prefix.")] = 256
    prefix_repetition_suffix_len: Annotated[int, Meta(ge=1, description="Own tokens behind a prefix.")] = 256
    prefix_repetition_num_prefixes: Annotated[int, Meta(ge=1, description="Different prefixes.")] = 10
    prefix_repetition_output_len: Annotated[int, Meta(ge=1, description="Output tokens of each.")] = 128

    def __post_init__(self) -> None:
        if self.dataset_path is not None and self.dataset_name != "sharegpt":
            raise ConfigError(f"--dataset-path is for --dataset-name sharegpt; {self.dataset_name} makes its own text.")
        if not 0 <= self.random_range_ratio < 1:
            raise ConfigError(f"--random-range-ratio {self.random_range_ratio:g} must be from 0 to below 1.")
        if self.sharegpt_output_len is not None and self.sharegpt_output_len < 1:
            raise ConfigError(f"--sharegpt-output-len {self.sharegpt_output_len} must be at least 1.")
