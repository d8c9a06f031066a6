// 4-bit and 8-bit weights times activations quantized to 8 bits.
//
// The order of a row's arithmetic, for each output channel, which every path here keeps (few rows, many, any tile):
//   total = 0
//   for each group in order (for kInt8Half: for each half group in order):
//     total = fma(weight_scale * activation_scale, float(integer sum of code * value), total)
//     total = fma(weight_minimum, activation_sum, total)     if the layout has minima
//   total = total + bias                                     if there is one
//   out   = out + total, or total
// Integer sums are exact, so how they are formed doesn't matter; blocks of groups leave totals in memory as they are.
//
// Two regimes. Up to kIntTileRows rows meet the codes as they stream from memory. More rows meet a block of a panel
// whose 4-bit codes and scales were widened once, into work that stays in the level-1 cache, while the rows pass by.
//
// Included by isa/kernel_table.inl after int_dot_<name>.h, linear_dense.inl and linear_blocks.inl.

constexpr int kIntVecs = static_cast<int>(kPanel / kVecSize);
constexpr int64_t kCacheLine = 64;

// How far before the codes in use memory is asked for, when few rows stream a matrix once.
constexpr int64_t kStreamAhead = 4096;

// Cache lines to ask for beside the work on each group: those from `next` on.
struct Prefetcher {
  const uint8_t* next;
  int64_t lines_per_group;

  inline __attribute__((always_inline)) void step() {
    for (int64_t line = 0; line < lines_per_group; ++line) prefetch(next + line * kCacheLine);
    next += lines_per_group * kCacheLine;
  }
};

// One group of one panel, kRows rows: the integer sums of 4-bit codes. In a packed group a row of 64 bytes holds quads r
// and r + 4; in a widened one they follow each other.
template <int kRows, bool kWide>
PAGEWIRE_INLINE void sum_nibbles(const uint8_t* codes, const int8_t* values, int64_t row_bytes,
                                 NibbleSum (&sums)[kRows][kIntVecs]) {
#pragma GCC unroll 8
  for (int row = 0; row < kRows; ++row) {
#pragma GCC unroll 8
    for (int vec = 0; vec < kIntVecs; ++vec) sums[row][vec] = no_nibbles();
  }
#pragma GCC unroll 4
  for (int quad = 0; quad < 4; ++quad) {
#pragma GCC unroll 2
    for (int high = 0; high < 2; ++high) {
      Quads weights[kIntVecs];
#pragma GCC unroll 8
      for (int vec = 0; vec < kIntVecs; ++vec) {
        if constexpr (kWide) {
          weights[vec] = load_quads(codes + (2 * quad + high) * 4 * kPanel + vec * 4 * kVecSize);
        } else {
          const Quads both = load_quads(codes + quad * 4 * kPanel + vec * 4 * kVecSize);
          weights[vec] = high ? high_nibbles(both) : low_nibbles(both);
        }
      }
#pragma GCC unroll 8
      for (int row = 0; row < kRows; ++row) {
        const Quads activations = broadcast_quad(values + row * row_bytes + high * 16 + quad * 4);
#pragma GCC unroll 8
        for (int vec = 0; vec < kIntVecs; ++vec) {
          sums[row][vec] = add_nibbles(sums[row][vec], weights[vec], activations);
        }
      }
    }
  }
}

template <int kRows>
PAGEWIRE_INLINE void load_totals(const float* from, Vec (&totals)[kRows][kIntVecs]) {
#pragma GCC unroll 8
  for (int row = 0; row < kRows; ++row) {
#pragma GCC unroll 8
    for (int vec = 0; vec < kIntVecs; ++vec) totals[row][vec] = load(from + row * kPanel + vec * kVecSize);
  }
}
template <int kRows>
PAGEWIRE_INLINE void store_totals(const Vec (&totals)[kRows][kIntVecs], float* to) {
#pragma GCC unroll 8
  for (int row = 0; row < kRows; ++row) {
#pragma GCC unroll 8
    for (int vec = 0; vec < kIntVecs; ++vec) store(to + row * kPanel + vec * kVecSize, totals[row][vec]);
  }
}

