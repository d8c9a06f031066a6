// A vector of floats for 64-bit ARM, whose Advanced SIMD (NEON) every such processor has: 4 floats, 32 registers. See
// vec_avx2.h for what each function promises.
#pragma once

#include <arm_neon.h>

#include <cstdint>
#include <cstring>

namespace pagewire::neon {

#define PAGEWIRE_INLINE static inline __attribute__((always_inline))

constexpr int64_t kVecSize = 4;
constexpr int64_t kVecRegisters = 32;

struct Vec {
  float32x4_t v;
};

PAGEWIRE_INLINE Vec zero() { return {vdupq_n_f32(0.0f)}; }
PAGEWIRE_INLINE Vec broadcast(float x) { return {vdupq_n_f32(x)}; }
PAGEWIRE_INLINE Vec load(const float* p) { return {vld1q_f32(p)}; }
PAGEWIRE_INLINE void store(float* p, Vec a) { vst1q_f32(p, a.v); }

PAGEWIRE_INLINE Vec load_partial(const float* p, int64_t n) {
  float lanes[kVecSize] = {};
  std::memcpy(lanes, p, static_cast<size_t>(n) * sizeof(float));
  return load(lanes);
}
PAGEWIRE_INLINE void store_partial(float* p, Vec a, int64_t n) {
  float lanes[kVecSize];
  store(lanes, a);
  std::memcpy(p, lanes, static_cast<size_t>(n) * sizeof(float));
}

PAGEWIRE_INLINE Vec add(Vec a, Vec b) { return {vaddq_f32(a.v, b.v)}; }
PAGEWIRE_INLINE Vec sub(Vec a, Vec b) { return {vsubq_f32(a.v, b.v)}; }
PAGEWIRE_INLINE Vec mul(Vec a, Vec b) { return {vmulq_f32(a.v, b.v)}; }
PAGEWIRE_INLINE Vec div(Vec a, Vec b) { return {vdivq_f32(a.v, b.v)}; }
PAGEWIRE_INLINE Vec fma(Vec a, Vec b, Vec c) { return {vfmaq_f32(c.v, a.v, b.v)}; }
PAGEWIRE_INLINE Vec sqrt(Vec a) { return {vsqrtq_f32(a.v)}; }
// NEON's own maximum and minimum would give NaN where either is.
PAGEWIRE_INLINE Vec max(Vec a, Vec b) { return {vbslq_f32(vcgtq_f32(a.v, b.v), a.v, b.v)}; }
PAGEWIRE_INLINE Vec min(Vec a, Vec b) { return {vbslq_f32(vcltq_f32(a.v, b.v), a.v, b.v)}; }
PAGEWIRE_INLINE Vec select_less(Vec a, Vec b, Vec x, Vec y) { return {vbslq_f32(vcltq_f32(a.v, b.v), x.v, y.v)}; }
PAGEWIRE_INLINE Vec round_to_even(Vec a) { return {vrndnq_f32(a.v)}; }
PAGEWIRE_INLINE Vec scale_exponent(Vec a, Vec n) {
  const int32x4_t shift = vshlq_n_s32(vcvtnq_s32_f32(n.v), 23);
  return {vreinterpretq_f32_s32(vaddq_s32(vreinterpretq_s32_f32(a.v), shift))};
}

PAGEWIRE_INLINE float reduce_add(Vec a) {
  const float32x2_t two = vadd_f32(vget_low_f32(a.v), vget_high_f32(a.v));
  return vget_lane_f32(two, 0) + vget_lane_f32(two, 1);
}
PAGEWIRE_INLINE float reduce_max(Vec a) {
  float lanes[kVecSize];
  store(lanes, a);
  const float even = lanes[0] > lanes[2] ? lanes[0] : lanes[2], odd = lanes[1] > lanes[3] ? lanes[1] : lanes[3];
  return even > odd ? even : odd;
}

PAGEWIRE_INLINE Vec load_half(const uint16_t* p) { return {vcvt_f32_f16(vreinterpret_f16_u16(vld1_u16(p)))}; }
PAGEWIRE_INLINE void store_half(uint16_t* p, Vec a) { vst1_u16(p, vreinterpret_u16_f16(vcvt_f16_f32(a.v))); }
PAGEWIRE_INLINE Vec load_bfloat(const uint16_t* p) { return {vreinterpretq_f32_u32(vshll_n_u16(vld1_u16(p), 16))}; }
PAGEWIRE_INLINE void store_bfloat(uint16_t* p, Vec a) {
  const uint32x4_t bits = vreinterpretq_u32_f32(a.v);
  const uint32x4_t odd = vandq_u32(vshrq_n_u32(bits, 16), vdupq_n_u32(1));
  const uint32x4_t rounded = vaddq_u32(bits, vaddq_u32(odd, vdupq_n_u32(0x7fff)));
  const uint32x4_t quiet = vorrq_u32(bits, vdupq_n_u32(0x00400000));
  const uint32x4_t is_number = vceqq_f32(a.v, a.v);
  vst1_u16(p, vshrn_n_u32(vbslq_u32(is_number, rounded, quiet), 16));
}

PAGEWIRE_INLINE void prefetch(const void* p) { __builtin_prefetch(p); }

#include "vec_math.inl"

}  // namespace pagewire::neon
