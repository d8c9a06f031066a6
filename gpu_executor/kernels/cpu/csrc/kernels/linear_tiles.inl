// linear.inl's products on a unit that multiplies whole tiles of integers (AMX): 16 rows at a time, each group's sums
// passing through memory; what is left over, and fewer rows, go the way of PAGEWIRE_INTEGERS, the narrower set's
// linear.inl. The arithmetic is the same, and so are the bits.
//
// Included by isa/kernel_table.inl after linear_blocks.inl, where int_dot_<name>.h provides TileShapes, sum_tile and
// load_sums.

// The codes of some groups of one panel, a byte each, and the panel's own groups, which hold the scales.
struct TileWeights {
  const uint8_t* codes;
  int64_t code_stride;  // from a group to the next
  const uint8_t* scales;
  int64_t scale_stride;
};

// 4-bit codes as bytes, input channels in order.
PAGEWIRE_INLINE void widen_int4_in_order(const uint8_t* packed, int64_t num_groups, uint8_t* codes) {
  for (int64_t g = 0; g < num_groups; ++g) {
    for (int64_t quad = 0; quad < 4; ++quad) {
      for (int64_t i = 0; i < 4 * kPanel; i += 4 * kVecSize) {
        const Quads both = load_quads(packed + quad * 4 * kPanel + i);
        store_quads(codes + quad * 4 * kPanel + i, low_nibbles(both));
        store_quads(codes + (quad + 4) * 4 * kPanel + i, high_nibbles(both));
      }
    }
    packed += kPanel * (kGroup / 2 + 4);
    codes += kPanel * kGroup;
  }
}

template <bool kHalf, bool kMinimum>
static void multiply_tile_16(const TileWeights& weights, int64_t num_groups, const IntRows& x, float* totals) {
  constexpr int64_t kParts = kHalf ? 2 : 1;
  constexpr int64_t kPartSize = kGroup / kParts;
  static_assert(kVecSize == kPanel);
  alignas(64) int32_t sums[2][kTileRows16 * kPanel];
  const auto form_sums = [&](int64_t step) {
    const int64_t group = step / kParts, offset = step % kParts * kPartSize;
    sum_tile<kHalf>(x.values + group * kGroup + offset, x.num_groups * kGroup,
                    weights.codes + group * weights.code_stride + offset * kPanel, sums[step % 2]);
  };
  Vec total[kTileRows16];
#pragma GCC unroll 16
  for (int row = 0; row < kTileRows16; ++row) total[row] = load(totals + row * kPanel);
  const int64_t steps = num_groups * kParts;
  form_sums(0);
  for (int64_t step = 0; step < steps; ++step) {
    // The next sums are on their way while these are scaled.
    if (step + 1 < steps) form_sums(step + 1);
    const int64_t group = step / kParts, part = step % kParts;
    const uint16_t* halves = reinterpret_cast<const uint16_t*>(weights.scales + group * weights.scale_stride);
    const Vec scale = load_half(halves + part * kPanel);
    Vec minimum = zero();
    if constexpr (kMinimum) minimum = load_half(halves + (kParts + part) * kPanel);
#pragma GCC unroll 16
    for (int row = 0; row < kTileRows16; ++row) {
      const int64_t at = row * x.num_groups + group;
      total[row] = fma(mul(scale, broadcast(x.scales[at])), load_sums(sums[step % 2] + row * kPanel), total[row]);
      if constexpr (kMinimum) {
        const Vec row_sum = broadcast(kHalf ? x.half_sums[2 * at + part] : x.sums[at]);
        total[row] = fma(minimum, row_sum, total[row]);
      }
    }
  }
#pragma GCC unroll 16
  for (int row = 0; row < kTileRows16; ++row) store(totals + row * kPanel, total[row]);
}

using MultiplyTile16 = void (*)(const TileWeights& weights, int64_t num_groups, const IntRows& x, float* totals);

PAGEWIRE_INLINE MultiplyTile16 tile_of_16_rows(const PackedMatrix& matrix) {
  if (matrix.layout == WeightLayout::kInt4) return multiply_tile_16<false, true>;
  if (matrix.layout == WeightLayout::kInt8) {
    return matrix.has_minimum ? multiply_tile_16<false, true> : multiply_tile_16<false, false>;
  }
  return matrix.has_minimum ? multiply_tile_16<true, true> : multiply_tile_16<true, false>;
}

// One panel times up to kIntRowBlock rows, a multiple of 16.
PAGEWIRE_INLINE void multiply_panel_by_tiles(const PackedMatrix& matrix, int64_t panel, const ActivationRows& x,
                                             int64_t row_begin, int64_t rows, const OutputRows& y, float* totals,
                                             uint8_t* widened) {
  const int64_t num_groups = matrix.num_groups(), group_bytes = matrix.group_bytes();
  const int64_t code_bytes = matrix.layout == WeightLayout::kInt4 ? kPanel * kGroup / 2 : kPanel * kGroup;
  const MultiplyTile16 multiply = tile_of_16_rows(matrix);
  std::memset(totals, 0, static_cast<size_t>(rows * kPanel) * sizeof(float));
  for (int64_t begin = 0; begin < num_groups; begin += kBlockGroups) {
    const int64_t groups = smaller(kBlockGroups, num_groups - begin);
    const uint8_t* packed = matrix.panel(panel) + begin * group_bytes;
    TileWeights weights{packed, group_bytes, packed + code_bytes, group_bytes};
    if (matrix.layout == WeightLayout::kInt4) {
      widen_int4_in_order(packed, groups, widened);
      weights.codes = widened;
      weights.code_stride = kPanel * kGroup;
    }
    for (int64_t row = 0; row < rows; row += kTileRows16) {
      const int64_t at = (row_begin + row) * x.num_groups + begin;
      const IntRows tile_x{x.values + at * kGroup, x.scales + at, x.sums ? x.sums + at : nullptr,
                           x.half_sums ? x.half_sums + 2 * at : nullptr, x.num_groups};
      multiply(weights, groups, tile_x, totals + row * kPanel);
    }
  }
  finish_panel(matrix, panel, totals, row_begin, rows, y);
}

void linear_tile(const PackedMatrix& matrix, int64_t panel_begin, int64_t panel_end, const ActivationRows& x,
                 int64_t row_begin, int64_t row_end, const OutputRows& y, void* work) {
  if (!is_quantized(matrix.layout) || row_end - row_begin < kTileRows16) {
    PAGEWIRE_INTEGERS::linear_tile(matrix, panel_begin, panel_end, x, row_begin, row_end, y, work);
    return;
  }
  const TileShapes shapes;
  float* totals = static_cast<float*>(work);
  uint8_t* widened = static_cast<uint8_t*>(work) + kIntRowBlock * kPanel * static_cast<int64_t>(sizeof(float));
  for (int64_t row = row_begin; row < row_end; row += kIntRowBlock) {
    const int64_t rows = smaller(kIntRowBlock, row_end - row), whole = rows / kTileRows16 * kTileRows16;
    for (int64_t panel = panel_begin; panel < panel_end; ++panel) {
      if (whole > 0) multiply_panel_by_tiles(matrix, panel, x, row, whole, y, totals, widened);
      // What is left, while the panel's codes are still in a cache.
      if (whole < rows) {
        PAGEWIRE_INTEGERS::linear_tile(matrix, panel, panel + 1, x, row + whole, row + rows, y, work);
      }
    }
  }
}
