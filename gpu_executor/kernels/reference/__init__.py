"""Plain torch ops: run anywhere, bit-identical rows in any batch, the oracle of every kernel test."""
