// Attention of a few rows over one step of keys. Included by attention.inl.
//
// A row (a token's head) meets the keys of a step in these operations, whatever rows share its tile:
//   score[key]  = fma over channels in order, from 0, in the key's own lane; the query is scaled by scale * log2(e)
//                 With a soft cap the query is scaled by 2 * log2(e) * scale / cap, and with power = 2^(that sum)
//   score[key]  = cap * log2(e) * ((power - 1) / (power + 1)), which is log2(e) * cap * tanh(scaled sum / cap)
//   largest     = max(largest, scores);  correction = 2^(old largest - new largest)
//   weight[key] = 2^(score - largest), 0 where the row doesn't see the key
//   sum         = sum * correction + (weights added vector by vector, then across lanes)
//   values      = values * correction, then fma(weight, value) key by key over the keys that the row sees
// Keys outside the row's range take part in none of them: they may be NaN.

constexpr int64_t kPanelKeys = 16;  // keys that lie side by side, channel by channel, where the kernels read them
constexpr int64_t kPanelVecs = kPanelKeys / kVecSize;
constexpr int64_t kStepPanels = kKeyStep / kPanelKeys;
static_assert(kPanelKeys % kVecSize == 0 && kKeyStep % kPanelKeys == 0 && kKeySplit % kKeyStep == 0);

// Registers for sums; the others hold what is multiplied. All sums of a product of `rows` by `kVecSize * vecs` fit.
constexpr int64_t kSumRegisters = kVecRegisters - 4;
constexpr int64_t kRowBlock = smaller(kFewRows, larger(1, kSumRegisters / kPanelVecs));
// The largest power of two of vectors (of panels) that leaves all sums of `rows` rows in registers: with few rows, more
// of them, so that enough sums run side by side.
constexpr int64_t vectors_at_once(int64_t rows, int64_t registers_each, int64_t most) {
  int64_t count = most;
  while (count > 1 && rows * count * registers_each > kSumRegisters) count /= 2;
  return count;
}

// Where a step's keys and values lie: a pointer for each panel of keys, and the distance between neighbouring channels
// of keys (neighbouring keys of values). kAhead: and where what comes next lies, to be fetched meanwhile: blocks lie
// anywhere, and each is too short for the hardware to foresee the next.
template <typename ElementKind, bool kFetchAhead>
struct StepSource {
  using Type = ElementKind;
  using Element = typename Type::Element;
  static constexpr bool kAhead = kFetchAhead;
  const Element* keys[kStepPanels];
  const Element* values[kStepPanels];
  int64_t key_stride, value_stride;
  const Element* next_keys[kStepPanels];
  const Element* next_values[kStepPanels];
};

// One tile's work space, and its rows' state. Rows of one KV head lie together, by token, then by query head.
struct AttentionRows {
  int64_t count;      // of all KV heads
  int64_t head_rows;  // of one
  int64_t channels;   // head_dim, padded
  float* query;       // [count, channels], scaled
  float* scores;      // [count, kKeyStep], then the weights
  float* values;      // [count] rows at value_stride: the split's weighted values
  int64_t value_stride;
  float* total_values;  // [count, channels], of the splits so far
  float *largest, *sum, *total_largest, *total_sum, *correction, *new_largest;  // [count], up to whole vectors
  int32_t *key_begin, *key_end;                                                 // [count]: keys that a row sees
  float score_cap;  // log2(e) times the soft cap; 0: none
  float *step_keys, *step_values;  // a step's keys [panels, head_dim, kPanelKeys] and values [kKeyStep, channels]
};

// --- Products -------------------------------------------------------------------------------------------------------

