"""The flags of `pagewire quantize`."""

from __future__ import annotations

import math
from typing import Annotated, Literal

import msgspec
from msgspec import Meta

from pagewire.ipc.errors import ConfigError

# Those that kernels of other engines take, too.
_GROUP_SIZES = (-1, 32, 64, 128)
LEAST_CALIBRATION_TOKENS = 2048
DEFAULT_CALIBRATION_TOKENS = 8192


class QuantizeConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """To what, and where to."""

    to: Annotated[
        Literal["int4", "int8", "fp8"],
        Meta(description="What the weights of linear layers are rounded to. Embedding, output layer and norms stay."),
    ]
    out: Annotated[str, Meta(description="The new checkpoint's directory.")]
    format: Annotated[
        Literal["compressed-tensors", "gptq"],
        Meta(description="How they are packed. vLLM and transformers read both. gptq: int4 and int8, symmetric."),
    ] = "compressed-tensors"
    group_size: Annotated[
        int | None,
        Meta(
            description="Input channels that share a scale: 32, 64 or 128; -1: all of a row. Default: 32 for int4, "
            "-1 for int8."
        ),
    ] = None
    symmetric: Annotated[
        bool | None, Meta(description="Without zero points, or with them. Default: with them for int4 alone.")
    ] = None
    calibrate: Annotated[
        str | None,
        Meta(
            description="A file of text like what the model will be asked: layers are rounded so that what they give "
            "along it changes little (GPTQ's error feedback). It takes minutes instead of seconds."
        ),
    ] = None
    calibration_tokens: Annotated[
        int | None, Meta(description="How much of that text is used: at least 2048. Default: 8192, or all.")
    ] = None
    max_shard_gb: Annotated[float, Meta(description="Largest file of weights, in GB.")] = 5.0
    overwrite: Annotated[bool, Meta(description="Replace what the directory holds.")] = False
    revision: Annotated[str | None, Meta(description="Branch, tag or commit of a hub model.")] = None
    download_dir: Annotated[
        str | None, Meta(description="Where fetched models are kept. Default: the hub's cache.")
    ] = None

    def __post_init__(self) -> None:
        if self.group_size is not None and self.group_size not in _GROUP_SIZES:
            raise ConfigError(f"--group-size {self.group_size} must be 32, 64, 128, or -1 (all channels of a row).")
        if self.calibration_tokens is not None:
            if self.calibrate is None:
                raise ConfigError("--calibration-tokens: there is no text; give --calibrate FILE, or leave it out.")
            if self.calibration_tokens < LEAST_CALIBRATION_TOKENS:
                raise ConfigError(
                    f"--calibration-tokens {self.calibration_tokens} must be at least {LEAST_CALIBRATION_TOKENS}."
                )
        if not 0 < self.max_shard_gb < math.inf:
            raise ConfigError(f"--max-shard-gb {self.max_shard_gb:g} must be a finite number above 0.")
        if self.to == "fp8":
            self._refuse_for_fp8()
        if self.format == "gptq" and self.symmetric is False:
            raise ConfigError(
                "--asymmetric: gptq is written symmetric, as kernels elsewhere take no zero points of it; leave the "
                "flag out, or give --format compressed-tensors."
            )

    def _refuse_for_fp8(self) -> None:
        if self.format == "gptq":
            raise ConfigError("--format gptq holds integers; give --to int4 or int8, or leave --format out.")
        if self.group_size is not None:
            raise ConfigError("--group-size: fp8 has one scale a row; leave the flag out.")
        if self.calibrate is not None:
            raise ConfigError(
                "--calibrate: fp8 is rounded number by number; give --to int4 or int8, or leave the flag out."
            )
        if self.symmetric is False:
            raise ConfigError("--asymmetric: fp8 has no zero points; leave the flag out.")
