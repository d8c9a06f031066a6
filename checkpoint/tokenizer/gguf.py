"""The tokenizer of a GGUF file, built from its metadata (`tokenizer.ggml.*`).

Two kinds of vocabulary: byte-level BPE with its merges (`model` = gpt2), and SentencePiece BPE with a score per token
(`model` = llama), whose merges follow from the scores.

Source: the GGUF specification (https://github.com/ggml-org/ggml/blob/master/docs/gguf.md); llama.cpp,
src/llama-vocab.cpp, for the defaults of what a file leaves out.
"""

from __future__ import annotations

import enum
import logging
from collections.abc import Iterable, Sequence
from pathlib import Path

from tokenizers import AddedToken, Tokenizer, decoders, models, normalizers, processors

from pagewire.ipc.errors import ConfigError

from ..gguf_file import GGUFFile
from .facts import TokenizerFacts
from .gguf_splits import SPLIT_RULES, SplitRule
from .pieces import REPLACEMENT_MARK

logger = logging.getLogger(__name__)

_ROLES = {
    "bos_token": "tokenizer.ggml.bos_token_id",
    "eos_token": "tokenizer.ggml.eos_token_id",
    "unk_token": "tokenizer.ggml.unknown_token_id",
    "pad_token": "tokenizer.ggml.padding_token_id",
}
_TEMPLATE_KEY = "tokenizer.chat_template"


class TokenType(enum.IntEnum):
    """What kind of token an entry is (`tokenizer.ggml.token_type`)."""

    NORMAL = 1
    UNKNOWN = 2
    CONTROL = 3
    USER_DEFINED = 4
    UNUSED = 5
    BYTE = 6


# Of Phi-3's whole tokens, all but these take the whitespace after them along, as its tokenizer.json says and GGUF
# doesn't. Its chat template breaks the line after each.
_KEEPING_WHITESPACE = frozenset({"<unk>", "<s>", "<|endoftext|>"})
_FOUND_WHOLE = (TokenType.CONTROL, TokenType.UNKNOWN, TokenType.USER_DEFINED)


class _Vocabulary:
    """What the metadata states of the vocabulary, checked."""

    def __init__(self, file: GGUFFile) -> None:
        tokens = file.get_strings("tokenizer.ggml.tokens")
        if not tokens:
            raise ConfigError(f"{file.path}: has no vocabulary (tokenizer.ggml.tokens); convert the model with it")
        self.path = file.path
        self.tokens = tokens
        self.types = file.get_ints("tokenizer.ggml.token_type") or [int(TokenType.NORMAL)] * len(tokens)
        self.require_length("token_type", self.types)
        self.ids = {token: token_id for token_id, token in enumerate(tokens)}
        if len(self.ids) < len(tokens):
            logger.warning(
                "%s: %d tokens of the vocabulary are spelled like another; the last of each is used",
                file.path,
                len(tokens) - len(self.ids),
            )
        self.special_tokens = {role: token for role, key in _ROLES.items() if (token := self._token_at(file, key))}

    def require_length(self, name: str, values: Sequence[object]) -> None:
        if len(values) != len(self.tokens):
            raise ConfigError(
                f"{self.path}: tokenizer.ggml.{name} has {len(values)} entries for {len(self.tokens)} tokens"
            )

    def added_tokens(self, *, take_whitespace: bool = False) -> Iterable[AddedToken]:
        """Yield the tokens that are found whole in a text, in the order of their ids.

        Args:
            take_whitespace: the whitespace after most of them belongs to them, as in Phi-3.
        """
        roles = {self.ids[token] for token in self.special_tokens.values()}
        for token_id in sorted(roles.union(*(self._ids_of(token_type) for token_type in _FOUND_WHOLE))):
            is_special = self.types[token_id] != TokenType.USER_DEFINED or token_id in roles
            token = self.tokens[token_id]
            takes_whitespace = take_whitespace and token not in _KEEPING_WHITESPACE
            yield AddedToken(token, normalized=False, special=is_special, rstrip=takes_whitespace)

    def _ids_of(self, token_type: TokenType) -> list[int]:
        number = int(token_type)  # comparing enum members costs more than all the rest of the scan
        return [token_id for token_id, kind in enumerate(self.types) if kind == number and self.tokens[token_id]]

    def _token_at(self, file: GGUFFile, key: str) -> str | None:
        token_id = file.get_int(key)
        if token_id is None:
            return None
        if not 0 <= token_id < len(self.tokens):
            raise ConfigError(f"{file.path}: {key} is {token_id}; the vocabulary has ids 0 to {len(self.tokens) - 1}")
        return self.tokens[token_id]


