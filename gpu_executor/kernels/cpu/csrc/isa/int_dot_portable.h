// Integer dot products in plain C++: see int_dot_avx2.h for what each name promises.
#pragma once

#include "../weights/packed_matrix.h"
#include "vec_portable.h"

namespace pagewire::portable {

constexpr int kIntTileRows = 1;

struct Quads {
  int8_t v[kVecSize * 4];
};

PAGEWIRE_INLINE Quads load_quads(const uint8_t* p) {
  Quads out;
  std::memcpy(out.v, p, sizeof(out.v));
  return out;
}
PAGEWIRE_INLINE void store_quads(uint8_t* p, Quads a) { std::memcpy(p, a.v, sizeof(a.v)); }
PAGEWIRE_INLINE Quads broadcast_quad(const int8_t* p) {
  Quads out;
  for (int64_t i = 0; i < kVecSize; ++i) std::memcpy(out.v + 4 * i, p, 4);
  return out;
}
PAGEWIRE_INLINE Quads low_nibbles(Quads a) {
  for (int8_t& code : a.v) code = static_cast<int8_t>(code & 15);
  return a;
}
PAGEWIRE_INLINE Quads high_nibbles(Quads a) {
  for (int8_t& code : a.v) code = static_cast<int8_t>(static_cast<uint8_t>(code) >> 4);
  return a;
}

struct NibbleSum {
  int32_t v[kVecSize];
};
PAGEWIRE_INLINE NibbleSum no_nibbles() { return {}; }
PAGEWIRE_INLINE NibbleSum add_nibbles(NibbleSum sum, Quads codes, Quads activations) {
  for (int64_t i = 0; i < kVecSize; ++i) {
    int32_t dot = 0;
    for (int64_t j = 4 * i; j < 4 * i + 4; ++j) dot += int32_t{codes.v[j]} * int32_t{activations.v[j]};
    sum.v[i] += dot;
  }
  return sum;
}
PAGEWIRE_INLINE Vec to_floats(NibbleSum sum) {
  return each_lane([&](int64_t i) { return static_cast<float>(sum.v[i]); });
}

// Codes are signed here: 8-bit weights need nothing that 4-bit ones do not.
using ByteWeights = Quads;
using ByteSum = NibbleSum;
PAGEWIRE_INLINE ByteWeights load_byte_weights(const uint8_t* p) { return load_quads(p); }
PAGEWIRE_INLINE ByteSum no_bytes() { return {}; }
PAGEWIRE_INLINE ByteSum add_bytes(ByteSum sum, ByteWeights weights, Quads activations) {
  return add_nibbles(sum, weights, activations);
}

PAGEWIRE_INLINE uint32_t group_max_bits(const float* x) {
  uint32_t most = 0;
  for (int64_t i = 0; i < kGroup; ++i) {
    const uint32_t magnitude = bits_of(x[i]) & 0x7fffffffu;
    most = magnitude > most ? magnitude : most;
  }
  return most;
}

PAGEWIRE_INLINE void round_group(const float* x, float inverse_scale, int8_t* values, int32_t half_sums[2]) {
  half_sums[0] = half_sums[1] = 0;
  for (int64_t i = 0; i < kGroup; ++i) {
    const int32_t value = static_cast<int32_t>(std::nearbyint(x[i] * inverse_scale));
    values[i] = static_cast<int8_t>(value);
    half_sums[i / (kGroup / 2)] += value;
  }
}

}  // namespace pagewire::portable
