"""The identity of a full block's content: a digest chained over everything that its KV depends on.

The core finds blocks by it; clients that divide requests among cores make the same digests, to know who has which.
"""

from __future__ import annotations

import hashlib
import struct
from array import array
from collections.abc import Sequence
from typing import NewType

BlockDigest = NewType("BlockDigest", bytes)
"""32 bytes that stand for a block's tokens, all tokens before them, and the extras."""

Extras = tuple[tuple[str, str], ...]
"""What KV depends on besides token ids, as sorted (tag, value) pairs. The tag keeps kinds of values apart."""

NO_PARENT = BlockDigest(b"")

_DIGEST_BYTES = 32
_KEY_BYTES = 8
_PERSON = b"pagewire.kv.v1"  # no digest made for another purpose can be equal to one of ours


def cache_extras(*, salt: str = "", adapter: str = "", weights_version: str = "") -> Extras:
    """Return the extras of a request; an empty value is left out.

    Args:
        salt: chosen by the client; only equal salts share blocks.
        adapter: load id of the adapter that changes the weights.
        weights_version: set once weights can be replaced under a running engine.
    """
    pairs = (("adapter", adapter), ("salt", salt), ("weights", weights_version))
    return tuple((tag, value) for tag, value in pairs if value)


def block_digest(parent: BlockDigest, token_ids: Sequence[int], extras: Extras = ()) -> BlockDigest:
    """Return the digest of one full block.

    Every part is preceded by its length or has a fixed one, so that no two inputs have the same encoding. The digest
    is cryptographic: whoever can choose prompts must not be able to make two prompts meet in one block.

    Args:
        parent: digest of the block before; NO_PARENT for the first.
        token_ids: the block's tokens, each from 0 to 2**32 - 1.
        extras: needed in the first block only, because the chain carries them on.
    """
    digest = hashlib.blake2b(digest_size=_DIGEST_BYTES, person=_PERSON)
    digest.update(struct.pack("<BII", len(parent), len(token_ids), len(extras)))
    digest.update(parent)
    digest.update(array("I", token_ids).tobytes())
    for part in (part for pair in extras for part in pair):
        encoded = part.encode("utf-8")
        digest.update(struct.pack("<I", len(encoded)))
        digest.update(encoded)
    return BlockDigest(digest.digest())


def extend_digests(
    digests: list[BlockDigest], token_ids: Sequence[int], block_size: int, extras: Extras, num_blocks: int
) -> None:
    """Append digests until the first `num_blocks` blocks of `token_ids` have theirs."""
    for index in range(len(digests), num_blocks):
        block_tokens = token_ids[index * block_size : (index + 1) * block_size]
        if index == 0:
            digests.append(block_digest(NO_PARENT, block_tokens, extras))
        else:
            digests.append(block_digest(digests[-1], block_tokens))


def block_key(digest: BlockDigest) -> int:
    """Return the 64 bits of a digest by which processes tell each other what is cached.

    They are for guesses alone: two blocks of equal keys are never taken for each other where KV is shared.
    """
    return int.from_bytes(digest[:_KEY_BYTES], "little")
