// Integer dot products for 64-bit ARM without the dot product instructions: see int_dot_avx2.h for what each name
// promises. Products are widened to 16 bits; the two halves of a vector are summed apart, and met at the end.
#pragma once

#include "quantize_neon.h"

namespace pagewire::neon {

// 2 rows of 4 vectors with two sums each: half of 32 registers.
constexpr int kIntTileRows = 2;

// Each 16-bit lane adds one product a quad: 8 * 15 * 127 = 15,240.
struct NibbleSum {
  int16x8_t low, high;
};
PAGEWIRE_INLINE NibbleSum no_nibbles() { return {vdupq_n_s16(0), vdupq_n_s16(0)}; }
PAGEWIRE_INLINE NibbleSum add_nibbles(NibbleSum sum, Quads codes, Quads activations) {
  return {vmlal_s8(sum.low, vget_low_s8(codes.v), vget_low_s8(activations.v)),
          vmlal_high_s8(sum.high, codes.v, activations.v)};
}
PAGEWIRE_INLINE Vec to_floats(NibbleSum sum) {
  return {vcvtq_f32_s32(vpaddq_s32(vpaddlq_s16(sum.low), vpaddlq_s16(sum.high)))};
}

// A product takes up to 128 * 127: pairs go to 32 bits at once.
struct ByteSum {
  int32x4_t low, high;
};
PAGEWIRE_INLINE ByteSum no_bytes() { return {vdupq_n_s32(0), vdupq_n_s32(0)}; }
PAGEWIRE_INLINE ByteSum add_bytes(ByteSum sum, ByteWeights weights, Quads activations) {
  return {vpadalq_s16(sum.low, vmull_s8(vget_low_s8(weights.v), vget_low_s8(activations.v))),
          vpadalq_s16(sum.high, vmull_high_s8(weights.v, activations.v))};
}
PAGEWIRE_INLINE Vec to_floats(ByteSum sum) { return {vcvtq_f32_s32(vpaddq_s32(sum.low, sum.high))}; }

}  // namespace pagewire::neon