def read_gguf(path: Path) -> tuple[Tokenizer, TokenizerFacts]:
    """Build the tokenizer of the GGUF file at `path`.

    Raises:
        ConfigError: if the file has no vocabulary, one of a kind that is not known, or a broken one.
    """
    with GGUFFile(path) as file:
        vocabulary = _Vocabulary(file)
        model = file.require_str("tokenizer.ggml.model")
        adds_space = takes_whitespace = False
        match model:
            case "gpt2":
                rule = _split_rule(file)
                add_bos = rule.add_bos
                tokenizer = _byte_level(file, vocabulary, rule)
            case "llama":
                adds_space = bool(file.get_bool("tokenizer.ggml.add_space_prefix", default=True))
                add_bos = True
                takes_whitespace = file.get_str("general.architecture") == "phi3"
                tokenizer = _sentencepiece(file, vocabulary, adds_space=adds_space)
            case _:
                raise ConfigError(
                    f"{path}: tokenizer.ggml.model is {model!r}; the kinds known are 'gpt2' (byte-level BPE) and "
                    "'llama' (SentencePiece). Serve the model from its Hugging Face directory instead"
                )
        tokenizer.add_tokens(list(vocabulary.added_tokens(take_whitespace=takes_whitespace)))
        _add_text_borders(
            tokenizer,
            bos=vocabulary.special_tokens.get("bos_token")
            if file.get_bool("tokenizer.ggml.add_bos_token", default=add_bos)
            else None,
            eos=vocabulary.special_tokens.get("eos_token")
            if file.get_bool("tokenizer.ggml.add_eos_token", default=False)
            else None,
        )
        facts = TokenizerFacts(
            special_tokens=vocabulary.special_tokens,
            chat_templates=_chat_templates(file),
            strips_after_special=adds_space,
        )
    return tokenizer, facts


def _split_rule(file: GGUFFile) -> SplitRule:
    name = file.get_str("tokenizer.ggml.pre")
    if name is None:
        logger.warning(
            "%s: does not name how its vocabulary splits text (tokenizer.ggml.pre); the default rule is used, which "
            "may cost quality. Converting the model again with a recent converter adds it",
            file.path,
        )
        name = "default"
    if name not in SPLIT_RULES:
        # Any rule would do *something* with the text, and quietly give the model other tokens than it was trained on.
        raise ConfigError(
            f"{file.path}: tokenizer.ggml.pre is {name!r}, which this version doesn't know "
            f"({', '.join(sorted(SPLIT_RULES))}). Serve the model from its Hugging Face directory instead"
        )
    return SPLIT_RULES[name]


def _byte_level(file: GGUFFile, vocabulary: _Vocabulary, rule: SplitRule) -> Tokenizer:
    merges = file.get_strings("tokenizer.ggml.merges")
    if merges is None:
        raise ConfigError(f"{file.path}: has a byte-level vocabulary without merges (tokenizer.ggml.merges)")
    pairs = [(left, right) for left, _, right in (merge.partition(" ") for merge in merges)]
    tokenizer = Tokenizer(_build_bpe(vocabulary, pairs, ignore_merges=rule.ignore_merges))
    normalizer = rule.normalizer()
    if normalizer is not None:
        tokenizer.normalizer = normalizer
    tokenizer.pre_tokenizer = rule.pre_tokenizer()
    tokenizer.decoder = decoders.ByteLevel()
    return tokenizer


