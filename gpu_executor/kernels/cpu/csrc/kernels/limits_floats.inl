// Loops that do nothing but multiply, to say how far a kernel is from what the machine can do. See limits/limits.h.
//
// Included by isa/kernel_table.inl after linear_dense.inl.

// As many chains as hide the latency of a multiply-add: no memory, no dependence. Returns operations, two a product.
int64_t multiply_floats(int64_t rounds, float* result) {
  constexpr int kChains = kDenseAccumulators < 12 ? kDenseAccumulators : 12;
  const Vec factor = broadcast(result[0]), small = broadcast(result[1]);
  Vec sums[kChains];
#pragma GCC unroll 16
  for (int i = 0; i < kChains; ++i) sums[i] = broadcast(static_cast<float>(i));
  for (int64_t round = 0; round < rounds; ++round) {
#pragma GCC unroll 16
    for (int i = 0; i < kChains; ++i) sums[i] = fma(sums[i], factor, small);
  }
  Vec total = sums[0];
#pragma GCC unroll 16
  for (int i = 1; i < kChains; ++i) total = add(total, sums[i]);
  result[0] = reduce_add(total);
  return rounds * kChains * kVecSize * 2;
}
