// What all sets of 64-bit ARM share of int_dot_avx2.h's names: quads, and the quantization of a group of activations.
#pragma once

#include "../weights/packed_matrix.h"
#include "vec_neon.h"

namespace pagewire::neon {

struct Quads {
  int8x16_t v;  // 4 bytes a lane
};

PAGEWIRE_INLINE Quads load_quads(const uint8_t* p) { return {vreinterpretq_s8_u8(vld1q_u8(p))}; }
PAGEWIRE_INLINE void store_quads(uint8_t* p, Quads a) { vst1q_u8(p, vreinterpretq_u8_s8(a.v)); }
PAGEWIRE_INLINE Quads broadcast_quad(const int8_t* p) {
  int32_t quad;
  std::memcpy(&quad, p, sizeof(quad));
  return {vreinterpretq_s8_s32(vdupq_n_s32(quad))};
}
PAGEWIRE_INLINE Quads low_nibbles(Quads a) { return {vandq_s8(a.v, vdupq_n_s8(15))}; }
PAGEWIRE_INLINE Quads high_nibbles(Quads a) {
  return {vreinterpretq_s8_u8(vshrq_n_u8(vreinterpretq_u8_s8(a.v), 4))};
}

// Codes are signed here: 8-bit weights need nothing that 4-bit ones do not.
using ByteWeights = Quads;
PAGEWIRE_INLINE ByteWeights load_byte_weights(const uint8_t* p) { return load_quads(p); }

PAGEWIRE_INLINE uint32_t group_max_bits(const float* x) {
  uint32x4_t most = vdupq_n_u32(0);
  for (int64_t i = 0; i < kGroup; i += kVecSize) {
    most = vmaxq_u32(most, vandq_u32(vreinterpretq_u32_f32(vld1q_f32(x + i)), vdupq_n_u32(0x7fffffff)));
  }
  return vmaxvq_u32(most);
}

PAGEWIRE_INLINE void round_group(const float* x, float inverse_scale, int8_t* values, int32_t half_sums[2]) {
  const float32x4_t factor = vdupq_n_f32(inverse_scale);
  for (int64_t half = 0; half < 2; ++half) {
    int32x4_t rounded[4];
#pragma GCC unroll 4
    for (int64_t i = 0; i < 4; ++i) rounded[i] = vcvtnq_s32_f32(vmulq_f32(vld1q_f32(x + half * 16 + i * 4), factor));
    const int16x8_t low = vcombine_s16(vmovn_s32(rounded[0]), vmovn_s32(rounded[1]));
    const int16x8_t high = vcombine_s16(vmovn_s32(rounded[2]), vmovn_s32(rounded[3]));
    vst1q_s8(values + half * 16, vcombine_s8(vmovn_s16(low), vmovn_s16(high)));
    half_sums[half] = vaddvq_s32(vaddq_s32(vaddq_s32(rounded[0], rounded[1]), vaddq_s32(rounded[2], rounded[3])));
  }
}

}  // namespace pagewire::neon
