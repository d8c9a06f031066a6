// The intrinsics that the kernels for 64-bit ARM use, in plain C++ after Arm's reference: lane by lane, so that those
// kernels can be checked on other machines.
#pragma once

#include <type_traits>

#include "lanes.h"

struct float32x4_t {
  float v[4];
};
struct float32x2_t {
  float v[2];
};
struct float16x4_t {
  uint16_t v[4];
};
struct uint16x4_t {
  uint16_t v[4];
};
struct uint32x4_t {
  uint32_t v[4];
};
struct int32x4_t {
  int32_t v[4];
};
struct int16x4_t {
  int16_t v[4];
};
struct int16x8_t {
  int16_t v[8];
};
struct int8x8_t {
  int8_t v[8];
};
struct int8x16_t {
  int8_t v[16];
};
struct uint8x16_t {
  uint8_t v[16];
};

// A function of vectors a, b and c, or of a and a number n; the expression is lane i of the result.
#define PAGEWIRE_LANES(Vector, expression) \
  Vector out; \
  for (int i = 0; i < static_cast<int>(sizeof(out.v) / sizeof(out.v[0])); ++i) { \
    out.v[i] = static_cast<std::remove_reference_t<decltype(out.v[0])>>(expression); \
  } \
  return out;
#define PAGEWIRE_ONE(name, Result, A, expression) \
  inline Result name([[maybe_unused]] A a) { PAGEWIRE_LANES(Result, expression) }
#define PAGEWIRE_TWO(name, Result, A, B, expression) \
  inline Result name([[maybe_unused]] A a, [[maybe_unused]] B b) { PAGEWIRE_LANES(Result, expression) }
#define PAGEWIRE_THREE(name, Result, A, B, C, expression) \
  inline Result name(A a, B b, C c) { PAGEWIRE_LANES(Result, expression) }

// --- memory, constants, other views ---------------------------------------------------------------------------------

inline float32x4_t vld1q_f32(const float* p) { return emulated::read<float32x4_t>(p); }
inline uint16x4_t vld1_u16(const uint16_t* p) { return emulated::read<uint16x4_t>(p); }
inline uint8x16_t vld1q_u8(const uint8_t* p) { return emulated::read<uint8x16_t>(p); }
inline void vst1q_f32(float* p, float32x4_t a) { std::memcpy(p, &a, sizeof(a)); }
inline void vst1_u16(uint16_t* p, uint16x4_t a) { std::memcpy(p, &a, sizeof(a)); }
inline void vst1q_u8(uint8_t* p, uint8x16_t a) { std::memcpy(p, &a, sizeof(a)); }
inline void vst1q_s8(int8_t* p, int8x16_t a) { std::memcpy(p, &a, sizeof(a)); }

PAGEWIRE_ONE(vdupq_n_f32, float32x4_t, float, a)
PAGEWIRE_ONE(vdupq_n_u32, uint32x4_t, uint32_t, a)
PAGEWIRE_ONE(vdupq_n_s32, int32x4_t, int32_t, a)
PAGEWIRE_ONE(vdupq_n_s16, int16x8_t, int16_t, a)
PAGEWIRE_ONE(vdupq_n_s8, int8x16_t, int8_t, a)

