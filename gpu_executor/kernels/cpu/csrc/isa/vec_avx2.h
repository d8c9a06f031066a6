// A vector of floats for x86-64 with AVX2, FMA and F16C: 8 floats, 16 registers.
//
// Every vec_<name>.h provides the same names in its own namespace, so that the kernels read alike; vec_math.inl builds
// the rest on them (partial loads of 16-bit floats, exponentials). Functions are forced inline: a copy left by the
// linker might be one that another instruction set's file was compiled to.
#pragma once

#include <immintrin.h>

#include <cstdint>
#include <cstring>

namespace pagewire::avx2 {

#define PAGEWIRE_INLINE static inline __attribute__((always_inline))

constexpr int64_t kVecSize = 8;
constexpr int64_t kVecRegisters = 16;

struct Vec {
  __m256 v;
};

PAGEWIRE_INLINE Vec zero() { return {_mm256_setzero_ps()}; }
PAGEWIRE_INLINE Vec broadcast(float x) { return {_mm256_set1_ps(x)}; }
PAGEWIRE_INLINE Vec load(const float* p) { return {_mm256_loadu_ps(p)}; }
PAGEWIRE_INLINE void store(float* p, Vec a) { _mm256_storeu_ps(p, a.v); }

// Lanes [0, n) from memory, the others zero; what lies beyond is not touched. 0 <= n <= kVecSize.
PAGEWIRE_INLINE __m256i first_lanes(int64_t n) {
  return _mm256_cmpgt_epi32(_mm256_set1_epi32(static_cast<int32_t>(n)), _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7));
}
PAGEWIRE_INLINE Vec load_partial(const float* p, int64_t n) { return {_mm256_maskload_ps(p, first_lanes(n))}; }
PAGEWIRE_INLINE void store_partial(float* p, Vec a, int64_t n) { _mm256_maskstore_ps(p, first_lanes(n), a.v); }

PAGEWIRE_INLINE Vec add(Vec a, Vec b) { return {_mm256_add_ps(a.v, b.v)}; }
PAGEWIRE_INLINE Vec sub(Vec a, Vec b) { return {_mm256_sub_ps(a.v, b.v)}; }
PAGEWIRE_INLINE Vec mul(Vec a, Vec b) { return {_mm256_mul_ps(a.v, b.v)}; }
PAGEWIRE_INLINE Vec div(Vec a, Vec b) { return {_mm256_div_ps(a.v, b.v)}; }
PAGEWIRE_INLINE Vec fma(Vec a, Vec b, Vec c) { return {_mm256_fmadd_ps(a.v, b.v, c.v)}; }  // a * b + c
PAGEWIRE_INLINE Vec sqrt(Vec a) { return {_mm256_sqrt_ps(a.v)}; }
// a > b ? a : b, and a < b ? a : b: b where either is NaN.
PAGEWIRE_INLINE Vec max(Vec a, Vec b) { return {_mm256_max_ps(a.v, b.v)}; }
PAGEWIRE_INLINE Vec min(Vec a, Vec b) { return {_mm256_min_ps(a.v, b.v)}; }
// a < b ? x : y, lane by lane: y where a or b is NaN.
PAGEWIRE_INLINE Vec select_less(Vec a, Vec b, Vec x, Vec y) {
  return {_mm256_blendv_ps(y.v, x.v, _mm256_cmp_ps(a.v, b.v, _CMP_LT_OQ))};
}
// Nearest whole number, ties to even.
PAGEWIRE_INLINE Vec round_to_even(Vec a) { return {_mm256_round_ps(a.v, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC)}; }
// a * 2^n by adding to the exponent's bits: a normal, n whole, and a normal result. A NaN stays one where n is NaN too.
PAGEWIRE_INLINE Vec scale_exponent(Vec a, Vec n) {
  const __m256i shift = _mm256_slli_epi32(_mm256_cvtps_epi32(n.v), 23);
  return {_mm256_castsi256_ps(_mm256_add_epi32(_mm256_castps_si256(a.v), shift))};
}

// Sum and maximum of all lanes. The sum's order: halves folded onto each other until one lane is left.
PAGEWIRE_INLINE float reduce_add(Vec a) {
  const __m128 four = _mm_add_ps(_mm256_castps256_ps128(a.v), _mm256_extractf128_ps(a.v, 1));
  const __m128 two = _mm_add_ps(four, _mm_movehl_ps(four, four));
  return _mm_cvtss_f32(_mm_add_ss(two, _mm_movehdup_ps(two)));
}
PAGEWIRE_INLINE float reduce_max(Vec a) {
  const __m128 four = _mm_max_ps(_mm256_castps256_ps128(a.v), _mm256_extractf128_ps(a.v, 1));
  const __m128 two = _mm_max_ps(four, _mm_movehl_ps(four, four));
  return _mm_cvtss_f32(_mm_max_ss(two, _mm_movehdup_ps(two)));
}

// 16-bit floats, kVecSize of them; stores round to nearest even, keep NaN a NaN, and overflow to infinity.
PAGEWIRE_INLINE Vec load_half(const uint16_t* p) {
  return {_mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p)))};
}
PAGEWIRE_INLINE void store_half(uint16_t* p, Vec a) {
  _mm_storeu_si128(reinterpret_cast<__m128i*>(p), _mm256_cvtps_ph(a.v, _MM_FROUND_TO_NEAREST_INT));
}
PAGEWIRE_INLINE Vec load_bfloat(const uint16_t* p) {
  const __m256i wide = _mm256_cvtepu16_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p)));
  return {_mm256_castsi256_ps(_mm256_slli_epi32(wide, 16))};
}
PAGEWIRE_INLINE void store_bfloat(uint16_t* p, Vec a) {
  const __m256i bits = _mm256_castps_si256(a.v);
  const __m256i odd = _mm256_and_si256(_mm256_srli_epi32(bits, 16), _mm256_set1_epi32(1));
  const __m256i rounded = _mm256_add_epi32(bits, _mm256_add_epi32(odd, _mm256_set1_epi32(0x7fff)));
  // Rounding would carry a NaN of small payload over to infinity: such a one is made quiet instead.
  const __m256i quiet = _mm256_or_si256(bits, _mm256_set1_epi32(0x00400000));
  const __m256i is_nan = _mm256_castps_si256(_mm256_cmp_ps(a.v, a.v, _CMP_UNORD_Q));
  const __m256i high = _mm256_srli_epi32(_mm256_blendv_epi8(rounded, quiet, is_nan), 16);
  const __m128i packed = _mm_packus_epi32(_mm256_castsi256_si128(high), _mm256_extracti128_si256(high, 1));
  _mm_storeu_si128(reinterpret_cast<__m128i*>(p), packed);
}

// Ask for a cache line that will be read soon; any address is allowed.
PAGEWIRE_INLINE void prefetch(const void* p) { _mm_prefetch(static_cast<const char*>(p), _MM_HINT_T0); }

#include "vec_math.inl"

}  // namespace pagewire::avx2
