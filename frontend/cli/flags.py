"""The flags, made from the fields of the config structs, and the way back from given flags to configs.

A field with a description is a flag: `max_num_seqs` becomes `--max-num-seqs`. Nothing is named twice, and no default
stands here: a flag that is not given is left out, and the struct fills it in.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, TypeVar

import click
import msgspec
from msgspec import inspect

from pagewire.ipc.config import EngineConfig
from pagewire.ipc.errors import ConfigError
from pagewire.ipc.server_config import ListenConfig, ServerConfig

from ..bench.serving.config import BenchServeConfig
from .refused import ALIAS_NOTES, CHOICE_ALIASES, REFUSED_CHOICES
from .speculative import JSON_DESCRIPTION, JSON_FIELD, with_speculation
from .stored_names import complete_model_or_path
from .values import Choice, JsonObject, Number, Text, WholeNumber

_SHORT_FLAGS = {
    "tensor_parallel_size": ["-tp", "--tp"],
    "pipeline_parallel_size": ["-pp", "--pp"],
    "data_parallel_size": ["-dp", "--dp"],
    "enable_expert_parallel": ["-ep"],
    "async_scheduling": ["-asc"],
    "distributed_executor_backend": ["--executor-backend"],
    "gpu_memory_utilization": ["--device-memory-utilization"],
    "quantization": ["-q"],
    "input_file": ["-i"],
    "output_file": ["-o"],
    "max_waiting_requests": ["--max-num-queued-reqs"],
    "max_waiting_tokens": ["--max-num-queued-tokens"],
    JSON_FIELD: ["-sc"],
    "speculative_method": ["--spec-method"],
    "speculative_model": ["--spec-model"],
    "num_speculative_tokens": ["--spec-tokens"],
    "prompt_lookup_max": ["--ngram-prompt-lookup-max"],
    "prompt_lookup_min": ["--ngram-prompt-lookup-min"],
}
# Switches whose opposite has a name of its own.
_OPPOSITES = {"symmetric": "--asymmetric"}
_KEYS_TO_SEND = ["PAGEWIRE_API_KEY", "VLLM_API_KEY", "OPENAI_API_KEY"]
_ENVIRONMENT = {
    ("server", "allow_runtime_lora_updating"): ["VLLM_ALLOW_RUNTIME_LORA_UPDATING"],
    ("server", "enable_admin"): ["VLLM_SERVER_DEV_MODE"],
    ("server", "api_key"): ["PAGEWIRE_API_KEY", "VLLM_API_KEY"],
    ("bench", "api_key"): _KEYS_TO_SEND,
    ("answer", "api_key"): _KEYS_TO_SEND,
}
# None in these fields means "the engine chooses", and can be asked for by name.
_AUTOMATIC = {"max_model_len"}
# Their values may also come as one JSON list, as vLLM's users write them: --allowed-origins '["https://a.example"]'.
_JSON_LISTS = {"allowed_origins", "allowed_methods", "allowed_headers"}
_MODELS = {"model", "speculative_model"}
T = TypeVar("T")

_SECTION_PATH = re.compile(r" - at `\$\.(?:\w+\.)?(\w+)[^`]*`")


@dataclass(frozen=True)
class Flag:
    """One field of a config, as the command line shows it.

    Attributes:
        section: the config's name inside `EngineConfig` (model, cache, ...), "engine" for its own fields, "listen",
            "server", "dataset", "bench".
        title: what the section is about.
        field: the struct field's name.
        type_info: the field's type without its description.
        default: the struct's default; a callable default stands for an empty collection.
    """

    section: str
    title: str
    field: str
    type_info: inspect.Type
    default: Any  # Any: each field has its own type
    description: str

    @property
    def name(self) -> str:
        """The flag as it is typed."""
        return "--" + self.field.replace("_", "-")

    @property
    def is_many(self) -> bool:
        """Whether several values may be given."""
        return isinstance(self.type_info, inspect.VarTupleType)

    @property
    def is_object(self) -> bool:
        """Whether the value is a JSON object, or a mapping in a file."""
        return isinstance(self.type_info, inspect.DictType)

    @property
    def is_switch(self) -> bool:
        """Whether it is --x or --no-x."""
        return isinstance(self.type_info, inspect.BoolType)

    @property
    def opposite(self) -> str:
        """A switch's other side as it is typed."""
        return _OPPOSITES.get(self.field, f"--no-{self.name.removeprefix('--')}")

    @property
    def shown_default(self) -> str:
        """The default as help texts show it; empty where the description says what happens."""
        if self.default is None or self.default == () or self.default is msgspec.NODEFAULT:
            return ""
        if self.is_switch:
            return "on" if self.default else "off"
        if isinstance(self.default, tuple):
            return " ".join(self.default)
        return str(self.default)


