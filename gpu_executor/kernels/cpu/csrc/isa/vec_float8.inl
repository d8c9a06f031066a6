// Floats of 8 bits: e4m3, which has no infinities and whose NaN has all bits set but the sign, and e5m2, the upper half
// of a 16-bit float. Included by vec_math.inl.
//
// Loads are exact. Stores round to nearest even; what is beyond the largest number becomes that one, NaN stays NaN.

template <int64_t kSize>
struct Float8Vectors {
  typedef int8_t Bytes __attribute__((vector_size(kSize)));
  typedef int16_t Extended __attribute__((vector_size(2 * kSize)));
  typedef uint16_t Halves __attribute__((vector_size(2 * kSize)));
};
// As many numbers as fill a register of 32 bytes while they are halves.
constexpr int64_t kFloat8Run = 16;

// kSize numbers extended by their sign.
template <int64_t kSize>
PAGEWIRE_INLINE typename Float8Vectors<kSize>::Halves extend_bytes(const uint8_t* p) {
  using Vectors = Float8Vectors<kSize>;
#if defined(__AVX2__)
  // One instruction, of which gcc makes four.
  if constexpr (kSize == kFloat8Run) {
    const __m256i extended = _mm256_cvtepi8_epi16(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p)));
    return reinterpret_cast<typename Vectors::Halves>(extended);
  }
#endif
  typename Vectors::Bytes bytes;
  std::memcpy(&bytes, p, sizeof(bytes));
  return reinterpret_cast<typename Vectors::Halves>(__builtin_convertvector(bytes, typename Vectors::Extended));
}

// kSize numbers, a power of two, in kSize / kVecSize vectors.
template <typename Format, int64_t kSize>
PAGEWIRE_INLINE void load_float8(const uint8_t* p, Vec* out) {
  const auto halves = Format::to_half(extend_bytes<kSize>(p));
  uint16_t bits[kSize];
  std::memcpy(bits, &halves, sizeof(bits));
  for (int64_t i = 0; i < kSize; i += kVecSize) out[i / kVecSize] = load_half(bits + i);
}

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

// One format each: to_half makes bits of 8, extended by their sign, those of a 16-bit float in units of kUnit.
struct E4M3 {
  static constexpr float kUnit = 256.0f;
  template <typename HalfBits>
  PAGEWIRE_INLINE HalfBits to_half(HalfBits extended) {
    // In the place of a 16-bit float's bits the number is that float times 2^8, be it normal or subnormal. Bit 14 is
    // still a copy of the sign. Adding to the mantissa's last bit carries into it at NaN alone, where all bits between
    // are set: the sum's bit 14 is the copy, flipped at NaN, and the difference of the two is set at NaN alone.
    const HalfBits half = extended << 7;
    return half ^ ((half + 0x80) & 0x4000);
  }
  // Least normal and largest number: 2^-6, 448.
  PAGEWIRE_INLINE void store_all(uint8_t* p, Vec a) { store_float8<3, 0x3c800000u, 0x43e00000u>(p, a); }
};
struct E5M2 {
  static constexpr float kUnit = 1.0f;
  template <typename HalfBits>
  PAGEWIRE_INLINE HalfBits to_half(HalfBits extended) {
    return extended << 8;
  }
  // 2^-14, 57344.
  PAGEWIRE_INLINE void store_all(uint8_t* p, Vec a) { store_float8<2, 0x38800000u, 0x47600000u>(p, a); }
};

// As Float32 and the others.
template <typename Format>
struct Float8 {
  using Element = uint8_t;
  static constexpr float kUnit = Format::kUnit;
  PAGEWIRE_INLINE Vec load_all(const uint8_t* p) {
    Vec loaded;
    load_float8<Format, kVecSize>(p, &loaded);
    return loaded;
  }
  PAGEWIRE_INLINE Vec load_first(const uint8_t* p, int64_t n) {
    uint8_t whole[kVecSize] = {};
    std::memcpy(whole, p, static_cast<size_t>(n));
    return load_all(whole);
  }
  PAGEWIRE_INLINE void store_all(uint8_t* p, Vec a) { Format::store_all(p, a); }
  PAGEWIRE_INLINE void store_first(uint8_t* p, Vec a, int64_t n) {
    uint8_t whole[kVecSize];
    store_all(whole, a);
    std::memcpy(p, whole, static_cast<size_t>(n));
  }
};
using Float8E4M3 = Float8<E4M3>;
using Float8E5M2 = Float8<E5M2>;
