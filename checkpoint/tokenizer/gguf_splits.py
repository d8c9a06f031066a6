"""How each byte-level vocabulary of a GGUF file cuts text into words before merging: `tokenizer.ggml.pre`.

A GGUF file names the rule and llama.cpp defines the names; the patterns are those of the models' own tokenizer.json.
Each pattern cuts out its matches, in order, from what the patterns before it left.

Source: llama.cpp, src/llama-vocab.cpp; the tokenizer.json of the models named.
"""

from __future__ import annotations

import msgspec
from tokenizers import Regex, normalizers, pre_tokenizers

_CONTRACTIONS = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)"
_LLAMA3 = (
    _CONTRACTIONS + r"|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}"
    r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
_QWEN2 = (
    _CONTRACTIONS + r"|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}"
    r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
_QWEN35 = (
    _CONTRACTIONS + r"|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N}"
    r"| ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
_UPPER = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]"
_LOWER = r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"
_TEKKEN = (
    rf"[^\r\n\p{{L}}\p{{N}}]?{_UPPER}*{_LOWER}+|[^\r\n\p{{L}}\p{{N}}]?{_UPPER}+{_LOWER}*"
    r"|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
_GPT4O = (
    rf"[^\r\n\p{{L}}\p{{N}}]?{_UPPER}*{_LOWER}+{_CONTRACTIONS}?|[^\r\n\p{{L}}\p{{N}}]?{_UPPER}+{_LOWER}*{_CONTRACTIONS}?"
    r"|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
_SEED_CODER = (
    _CONTRACTIONS + r"|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}"
    r"| ?[^\s\p{L}\p{N}\r\n]+|\s*[\r\n]+|\s+(?!\S)|\s+"
)
_DEEPSEEK3 = (
    r"""[!"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+"""
    r"| ?[\p{P}\p{S}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
_PUNCTUATION = r"[\p{P}\$\+<=>\^~\|`]+"
_DIGIT = r"\p{N}"


class SplitRule(msgspec.Struct, frozen=True, kw_only=True):
    """One rule.

    Attributes:
        patterns: applied in order.
        gpt2: GPT-2's own pattern comes after them.
        ignore_merges: a word that is a token as a whole is taken without merging.
        nfc: text is composed (Unicode NFC) first.
        add_bos: a begin-of-text token is put in front unless the file says otherwise.
    """

    patterns: tuple[str, ...] = ()
    gpt2: bool = False
    ignore_merges: bool = False
    nfc: bool = False
    add_bos: bool = False

    def normalizer(self) -> normalizers.Normalizer | None:
        """Return what the text goes through first, None for nothing."""
        return normalizers.NFC() if self.nfc else None

    def pre_tokenizer(self) -> pre_tokenizers.PreTokenizer:
        """Return what cuts the text and spells its bytes in the byte-level alphabet."""
        steps: list[pre_tokenizers.PreTokenizer] = [
            # Digits is what the models' own files use, and many times faster than the pattern.
            pre_tokenizers.Digits(individual_digits=True)
            if pattern == _DIGIT
            else pre_tokenizers.Split(Regex(pattern), behavior="isolated")
            for pattern in self.patterns
        ]
        # GPT-2's pattern is built into the last step.
        return pre_tokenizers.Sequence([*steps, pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=self.gpt2)])


_GPT2_RULE = SplitRule(gpt2=True)
_DIGITS_RULE = SplitRule(patterns=(_DIGIT,), gpt2=True)
_DEEPSEEK3_RULE = SplitRule(patterns=(r"\p{N}{1,3}", "[一-龥぀-ゟ゠-ヿ]+", _DEEPSEEK3))

_FAMILIES: tuple[tuple[SplitRule, str], ...] = (
    (SplitRule(patterns=(_PUNCTUATION, r"\p{N}+", "[0-9][0-9][0-9]"), gpt2=True), "default"),
    (_GPT2_RULE, "gpt-2 phi-2 jina-es jina-de gigachat a.x-4.0 mellum exaone4 trillion granite-docling jais"),
    (SplitRule(gpt2=True, nfc=True), "olmo mpt"),
    (_DIGITS_RULE, "smollm starcoder refact command-r codeshell exaone minerva-7b mellum2"),
    (
        SplitRule(patterns=(_LLAMA3,), ignore_merges=True, add_bos=True),
        "llama-bpe llama3 llama-v3 falcon3 falcon-h1 pixtral midm-2.0 lfm2 jina-v5-nano",
    ),
    (SplitRule(patterns=(_LLAMA3,)), "dbrx smaug-bpe glm4 chatglm-bpe"),
    (SplitRule(patterns=(_QWEN2,), nfc=True), "qwen2"),
    (SplitRule(patterns=(_QWEN2,)), "deepseek-r1-qwen kormo f2llmv2 megrez stablelm2 hunyuan solar-open grok-2"),
    (SplitRule(patterns=(_QWEN35,), nfc=True), "qwen35"),
    (SplitRule(patterns=(_TEKKEN,), ignore_merges=True, add_bos=True), "tekken"),
    (SplitRule(patterns=(_GPT4O,)), "gpt-4o llama4 kanana2 talkie minimax-m2"),
    (SplitRule(patterns=(_SEED_CODER,)), "seed-coder"),
    (_DEEPSEEK3_RULE, "deepseek-v3 hunyuan-dense joyai-llm"),
    (
        SplitRule(patterns=(r"[\r\n]", r"\s?\p{L}+", r"\s?\p{P}+", "[一-龥ࠀ-一가-퟿]+", _DIGIT)),
        "deepseek-coder",
    ),
)

SPLIT_RULES: dict[str, SplitRule] = {name: rule for rule, names in _FAMILIES for name in names.split()}
"""`tokenizer.ggml.pre` -> its rule."""
