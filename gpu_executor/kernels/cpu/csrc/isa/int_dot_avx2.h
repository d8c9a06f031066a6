// Integer dot products of 4 bytes a lane for AVX2, and the quantization of a group of activations.
//
// Every int_dot_<name>.h provides the same names in its own namespace, for linear.inl and quantize.inl. A vector holds
// 4 neighbouring input channels for each of kVecSize output channels (a half or a whole row of a panel's quad), and
// meets 4 activations broadcast to all lanes. All sums are exact, so that every way to form them gives the same bits.
#pragma once

#include "../weights/packed_matrix.h"
#include "vec_avx2.h"

namespace pagewire::avx2 {

// Rows of a register tile: 4 rows times 2 vectors of sums, and the codes of one quad, fill 16 registers.
constexpr int kIntTileRows = 4;

struct Quads {
  __m256i v;  // 4 bytes a lane
};

PAGEWIRE_INLINE Quads load_quads(const uint8_t* p) {
  return {_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p))};
}
PAGEWIRE_INLINE void store_quads(uint8_t* p, Quads a) { _mm256_storeu_si256(reinterpret_cast<__m256i*>(p), a.v); }
// The same 4 activations in each lane.
PAGEWIRE_INLINE Quads broadcast_quad(const int8_t* p) {
  int32_t quad;
  std::memcpy(&quad, p, sizeof(quad));
  return {_mm256_set1_epi32(quad)};
}
PAGEWIRE_INLINE Quads low_nibbles(Quads a) { return {_mm256_and_si256(a.v, _mm256_set1_epi8(15))}; }
PAGEWIRE_INLINE Quads high_nibbles(Quads a) {
  return {_mm256_and_si256(_mm256_srli_epi16(a.v, 4), _mm256_set1_epi8(15))};
}

// Have the compiler form sums in the order written. gcc 12 turns a chain of integer additions into a tree, whose many
// products at once do not fit the registers: half the speed.
PAGEWIRE_INLINE __m256i keep_order(__m256i sum) {
  __asm__("" : "+x"(sum));
  return sum;
}

// Sum over the 8 quads of a group of 4-bit codes (0 to 15) times activations (-127 to 127). Half a lane's sum stays in
// 16 bits: 8 * 2 * 15 * 127 = 30,480. Widened once, at the end.
struct NibbleSum {
  __m256i v;  // 16 bits, 2 a lane
};
PAGEWIRE_INLINE NibbleSum no_nibbles() { return {_mm256_setzero_si256()}; }
PAGEWIRE_INLINE NibbleSum add_nibbles(NibbleSum sum, Quads codes, Quads activations) {
  return {keep_order(_mm256_add_epi16(sum.v, _mm256_maddubs_epi16(codes.v, activations.v)))};
}
PAGEWIRE_INLINE Vec to_floats(NibbleSum sum) {
  return {_mm256_cvtepi32_ps(_mm256_madd_epi16(sum.v, _mm256_set1_epi16(1)))};
}

// 8-bit codes (-128 to 127): maddubs takes unsigned times signed, so the code's sign moves to the activation. A product
// of two, at most 2 * 128 * 127 = 32,512, fits 16 bits; the sum of more does not.
struct ByteWeights {
  __m256i codes, magnitudes;
};
PAGEWIRE_INLINE ByteWeights load_byte_weights(const uint8_t* p) {
  const __m256i codes = load_quads(p).v;
  return {codes, _mm256_abs_epi8(codes)};
}
struct ByteSum {
  __m256i v;  // 32 bits
};
PAGEWIRE_INLINE ByteSum no_bytes() { return {_mm256_setzero_si256()}; }
PAGEWIRE_INLINE ByteSum add_bytes(ByteSum sum, ByteWeights weights, Quads activations) {
  const __m256i pairs = _mm256_maddubs_epi16(weights.magnitudes, _mm256_sign_epi8(activations.v, weights.codes));
  return {keep_order(_mm256_add_epi32(sum.v, _mm256_madd_epi16(pairs, _mm256_set1_epi16(1))))};
}
PAGEWIRE_INLINE Vec to_floats(ByteSum sum) { return {_mm256_cvtepi32_ps(sum.v)}; }

// The largest magnitude among kGroup floats, as bits: these order like the magnitudes, with infinity and NaN above all.
PAGEWIRE_INLINE uint32_t group_max_bits(const float* x) {
  const __m256i magnitude = _mm256_set1_epi32(0x7fffffff);
  __m256i most = _mm256_setzero_si256();
  for (int64_t i = 0; i < kGroup; i += 8) {
    most = _mm256_max_epi32(most, _mm256_and_si256(_mm256_castps_si256(_mm256_loadu_ps(x + i)), magnitude));
  }
  __m128i four = _mm_max_epi32(_mm256_castsi256_si128(most), _mm256_extracti128_si256(most, 1));
  four = _mm_max_epi32(four, _mm_shuffle_epi32(four, 0x4e));
  return static_cast<uint32_t>(_mm_cvtsi128_si32(_mm_max_epi32(four, _mm_shuffle_epi32(four, 0xb1))));
}

// values[i] = x[i] * inverse_scale, rounded half to even, for a whole group; sums of the values of both half groups.
PAGEWIRE_INLINE void round_group(const float* x, float inverse_scale, int8_t* values, int32_t half_sums[2]) {
  const __m256 factor = _mm256_set1_ps(inverse_scale);
  __m256i rounded[4];
#pragma GCC unroll 4
  for (int i = 0; i < 4; ++i) rounded[i] = _mm256_cvtps_epi32(_mm256_mul_ps(_mm256_loadu_ps(x + 8 * i), factor));
  // Packing works within halves of 128 bits, so the groups of 4 come out as 0 2 4 6 1 3 5 7.
  const __m256i shorts0 = _mm256_packs_epi32(rounded[0], rounded[1]);
  const __m256i shorts1 = _mm256_packs_epi32(rounded[2], rounded[3]);
  const __m256i bytes = _mm256_permutevar8x32_epi32(_mm256_packs_epi16(shorts0, shorts1),
                                                    _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7));
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(values), bytes);
  const __m256i fours = _mm256_madd_epi16(_mm256_maddubs_epi16(_mm256_set1_epi8(1), bytes), _mm256_set1_epi16(1));
  for (int half = 0; half < 2; ++half) {
    __m128i sum = half == 0 ? _mm256_castsi256_si128(fours) : _mm256_extracti128_si256(fours, 1);
    sum = _mm_add_epi32(sum, _mm_shuffle_epi32(sum, 0x4e));
    half_sums[half] = _mm_cvtsi128_si32(_mm_add_epi32(sum, _mm_shuffle_epi32(sum, 0xb1)));
  }
}

}  // namespace pagewire::avx2