// scores of kRows rows for kPanels panels of a step.
template <int64_t kRows, int64_t kPanels, typename Source>
PAGEWIRE_NOINLINE void score_panels(const float* query, int64_t query_stride, const Source& source, int64_t panel,
                                    int64_t head_dim, float* scores) {
  using Type = typename Source::Type;
  const typename Type::Element* panels[kPanels];
  const typename Type::Element* next[kPanels];
#pragma GCC unroll 4
  for (int64_t i = 0; i < kPanels; ++i) {
    panels[i] = source.keys[panel + i];
    next[i] = source.next_keys[panel + i];
  }
  const int64_t key_stride = source.key_stride;
  constexpr int64_t kVecs = kPanels * kPanelVecs;
  Vec sums[kRows][kVecs];
#pragma GCC unroll 8
  for (int64_t row = 0; row < kRows; ++row) {
#pragma GCC unroll 16
    for (int64_t vec = 0; vec < kVecs; ++vec) sums[row][vec] = zero();
  }
  for (int64_t channel = 0; channel < head_dim; ++channel) {
    if constexpr (Source::kAhead) {
#pragma GCC unroll 4
      for (int64_t i = 0; i < kPanels; ++i) prefetch(next[i] + channel * key_stride);
    }
    // The fewer of the two kinds of factors stay in registers, while those of the other kind pass by.
    if constexpr (kVecs <= kRows) {
      Vec keys[kVecs];
#pragma GCC unroll 4
      for (int64_t i = 0; i < kPanels; ++i) {
        load_run<kPanelVecs>(Type{}, panels[i] + channel * key_stride, keys + i * kPanelVecs);
      }
#pragma GCC unroll 8
      for (int64_t row = 0; row < kRows; ++row) {
        const Vec factor = broadcast(query[row * query_stride + channel]);
#pragma GCC unroll 16
        for (int64_t vec = 0; vec < kVecs; ++vec) sums[row][vec] = fma(factor, keys[vec], sums[row][vec]);
      }
    } else {
      Vec factors[kRows];
#pragma GCC unroll 8
      for (int64_t row = 0; row < kRows; ++row) factors[row] = broadcast(query[row * query_stride + channel]);
#pragma GCC unroll 4
      for (int64_t i = 0; i < kPanels; ++i) {
        Vec keys[kPanelVecs];
        load_run<kPanelVecs>(Type{}, panels[i] + channel * key_stride, keys);
#pragma GCC unroll 4
        for (int64_t vec = 0; vec < kPanelVecs; ++vec) {
#pragma GCC unroll 8
          for (int64_t row = 0; row < kRows; ++row) {
            Vec& sum = sums[row][i * kPanelVecs + vec];
            sum = fma(factors[row], keys[vec], sum);
          }
        }
      }
    }
  }
#pragma GCC unroll 8
  for (int64_t row = 0; row < kRows; ++row) {
#pragma GCC unroll 16
    for (int64_t vec = 0; vec < kVecs; ++vec) store(scores + row * kKeyStep + vec * kVecSize, sums[row][vec]);
  }
}

// values = values * correction + weights * (a step's values), for keys [begin, end) of the step and kVecs vectors of
// channels.
template <int64_t kRows, int64_t kVecs, typename Source>
PAGEWIRE_NOINLINE void add_values(const float* weights, const float* correction, const Source& source, int64_t channel,
                                  int64_t begin, int64_t end, float* values, int64_t value_stride) {
  using Type = typename Source::Type;
  Vec sums[kRows][kVecs];
#pragma GCC unroll 8
  for (int64_t row = 0; row < kRows; ++row) {
    const Vec factor = broadcast(correction[row]);
#pragma GCC unroll 8
    for (int64_t vec = 0; vec < kVecs; ++vec) {
      sums[row][vec] = mul(load(values + row * value_stride + vec * kVecSize), factor);
    }
  }
  for (int64_t key = begin; key < end;) {
    const int64_t panel = key / kPanelKeys, panel_end = smaller(end, (panel + 1) * kPanelKeys);
    const int64_t place = key % kPanelKeys * source.value_stride + channel;
    const typename Type::Element* value = source.values[panel] + place;
    const typename Type::Element* next = source.next_values[panel] + place;
    for (; key < panel_end; ++key, value += source.value_stride, next += source.value_stride) {
      if constexpr (Source::kAhead) prefetch(next);
      if constexpr (kVecs <= kRows) {
        Vec parts[kVecs];
        load_run<kVecs>(Type{}, value, parts);
#pragma GCC unroll 8
        for (int64_t row = 0; row < kRows; ++row) {
          const Vec weight = broadcast(weights[row * kKeyStep + key]);
#pragma GCC unroll 8
          for (int64_t vec = 0; vec < kVecs; ++vec) sums[row][vec] = fma(weight, parts[vec], sums[row][vec]);
        }
      } else {
        Vec factors[kRows];
#pragma GCC unroll 8
        for (int64_t row = 0; row < kRows; ++row) factors[row] = broadcast(weights[row * kKeyStep + key]);
        // A panel's width at a time: as many as are converted together.
        constexpr int64_t kRun = smaller(kVecs, kPanelVecs);
#pragma GCC unroll 8
        for (int64_t vec = 0; vec < kVecs; vec += kRun) {
          Vec parts[kRun];
          load_run<kRun>(Type{}, value + vec * kVecSize, parts);
#pragma GCC unroll 4
          for (int64_t i = 0; i < kRun; ++i) {
#pragma GCC unroll 8
            for (int64_t row = 0; row < kRows; ++row) {
              Vec& sum = sums[row][vec + i];
              sum = fma(factors[row], parts[i], sum);
            }
          }
        }
      }
    }
  }
#pragma GCC unroll 8
  for (int64_t row = 0; row < kRows; ++row) {
#pragma GCC unroll 8
    for (int64_t vec = 0; vec < kVecs; ++vec) store(values + row * value_stride + vec * kVecSize, sums[row][vec]);
  }
}

