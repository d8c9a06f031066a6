// Integer dot products for AVX-512 with VNNI, which adds 4 products to a lane of 32 bits at a time: see int_dot_avx2.h
// for what each name promises.
#pragma once

#include "quantize_avx512.h"

namespace pagewire::avx512_vnni {

using namespace avx512;

// 8 rows: sums, totals and the codes of one quad take 17 of 32 registers.
constexpr int kIntTileRows = 8;

struct NibbleSum {
  __m512i v;  // 32 bits
};
PAGEWIRE_INLINE NibbleSum no_nibbles() { return {_mm512_setzero_si512()}; }
PAGEWIRE_INLINE NibbleSum add_nibbles(NibbleSum sum, Quads codes, Quads activations) {
  return {_mm512_dpbusd_epi32(sum.v, codes.v, activations.v)};
}
PAGEWIRE_INLINE Vec to_floats(NibbleSum sum) { return {_mm512_cvtepi32_ps(sum.v)}; }

using ByteSum = NibbleSum;
PAGEWIRE_INLINE ByteSum no_bytes() { return {_mm512_setzero_si512()}; }
PAGEWIRE_INLINE ByteSum add_bytes(ByteSum sum, ByteWeights weights, Quads activations) {
  return {_mm512_dpbusd_epi32(sum.v, weights.magnitudes, move_sign(weights, activations).v)};
}

}  // namespace pagewire::avx512_vnni