template <int kRows, bool kWide>
void multiply_int4_tile(const uint8_t* group, int64_t num_groups, IntRows x, float* totals, Prefetcher ahead) {
  constexpr int64_t kCodeBytes = kPanel * kGroup / (kWide ? 1 : 2);
  const int64_t row_bytes = x.num_groups * kGroup;
  Vec total[kRows][kIntVecs];
  load_totals<kRows>(totals, total);
  for (int64_t g = 0; g < num_groups; ++g) {
    ahead.step();
    NibbleSum sums[kRows][kIntVecs];
    sum_nibbles<kRows, kWide>(group, x.values + g * kGroup, row_bytes, sums);
    Vec scale[kIntVecs], minimum[kIntVecs];
#pragma GCC unroll 8
    for (int vec = 0; vec < kIntVecs; ++vec) {
      if constexpr (kWide) {
        const float* scales = reinterpret_cast<const float*>(group + kCodeBytes);
        scale[vec] = load(scales + vec * kVecSize);
        minimum[vec] = load(scales + kPanel + vec * kVecSize);
      } else {
        const uint16_t* scales = reinterpret_cast<const uint16_t*>(group + kCodeBytes);
        scale[vec] = load_half(scales + vec * kVecSize);
        minimum[vec] = load_half(scales + kPanel + vec * kVecSize);
      }
    }
#pragma GCC unroll 8
    for (int row = 0; row < kRows; ++row) {
      const Vec row_scale = broadcast(x.scales[row * x.num_groups + g]);
      const Vec row_sum = broadcast(x.sums[row * x.num_groups + g]);
#pragma GCC unroll 8
      for (int vec = 0; vec < kIntVecs; ++vec) {
        const Vec scaled = fma(mul(scale[vec], row_scale), to_floats(sums[row][vec]), total[row][vec]);
        total[row][vec] = fma(minimum[vec], row_sum, scaled);
      }
    }
    group += kWide ? kWideGroupBytes : kCodeBytes + kPanel * 4;
  }
  store_totals<kRows>(total, totals);
}

// 8-bit codes are read as they are packed, by few rows and many.
template <int kRows, bool kHalf, bool kMinimum>
void multiply_int8_tile(const uint8_t* group, int64_t num_groups, IntRows x, float* totals, Prefetcher ahead) {
  constexpr int kParts = kHalf ? 2 : 1;  // parts of a group with scales of their own
  constexpr int kQuads = static_cast<int>(kGroup / 4) / kParts;
  constexpr int64_t kCodeBytes = kPanel * kGroup;
  const int64_t row_bytes = x.num_groups * kGroup;
  Vec total[kRows][kIntVecs];
  load_totals<kRows>(totals, total);
  for (int64_t g = 0; g < num_groups; ++g) {
    ahead.step();
    const uint16_t* scales = reinterpret_cast<const uint16_t*>(group + kCodeBytes);
#pragma GCC unroll 2
    for (int part = 0; part < kParts; ++part) {
      ByteSum sums[kRows][kIntVecs];
#pragma GCC unroll 8
      for (int row = 0; row < kRows; ++row) {
#pragma GCC unroll 8
        for (int vec = 0; vec < kIntVecs; ++vec) sums[row][vec] = no_bytes();
      }
#pragma GCC unroll 8
      for (int quad = part * kQuads; quad < (part + 1) * kQuads; ++quad) {
        ByteWeights weights[kIntVecs];
#pragma GCC unroll 8
        for (int vec = 0; vec < kIntVecs; ++vec) {
          weights[vec] = load_byte_weights(group + quad * 4 * kPanel + vec * 4 * kVecSize);
        }
#pragma GCC unroll 8
        for (int row = 0; row < kRows; ++row) {
          const Quads activations = broadcast_quad(x.values + row * row_bytes + g * kGroup + quad * 4);
#pragma GCC unroll 8
          for (int vec = 0; vec < kIntVecs; ++vec) {
            sums[row][vec] = add_bytes(sums[row][vec], weights[vec], activations);
          }
        }
      }
      Vec scale[kIntVecs], minimum[kIntVecs];
#pragma GCC unroll 8
      for (int vec = 0; vec < kIntVecs; ++vec) {
        scale[vec] = load_half(scales + part * kPanel + vec * kVecSize);
        if constexpr (kMinimum) minimum[vec] = load_half(scales + (kParts + part) * kPanel + vec * kVecSize);
      }
#pragma GCC unroll 8
      for (int row = 0; row < kRows; ++row) {
        const Vec row_scale = broadcast(x.scales[row * x.num_groups + g]);
#pragma GCC unroll 8
        for (int vec = 0; vec < kIntVecs; ++vec) {
          total[row][vec] = fma(mul(scale[vec], row_scale), to_floats(sums[row][vec]), total[row][vec]);
        }
        if constexpr (kMinimum) {
          const int64_t at = row * x.num_groups + g;
          const Vec row_sum = broadcast(kHalf ? x.half_sums[2 * at + part] : x.sums[at]);
#pragma GCC unroll 8
          for (int vec = 0; vec < kIntVecs; ++vec) total[row][vec] = fma(minimum[vec], row_sum, total[row][vec]);
        }
      }
    }
    group += kCodeBytes + kPanel * 2 * kParts * (kMinimum ? 2 : 1);
  }
  store_totals<kRows>(total, totals);
}

using MultiplyIntTile = void (*)(const uint8_t* group, int64_t num_groups, IntRows x, float* totals, Prefetcher ahead);

template <int kRows>
MultiplyIntTile int_tile_of_rows(WeightLayout layout, bool has_minimum, bool wide) {
  if (layout == WeightLayout::kInt4) return wide ? multiply_int4_tile<kRows, true> : multiply_int4_tile<kRows, false>;
  if (layout == WeightLayout::kInt8) {
    return has_minimum ? multiply_int8_tile<kRows, false, true> : multiply_int8_tile<kRows, false, false>;
  }
  return has_minimum ? multiply_int8_tile<kRows, true, true> : multiply_int8_tile<kRows, true, false>;
}