class FlagOption(click.Option):
    """A click option that knows its flag."""

    def __init__(self, flag: Flag) -> None:
        self.flag = flag
        names = [flag.name, *_SHORT_FLAGS.get(flag.field, ())]
        if flag.is_switch:
            names = [f"{flag.name}/{flag.opposite}", *_SHORT_FLAGS.get(flag.field, ())]
        help_text = flag.description + (f"  [default: {flag.shown_default}]" if flag.shown_default else "")
        is_required = flag.default is msgspec.NODEFAULT
        # click takes None for a value: with it as the default, nothing would ever be missing.
        defaults: dict[str, Any] = {} if is_required else {"default": None}
        super().__init__(
            [*names, flag.field],
            type=_click_type(flag),
            multiple=flag.is_many,
            **defaults,
            required=is_required,
            help=help_text,
            envvar=_ENVIRONMENT.get((flag.section, flag.field)),
            callback=_spread_json if flag.field in _JSON_LISTS else None,
            shell_complete=complete_model_or_path if flag.field in _MODELS else None,
        )


def engine_flags() -> list[Flag]:
    """Return the flags of the engine: the model, its cache, its scheduler, its devices."""
    flags = _nested_flags_of(EngineConfig, "engine")
    # One flag is no field of its own: it says several at once.
    last = max(index for index, flag in enumerate(flags) if flag.section == "speculative")
    json_type = inspect.DictType(inspect.StrType(), inspect.AnyType())
    as_json = Flag("speculative", flags[last].title, JSON_FIELD, json_type, None, JSON_DESCRIPTION)
    return [*flags[: last + 1], as_json, *flags[last + 1 :]]


def listen_flags() -> list[Flag]:
    """Return the flags that say who may attach to an engine without HTTP."""
    return _flags_of(ListenConfig, "listen")


def server_flags() -> list[Flag]:
    """Return the flags of the HTTP frontend."""
    return _flags_of(ServerConfig, "server")


def bench_serve_flags() -> list[Flag]:
    """Return the flags of `pagewire bench serve`."""
    return config_flags(BenchServeConfig)


def config_flags(config: type) -> list[Flag]:
    """Return the flags of a command that has a config of its own, by its type: those of a dataset in it come first."""
    return _nested_flags_of(config, "bench")


def build_engine_config(given: Mapping[str, object]) -> EngineConfig:
    """Return the config that the given values describe, with the defaults for all others.

    Args:
        given: values by field name; those of other configs are passed over.

    Raises:
        ConfigError: a value is out of its range.
    """
    return _convert(_sorted_in(engine_flags(), with_speculation(given), "engine"), EngineConfig)


def build_server_config(given: Mapping[str, object]) -> ServerConfig:
    """Return the frontend's config; arguments and errors as in `build_engine_config`."""
    return _convert(_only(server_flags(), given), ServerConfig)


def build_listen_config(given: Mapping[str, object]) -> ListenConfig:
    """Return who may attach to an engine; arguments and errors as in `build_engine_config`."""
    return _convert(_only(listen_flags(), given), ListenConfig)


def build_config(config: type[T], given: Mapping[str, object]) -> T:
    """Return the config of such a command; arguments and errors as in `build_engine_config`."""
    return _convert(_sorted_in(config_flags(config), given, "bench"), config)


def spelled_out(flags: Iterable[Flag], given: Mapping[str, object]) -> list[str]:
    """Return given values as arguments of a command line, for a command that starts another one."""
    arguments: list[str] = []
    for flag in flags:
        value = given.get(flag.field)
        if value is None:
            continue
        if isinstance(value, bool):
            arguments.append(flag.name if value else flag.opposite)
        elif isinstance(value, Mapping):
            arguments += [flag.name, msgspec.json.encode(value).decode()]
        elif isinstance(value, tuple):
            arguments += [part for each in value for part in (flag.name, str(each))]
        else:
            arguments += [flag.name, str(value)]
    return arguments


def given_values(ctx: click.Context, options: Iterable[FlagOption]) -> dict[str, object]:
    """Return the values that the command line, the environment or a config file gave, by field name."""
    fields = (option.flag.field for option in options)
    unset = (click.core.ParameterSource.DEFAULT, None)
    return {field: ctx.params[field] for field in fields if ctx.get_parameter_source(field) not in unset}


