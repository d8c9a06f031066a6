// Dense weights (fp32, fp16, bf16) times fp32 activations.
//
// Every output is one lane's chain of fused multiply-adds over the input channels, first to last, from zero; then the
// bias, then what is to be added. Tiles, panels at once, blocks of input channels (whose sums wait in memory as they
// are) and the conversion of 16-bit weights, which is exact, leave that chain and so its bits alone.
//
// Two regimes. Up to kDenseRows rows meet the weights as they stream from memory, several panels at a time: one
// panel's chains alone would wait for the latency of the multiply-add. More rows are cut into blocks that stay in the
// level-2 cache; a piece of a panel is converted to fp32 once for all rows of the block and stays in the level-1 cache.
//
// Included by isa/kernel_table.inl after a vector header.

// Accumulators that fit the registers beside a weight and an activation; rows of a tile; panels of a tile.
constexpr int kVecsPerPanel = static_cast<int>(kPanel / kVecSize);
constexpr int kDenseAccumulators = kVecRegisters >= 32 ? 24 : kVecRegisters >= 16 ? 12 : 4;
constexpr int kDenseRows = kDenseAccumulators / kVecsPerPanel < 8 ? kDenseAccumulators / kVecsPerPanel : 8;
constexpr int kDenseMaxPanels = 4;
constexpr int dense_panels_at_once(int rows) {
  const int panels = kDenseAccumulators / (rows * kVecsPerPanel);
  return panels < 1 ? 1 : panels > kDenseMaxPanels ? kDenseMaxPanels : panels;
}

// A piece of 256 input channels is 16 KiB of fp32 weights: half of a small level-1 cache. 96 rows of them are 96 KiB.
constexpr int64_t kDenseDepth = 256;
constexpr int64_t kDenseRowBlock = 96;
constexpr int64_t kDensePanelBlock = 12;
// From this many rows on 16-bit weights are converted once for all of them instead of at each tile. Vector units convert
// beside the multiplications; plain C++ takes tens of instructions a number.
constexpr int64_t kDenseWidenRows = kVecRegisters >= 16 ? 4 * kDenseRows : kDenseRows + 1;

template <WeightLayout kLayout>
constexpr int64_t kDenseBytes = kLayout == WeightLayout::kFloat32 ? 4 : 2;

template <WeightLayout kLayout>
PAGEWIRE_INLINE Vec load_weights(const uint8_t* weights) {
  if constexpr (kLayout == WeightLayout::kFloat32) {
    return load(reinterpret_cast<const float*>(weights));
  } else if constexpr (kLayout == WeightLayout::kFloat16) {
    return load_half(reinterpret_cast<const uint16_t*>(weights));
  } else {
    return load_bfloat(reinterpret_cast<const uint16_t*>(weights));
  }
}

// The operands of one register tile: rows of x, panels of weights, sums[panel][row][channel].
struct DenseTile {
  const float* x;
  int64_t x_stride;
  const uint8_t* weights;
  int64_t panel_bytes;  // from a panel to the next
  int64_t depth;        // input channels
  float* sums;
  int64_t sums_stride;  // from a panel to the next
  bool resume;          // go on from the sums that are there, instead of from zero
};

// All loops over registers are unrolled by force: what isn't unrolled before the compiler looks for scalars stays an
// array in memory, at a third of the speed (gcc 12).
template <WeightLayout kLayout, int kRows, int kPanels>
static void multiply_dense_tile(const DenseTile& tile) {
  constexpr int kColumns = kPanels * kVecsPerPanel;
  const float* x = tile.x;
  const int64_t x_stride = tile.x_stride, panel_bytes = tile.panel_bytes, depth = tile.depth;
  const uint8_t* weights = tile.weights;
  Vec sums[kRows][kColumns];
#pragma GCC unroll 16
  for (int row = 0; row < kRows; ++row) {
#pragma GCC unroll 16
    for (int column = 0; column < kColumns; ++column) {
      const float* from = tile.sums + (column / kVecsPerPanel) * tile.sums_stride + row * kPanel +
                          (column % kVecsPerPanel) * kVecSize;
      sums[row][column] = tile.resume ? load(from) : zero();
    }
  }
  const auto load_weight = [=](int64_t k, int column) __attribute__((always_inline)) {
    return load_weights<kLayout>(weights + (column / kVecsPerPanel) * panel_bytes +
                                 (k * kPanel + (column % kVecsPerPanel) * kVecSize) * kDenseBytes<kLayout>);
  };
  for (int64_t k = 0; k < depth; ++k) {
    // The shorter side is held in registers, the longer one passes by.
    if constexpr (kRows < kColumns) {
      Vec activations[kRows];
#pragma GCC unroll 16
      for (int row = 0; row < kRows; ++row) activations[row] = broadcast(x[row * x_stride + k]);
#pragma GCC unroll 16
      for (int column = 0; column < kColumns; ++column) {
        const Vec weight = load_weight(k, column);
#pragma GCC unroll 16
        for (int row = 0; row < kRows; ++row) sums[row][column] = fma(activations[row], weight, sums[row][column]);
      }
    } else {
      Vec weight[kColumns];
#pragma GCC unroll 16
      for (int column = 0; column < kColumns; ++column) weight[column] = load_weight(k, column);
#pragma GCC unroll 16
      for (int row = 0; row < kRows; ++row) {
        const Vec activation = broadcast(x[row * x_stride + k]);
#pragma GCC unroll 16
        for (int column = 0; column < kColumns; ++column) {
          sums[row][column] = fma(activation, weight[column], sums[row][column]);
        }
      }
    }
  }
#pragma GCC unroll 16
  for (int row = 0; row < kRows; ++row) {
#pragma GCC unroll 16
    for (int column = 0; column < kColumns; ++column) {
      store(tile.sums + (column / kVecsPerPanel) * tile.sums_stride + row * kPanel +
                (column % kVecsPerPanel) * kVecSize,
            sums[row][column]);
    }
  }
}

