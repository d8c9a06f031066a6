"""How long a request may be so that the pool can always finish it."""

from __future__ import annotations

from pagewire.ipc.errors import ConfigError

_NUM_COPY_ON_WRITE_BLOCKS = 1  # the shared last block of a fork, while its copy is made


def fit_max_model_len(requested: int | None, model_max: int, num_blocks: int, block_size: int) -> int:
    """Settle max_model_len so that any request can finish alone.

    One request of that length and one block for a copy on write fit the pool. The look-ahead of one-step-ahead
    scheduling needs nothing more: a request is never scheduled beyond its length limit.

    Args:
        requested: --max-model-len, or None to take what fits.
        model_max: longest context that the model knows, in tokens.
        num_blocks: size of the pool.
        block_size: tokens a block holds.

    Raises:
        ConfigError: the length that was asked for does not fit the model or the pool, or the pool holds not even a
            prompt token and an output token.
    """
    room = max(num_blocks - _NUM_COPY_ON_WRITE_BLOCKS, 0) * block_size
    pool = f"the KV pool of {num_blocks} blocks of {block_size} tokens"
    remedy = "raise --gpu-memory-utilization, --kv-cache-memory-bytes or --num-gpu-blocks-override"
    if requested is not None and requested > model_max:
        raise ConfigError(
            f"--max-model-len {requested} is more than the model's {model_max} tokens; give at most {model_max}."
        )
    if requested is not None and requested > room:
        raise ConfigError(
            f"--max-model-len {requested} does not fit {pool}, which can finish requests of up to {room} tokens; "
            f"give at most {room}, or {remedy}."
        )
    fitted = min(model_max, room) if requested is None else requested
    if fitted < 2:
        raise ConfigError(f"{pool} can't finish a request of 2 tokens, the shortest there is; {remedy}.")
    return fitted
