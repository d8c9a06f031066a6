from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from pagewire.ipc.block_hash import NO_PARENT, block_digest, block_key, cache_extras, extend_digests

_token_lists = st.lists(st.integers(0, 2**32 - 1), max_size=4)


def test_digest_has_256_bits_and_is_the_same_in_every_process():
    digest = block_digest(NO_PARENT, [1, 2, 3])
    assert len(digest) == 32
    assert digest == block_digest(NO_PARENT, [1, 2, 3])
    assert digest.hex().startswith("9b1ecdeb8c5af6f2")


def test_neighbouring_ids_never_run_into_each_other():
    assert block_digest(NO_PARENT, [1, 23]) != block_digest(NO_PARENT, [12, 3])
    assert block_digest(NO_PARENT, [1, 0]) != block_digest(NO_PARENT, [256])


@given(_token_lists, _token_lists)
def test_blocks_have_equal_digests_only_if_their_tokens_are_equal(first, second):
    assert (block_digest(NO_PARENT, first) == block_digest(NO_PARENT, second)) == (first == second)


def test_digest_depends_on_every_token_before_the_block():
    parent, other = block_digest(NO_PARENT, [1]), block_digest(NO_PARENT, [2])
    assert block_digest(parent, [3]) != block_digest(other, [3]) != block_digest(NO_PARENT, [3])


def test_a_salt_equal_to_an_adapter_name_is_another_identity():
    salted = block_digest(NO_PARENT, [1], cache_extras(salt="x"))
    adapted = block_digest(NO_PARENT, [1], cache_extras(adapter="x"))
    versioned = block_digest(NO_PARENT, [1], cache_extras(weights_version="x"))
    assert len({salted, adapted, versioned, block_digest(NO_PARENT, [1])}) == 4


_pairs = st.lists(st.tuples(st.text(max_size=3), st.text(max_size=3)), max_size=3).map(tuple)


@given(_pairs, _pairs)
def test_extras_never_run_into_each_other(first, second):
    assert (block_digest(NO_PARENT, [1], first) == block_digest(NO_PARENT, [1], second)) == (first == second)


def test_digests_grow_with_the_tokens_and_carry_the_extras_on():
    extras = cache_extras(salt="s")
    digests = []
    extend_digests(digests, [1, 2, 3, 4, 5], 2, extras, 1)
    extend_digests(digests, [1, 2, 3, 4, 5], 2, extras, 2)
    unsalted = []
    extend_digests(unsalted, [1, 2, 3, 4], 2, (), 2)
    assert digests == [first := block_digest(NO_PARENT, [1, 2], extras), block_digest(first, [3, 4])]
    assert not set(digests) & set(unsalted)


def test_key_is_the_head_of_the_digest():
    digest = block_digest(NO_PARENT, [1, 2, 3])
    assert block_key(digest) == int.from_bytes(digest[:8], "little") < 2**64
