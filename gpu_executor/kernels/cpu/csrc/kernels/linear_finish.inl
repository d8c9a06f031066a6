// How the totals of a product become its output. Included by isa/kernel_table.inl after a vector header.

// Add the bias, and store the real channels of one row of a panel.
PAGEWIRE_INLINE void finish_row(const PackedMatrix& matrix, int64_t panel, const float* totals, float* out,
                                    bool add_to_out) {
  const int64_t first = panel * kPanel;
  float* to = out + first;
  for (int64_t i = 0; i < kPanel; i += kVecSize) {
    const int64_t lanes = matrix.out_features - first - i;
    if (lanes <= 0) return;
    Vec value = load(totals + i);
    if (lanes >= kVecSize) {
      if (matrix.bias != nullptr) value = add(value, load(matrix.bias + first + i));
      store(to + i, add_to_out ? add(load(to + i), value) : value);
    } else {
      if (matrix.bias != nullptr) value = add(value, load_partial(matrix.bias + first + i, lanes));
      store_partial(to + i, add_to_out ? add(load_partial(to + i, lanes), value) : value, lanes);
    }
  }
}

// Move the totals of one panel to the output: bias first, then the residual.
PAGEWIRE_NOINLINE void finish_panel(const PackedMatrix& matrix, int64_t panel, const float* totals, int64_t row_begin,
                                    int64_t rows, const OutputRows& y) {
  for (int64_t row = 0; row < rows; ++row) {
    finish_row(matrix, panel, totals + row * kPanel, y.out + (row_begin + row) * y.stride, y.add);
  }
}