// Call visit with the number of rows as a constant, 1 to kRowBlock.
template <int64_t kRows = kRowBlock, typename Visit>
PAGEWIRE_INLINE void with_row_count(int64_t rows, Visit&& visit) {
  if constexpr (kRows > 1) {
    if (rows < kRows) return with_row_count<kRows - 1>(rows, visit);
  }
  visit(std::integral_constant<int64_t, kRows>{});
}

// Scores of up to kRowBlock rows for panels [panel, panel_end) of a step.
template <typename Source>
PAGEWIRE_NOINLINE void score_rows(const AttentionRows& tile, int64_t row, int64_t rows, const Source& source,
                                  int64_t panel, int64_t panel_end, int64_t head_dim) {
  const float* query = tile.query + row * tile.channels;
  float* scores = tile.scores + row * kKeyStep;
  with_row_count(rows, [&](auto row_count) {
    constexpr int64_t kRows = decltype(row_count)::value;
    constexpr int64_t kPanels = vectors_at_once(kRows, kPanelVecs, kStepPanels);
    for (; panel + kPanels <= panel_end; panel += kPanels) {
      score_panels<kRows, kPanels>(query, tile.channels, source, panel, head_dim, scores + panel * kPanelKeys);
    }
    for (; panel < panel_end; ++panel) {
      score_panels<kRows, 1>(query, tile.channels, source, panel, head_dim, scores + panel * kPanelKeys);
    }
  });
}

// Add weighted values of up to kRowBlock rows, over keys [begin, end) of a step, which all of these rows see.
template <typename Source>
PAGEWIRE_NOINLINE void add_row_values(const AttentionRows& tile, int64_t row, int64_t rows, const Source& source,
                                      int64_t begin, int64_t end, int64_t head_dim) {
  const float* weights = tile.scores + row * kKeyStep;
  float* values = tile.values + row * tile.value_stride;
  with_row_count(rows, [&](auto row_count) {
    constexpr int64_t kRows = decltype(row_count)::value;
    constexpr int64_t kVecs = vectors_at_once(kRows, 1, 8);
    int64_t channel = 0;
    for (; channel + kVecs * kVecSize <= head_dim; channel += kVecs * kVecSize) {
      add_values<kRows, kVecs>(weights, tile.correction + row, source, channel, begin, end, values + channel,
                               tile.value_stride);
    }
    // Few sizes of heads leave a rest: it goes row by row, for the sake of half as many functions.
    for (; channel < head_dim; channel += kVecSize) {
      for (int64_t one = 0; one < kRows; ++one) {
        add_values<1, 1>(weights + one * kKeyStep, tile.correction + row + one, source, channel, begin, end,
                         values + one * tile.value_stride + channel, tile.value_stride);
      }
    }
  });
}

// --- Softmax --------------------------------------------------------------------------------------------------------

// What the query's product gave becomes the capped score, for keys [begin, end) of the step, up to whole vectors.
PAGEWIRE_INLINE void cap_scores(float* scores, int64_t begin, int64_t end, float score_cap) {
  const Vec one = broadcast(1.0f), cap = broadcast(score_cap);
  for (int64_t key = begin / kVecSize * kVecSize; key < end; key += kVecSize) {
    // From 2^26 on the quotient is 1; infinity would give none. NaN stays.
    const Vec power = exp2(min(broadcast(64.0f), load(scores + key)));
    store(scores + key, mul(cap, div(sub(power, one), add(power, one))));
  }
}

// Hide what a row doesn't see of its scores, [begin, end) of the step being what it sees, up to whole vectors.
PAGEWIRE_INLINE void mask_scores(float* scores, int64_t begin, int64_t end) {
  for (int64_t key = begin / kVecSize * kVecSize; key < begin; ++key) scores[key] = -__builtin_inff();
  for (int64_t key = end; key % kVecSize != 0; ++key) scores[key] = -__builtin_inff();
}