def _build_bpe(
    vocabulary: _Vocabulary,
    merges: list[tuple[str, str]],
    *,
    unk_token: str | None = None,
    byte_fallback: bool = False,
    ignore_merges: bool = False,
) -> models.BPE:
    try:
        return models.BPE(
            vocabulary.ids,
            merges,
            unk_token=unk_token,
            fuse_unk=unk_token is not None,
            byte_fallback=byte_fallback,
            ignore_merges=ignore_merges,
        )
    except Exception as error:  # the library raises nothing narrower
        raise ConfigError(f"{vocabulary.path}: has merges that don't fit its vocabulary: {error}") from error


def _sentencepiece(file: GGUFFile, vocabulary: _Vocabulary, *, adds_space: bool) -> Tokenizer:
    scores = file.get_floats("tokenizer.ggml.scores")
    if scores is None:
        raise ConfigError(f"{file.path}: has a SentencePiece vocabulary without scores (tokenizer.ggml.scores)")
    vocabulary.require_length("scores", scores)
    tokenizer = Tokenizer(
        _build_bpe(
            vocabulary,
            derive_merges(vocabulary.tokens, scores, vocabulary.types),
            unk_token=vocabulary.special_tokens.get("unk_token"),
            byte_fallback=TokenType.BYTE in vocabulary.types,
        )
    )
    spaces = normalizers.Replace(" ", REPLACEMENT_MARK)
    # The space goes in front of every stretch between special tokens, as llama.cpp and the models' own files have it.
    tokenizer.normalizer = (
        normalizers.Sequence([normalizers.Prepend(REPLACEMENT_MARK), spaces]) if adds_space else spaces
    )
    steps = [decoders.Replace(REPLACEMENT_MARK, " "), decoders.ByteFallback(), decoders.Fuse()]
    tokenizer.decoder = decoders.Sequence([*steps, decoders.Strip(" ", 1, 0)] if adds_space else steps)
    return tokenizer


def derive_merges(tokens: Sequence[str], scores: Sequence[float], types: Sequence[int]) -> list[tuple[str, str]]:
    """Return the merges, best first, that make BPE choose as SentencePiece does.

    SentencePiece joins the two neighbours whose joint token has the highest score. So every cut of a token into two
    tokens is a merge, ranked by that token's score. Where several cuts of one token compete, the longer left part goes
    first: SentencePiece works from the left, which leaves the shorter part of a repetition at its right end.

    Args:
        tokens: [vocab_size] spelled with `▁` for spaces.
        scores: [vocab_size] higher merges earlier.
        types: [vocab_size] `TokenType`s; only NORMAL tokens take part in merges.
    """
    mergeable = {
        token: score
        for token, score, token_type in zip(tokens, scores, types, strict=True)
        if token_type == TokenType.NORMAL
    }
    ranked = sorted((token for token in mergeable if len(token) > 1), key=mergeable.__getitem__, reverse=True)
    return [
        (token[:cut], token[cut:])
        for token in ranked
        for cut in range(len(token) - 1, 0, -1)
        if token[:cut] in mergeable and token[cut:] in mergeable
    ]


def _add_text_borders(tokenizer: Tokenizer, *, bos: str | None, eos: str | None) -> None:
    borders = [token for token in (bos, eos) if token is not None]
    if not borders:
        return
    single = [*([bos] if bos else []), "$A", *([eos] if eos else [])]
    tokenizer.post_processor = processors.TemplateProcessing(
        single=single, special_tokens=[(token, tokenizer.token_to_id(token)) for token in borders]
    )


def _chat_templates(file: GGUFFile) -> dict[str, str]:
    """Return the default template (`tokenizer.chat_template`) and named ones (`tokenizer.chat_template.NAME`)."""
    templates: dict[str, str] = {}
    for key in file.metadata:
        if key == _TEMPLATE_KEY or key.startswith(f"{_TEMPLATE_KEY}."):
            template = file.get_str(key)
            if template:
                templates[key.removeprefix(_TEMPLATE_KEY).lstrip(".") or "default"] = template
    return templates