def _only(flags: Iterable[Flag], given: Mapping[str, object]) -> dict[str, object]:
    return {flag.field: _read_object(flag, given[flag.field]) for flag in flags if flag.field in given}


def _read_object(flag: Flag, value: object) -> object:
    """Return a value as the config has it: a JSON object comes from the command line as its text."""
    return msgspec.json.decode(value) if flag.is_object and isinstance(value, str) else value


def _sorted_in(flags: Iterable[Flag], given: Mapping[str, object], own_section: str) -> dict[str, Any]:
    """Return the given values as the nested config has them: those of each section in a mapping of its own."""
    nested: dict[str, Any] = {}
    for flag in flags:
        if flag.field in given:
            section = nested if flag.section == own_section else nested.setdefault(flag.section, {})
            section[flag.field] = _read_object(flag, given[flag.field])
    return nested


def _convert(values: dict[str, Any], cls: type[T]) -> T:
    try:
        return msgspec.convert(values, cls)
    except msgspec.ValidationError as exc:
        # A bound of a field (Meta) failed: "Expected `int` >= -1 - at `$.model.max_logprobs`"
        text = _SECTION_PATH.sub(lambda found: f" for --{found[1].replace('_', '-')}", str(exc))
        raise ConfigError(f"{text}.") from exc


@functools.cache
def _fields(cls: type) -> tuple[tuple[str, inspect.Type, Any, str], ...]:
    """Return (name, type, default, description) of each field; an empty description marks what is no flag.

    Cached: several commands have the same configs, and reading their types is most of what `--help` takes.
    """
    return tuple(_read_fields(cls))


def _read_fields(cls: type) -> Iterator[tuple[str, inspect.Type, Any, str]]:
    struct = inspect.type_info(cls)
    assert isinstance(struct, inspect.StructType)
    for field in struct.fields:
        type_info, description = field.type, ""
        if isinstance(type_info, inspect.Metadata):
            description = (type_info.extra_json_schema or {}).get("description", "")
            type_info = type_info.type
        yield field.name, type_info, field.default, description


def _nested_flags_of(cls: type, own_section: str) -> list[Flag]:
    """Return the flags of the configs inside a config, a section each, and then its own ones."""
    sections = [(name, info.cls) for name, info, _, _ in _fields(cls) if isinstance(info, inspect.StructType)]
    return [
        *(flag for name, section in sections for flag in _flags_of(section, name)),
        *_flags_of(cls, own_section),
    ]


def _flags_of(cls: type, section: str) -> list[Flag]:
    title = (cls.__doc__ or "").partition("\n")[0].rstrip(".")
    return [
        Flag(section, title, name, _without_none(type_info), default, description)
        for name, type_info, default, description in _fields(cls)
        if description
    ]


def _spread_json(ctx: click.Context, param: click.Parameter, values: tuple[str, ...] | None) -> tuple[str, ...] | None:
    """Return the values of a flag, with those of a JSON list each for itself."""
    if not values or not values[0].startswith("["):
        return values
    try:
        return tuple(msgspec.json.decode(" ".join(values), type=list[str]))
    except msgspec.DecodeError as exc:
        raise click.BadParameter(
            f"{values[0]!r} is no JSON list of texts; give the values one by one.", ctx, param
        ) from exc


def _without_none(type_info: inspect.Type) -> inspect.Type:
    """Return T for `T | None`: a flag that is not given is None anyway."""
    if isinstance(type_info, inspect.UnionType):
        rest = [part for part in type_info.types if not isinstance(part, inspect.NoneType)]
        assert len(rest) == 1, f"a flag has one type: {type_info}"
        return rest[0]
    return type_info


def _click_type(flag: Flag) -> click.ParamType[Any]:  # Any: each flag has its own type
    match flag.type_info:
        case inspect.IntType():
            return WholeNumber(is_automatic=flag.field in _AUTOMATIC)
        case inspect.FloatType():
            return Number()
        case inspect.BoolType():
            return click.BOOL
        case inspect.LiteralType(values=values):
            words = [str(value) for value in values]
            return Choice(
                words,
                CHOICE_ALIASES.get(flag.field, {}),
                REFUSED_CHOICES.get(flag.field, {}),
                ALIAS_NOTES.get(flag.field, {}),
            )
        case inspect.DictType():
            return JsonObject()
        case inspect.StrType() | inspect.VarTupleType(item_type=inspect.StrType()):
            return Text()
        case other:
            raise TypeError(f"{flag.name}: no flag can have the type {other}")
