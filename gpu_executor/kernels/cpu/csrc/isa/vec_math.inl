// What is built from a Vec's primitives, the same for every instruction set. Included at the end of each vec_<name>.h,
// inside its namespace.

// n elements of 16 bits, 0 <= n <= kVecSize; lanes from n on are zero, memory from n on is not touched.
PAGEWIRE_INLINE Vec load_half_partial(const uint16_t* p, int64_t n) {
  uint16_t whole[kVecSize] = {};
  std::memcpy(whole, p, static_cast<size_t>(n) * sizeof(uint16_t));
  return load_half(whole);
}
PAGEWIRE_INLINE Vec load_bfloat_partial(const uint16_t* p, int64_t n) {
  uint16_t whole[kVecSize] = {};
  std::memcpy(whole, p, static_cast<size_t>(n) * sizeof(uint16_t));
  return load_bfloat(whole);
}
PAGEWIRE_INLINE void store_half_partial(uint16_t* p, Vec a, int64_t n) {
  uint16_t whole[kVecSize];
  store_half(whole, a);
  std::memcpy(p, whole, static_cast<size_t>(n) * sizeof(uint16_t));
}
PAGEWIRE_INLINE void store_bfloat_partial(uint16_t* p, Vec a, int64_t n) {
  uint16_t whole[kVecSize];
  store_bfloat(whole, a);
  std::memcpy(p, whole, static_cast<size_t>(n) * sizeof(uint16_t));
}

// One element type each, to write a kernel once for all of them: Element is what lies in memory. Loads give its numbers
// in units of kUnit, a power of two: the reader multiplies by it where that costs least.
struct Float32 {
  using Element = float;
  static constexpr float kUnit = 1.0f;
  PAGEWIRE_INLINE Vec load_all(const float* p) { return load(p); }
  PAGEWIRE_INLINE Vec load_first(const float* p, int64_t n) { return load_partial(p, n); }
  PAGEWIRE_INLINE void store_all(float* p, Vec a) { store(p, a); }
  PAGEWIRE_INLINE void store_first(float* p, Vec a, int64_t n) { store_partial(p, a, n); }
};
struct Float16 {
  using Element = uint16_t;
  static constexpr float kUnit = 1.0f;
  PAGEWIRE_INLINE Vec load_all(const uint16_t* p) { return load_half(p); }
  PAGEWIRE_INLINE Vec load_first(const uint16_t* p, int64_t n) { return load_half_partial(p, n); }
  PAGEWIRE_INLINE void store_all(uint16_t* p, Vec a) { store_half(p, a); }
  PAGEWIRE_INLINE void store_first(uint16_t* p, Vec a, int64_t n) { store_half_partial(p, a, n); }
};
struct BFloat16 {
  using Element = uint16_t;
  static constexpr float kUnit = 1.0f;
  PAGEWIRE_INLINE Vec load_all(const uint16_t* p) { return load_bfloat(p); }
  PAGEWIRE_INLINE Vec load_first(const uint16_t* p, int64_t n) { return load_bfloat_partial(p, n); }
  PAGEWIRE_INLINE void store_all(uint16_t* p, Vec a) { store_bfloat(p, a); }
  PAGEWIRE_INLINE void store_first(uint16_t* p, Vec a, int64_t n) { store_bfloat_partial(p, a, n); }
};

#include "vec_float8.inl"

// kCount vectors that lie side by side, a power of two. Numbers of 8 bits are converted some vectors at a time.
template <int64_t kCount, typename Type>
PAGEWIRE_INLINE void load_run(Type, const typename Type::Element* p, Vec* out) {
#pragma GCC unroll 8
  for (int64_t i = 0; i < kCount; ++i) out[i] = Type::load_all(p + i * kVecSize);
}
template <int64_t kCount, typename Format>
PAGEWIRE_INLINE void load_run(Float8<Format>, const uint8_t* p, Vec* out) {
  constexpr int64_t kSize = kCount * kVecSize < kFloat8Run ? kCount * kVecSize : kFloat8Run;
#pragma GCC unroll 8
  for (int64_t i = 0; i < kCount * kVecSize; i += kSize) load_float8<Format, kSize>(p + i, out + i / kVecSize);
}

// 2^r for r in [-0.5, 0.5]: a polynomial fitted to the least relative error, 2^0 exactly 1.
PAGEWIRE_INLINE Vec exp2_fraction(Vec r) {
  Vec p = broadcast(1.53533620e-4f);
  p = fma(p, r, broadcast(1.33988739e-3f));
  p = fma(p, r, broadcast(9.61843692e-3f));
  p = fma(p, r, broadcast(5.55033237e-2f));
  p = fma(p, r, broadcast(2.40226477e-1f));
  p = fma(p, r, broadcast(6.93147182e-1f));
  return fma(p, r, broadcast(1.0f));
}

// 2^x. Exactly 1 at 0, exactly 0 below -126 (a subnormal result would be slow and gain nothing) and at minus infinity,
// infinity from 128 on, NaN for NaN.
PAGEWIRE_INLINE Vec exp2(Vec x) {
  const Vec whole = round_to_even(x);
  const Vec y = scale_exponent(exp2_fraction(sub(x, whole)), whole);
  const Vec floored = select_less(x, broadcast(-126.0f), zero(), y);
  return select_less(x, broadcast(128.0f), floored, select_less(broadcast(127.0f), x, broadcast(__builtin_inff()), y));
}

// 2^x for x <= 0, or NaN: as above, for less.
PAGEWIRE_INLINE Vec exp2_nonpositive(Vec x) {
  const Vec whole = round_to_even(x);
  return select_less(x, broadcast(-126.0f), zero(), scale_exponent(exp2_fraction(sub(x, whole)), whole));
}

// e^x, with the same edges: 0 below -87.33 (2^-126), infinity from 88.722839 on.
PAGEWIRE_INLINE Vec exp(Vec x) {
  const Vec whole = round_to_even(mul(x, broadcast(1.4426950408889634f)));
  // x - whole * ln 2 in two pieces, the first of few enough bits for an exact product. The rest goes to base 2 last,
  // where its rounding is relative to a small number.
  Vec rest = fma(whole, broadcast(-0.693145751953125f), x);
  rest = fma(whole, broadcast(-1.42860682030941723212e-6f), rest);
  const Vec y = scale_exponent(exp2_fraction(mul(rest, broadcast(1.4426950408889634f))), whole);
  const Vec floored = select_less(x, broadcast(-87.33f), zero(), y);
  return select_less(x, broadcast(88.722839f), floored, select_less(broadcast(88.0f), x, broadcast(__builtin_inff()), y));
}
