"""The tokenizer of a Hugging Face directory: tokenizer.json, and what tokenizer_config.json adds to it.

Source: the file formats of the transformers and tokenizers libraries.
"""

from __future__ import annotations

import hashlib
import importlib.util
import logging
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import msgspec
from tokenizers import AddedToken, Tokenizer, processors

from pagewire.ipc.errors import ConfigError

from ..sources.packaged import default_cache_directory
from .facts import TokenizerFacts

logger = logging.getLogger(__name__)

_EXTRA = "slow-tokenizers"
_EXTRA_MODULES = ("transformers", "sentencepiece", "google.protobuf")
_SLOW_FILES = ("tokenizer.model", "spiece.model", "vocab.json", "merges.txt")
# Files whose contents decide what a conversion gives.
_CONVERTED_FILES = (*_SLOW_FILES, "tokenizer_config.json", "special_tokens_map.json", "added_tokens.json")
_CONVERSION_TIMEOUT_S = 300.0
# Any: JSON objects of a file that each model's authors write as they like.
_JsonObject = dict[str, Any]


def read_directory(model_dir: Path, *, cache_dir: Path | None) -> tuple[Tokenizer, TokenizerFacts]:
    """Load a directory's tokenizer.

    Args:
        model_dir: a local directory in Hugging Face's layout.
        cache_dir: keeps a converted tokenizer.model, so that only the first start pays for it; None: where the packaged
            model is kept.

    Raises:
        ConfigError: if there is no tokenizer, or a file of it can't be used. The message names the file.
    """
    config = _read_json(model_dir / "tokenizer_config.json")
    roles = _read_json(model_dir / "special_tokens_map.json") | config
    special_tokens = {
        role: token
        for role, value in roles.items()
        if role.endswith("_token") and (token := _token_text(value)) is not None
    }
    tokenizer = _load_backend(model_dir, cache_dir)
    _add_missing_tokens(tokenizer, config, special_tokens)
    _apply_border_flags(tokenizer, config, special_tokens)
    facts = TokenizerFacts(special_tokens=special_tokens, chat_templates=_chat_templates(model_dir, config))
    return tokenizer, facts


def _load_backend(model_dir: Path, cache_dir: Path | None) -> Tokenizer:
    path = model_dir / "tokenizer.json"
    if path.is_file():
        return _load_json(path)
    if not any((model_dir / name).is_file() for name in _SLOW_FILES):
        raise ConfigError(
            f"{model_dir}: has no tokenizer: neither tokenizer.json nor tokenizer.model is there. Fetch the missing "
            "file from the model's page"
        )
    cached = (cache_dir or default_cache_directory()) / f"tokenizer-{_conversion_digest(model_dir)}.json"
    if not cached.is_file():
        _convert(model_dir, cached)
    return _load_json(cached)


def _load_json(path: Path) -> Tokenizer:
    try:
        return Tokenizer.from_file(str(path))
    except Exception as error:  # the library raises nothing narrower
        raise ConfigError(f"{path}: is no tokenizer that the tokenizers library can read: {error}") from error


def _convert(model_dir: Path, output: Path) -> None:
    missing = [name for name in _EXTRA_MODULES if not _is_installed(name)]
    if missing:
        raise ConfigError(
            f"{model_dir}: has no tokenizer.json, and converting its slow tokenizer needs {', '.join(missing)}: "
            f"pip install 'pagewire[{_EXTRA}]'"
        )
    logger.info("%s: has no tokenizer.json; converting its slow tokenizer through transformers", model_dir)
    try:
        output.parent.mkdir(parents=True, exist_ok=True)
        # Written beside the final name and renamed: a reader never meets half a file.
        with tempfile.TemporaryDirectory(dir=output.parent) as folder:
            partial = Path(folder) / output.name
            _run_conversion(model_dir, partial)
            partial.replace(output)
    except OSError as error:
        raise ConfigError(
            f"{output.parent}: can't keep a converted tokenizer: {error.strerror}. Set PAGEWIRE_CACHE to a directory "
            "that can be written"
        ) from error


