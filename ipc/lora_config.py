"""LoRA adapters: small changes to the model's weights that requests choose by name."""

from __future__ import annotations

import re
from typing import Annotated, Literal, NamedTuple

import msgspec
from msgspec import Meta

from .errors import ConfigError

MAX_RANK = 512  # beyond it an adapter is no smaller than what it changes
MAX_ADAPTERS = 1024

_NAME = re.compile(r"[^\x00-\x1f\x7f]{1,256}")


class LoraModule(NamedTuple):
    """One adapter as the command line names it.

    Attributes:
        name: how requests ask for it.
        path: its directory.
        base_model_name: what it was made for; empty: the served model.
        digest: of its files, as `list_adapters` tells it: others are not taken. Empty: whatever is there.
    """

    name: str
    path: str
    base_model_name: str = ""
    digest: str = ""


class LoraConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """LoRA adapters, which requests ask for by their names."""

    enable_lora: Annotated[bool, Meta(description="Serve LoRA adapters.")] = False
    lora_modules: Annotated[
        tuple[str, ...],
        Meta(
            description='Adapters of the start: name=path, or JSON {"name": ..., "path": ..., "base_model_name": ...}. '
            "A path is a directory as PEFT writes it."
        ),
    ] = ()
    max_loras: Annotated[int, Meta(description="Most adapters that are loaded at once.")] = 8
    max_lora_rank: Annotated[int, Meta(description="Highest rank that an adapter may have.")] = 16
    max_cpu_loras: Annotated[
        int | None,
        Meta(description="The same as --max-loras, of which the higher counts: all that is loaded is ready to run."),
    ] = None
    lora_dtype: Annotated[
        Literal["auto"], Meta(description="Type that adapters are kept in. auto: that of the model's weights.")
    ] = "auto"

    def __post_init__(self) -> None:
        if not 1 <= self.max_loras <= MAX_ADAPTERS:
            raise ConfigError(f"--max-loras {self.max_loras} must be from 1 to {MAX_ADAPTERS}.")
        if not 1 <= self.max_lora_rank <= MAX_RANK:
            raise ConfigError(f"--max-lora-rank {self.max_lora_rank} must be from 1 to {MAX_RANK}.")
        if self.max_cpu_loras is not None and not self.max_loras <= self.max_cpu_loras <= MAX_ADAPTERS:
            raise ConfigError(
                f"--max-cpu-loras {self.max_cpu_loras} must be from --max-loras {self.max_loras} to {MAX_ADAPTERS}."
            )
        if self.lora_modules and not self.enable_lora:
            raise ConfigError("--lora-modules names adapters, and nothing serves them; give --enable-lora as well.")
        names = [module.name for module in self.modules]
        for name in names:
            if names.count(name) > 1:
                raise ConfigError(f"--lora-modules has the name {name!r} twice; give each adapter its own.")
        if len(names) > self.max_loaded:
            raise ConfigError(
                f"--lora-modules names {len(names)} adapters, and --max-loras {self.max_loras} may be loaded; raise it."
            )

    @property
    def max_loaded(self) -> int:
        """Most adapters that are loaded at once."""
        return max(self.max_loras, self.max_cpu_loras or 0)

    @property
    def modules(self) -> tuple[LoraModule, ...]:
        """The adapters of the start.

        Raises:
            ConfigError: one of them can't be read.
        """
        return tuple(_read_module(text) for text in self.lora_modules)


def check_adapter_name(name: str) -> str | None:
    """Return what is wrong with a name for an adapter; None: nothing."""
    if _NAME.fullmatch(name) is None:
        return "must be a text of 1 to 256 characters without control characters"
    return None


def spell_module(module: LoraModule) -> str:
    """Return an adapter as `lora_modules` has it."""
    return msgspec.json.encode(module._asdict()).decode()


class _JsonModule(msgspec.Struct, forbid_unknown_fields=True):
    name: str
    path: str
    base_model_name: str | None = None
    digest: str | None = None


def _read_module(text: str) -> LoraModule:
    if text.lstrip().startswith("{"):
        try:
            given = msgspec.json.decode(text, type=_JsonModule)
        except msgspec.DecodeError as exc:
            raise ConfigError(
                f'--lora-modules {text}: {exc}; give {{"name": ..., "path": ...}}, or name=path.'
            ) from exc
        module = LoraModule(given.name, given.path, given.base_model_name or "", given.digest or "")
    else:
        name, separator, path = text.partition("=")
        if not separator:
            raise ConfigError(f"--lora-modules {text} must be name=path.")
        module = LoraModule(name, path)
    wrong = check_adapter_name(module.name)
    if wrong is not None:
        raise ConfigError(f"--lora-modules {text}: the name {wrong}.")
    if not module.path:
        raise ConfigError(f"--lora-modules {text}: the path is empty; name the adapter's directory.")
    return module