// The tile of 1 to kIntTileRows rows.
template <int kRows = kIntTileRows>
MultiplyIntTile int_tile(int64_t rows, const PackedMatrix& matrix, bool wide) {
  if constexpr (kRows > 1) {
    if (rows < kRows) return int_tile<kRows - 1>(rows, matrix, wide);
  }
  return int_tile_of_rows<kRows>(matrix.layout, matrix.has_minimum != 0, wide);
}

// Packed groups of 4-bit codes as one byte a code, and their scales as fp32.
PAGEWIRE_INLINE void widen_int4(const uint8_t* packed, int64_t num_groups, uint8_t* wide) {
  for (int64_t g = 0; g < num_groups; ++g) {
#pragma GCC unroll 4
    for (int64_t quad = 0; quad < 4; ++quad) {
#pragma GCC unroll 8
      for (int vec = 0; vec < kIntVecs; ++vec) {
        const Quads both = load_quads(packed + quad * 4 * kPanel + vec * 4 * kVecSize);
        uint8_t* to = wide + quad * 8 * kPanel + vec * 4 * kVecSize;
        store_quads(to, low_nibbles(both));
        store_quads(to + 4 * kPanel, high_nibbles(both));
      }
    }
    const uint16_t* halves = reinterpret_cast<const uint16_t*>(packed + kPanel * kGroup / 2);
    float* floats = reinterpret_cast<float*>(wide + kPanel * kGroup);
#pragma GCC unroll 8
    for (int64_t i = 0; i < 2 * kPanel; i += kVecSize) store(floats + i, load_half(halves + i));
    packed += kPanel * (kGroup / 2 + 4);
    wide += kWideGroupBytes;
  }
}

// One panel times up to kIntRowBlock rows.
PAGEWIRE_INLINE void multiply_int_panel(const PackedMatrix& matrix, int64_t panel, const ActivationRows& x,
                                        int64_t row_begin, int64_t rows, const OutputRows& y, float* totals,
                                        uint8_t* widened) {
  const bool wide = matrix.layout == WeightLayout::kInt4 && rows > kIntTileRows;
  const int64_t num_groups = matrix.num_groups(), group_bytes = matrix.group_bytes();
  const int64_t block = divide_up(num_groups, divide_up(num_groups, kBlockGroups));
  const int64_t num_tiles = divide_up(rows, kIntTileRows);
  const int64_t lines = divide_up(group_bytes, kCacheLine);
  std::memset(totals, 0, static_cast<size_t>(rows * kPanel) * sizeof(float));
  for (int64_t begin = 0; begin < num_groups; begin += block) {
    const int64_t groups = smaller(block, num_groups - begin);
    const uint8_t* packed = matrix.panel(panel) + begin * group_bytes;
    if (wide) widen_int4(packed, groups, widened);
    // What the next block will read, asked for evenly while this one is multiplied: 25 ms for 16 rows of a small
    // model's linear layers without, 19 so. A single tile of rows reads it right away, and looks less far ahead.
    Prefetcher ahead{packed + (num_tiles == 1 ? kStreamAhead : groups * group_bytes), 0};
    for (int64_t tile = 0, row = 0; tile < num_tiles; ++tile) {
      const int64_t tile_rows = divide_up(rows - row, num_tiles - tile);
      const int64_t at = (row_begin + row) * x.num_groups + begin;
      const IntRows tile_x{x.values + at * kGroup, x.scales + at, x.sums ? x.sums + at : nullptr,
                           x.half_sums ? x.half_sums + 2 * at : nullptr, x.num_groups};
      ahead.lines_per_group = lines * (tile + 1) / num_tiles - lines * tile / num_tiles;
      int_tile(tile_rows, matrix, wide)(wide ? widened : packed, groups, tile_x, totals + row * kPanel, ahead);
      ahead.next += groups * ahead.lines_per_group * kCacheLine;
      row += tile_rows;
    }
  }
  finish_panel(matrix, panel, totals, row_begin, rows, y);
}

void linear_tile(const PackedMatrix& matrix, int64_t panel_begin, int64_t panel_end, const ActivationRows& x,
                 int64_t row_begin, int64_t row_end, const OutputRows& y, void* work) {
  if (!is_quantized(matrix.layout)) {
    linear_dense_tile(matrix, panel_begin, panel_end, x, row_begin, row_end, y, work);
    return;
  }
  float* totals = static_cast<float*>(work);
  uint8_t* widened = static_cast<uint8_t*>(work) + kIntRowBlock * kPanel * static_cast<int64_t>(sizeof(float));
  for (int64_t row = row_begin; row < row_end; row += kIntRowBlock) {
    for (int64_t panel = panel_begin; panel < panel_end; ++panel) {
      multiply_int_panel(matrix, panel, x, row, smaller(kIntRowBlock, row_end - row), y, totals, widened);
    }
  }
}

int64_t linear_work_bytes(const PackedMatrix& matrix) {
  if (!is_quantized(matrix.layout)) return linear_dense_work_bytes(matrix);
  return kIntRowBlock * kPanel * static_cast<int64_t>(sizeof(float)) + kBlockGroups * kWideGroupBytes;
}