inline float32x4_t vreinterpretq_f32_s32(int32x4_t a) { return emulated::cast<float32x4_t>(a); }
inline float32x4_t vreinterpretq_f32_u32(uint32x4_t a) { return emulated::cast<float32x4_t>(a); }
inline int32x4_t vreinterpretq_s32_f32(float32x4_t a) { return emulated::cast<int32x4_t>(a); }
inline uint32x4_t vreinterpretq_u32_f32(float32x4_t a) { return emulated::cast<uint32x4_t>(a); }
inline float16x4_t vreinterpret_f16_u16(uint16x4_t a) { return emulated::cast<float16x4_t>(a); }
inline uint16x4_t vreinterpret_u16_f16(float16x4_t a) { return emulated::cast<uint16x4_t>(a); }
inline int8x16_t vreinterpretq_s8_u8(uint8x16_t a) { return emulated::cast<int8x16_t>(a); }
inline uint8x16_t vreinterpretq_u8_s8(int8x16_t a) { return emulated::cast<uint8x16_t>(a); }
inline int8x16_t vreinterpretq_s8_s32(int32x4_t a) { return emulated::cast<int8x16_t>(a); }
PAGEWIRE_ONE(vget_low_f32, float32x2_t, float32x4_t, a.v[i])
PAGEWIRE_ONE(vget_high_f32, float32x2_t, float32x4_t, a.v[i + 2])
PAGEWIRE_ONE(vget_low_s8, int8x8_t, int8x16_t, a.v[i])
inline float vget_lane_f32(float32x2_t a, int i) { return a.v[i]; }
PAGEWIRE_TWO(vcombine_s16, int16x8_t, int16x4_t, int16x4_t, i < 4 ? a.v[i] : b.v[i - 4])
PAGEWIRE_TWO(vcombine_s8, int8x16_t, int8x8_t, int8x8_t, i < 8 ? a.v[i] : b.v[i - 8])

// --- floats ---------------------------------------------------------------------------------------------------------

PAGEWIRE_TWO(vadd_f32, float32x2_t, float32x2_t, float32x2_t, a.v[i] + b.v[i])
PAGEWIRE_TWO(vaddq_f32, float32x4_t, float32x4_t, float32x4_t, a.v[i] + b.v[i])
PAGEWIRE_TWO(vsubq_f32, float32x4_t, float32x4_t, float32x4_t, a.v[i] - b.v[i])
PAGEWIRE_TWO(vmulq_f32, float32x4_t, float32x4_t, float32x4_t, a.v[i] * b.v[i])
PAGEWIRE_TWO(vdivq_f32, float32x4_t, float32x4_t, float32x4_t, a.v[i] / b.v[i])
PAGEWIRE_ONE(vsqrtq_f32, float32x4_t, float32x4_t, std::sqrt(a.v[i]))
PAGEWIRE_ONE(vrndnq_f32, float32x4_t, float32x4_t, std::nearbyint(a.v[i]))
PAGEWIRE_THREE(vfmaq_f32, float32x4_t, float32x4_t, float32x4_t, float32x4_t, std::fma(b.v[i], c.v[i], a.v[i]))
PAGEWIRE_TWO(vcgtq_f32, uint32x4_t, float32x4_t, float32x4_t, a.v[i] > b.v[i] ? ~0u : 0u)
PAGEWIRE_TWO(vcltq_f32, uint32x4_t, float32x4_t, float32x4_t, a.v[i] < b.v[i] ? ~0u : 0u)
PAGEWIRE_TWO(vceqq_f32, uint32x4_t, float32x4_t, float32x4_t, a.v[i] == b.v[i] ? ~0u : 0u)
PAGEWIRE_THREE(vbslq_u32, uint32x4_t, uint32x4_t, uint32x4_t, uint32x4_t, (a.v[i] & b.v[i]) | (~a.v[i] & c.v[i]))
inline float32x4_t vbslq_f32(uint32x4_t mask, float32x4_t a, float32x4_t b) {
  return vreinterpretq_f32_u32(vbslq_u32(mask, vreinterpretq_u32_f32(a), vreinterpretq_u32_f32(b)));
}

namespace emulated {
inline int32_t to_int_saturated(float x) {  // NaN: zero
  if (std::isnan(x)) return 0;
  if (x >= 2147483648.0f) return INT32_MAX;
  return x < -2147483648.0f ? INT32_MIN : static_cast<int32_t>(std::nearbyint(x));
}
}  // namespace emulated
PAGEWIRE_ONE(vcvtnq_s32_f32, int32x4_t, float32x4_t, emulated::to_int_saturated(a.v[i]))
PAGEWIRE_ONE(vcvtq_f32_s32, float32x4_t, int32x4_t, a.v[i])
PAGEWIRE_ONE(vcvt_f32_f16, float32x4_t, float16x4_t, emulated::half_to_float(a.v[i]))
PAGEWIRE_ONE(vcvt_f16_f32, float16x4_t, float32x4_t, emulated::float_to_half(a.v[i]))

// --- integers -------------------------------------------------------------------------------------------------------

