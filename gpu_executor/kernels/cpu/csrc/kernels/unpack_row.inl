// One row of a packed matrix as floats: an embedding, or a look at what was packed.
//
// Exact for the dense layouts. For the integer ones weight = fma(scale, code, minimum), rounded once: the product of an
// fp16 scale and an 8-bit code has no rounding of its own in fp32.
//
// Included by isa/kernel_table.inl after a vector header.

// The scale or minimum of one channel, among those of all channels of a panel.
static float load_channel_half(const uint8_t* halves, int64_t channel) {
  uint16_t half;
  std::memcpy(&half, halves + channel * static_cast<int64_t>(sizeof(half)), sizeof(half));
  float out[kVecSize];
  store(out, load_half_partial(&half, 1));
  return out[0];
}

static void unpack_dense_channel(WeightLayout layout, const uint8_t* panel, int64_t channel, int64_t n, float* out) {
  if (layout == WeightLayout::kFloat32) {
    const float* floats = reinterpret_cast<const float*>(panel) + channel;
    for (int64_t i = 0; i < n; ++i) out[i] = floats[i * kPanel];
    return;
  }
  const uint16_t* halves = reinterpret_cast<const uint16_t*>(panel) + channel;
  for (int64_t i = 0; i < n; i += kVecSize) {
    const int64_t lanes = n - i < kVecSize ? n - i : kVecSize;
    uint16_t gathered[kVecSize] = {};
    for (int64_t lane = 0; lane < lanes; ++lane) gathered[lane] = halves[(i + lane) * kPanel];
    store_partial(out + i, layout == WeightLayout::kFloat16 ? load_half(gathered) : load_bfloat(gathered), lanes);
  }
}

// The codes of one channel in one group, as kGroup floats.
static void unpack_int_codes(WeightLayout layout, const uint8_t* group, int64_t channel, float* codes) {
  for (int64_t i = 0; i < kGroup; ++i) {
    if (layout == WeightLayout::kInt4) {
      const int64_t j = i % (kGroup / 2);
      const uint8_t both = group[j / 4 * 4 * kPanel + channel * 4 + j % 4];
      codes[i] = static_cast<float>(i < kGroup / 2 ? both & 15 : both >> 4);
    } else {
      codes[i] = static_cast<float>(static_cast<int8_t>(group[i / 4 * 4 * kPanel + channel * 4 + i % 4]));
    }
  }
}

static void unpack_int_channel(const PackedMatrix& matrix, const uint8_t* group, int64_t channel, float* out) {
  constexpr int64_t kHalvesBytes = kPanel * static_cast<int64_t>(sizeof(uint16_t));
  const int64_t code_bytes = matrix.layout == WeightLayout::kInt4 ? kPanel * kGroup / 2 : kPanel * kGroup;
  const int64_t parts = matrix.layout == WeightLayout::kInt8Half ? 2 : 1;  // with scales of their own
  const int64_t part_size = kGroup / parts;
  const bool has_minimum = matrix.layout == WeightLayout::kInt4 || matrix.has_minimum != 0;
  for (int64_t begin = 0; begin < matrix.in_features; begin += kGroup, group += matrix.group_bytes()) {
    float weights[kGroup];
    unpack_int_codes(matrix.layout, group, channel, weights);
    for (int64_t part = 0; part < parts; ++part) {
      const uint8_t* scales = group + code_bytes + part * kHalvesBytes;
      const Vec scale = broadcast(load_channel_half(scales, channel));
      const Vec minimum =
          has_minimum ? broadcast(load_channel_half(scales + parts * kHalvesBytes, channel)) : zero();
      for (int64_t i = part * part_size; i < (part + 1) * part_size; i += kVecSize) {
        store(weights + i, fma(scale, load(weights + i), minimum));
      }
    }
    const int64_t channels = matrix.in_features - begin < kGroup ? matrix.in_features - begin : kGroup;
    std::memcpy(out + begin, weights, static_cast<size_t>(channels) * sizeof(float));
  }
}

void unpack_row(const PackedMatrix& matrix, int64_t row, float* out) {
  const uint8_t* panel = matrix.panel(row / kPanel);
  if (is_quantized(matrix.layout)) {
    unpack_int_channel(matrix, panel, row % kPanel, out);
  } else {
    unpack_dense_channel(matrix.layout, panel, row % kPanel, matrix.in_features, out);
  }
}
