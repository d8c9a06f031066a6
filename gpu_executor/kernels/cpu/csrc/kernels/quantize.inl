// Activations as 8-bit integers, scaled by group of kGroup channels: what integer products read.
//
//   scale  = largest magnitude of the group / 127
//   value  = x * (127 / largest magnitude), rounded half to even
//   sum    = scale * (sum of the group's values): an exact integer times the scale, rounded once
//
// Included by isa/kernel_table.inl after int_dot_<name>.h.

constexpr float kMaxValue = 127.0f;
// Below this 127 / magnitude would overflow: such a group (under 4e-37 everywhere) counts as zeros.
constexpr uint32_t kLeastMagnitudeBits = 0x03000000u;
constexpr uint32_t kInfinityBits = 0x7f800000u;

PAGEWIRE_INLINE void quantize_group(const float* x, int8_t* values, float* scale, float* sum, float* half_sums) {
  const uint32_t max_bits = group_max_bits(x);
  if (max_bits < kLeastMagnitudeBits || max_bits >= kInfinityBits) {
    std::memset(values, 0, kGroup);
    const float broken = max_bits >= kInfinityBits ? __builtin_nanf("") : 0.0f;
    *scale = broken;
    if (sum != nullptr) *sum = broken;
    if (half_sums != nullptr) half_sums[0] = half_sums[1] = broken;
    return;
  }
  float most;
  std::memcpy(&most, &max_bits, sizeof(most));
  int32_t halves[2];
  round_group(x, kMaxValue / most, values, halves);
  *scale = most / kMaxValue;
  if (sum != nullptr) *sum = *scale * static_cast<float>(halves[0] + halves[1]);
  if (half_sums != nullptr) {
    half_sums[0] = *scale * static_cast<float>(halves[0]);
    half_sums[1] = *scale * static_cast<float>(halves[1]);
  }
}

void quantize_row(const float* x, int64_t n, int8_t* values, float* scales, float* sums, float* half_sums) {
  const int64_t whole = n / kGroup;
  for (int64_t group = 0; group < whole; ++group) {
    quantize_group(x + group * kGroup, values + group * kGroup, scales + group, sums ? sums + group : nullptr,
                   half_sums ? half_sums + 2 * group : nullptr);
  }
  if (n == whole * kGroup) return;
  float rest[kGroup] = {};
  std::memcpy(rest, x + whole * kGroup, static_cast<size_t>(n - whole * kGroup) * sizeof(float));
  quantize_group(rest, values + whole * kGroup, scales + whole, sums ? sums + whole : nullptr,
                 half_sums ? half_sums + 2 * whole : nullptr);
}
