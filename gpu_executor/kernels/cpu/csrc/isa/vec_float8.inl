// Floats of 8 bits: e4m3, which has no infinities and whose NaN has all bits set but the sign, and e5m2, the upper half
// of a 16-bit float. Included by vec_math.inl.
//
// Loads are exact. Stores round to nearest even; what is beyond the largest number becomes that one, NaN stays NaN.

using Bytes = uint8_t __attribute__((vector_size(kVecSize)));
using Halves = uint16_t __attribute__((vector_size(2 * kVecSize)));

PAGEWIRE_INLINE Halves load_bytes(const uint8_t* p) {
  Bytes bytes;
  std::memcpy(&bytes, p, sizeof(bytes));
  return __builtin_convertvector(bytes, Halves);
}
PAGEWIRE_INLINE Vec half_bits_to_floats(Halves halves) {
  uint16_t bits[kVecSize];
  std::memcpy(bits, &halves, sizeof(bits));
  return load_half(bits);
}

PAGEWIRE_INLINE Vec load_e4m3(const uint8_t* p) {
  const Halves bytes = load_bytes(p), magnitude = bytes & 0x7f;
  const Halves is_nan = reinterpret_cast<Halves>(magnitude == 0x7f);
  // In the place of a 16-bit float's bits the number is that float times 2^8, be it normal or subnormal.
  return mul(half_bits_to_floats((bytes & 0x80) << 8 | magnitude << 7 | is_nan), broadcast(256.0f));
}
PAGEWIRE_INLINE Vec load_e5m2(const uint8_t* p) { return half_bits_to_floats(load_bytes(p) << 8); }

// One number. Least normal and largest number as the bits of an fp32.
template <int kMantissaBits, uint32_t kLeastNormal, uint32_t kLargest>
PAGEWIRE_INLINE uint8_t float_to_float8(float x) {
  constexpr int kDropped = 23 - kMantissaBits;
  // So much larger than subnormal numbers that a sum with it ends at their last bit.
  constexpr uint32_t kRounder = kLeastNormal + (static_cast<uint32_t>(kDropped) << 23);
  uint32_t bits;
  std::memcpy(&bits, &x, sizeof(bits));
  const uint32_t magnitude = bits & 0x7fffffffu, kept = magnitude < kLargest ? magnitude : kLargest;
  float small, rounder;
  std::memcpy(&small, &kept, sizeof(small));
  std::memcpy(&rounder, &kRounder, sizeof(rounder));
  small += rounder;
  uint32_t subnormal;
  std::memcpy(&subnormal, &small, sizeof(subnormal));
  const uint32_t rounded = kept + (1u << (kDropped - 1)) - 1u + (kept >> kDropped & 1u);
  const uint32_t normal = (rounded >> kDropped) - (kLeastNormal >> kDropped) + (1u << kMantissaBits);
  const uint32_t number = kept < kLeastNormal ? subnormal - kRounder : normal;
  return static_cast<uint8_t>((bits >> 24 & 0x80u) | (magnitude > 0x7f800000u ? 0x7fu : number));
}

template <int kMantissaBits, uint32_t kLeastNormal, uint32_t kLargest>
PAGEWIRE_INLINE void store_float8(uint8_t* p, Vec a) {
  float lanes[kVecSize];
  store(lanes, a);
  for (int64_t i = 0; i < kVecSize; ++i) p[i] = float_to_float8<kMantissaBits, kLeastNormal, kLargest>(lanes[i]);
}
PAGEWIRE_INLINE void store_e4m3(uint8_t* p, Vec a) { store_float8<3, 0x3c800000u, 0x43e00000u>(p, a); }  // 2^-6, 448
PAGEWIRE_INLINE void store_e5m2(uint8_t* p, Vec a) { store_float8<2, 0x38800000u, 0x47600000u>(p, a); }  // 2^-14, 57344

// As Float32 and the others.
struct Float8E4M3 {
  using Element = uint8_t;
  PAGEWIRE_INLINE Vec load_all(const uint8_t* p) { return load_e4m3(p); }
  PAGEWIRE_INLINE Vec load_first(const uint8_t* p, int64_t n) {
    uint8_t whole[kVecSize] = {};
    std::memcpy(whole, p, static_cast<size_t>(n));
    return load_e4m3(whole);
  }
  PAGEWIRE_INLINE void store_all(uint8_t* p, Vec a) { store_e4m3(p, a); }
  PAGEWIRE_INLINE void store_first(uint8_t* p, Vec a, int64_t n) {
    uint8_t whole[kVecSize];
    store_e4m3(whole, a);
    std::memcpy(p, whole, static_cast<size_t>(n));
  }
};
struct Float8E5M2 {
  using Element = uint8_t;
  PAGEWIRE_INLINE Vec load_all(const uint8_t* p) { return load_e5m2(p); }
  PAGEWIRE_INLINE Vec load_first(const uint8_t* p, int64_t n) {
    uint8_t whole[kVecSize] = {};
    std::memcpy(whole, p, static_cast<size_t>(n));
    return load_e5m2(whole);
  }
  PAGEWIRE_INLINE void store_all(uint8_t* p, Vec a) { store_e5m2(p, a); }
  PAGEWIRE_INLINE void store_first(uint8_t* p, Vec a, int64_t n) {
    uint8_t whole[kVecSize];
    store_e5m2(whole, a);
    std::memcpy(p, whole, static_cast<size_t>(n));
  }
};