PAGEWIRE_INLINE float largest_score(const float* scores, int64_t begin, int64_t end) {
  Vec largest = broadcast(-__builtin_inff());
  for (int64_t key = begin / kVecSize * kVecSize; key < end; key += kVecSize) {
    largest = max(load(scores + key), largest);
  }
  return reduce_max(largest);
}

// scores become weights; returns their sum.
PAGEWIRE_INLINE float weigh(float* scores, int64_t begin, int64_t end, float largest) {
  const Vec top = broadcast(largest);
  Vec sum = zero();
  for (int64_t key = begin / kVecSize * kVecSize; key < end; key += kVecSize) {
    const Vec weight = exp2_nonpositive(sub(load(scores + key), top));
    store(scores + key, weight);
    sum = add(sum, weight);
  }
  return reduce_add(sum);
}

// --- One step of keys -----------------------------------------------------------------------------------------------

// What a row sees of the step that starts at key `start`, counted from there.
struct KeyRange {
  int64_t begin, end;
};
PAGEWIRE_INLINE KeyRange visible_keys(const AttentionRows& tile, int64_t row, int64_t start) {
  return {larger(tile.key_begin[row] - start, 0), smaller(tile.key_end[row] - start, kKeyStep)};
}

// Values of a block of rows: what all of them see together, the rest row by row. Rows are in token order, so that both
// ends of their ranges only grow.
template <typename Source>
static void add_block_values(const AttentionRows& tile, int64_t row, int64_t rows, const Source& source, int64_t start,
                             int64_t head_dim) {
  const int64_t row_end = row + rows;
  const int64_t begin = visible_keys(tile, row_end - 1, start).begin, end = visible_keys(tile, row, start).end;
  if (begin >= end) {
    for (; row < row_end; ++row) {
      const KeyRange own = visible_keys(tile, row, start);
      add_row_values(tile, row, 1, source, own.begin, own.end, head_dim);
    }
    return;
  }
  for (int64_t one = row; one < row_end; ++one) {
    const int64_t own_begin = visible_keys(tile, one, start).begin;
    if (own_begin == begin) continue;
    add_row_values(tile, one, 1, source, own_begin, begin, head_dim);
    tile.correction[one] = 1.0f;  // done
  }
  add_row_values(tile, row, rows, source, begin, end, head_dim);
  for (int64_t one = row; one < row_end; ++one) {
    const int64_t own_end = visible_keys(tile, one, start).end;
    if (own_end == end) continue;
    tile.correction[one] = 1.0f;
    add_row_values(tile, one, 1, source, end, own_end, head_dim);
  }
}

// Rows [row_begin, row_end), each of which sees some of the step's keys, meet them.
template <typename Source>
PAGEWIRE_NOINLINE void attend_step(const AttentionRows& tile, int64_t row_begin, int64_t row_end, const Source& source,
                                   int64_t start, int64_t head_dim) {
  for (int64_t row = row_begin; row < row_end; row += kRowBlock) {
    const int64_t rows = smaller(kRowBlock, row_end - row);
    const int64_t begin = visible_keys(tile, row, start).begin, end = visible_keys(tile, row + rows - 1, start).end;
    score_rows(tile, row, rows, source, begin / kPanelKeys, divide_up(end, kPanelKeys), head_dim);
  }
  for (int64_t row = row_begin; row < row_end; ++row) {
    const KeyRange keys = visible_keys(tile, row, start);
    float* scores = tile.scores + row * kKeyStep;
    if (tile.score_cap != 0.0f) cap_scores(scores, keys.begin, keys.end, tile.score_cap);
    mask_scores(scores, keys.begin, keys.end);
    const float largest = largest_score(scores, keys.begin, keys.end);
    tile.new_largest[row] = largest > tile.largest[row] ? largest : tile.largest[row];
  }
  // Whole vectors: other rows' largest and new_largest are equal, so that nothing changes for them.
  for (int64_t row = row_begin / kVecSize * kVecSize; row < row_end; row += kVecSize) {
    const Vec largest = load(tile.new_largest + row);
    store(tile.correction + row, exp2_nonpositive(sub(load(tile.largest + row), largest)));
    store(tile.largest + row, largest);
  }
  for (int64_t row = row_begin; row < row_end; ++row) {
    const KeyRange keys = visible_keys(tile, row, start);
    const float sum = weigh(tile.scores + row * kKeyStep, keys.begin, keys.end, tile.largest[row]);
    tile.sum[row] = tile.sum[row] * tile.correction[row] + sum;
  }
  for (int64_t row = row_begin; row < row_end; row += kRowBlock) {
    add_block_values(tile, row, smaller(kRowBlock, row_end - row), source, start, head_dim);
  }
}
