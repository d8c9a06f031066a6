// What all sets with AVX-512 share of int_dot_avx2.h's names: quads, and the quantization of a group of activations.
#pragma once

#include "vec_avx512.h"

namespace pagewire::avx512 {

struct Quads {
  __m512i v;  // 4 bytes a lane
};

PAGEWIRE_INLINE Quads load_quads(const uint8_t* p) { return {_mm512_loadu_si512(p)}; }
PAGEWIRE_INLINE void store_quads(uint8_t* p, Quads a) { _mm512_storeu_si512(p, a.v); }
PAGEWIRE_INLINE Quads broadcast_quad(const int8_t* p) {
  int32_t quad;
  std::memcpy(&quad, p, sizeof(quad));
  return {_mm512_set1_epi32(quad)};
}
PAGEWIRE_INLINE Quads low_nibbles(Quads a) { return {_mm512_and_si512(a.v, _mm512_set1_epi8(15))}; }
PAGEWIRE_INLINE Quads high_nibbles(Quads a) {
  return {_mm512_and_si512(_mm512_srli_epi16(a.v, 4), _mm512_set1_epi8(15))};
}

// 8-bit codes (-128 to 127): the products take unsigned times signed, so the code's sign moves to the activation.
struct ByteWeights {
  __m512i magnitudes;
  __mmask64 negative;
};
PAGEWIRE_INLINE ByteWeights load_byte_weights(const uint8_t* p) {
  const __m512i codes = load_quads(p).v;
  return {_mm512_abs_epi8(codes), _mm512_movepi8_mask(codes)};
}
PAGEWIRE_INLINE Quads move_sign(ByteWeights weights, Quads activations) {
  return {_mm512_mask_sub_epi8(activations.v, weights.negative, _mm512_setzero_si512(), activations.v)};
}

PAGEWIRE_INLINE uint32_t group_max_bits(const float* x) {
  const __m512i magnitude = _mm512_set1_epi32(0x7fffffff);
  const __m512i low = _mm512_and_si512(_mm512_castps_si512(_mm512_loadu_ps(x)), magnitude);
  const __m512i high = _mm512_and_si512(_mm512_castps_si512(_mm512_loadu_ps(x + 16)), magnitude);
  return static_cast<uint32_t>(_mm512_reduce_max_epi32(_mm512_max_epi32(low, high)));
}

PAGEWIRE_INLINE void round_group(const float* x, float inverse_scale, int8_t* values, int32_t half_sums[2]) {
  const __m512 factor = _mm512_set1_ps(inverse_scale);
  for (int half = 0; half < 2; ++half) {
    const __m512i rounded = _mm512_cvtps_epi32(_mm512_mul_ps(_mm512_loadu_ps(x + 16 * half), factor));
    _mm_storeu_si128(reinterpret_cast<__m128i*>(values + 16 * half), _mm512_cvtepi32_epi8(rounded));
    half_sums[half] = _mm512_reduce_add_epi32(rounded);
  }
}

}  // namespace pagewire::avx512