PAGEWIRE_TWO(vaddq_s32, int32x4_t, int32x4_t, int32x4_t, static_cast<uint32_t>(a.v[i]) + static_cast<uint32_t>(b.v[i]))
PAGEWIRE_TWO(vaddq_u32, uint32x4_t, uint32x4_t, uint32x4_t, a.v[i] + b.v[i])
PAGEWIRE_TWO(vandq_u32, uint32x4_t, uint32x4_t, uint32x4_t, a.v[i] & b.v[i])
PAGEWIRE_TWO(vandq_s8, int8x16_t, int8x16_t, int8x16_t, a.v[i] & b.v[i])
PAGEWIRE_TWO(vorrq_u32, uint32x4_t, uint32x4_t, uint32x4_t, a.v[i] | b.v[i])
PAGEWIRE_TWO(vmaxq_u32, uint32x4_t, uint32x4_t, uint32x4_t, a.v[i] > b.v[i] ? a.v[i] : b.v[i])
PAGEWIRE_TWO(vshlq_n_s32, int32x4_t, int32x4_t, int, static_cast<uint32_t>(a.v[i]) << b)
PAGEWIRE_TWO(vshrq_n_u32, uint32x4_t, uint32x4_t, int, a.v[i] >> b)
PAGEWIRE_TWO(vshrq_n_u8, uint8x16_t, uint8x16_t, int, a.v[i] >> b)
PAGEWIRE_TWO(vshll_n_u16, uint32x4_t, uint16x4_t, int, static_cast<uint32_t>(a.v[i]) << b)
PAGEWIRE_TWO(vshrn_n_u32, uint16x4_t, uint32x4_t, int, a.v[i] >> b)
PAGEWIRE_ONE(vmovn_s32, int16x4_t, int32x4_t, a.v[i])
PAGEWIRE_ONE(vmovn_s16, int8x8_t, int16x8_t, a.v[i])
inline uint32_t vmaxvq_u32(uint32x4_t a) {
  uint32_t most = 0;
  for (uint32_t x : a.v) most = x > most ? x : most;
  return most;
}
inline int32_t vaddvq_s32(int32x4_t a) { return a.v[0] + a.v[1] + a.v[2] + a.v[3]; }

// --- products -------------------------------------------------------------------------------------------------------

PAGEWIRE_TWO(vmull_s8, int16x8_t, int8x8_t, int8x8_t, a.v[i] * b.v[i])
PAGEWIRE_TWO(vmull_high_s8, int16x8_t, int8x16_t, int8x16_t, a.v[i + 8] * b.v[i + 8])
PAGEWIRE_THREE(vmlal_s8, int16x8_t, int16x8_t, int8x8_t, int8x8_t, a.v[i] + b.v[i] * c.v[i])
PAGEWIRE_THREE(vmlal_high_s8, int16x8_t, int16x8_t, int8x16_t, int8x16_t, a.v[i] + b.v[i + 8] * c.v[i + 8])
PAGEWIRE_ONE(vpaddlq_s16, int32x4_t, int16x8_t, a.v[2 * i] + a.v[2 * i + 1])
PAGEWIRE_TWO(vpadalq_s16, int32x4_t, int32x4_t, int16x8_t, a.v[i] + b.v[2 * i] + b.v[2 * i + 1])
PAGEWIRE_TWO(vpaddq_s32, int32x4_t, int32x4_t, int32x4_t,
             i < 2 ? a.v[2 * i] + a.v[2 * i + 1] : b.v[2 * i - 4] + b.v[2 * i - 3])

namespace emulated {
inline int32_t dot_quad(int8x16_t a, int8x16_t b, int lane) {
  int32_t sum = 0;
  for (int i = 4 * lane; i < 4 * lane + 4; ++i) sum += a.v[i] * b.v[i];
  return sum;
}
}  // namespace emulated
PAGEWIRE_THREE(vdotq_s32, int32x4_t, int32x4_t, int8x16_t, int8x16_t, a.v[i] + emulated::dot_quad(b, c, i))

#undef PAGEWIRE_ONE
#undef PAGEWIRE_TWO
#undef PAGEWIRE_THREE
#undef PAGEWIRE_LANES
