// The integer half of limits_floats.inl. Included by isa/kernel_table.inl after linear.inl.

// What a tile of 4-bit weights does with a group but for scaling it: codes and activations from the level-1 cache,
// integer sums of all its rows. Returns operations, two a product.
int64_t multiply_integers(int64_t rounds, float* result) {
  constexpr int kRows = kIntTileRows;
  alignas(64) uint8_t codes[kPanel * kGroup];
  alignas(64) int8_t values[kRows * kGroup];
  for (int64_t i = 0; i < kPanel * kGroup; ++i) codes[i] = static_cast<uint8_t>(i % 16);
  for (int64_t i = 0; i < kRows * kGroup; ++i) values[i] = static_cast<int8_t>(i % 7 - 3);
  Vec total = zero();
  for (int64_t round = 0; round < rounds; ++round) {
    asm volatile("" : : "r"(codes), "r"(values) : "memory");  // or the loop's work is done once
    NibbleSum sums[kRows][kIntVecs];
    sum_nibbles<kRows, true>(codes, values, kGroup, sums);
#pragma GCC unroll 8
    for (int row = 0; row < kRows; ++row) {
#pragma GCC unroll 8
      for (int vec = 0; vec < kIntVecs; ++vec) total = add(total, to_floats(sums[row][vec]));
    }
  }
  result[0] = reduce_add(total);
  return rounds * kRows * kPanel * kGroup * 2;
}