using MultiplyDenseTile = void (*)(const DenseTile&);

// The tile of 1 to kDenseRows rows, for as many panels at once as the registers take.
template <WeightLayout kLayout, int kRows = kDenseRows>
static MultiplyDenseTile dense_tile_of_many_panels(int64_t rows) {
  if constexpr (kRows > 1) {
    if (rows < kRows) return dense_tile_of_many_panels<kLayout, kRows - 1>(rows);
  }
  return multiply_dense_tile<kLayout, kRows, dense_panels_at_once(kRows)>;
}

template <WeightLayout kLayout, int kRows = kDenseRows>
static MultiplyDenseTile dense_tile_of_one_panel(int64_t rows) {
  if constexpr (kRows > 1) {
    if (rows < kRows) return dense_tile_of_one_panel<kLayout, kRows - 1>(rows);
  }
  return multiply_dense_tile<kLayout, kRows, 1>;
}

template <WeightLayout kLayout>
static void multiply_few_dense_rows(const PackedMatrix& matrix, int64_t panel_begin, int64_t panel_end,
                             const ActivationRows& x, int64_t row_begin, int64_t rows, const OutputRows& y,
                             float* sums) {
  const int64_t panels_at_once = dense_panels_at_once(static_cast<int>(rows));
  const MultiplyDenseTile many = dense_tile_of_many_panels<kLayout>(rows);
  const MultiplyDenseTile one = dense_tile_of_one_panel<kLayout>(rows);
  for (int64_t panel = panel_begin; panel < panel_end;) {
    const int64_t panels = panel_end - panel >= panels_at_once ? panels_at_once : 1;
    const DenseTile tile{x.floats + row_begin * x.float_stride, x.float_stride, matrix.panel(panel),
                         matrix.panel_bytes(), matrix.in_features, sums, rows * kPanel, false};
    (panels == 1 ? one : many)(tile);
    for (int64_t i = 0; i < panels; ++i) {
      finish_panel(matrix, panel + i, sums + i * rows * kPanel, row_begin, rows, y);
    }
    panel += panels;
  }
}

// The weights of some panels' input channels [k, k + depth) as fp32, panels side by side at kDenseDepth * kPanel.
template <WeightLayout kLayout>
static const uint8_t* widen_dense_weights(const PackedMatrix& matrix, int64_t panel, int64_t panels, int64_t k, int64_t depth,
                                   float* widened) {
  for (int64_t i = 0; i < panels; ++i) {
    const uint8_t* weights = matrix.panel(panel + i) + k * kPanel * kDenseBytes<kLayout>;
    float* out = widened + i * kDenseDepth * kPanel;
    for (int64_t j = 0; j < depth * kPanel; j += kVecSize) {
      store(out + j, load_weights<kLayout>(weights + j * kDenseBytes<kLayout>));
    }
  }
  return reinterpret_cast<const uint8_t*>(widened);
}

// Rows in tiles of kDenseRows; the last two share what is left, so that no tile is one row wide.
PAGEWIRE_INLINE int64_t next_dense_rows(int64_t rows_left) {
  if (rows_left <= kDenseRows) return rows_left;
  return rows_left < 2 * kDenseRows ? divide_up(rows_left, 2) : kDenseRows;
}

