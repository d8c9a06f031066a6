// Integer dot products for AVX-512 without VNNI: like int_dot_avx2.h, which says what each name promises, with a whole
// row of a panel's quad in a vector.
#pragma once

#include "quantize_avx512.h"

namespace pagewire::avx512 {

// 8 rows: sums, totals and the codes of one quad take 17 of 32 registers.
constexpr int kIntTileRows = 8;

struct NibbleSum {
  __m512i v;  // 16 bits, 2 a lane
};
PAGEWIRE_INLINE NibbleSum no_nibbles() { return {_mm512_setzero_si512()}; }
PAGEWIRE_INLINE NibbleSum add_nibbles(NibbleSum sum, Quads codes, Quads activations) {
  return {_mm512_add_epi16(sum.v, _mm512_maddubs_epi16(codes.v, activations.v))};
}
PAGEWIRE_INLINE Vec to_floats(NibbleSum sum) {
  return {_mm512_cvtepi32_ps(_mm512_madd_epi16(sum.v, _mm512_set1_epi16(1)))};
}

struct ByteSum {
  __m512i v;  // 32 bits
};
PAGEWIRE_INLINE ByteSum no_bytes() { return {_mm512_setzero_si512()}; }
PAGEWIRE_INLINE ByteSum add_bytes(ByteSum sum, ByteWeights weights, Quads activations) {
  const __m512i pairs = _mm512_maddubs_epi16(weights.magnitudes, move_sign(weights, activations).v);
  return {_mm512_add_epi32(sum.v, _mm512_madd_epi16(pairs, _mm512_set1_epi16(1)))};
}
PAGEWIRE_INLINE Vec to_floats(ByteSum sum) { return {_mm512_cvtepi32_ps(sum.v)}; }

}  // namespace pagewire::avx512
