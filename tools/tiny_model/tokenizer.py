"""A small byte-level BPE tokenizer with a chat template, trained on a fixed text: the same on every machine."""

from __future__ import annotations

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, pre_tokenizers, trainers

from tools.tiny_model.spec import Family

END_OF_TEXT, START_OF_TURN, END_OF_TURN = "<|endoftext|>", "<|im_start|>", "<|im_end|>"
SPECIAL_TOKENS = (END_OF_TEXT, START_OF_TURN, END_OF_TURN)  # ids 0, 1, 2
END_OF_TEXT_ID = 0
EOS_TOKEN_ID = 2
BOS_TOKEN_ID = 1
_MAX_TOKENS = 500  # fewer than the usual 512 rows: padding rows must never be sampled

CHAT_TEMPLATE = (
    "{% for message in messages %}"
    "{{ '<|im_start|>' + message['role'] + '\\n' + message['content'] + '<|im_end|>' + '\\n' }}"
    "{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}"
)

# The GGUF name of each pre-tokenizer, and Qwen's pattern as its tokenizer.json has it.
PRE_TOKENIZERS: dict[Family, str] = {
    "gemma2": "smollm",
    "gemma3": "smollm",
    "granite": "refact",  # the same rule as smollm
    "llama": "smollm",
    "mistral": "smollm",
    "mixtral": "smollm",
    "phi3": "smollm",
    "qwen2": "qwen2",
    "qwen3": "qwen2",
    "qwen3_moe": "qwen2",
}
_QWEN_PATTERN = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)

_TRAINING_TEXT = (
    "The quick brown fox jumps over the lazy dog while seven wizards quietly brew strong tea.",
    "A request waits until the scheduler finds room for it; then its tokens are computed, one step after another.",
    "What is the capital of France? The capital of France is Paris, and the capital of Italy is Rome.",
    "Once upon a time there was a small engine that could serve many readers at the same time without losing a word.",
    "def add(first, second):\n    return first + second\n\nfor number in range(10):\n    print(add(number, 1))",
    "Memory is shared in blocks: when two questions begin with the same words, the same blocks answer both of them.",
    "In the morning the people of the town came to the market, and in the evening they returned to their houses.",
    "Numbers such as 0, 1, 2, 3, 4, 5, 6, 7, 8, 9 and dates like 2024-05-17 are split into their digits.",
    "Zwölf Boxkämpfer jagen Viktor quer über den großen Sylter Deich. Voilà, un café très chaud, s'il vous plaît!",
    "It's what they'd said they'll do: we've seen that I'm right, you're wrong, and nobody's perfect.",
)


def build_tokenizer(family: Family, vocab_size: int) -> Tokenizer:
    """Train the tokenizer of a family; it knows at most `vocab_size` ids (259 at least: bytes and special tokens)."""
    tokenizer = Tokenizer(models.BPE())
    if PRE_TOKENIZERS[family] == "qwen2":
        tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
            [
                pre_tokenizers.Split(Regex(_QWEN_PATTERN), behavior="isolated"),
                pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
            ]
        )
    else:
        tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
            [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)]
        )
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=min(vocab_size, _MAX_TOKENS),
        special_tokens=[AddedToken(token, special=True, normalized=False) for token in SPECIAL_TOKENS],
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    tokenizer.train_from_iterator(_TRAINING_TEXT, trainer)
    return tokenizer
