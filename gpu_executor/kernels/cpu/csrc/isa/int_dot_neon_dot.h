// Integer dot products for 64-bit ARM with the instructions for them (ARMv8.2 and later, most since 2018): see
// int_dot_avx2.h for what each name promises.
#pragma once

#include "quantize_neon.h"

namespace pagewire::neon_dot {

using namespace neon;

// 6 rows of 4 vectors of sums, and the codes of one quad: 29 of 32 registers.
constexpr int kIntTileRows = 6;

struct NibbleSum {
  int32x4_t v;
};
PAGEWIRE_INLINE NibbleSum no_nibbles() { return {vdupq_n_s32(0)}; }
PAGEWIRE_INLINE NibbleSum add_nibbles(NibbleSum sum, Quads codes, Quads activations) {
  return {vdotq_s32(sum.v, codes.v, activations.v)};
}
PAGEWIRE_INLINE Vec to_floats(NibbleSum sum) { return {vcvtq_f32_s32(sum.v)}; }

using ByteSum = NibbleSum;
PAGEWIRE_INLINE ByteSum no_bytes() { return no_nibbles(); }
PAGEWIRE_INLINE ByteSum add_bytes(ByteSum sum, ByteWeights weights, Quads activations) {
  return add_nibbles(sum, weights, activations);
}

}  // namespace pagewire::neon_dot