// kWiden: convert the weights to fp32 first.
template <WeightLayout kLayout, bool kWiden>
static void multiply_dense_row_block(const PackedMatrix& matrix, int64_t panel_begin, int64_t panel_end,
                              const ActivationRows& x, int64_t row_begin, int64_t rows, const OutputRows& y,
                              float* work) {
  constexpr WeightLayout kTileLayout = kWiden ? WeightLayout::kFloat32 : kLayout;
  constexpr int64_t kPanelsAtOnce = dense_panels_at_once(kDenseRows);
  float* widened = work;
  float* sums = work + kPanelsAtOnce * kDenseDepth * kPanel;
  const int64_t sums_stride = rows * kPanel;
  for (int64_t block = panel_begin; block < panel_end; block += kDensePanelBlock) {
    const int64_t block_end = smaller(block + kDensePanelBlock, panel_end);
    for (int64_t k = 0; k < matrix.in_features; k += kDenseDepth) {
      const int64_t depth = smaller(kDenseDepth, matrix.in_features - k);
      for (int64_t panel = block; panel < block_end;) {
        const int64_t panels = block_end - panel >= kPanelsAtOnce ? kPanelsAtOnce : 1;
        DenseTile tile{nullptr, x.float_stride, nullptr, 0, depth, nullptr, sums_stride, k > 0};
        if constexpr (kWiden) {
          tile.weights = widen_dense_weights<kLayout>(matrix, panel, panels, k, depth, widened);
          tile.panel_bytes = kDenseDepth * kPanel * kDenseBytes<WeightLayout::kFloat32>;
        } else {
          tile.weights = matrix.panel(panel) + k * kPanel * kDenseBytes<kLayout>;
          tile.panel_bytes = matrix.panel_bytes();
        }
        for (int64_t row = 0; row < rows;) {
          const int64_t tile_rows = next_dense_rows(rows - row);
          tile.x = x.floats + (row_begin + row) * x.float_stride + k;
          tile.sums = sums + (panel - block) * sums_stride + row * kPanel;
          if (panels == kPanelsAtOnce && dense_panels_at_once(static_cast<int>(tile_rows)) == kPanelsAtOnce) {
            dense_tile_of_many_panels<kTileLayout>(tile_rows)(tile);
          } else {
            const MultiplyDenseTile multiply = dense_tile_of_one_panel<kTileLayout>(tile_rows);
            for (int64_t i = 0; i < panels; ++i) {
              DenseTile part = tile;
              part.weights += i * tile.panel_bytes;
              part.sums += i * sums_stride;
              multiply(part);
            }
          }
          row += tile_rows;
        }
        panel += panels;
      }
    }
    for (int64_t panel = block; panel < block_end; ++panel) {
      finish_panel(matrix, panel, sums + (panel - block) * sums_stride, row_begin, rows, y);
    }
  }
}

template <WeightLayout kLayout>
static void multiply_dense(const PackedMatrix& matrix, int64_t panel_begin, int64_t panel_end, const ActivationRows& x,
                    int64_t row_begin, int64_t row_end, const OutputRows& y, float* work) {
  const int64_t rows = row_end - row_begin;
  if (rows <= 0) return;
  if (rows <= kDenseRows) {
    multiply_few_dense_rows<kLayout>(matrix, panel_begin, panel_end, x, row_begin, rows, y, work);
    return;
  }
  // Blocks of equal size: a last block of a few rows would read all weights again for them.
  const int64_t block = round_up(divide_up(rows, divide_up(rows, kDenseRowBlock)), kDenseRows);
  const auto multiply = kLayout != WeightLayout::kFloat32 && rows >= kDenseWidenRows
                            ? multiply_dense_row_block<kLayout, true>
                            : multiply_dense_row_block<kLayout, false>;
  for (int64_t row = row_begin; row < row_end; row += block) {
    multiply(matrix, panel_begin, panel_end, x, row, smaller(block, row_end - row), y, work);
  }
}

// linear_tile for the dense layouts.
void linear_dense_tile(const PackedMatrix& matrix, int64_t panel_begin, int64_t panel_end, const ActivationRows& x,
                       int64_t row_begin, int64_t row_end, const OutputRows& y, void* work) {
  float* floats = static_cast<float*>(work);
  switch (matrix.layout) {
    case WeightLayout::kFloat32:
      return multiply_dense<WeightLayout::kFloat32>(matrix, panel_begin, panel_end, x, row_begin, row_end, y, floats);
    case WeightLayout::kFloat16:
      return multiply_dense<WeightLayout::kFloat16>(matrix, panel_begin, panel_end, x, row_begin, row_end, y, floats);
    case WeightLayout::kBFloat16:
      return multiply_dense<WeightLayout::kBFloat16>(matrix, panel_begin, panel_end, x, row_begin, row_end, y, floats);
    default:
      return;  // the integer layouts: linear.inl
  }
}

int64_t linear_dense_work_bytes(const PackedMatrix&) {
  const int64_t widened = dense_panels_at_once(kDenseRows) * kDenseDepth * kPanel;
  const int64_t sums = kDensePanelBlock * round_up(kDenseRowBlock, kDenseRows) * kPanel;
  return (widened + sums) * static_cast<int64_t>(sizeof(float));
}