def _run_conversion(model_dir: Path, output: Path) -> None:
    command = [sys.executable, "-m", "pagewire.checkpoint.tokenizer.convert", str(model_dir), str(output)]
    try:
        child = subprocess.run(
            command,
            capture_output=True,
            text=True,
            timeout=_CONVERSION_TIMEOUT_S,
            stdin=subprocess.DEVNULL,
            check=False,
        )
    except subprocess.TimeoutExpired:
        raise ConfigError(
            f"{model_dir}: converting its slow tokenizer took more than {_CONVERSION_TIMEOUT_S:.0f} s"
        ) from None
    if child.returncode != 0:
        reason = (child.stderr.strip().splitlines() or [f"exit code {child.returncode}"])[-1]
        raise ConfigError(f"{model_dir}: transformers can't convert its slow tokenizer: {reason}")


def _is_installed(module: str) -> bool:
    try:
        return importlib.util.find_spec(module) is not None
    except ModuleNotFoundError:  # the package that it is part of is missing
        return False


def _conversion_digest(model_dir: Path) -> str:
    digest = hashlib.sha256()
    for name in _CONVERTED_FILES:
        path = model_dir / name
        if path.is_file():
            content = path.read_bytes()
            digest.update(f"{name}:{len(content)}:".encode())
            digest.update(content)
    return digest.hexdigest()[:32]


def _add_missing_tokens(tokenizer: Tokenizer, config: _JsonObject, special_tokens: dict[str, str]) -> None:
    """Add the tokens that tokenizer_config.json knows and tokenizer.json lacks, as transformers does."""
    stated = config.get("added_tokens_decoder")
    entries = sorted(stated.items(), key=lambda item: int(item[0])) if isinstance(stated, dict) else []
    for _, entry in entries:
        content = _token_text(entry)
        if content is not None and tokenizer.token_to_id(content) is None:
            flags = {flag: bool(entry.get(flag, False)) for flag in ("single_word", "lstrip", "rstrip", "special")}
            tokenizer.add_tokens([AddedToken(content, normalized=bool(entry.get("normalized", True)), **flags)])
    known = {token.content for token in tokenizer.get_added_tokens_decoder().values()}
    named = [token for token in dict.fromkeys(special_tokens.values()) if token not in known]
    tokenizer.add_special_tokens([AddedToken(token, special=True, normalized=False) for token in named])


def _apply_border_flags(tokenizer: Tokenizer, config: _JsonObject, special_tokens: dict[str, str]) -> None:
    """Let `add_bos_token` and `add_eos_token`, where they are stated, overrule what tokenizer.json adds to a text."""
    flags = {flag: config[flag] for flag in ("add_bos_token", "add_eos_token") if isinstance(config.get(flag), bool)}
    if not flags:
        return
    bos = special_tokens.get("bos_token") if flags.get("add_bos_token") else None
    eos = special_tokens.get("eos_token") if flags.get("add_eos_token") else None
    borders = [(token, tokenizer.token_to_id(token)) for token in dict.fromkeys((bos, eos)) if token is not None]
    single = [token for token in (bos, "$A", eos) if token is not None]
    tokenizer.post_processor = processors.TemplateProcessing(single=single, special_tokens=borders)


def _chat_templates(model_dir: Path, config: _JsonObject) -> dict[str, str]:
    """Return the templates by name; files of their own come before what the configuration states."""
    templates: dict[str, str] = {}
    for source in (_read_json(model_dir / "chat_template.json").get("chat_template"), config.get("chat_template")):
        if isinstance(source, str):
            templates["default"] = source
        elif isinstance(source, list):
            templates |= {entry["name"]: entry["template"] for entry in source if _is_named_template(entry)}
    for path in sorted((model_dir / "additional_chat_templates").glob("*.jinja")):
        templates[path.stem] = path.read_text(encoding="utf-8")
    default = model_dir / "chat_template.jinja"
    if default.is_file():
        templates["default"] = default.read_text(encoding="utf-8")
    return templates


def _is_named_template(entry: object) -> bool:
    return isinstance(entry, dict) and isinstance(entry.get("name"), str) and isinstance(entry.get("template"), str)


def _token_text(value: object) -> str | None:
    """Return a token that is stated as a string or as an object with its content, None for anything else."""
    if isinstance(value, dict):
        value = value.get("content")
    return value if isinstance(value, str) and value else None


def _read_json(path: Path) -> _JsonObject:
    if not path.is_file():
        return {}
    try:
        return msgspec.json.decode(path.read_bytes(), type=_JsonObject)
    except msgspec.DecodeError as error:
        raise ConfigError(f"{path}: is not a JSON object: {error}") from error
