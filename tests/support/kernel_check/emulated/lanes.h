// What both sets of emulated intrinsics are made of: vectors as bytes, looked at as lanes of any type.
#pragma once

#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>

namespace emulated {

template <typename Lane, typename Vector>
constexpr int kLanes = static_cast<int>(sizeof(Vector) / sizeof(Lane));

template <typename Lane, typename Vector>
Lane lane(const Vector& a, int i) {
  Lane out;
  std::memcpy(&out, reinterpret_cast<const char*>(&a) + i * static_cast<int>(sizeof(Lane)), sizeof(Lane));
  return out;
}
// A vector whose lane i, as a Lane, is of(i).
template <typename Vector, typename Lane, typename Of>
Vector make(Of&& of) {
  Vector out;
  for (int i = 0; i < kLanes<Lane, Vector>; ++i) {
    const Lane value = static_cast<Lane>(of(i));
    std::memcpy(reinterpret_cast<char*>(&out) + i * static_cast<int>(sizeof(Lane)), &value, sizeof(Lane));
  }
  return out;
}
template <typename To, typename From>
To cast(const From& a) {
  static_assert(sizeof(To) <= sizeof(From));
  To out;
  std::memcpy(&out, &a, sizeof(out));
  return out;
}
template <typename Vector>
Vector read(const void* p) {
  Vector out;
  std::memcpy(&out, p, sizeof(out));
  return out;
}

// Half precision by exact scaling: an independent way to do what the portable kernels do with bits.
inline float half_to_float(uint16_t half) {
  const int exponent = half >> 10 & 31, mantissa = half & 1023;
  const float sign = half >> 15 ? -1.0f : 1.0f;
  if (exponent == 31) return mantissa ? std::numeric_limits<float>::quiet_NaN() : sign * INFINITY;
  if (exponent == 0) return sign * std::ldexp(static_cast<float>(mantissa), -24);
  return sign * std::ldexp(static_cast<float>(1024 + mantissa), exponent - 25);
}

inline uint16_t float_to_half(float x) {
  const int sign = std::signbit(x) ? 0x8000 : 0;
  const float magnitude = std::fabs(x);
  if (std::isnan(x)) return static_cast<uint16_t>(sign | 0x7e00);
  if (magnitude >= 65520.0f) return static_cast<uint16_t>(sign | 0x7c00);
  int exponent;
  std::frexp(magnitude, &exponent);  // magnitude in [2^(exponent - 1), 2^exponent)
  // A unit of the last place: 11 bits of a normal number, and none below 2^-24.
  const int unit = exponent - 11 < -24 ? -24 : exponent - 11;
  const float value = std::ldexp(std::nearbyint(std::ldexp(magnitude, -unit)), unit);  // half to even
  if (value < 6.103515625e-05f) return static_cast<uint16_t>(sign | static_cast<int>(std::ldexp(value, 24)));
  std::frexp(value, &exponent);
  const int mantissa = static_cast<int>(std::ldexp(value, 11 - exponent)) - 1024;
  return static_cast<uint16_t>(sign | (exponent + 14) << 10 | mantissa);
}

}  // namespace emulated
