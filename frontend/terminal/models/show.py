"""What a model is, in a page: its shape, how it is stored, what it takes to serve it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import msgspec

from pagewire.checkpoint.estimate.roofline import kv_bytes_per_token
from pagewire.checkpoint.estimate.served import KVLayout, Served
from pagewire.checkpoint.estimate.stored_format import stored_bits
from pagewire.checkpoint.estimate.weights import num_active_parameters, num_parameters, weight_bytes
from pagewire.checkpoint.loading import load_model_config
from pagewire.checkpoint.model_config import ModelConfig
from pagewire.checkpoint.placement import Placement
from pagewire.checkpoint.quantization.describe import describe_quantization
from pagewire.checkpoint.resolve import resolve_config
from pagewire.checkpoint.sources.inventory import StoredModel, list_models
from pagewire.checkpoint.tokenizer.load import read_tokenizer
from pagewire.ipc.config import GPU_STEP_LIMITS
from pagewire.ipc.errors import ConfigError

from .config import ShowConfig
from .store import readable_size

Say = Callable[[str], None]

_KV = KVLayout(name="16 bits", bytes_a_value=2)


def show(name: str, config: ShowConfig, say: Say) -> int:
    """Print what a model is; of a hub model that was not fetched, what its config.json says. Return the exit code.

    Raises:
        ConfigError: there is no such model, or it is one that can't be served.
    """
    cache = None if config.store.download_dir is None else Path(config.store.download_dir).expanduser()
    stored = _stored(name, cache)
    if stored is not None and config.store.revision is None:
        path = stored.path
    else:
        path = resolve_config(name, revision=config.store.revision, download_dir=cache)
    model = load_model_config(path)
    template = _template(path)
    if config.template:
        if template is None:
            raise ConfigError(f"{name} has no chat template here; `pagewire models pull {name}` fetches all its files.")
        say(template)
        return 0
    facts = _facts(name, path, model, template)
    facts["size"] = "not fetched" if stored is None and not _has_weights(path) else readable_size(_size(path))
    if config.json:
        say(msgspec.json.format(msgspec.json.encode(facts)).decode())
        return 0
    width = max(map(len, facts))
    for title, fact in facts.items():
        say(f"{title.replace('_', ' '):<{width}}  {fact}")
    return 0


def _stored(name: str, cache: Path | None) -> StoredModel | None:
    """Return the model of that name on this machine, or the only one of a repository of GGUF files."""
    models = list_models(cache)
    named = [each for each in models if each.name.lower() == name.lower()]
    of_repository = [each for each in models if each.name.lower().partition(":")[0] == name.lower()]
    names = list(dict.fromkeys(each.name for each in of_repository))  # of several revisions the first counts
    if not named and len(names) > 1:
        raise ConfigError(f"of {name} there are {', '.join(names)}; name one of them.")
    return next(iter(named or of_repository), None)


def _facts(name: str, path: Path, model: ModelConfig, template: str | None) -> dict[str, str]:
    served = Served(model=model, bits=stored_bits(model), kv=_KV, limits=GPU_STEP_LIMITS, utilization=0.9)
    parameters, active = num_parameters(model), num_active_parameters(model)
    weights = weight_bytes(model, served.bits, Placement())
    kv = kv_bytes_per_token(served, Placement())
    lengths = [length for length in (4096, model.max_position) if length <= model.max_position]
    experts = "" if active == parameters else f", {active / 1e9:.2f} billion compute a token"
    return {
        "model": name,
        "path": str(path),
        "architecture": model.architecture,
        "parameters": f"{_count(parameters)}{experts}",
        "shape": f"{model.num_layers} layers, hidden {model.hidden_size}, {model.num_heads} query and "
        f"{model.num_kv_heads} KV heads of {model.head_dim}",
        "vocabulary": f"{model.vocab_size:,} tokens",
        "context": f"{model.max_position:,} tokens",
        "quantization": _quantization(model),
        "chat_template": _described(template),
        "memory_of_weights": f"{readable_size(weights)} as {served.bits.name}",
        "memory_of_KV": f"{readable_size(kv)} a token in {_KV.name}"
        + "".join(f", {readable_size(kv * length)} for {length:,}" for length in dict.fromkeys(lengths)),
    }


def _quantization(model: ModelConfig) -> str:
    if model.packed_type is not None:
        return f"GGUF, mostly {model.packed_type}"
    if model.quantization is not None:
        return describe_quantization(model.quantization)
    return f"none, {model.dtype}"


def _template(path: Path) -> str | None:
    """Return the chat template; None if there is none, or the tokenizer's files were not fetched."""
    try:
        _, facts = read_tokenizer(path)
    except ConfigError:
        return None
    return facts.chat_templates.get("default") or next(iter(facts.chat_templates.values()), None)


def _described(template: str | None) -> str:
    if template is None:
        return "none here"
    knows = [word for word, mark in (("tools", "tools"), ("reasoning", "<think>")) if mark in template]
    return f"{len(template)} characters" + (f", knows {' and '.join(knows)}" if knows else "")


def _has_weights(path: Path) -> bool:
    return path.is_file() or any(path.glob("*.safetensors"))


def _size(path: Path) -> int:
    files = [path] if path.is_file() else [file for file in path.rglob("*") if file.is_file()]
    return sum(file.stat().st_size for file in files)


def _count(number: int) -> str:
    return f"{number / 1e9:.2f} billion" if number >= 1e9 else f"{number / 1e6:.1f} million"
