// A vector of floats in plain C++: 8 floats that the compiler may keep in whatever vectors it has. See vec_avx2.h for
// what each function promises. Without fused multiply-add in hardware fma rounds twice: a software one would be far too
// slow.
#pragma once

#include <cmath>
#include <cstdint>
#include <cstring>

namespace pagewire::portable {

#ifdef _MSC_VER
#define PAGEWIRE_INLINE static __forceinline
#else
#define PAGEWIRE_INLINE static inline __attribute__((always_inline))
#endif

constexpr int64_t kVecSize = 8;
constexpr int64_t kVecRegisters = 8;

struct Vec {
  float v[kVecSize];
};

template <typename Lane>
PAGEWIRE_INLINE Vec each_lane(Lane&& lane) {
  Vec out;
  for (int64_t i = 0; i < kVecSize; ++i) out.v[i] = lane(i);
  return out;
}

PAGEWIRE_INLINE Vec zero() { return each_lane([](int64_t) { return 0.0f; }); }
PAGEWIRE_INLINE Vec broadcast(float x) { return each_lane([=](int64_t) { return x; }); }
PAGEWIRE_INLINE Vec load(const float* p) {
  Vec out;
  std::memcpy(out.v, p, sizeof(out.v));
  return out;
}
PAGEWIRE_INLINE void store(float* p, Vec a) { std::memcpy(p, a.v, sizeof(a.v)); }
PAGEWIRE_INLINE Vec load_partial(const float* p, int64_t n) {
  return each_lane([=](int64_t i) { return i < n ? p[i] : 0.0f; });
}
PAGEWIRE_INLINE void store_partial(float* p, Vec a, int64_t n) {
  for (int64_t i = 0; i < n; ++i) p[i] = a.v[i];
}

PAGEWIRE_INLINE Vec add(Vec a, Vec b) { return each_lane([&](int64_t i) { return a.v[i] + b.v[i]; }); }
PAGEWIRE_INLINE Vec sub(Vec a, Vec b) { return each_lane([&](int64_t i) { return a.v[i] - b.v[i]; }); }
PAGEWIRE_INLINE Vec mul(Vec a, Vec b) { return each_lane([&](int64_t i) { return a.v[i] * b.v[i]; }); }
PAGEWIRE_INLINE Vec div(Vec a, Vec b) { return each_lane([&](int64_t i) { return a.v[i] / b.v[i]; }); }
PAGEWIRE_INLINE Vec fma(Vec a, Vec b, Vec c) { return each_lane([&](int64_t i) { return a.v[i] * b.v[i] + c.v[i]; }); }
PAGEWIRE_INLINE Vec sqrt(Vec a) { return each_lane([&](int64_t i) { return std::sqrt(a.v[i]); }); }
PAGEWIRE_INLINE Vec max(Vec a, Vec b) { return each_lane([&](int64_t i) { return a.v[i] > b.v[i] ? a.v[i] : b.v[i]; }); }
PAGEWIRE_INLINE Vec min(Vec a, Vec b) { return each_lane([&](int64_t i) { return a.v[i] < b.v[i] ? a.v[i] : b.v[i]; }); }
PAGEWIRE_INLINE Vec select_less(Vec a, Vec b, Vec x, Vec y) {
  return each_lane([&](int64_t i) { return a.v[i] < b.v[i] ? x.v[i] : y.v[i]; });
}
PAGEWIRE_INLINE Vec round_to_even(Vec a) {
  // Adding 1.5 * 2^23 leaves no bits for a fraction. From 2^22 on the sum would lose whole numbers too.
  return each_lane([&](int64_t i) {
    const float x = a.v[i], shifted = (x + 12582912.0f) - 12582912.0f;
    return x > -4194304.0f && x < 4194304.0f ? shifted : std::nearbyint(x);
  });
}
PAGEWIRE_INLINE Vec scale_exponent(Vec a, Vec n) {
  return each_lane([&](int64_t i) {
    // Converting a NaN or a number out of range is undefined; such a lane keeps a.
    const bool in_range = n.v[i] > -1024.0f && n.v[i] < 1024.0f;
    const uint32_t shift = static_cast<uint32_t>(static_cast<int32_t>(in_range ? n.v[i] : 0.0f)) << 23;
    uint32_t bits;
    std::memcpy(&bits, &a.v[i], sizeof(bits));
    bits += shift;
    float out;
    std::memcpy(&out, &bits, sizeof(out));
    return out;
  });
}

PAGEWIRE_INLINE float reduce_add(Vec a) {
  const float four[4] = {a.v[0] + a.v[4], a.v[1] + a.v[5], a.v[2] + a.v[6], a.v[3] + a.v[7]};
  const float two[2] = {four[0] + four[2], four[1] + four[3]};
  return two[0] + two[1];
}
PAGEWIRE_INLINE float reduce_max(Vec a) {
  float largest = a.v[0];
  for (int64_t i = 1; i < kVecSize; ++i) largest = largest > a.v[i] ? largest : a.v[i];
  return largest;
}

PAGEWIRE_INLINE float float_from_bits(uint32_t bits) {
  float x;
  std::memcpy(&x, &bits, sizeof(x));
  return x;
}
PAGEWIRE_INLINE uint32_t bits_of(float x) {
  uint32_t bits;
  std::memcpy(&bits, &x, sizeof(bits));
  return bits;
}
PAGEWIRE_INLINE float half_to_float(uint16_t half) {
  const uint32_t sign = static_cast<uint32_t>(half & 0x8000u) << 16, magnitude = half & 0x7fffu;
  // The exponent is moved by a multiplication, which also norms subnormal numbers: 2^112 between the two biases.
  const float shifted = float_from_bits(magnitude << 13) * 5192296858534827628530496329220096.0f;
  const uint32_t special = 0x7f800000u | (magnitude << 13);  // infinity and NaN
  return float_from_bits(sign | (magnitude >= 0x7c00u ? special : bits_of(shifted)));
}
PAGEWIRE_INLINE uint16_t float_to_half(float x) {
  const uint32_t bits = bits_of(x), sign = (bits >> 16) & 0x8000u, magnitude = bits & 0x7fffffffu;
  uint32_t half;
  if (magnitude > 0x7f800000u) {
    half = 0x7e00u;
  } else if (magnitude >= 0x477ff000u) {  // from 65520 on the nearest is infinity
    half = 0x7c00u;
  } else if (magnitude < 0x38800000u) {
    // Subnormal in half precision: adding 0.5 makes the adder round to the last bit that such a number has.
    half = bits_of(float_from_bits(magnitude) + 0.5f) - 0x3f000000u;
  } else {
    half = (magnitude - 0x38000000u + 0x0fffu + ((magnitude >> 13) & 1u)) >> 13;
  }
  return static_cast<uint16_t>(sign | half);
}
PAGEWIRE_INLINE Vec load_half(const uint16_t* p) {
  return each_lane([=](int64_t i) { return half_to_float(p[i]); });
}
PAGEWIRE_INLINE void store_half(uint16_t* p, Vec a) {
  for (int64_t i = 0; i < kVecSize; ++i) p[i] = float_to_half(a.v[i]);
}
PAGEWIRE_INLINE Vec load_bfloat(const uint16_t* p) {
  return each_lane([=](int64_t i) { return float_from_bits(static_cast<uint32_t>(p[i]) << 16); });
}
PAGEWIRE_INLINE void store_bfloat(uint16_t* p, Vec a) {
  for (int64_t i = 0; i < kVecSize; ++i) {
    const uint32_t bits = bits_of(a.v[i]), odd = (bits >> 16) & 1u;
    // Rounding would carry a NaN of small payload over to infinity: such a one is made quiet instead.
    p[i] = static_cast<uint16_t>((a.v[i] != a.v[i] ? bits | 0x00400000u : bits + 0x7fffu + odd) >> 16);
  }
}

PAGEWIRE_INLINE void prefetch(const void* p) {
#ifdef _MSC_VER
  (void)p;
#else
  __builtin_prefetch(p);
#endif
}

#include "vec_math.inl"

}  // namespace pagewire::portable
