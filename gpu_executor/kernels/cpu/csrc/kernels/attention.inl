// Paged attention of one task in the calling thread: see attention.h for layout and order, attention_plan.h for tasks.
// Included inside an instruction set's namespace, after its Vec and elementwise.inl.
//
// A row (a token's head) meets the keys of a step in these operations, whatever rows share its tile:
//   score[key]  = fma over channels in order, from 0, in the key's own lane; the query is scaled by scale * log2(e)
//   largest     = max(largest, scores);  correction = 2^(old largest - new largest)
//   weight[key] = 2^(score - largest), 0 where the row doesn't see the key
//   sum         = sum * correction + (weights added vector by vector, then across lanes)
//   values      = values * correction, then fma(weight, value) key by key over the keys that the row sees
// and after each split: fold_split(). Keys outside the row's range take part in none of them: they may be NaN.

constexpr int64_t kPanelKeys = 16;  // keys that lie side by side, channel by channel, where the kernels read them
constexpr int64_t kPanelVecs = kPanelKeys / kVecSize;
constexpr int64_t kStepPanels = kKeyStep / kPanelKeys;
static_assert(kPanelKeys % kVecSize == 0 && kKeyStep % kPanelKeys == 0 && kKeySplit % kKeyStep == 0);

// Registers for sums; the others hold what is multiplied. All sums of a product of `rows` by `kVecSize * vecs` fit.
constexpr int64_t kSumRegisters = kVecRegisters - 4;
constexpr int64_t kRowBlock = smaller(8, larger(1, kSumRegisters / kPanelVecs));
// The largest power of two of vectors (of panels) that leaves all sums of `rows` rows in registers: with few rows, more
// of them, so that enough sums run side by side.
constexpr int64_t vectors_at_once(int64_t rows, int64_t registers_each, int64_t most) {
  int64_t count = most;
  while (count > 1 && rows * count * registers_each > kSumRegisters) count /= 2;
  return count;
}

// Where a step's keys and values lie: a pointer for each panel of keys, and the distance between neighbouring channels
// of keys (neighbouring keys of values). kAhead: and where those of the step after it lie, to be fetched meanwhile.
// Blocks lie anywhere, and each is too short for the hardware to foresee the next.
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

// One tile's work space, and its rows' state.
struct AttentionRows {
  int64_t count, channels;  // channels: head_dim, padded
  float* query;             // [count, channels], scaled
  float* scores;            // [count, kKeyStep], then the weights
  float* values;            // [count] rows at value_stride: the split's weighted values
  int64_t value_stride;
  float* total_values;  // [count, channels], of the splits so far
  float *largest, *sum, *total_largest, *total_sum, *correction, *new_largest;  // [count], up to whole vectors
  int32_t *key_begin, *key_end;                                                 // [count]: keys that a row sees
  float *step_keys, *step_values;  // a step's keys [panels, head_dim, kPanelKeys] and values [kKeyStep, channels]
};

// --- Products -------------------------------------------------------------------------------------------------------

// scores of kRows rows for kPanels panels of a step.
template <int64_t kRows, int64_t kPanels, typename Source>
static void score_panels(const float* query, int64_t query_stride, const Source& source, int64_t panel,
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
    const auto load_key = [&](int64_t vec) {
      return Type::load_all(panels[vec / kPanelVecs] + channel * key_stride + vec % kPanelVecs * kVecSize);
    };
    if constexpr (Source::kAhead) {
#pragma GCC unroll 4
      for (int64_t i = 0; i < kPanels; ++i) prefetch(next[i] + channel * key_stride);
    }
    // The fewer of the two kinds of factors stay in registers, while those of the other kind pass by.
    if constexpr (kVecs <= kRows) {
      Vec keys[kVecs];
#pragma GCC unroll 16
      for (int64_t vec = 0; vec < kVecs; ++vec) keys[vec] = load_key(vec);
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
#pragma GCC unroll 16
      for (int64_t vec = 0; vec < kVecs; ++vec) {
        const Vec key = load_key(vec);
#pragma GCC unroll 8
        for (int64_t row = 0; row < kRows; ++row) sums[row][vec] = fma(factors[row], key, sums[row][vec]);
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
static void add_values(const float* weights, const float* correction, const Source& source, int64_t channel,
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
#pragma GCC unroll 8
        for (int64_t vec = 0; vec < kVecs; ++vec) parts[vec] = Type::load_all(value + vec * kVecSize);
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
#pragma GCC unroll 8
        for (int64_t vec = 0; vec < kVecs; ++vec) {
          const Vec part = Type::load_all(value + vec * kVecSize);
#pragma GCC unroll 8
          for (int64_t row = 0; row < kRows; ++row) sums[row][vec] = fma(factors[row], part, sums[row][vec]);
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
static void score_rows(const AttentionRows& tile, int64_t row, int64_t rows, const Source& source, int64_t panel,
                       int64_t panel_end, int64_t head_dim) {
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
static void add_row_values(const AttentionRows& tile, int64_t row, int64_t rows, const Source& source, int64_t begin,
                           int64_t end, int64_t head_dim) {
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
    for (; channel < head_dim; channel += kVecSize) {
      add_values<kRows, 1>(weights, tile.correction + row, source, channel, begin, end, values + channel,
                           tile.value_stride);
    }
  });
}

// --- Softmax --------------------------------------------------------------------------------------------------------

// Hide what a row doesn't see of its scores, [begin, end) of the step being what it sees, up to whole vectors.
PAGEWIRE_INLINE void mask_scores(float* scores, int64_t begin, int64_t end) {
  for (int64_t key = begin / kVecSize * kVecSize; key < begin; ++key) scores[key] = -__builtin_inff();
  for (int64_t key = end; key % kVecSize != 0; ++key) scores[key] = -__builtin_inff();
}

PAGEWIRE_INLINE float largest_score(const float* scores, int64_t begin, int64_t end) {
  Vec largest = broadcast(-__builtin_inff());
  for (int64_t key = begin / kVecSize * kVecSize; key < end; key += kVecSize) largest = max(load(scores + key), largest);
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
static void attend_step(const AttentionRows& tile, int64_t row_begin, int64_t row_end, const Source& source,
                        int64_t start, int64_t head_dim) {
  for (int64_t row = row_begin; row < row_end; row += kRowBlock) {
    const int64_t rows = smaller(kRowBlock, row_end - row);
    const int64_t begin = visible_keys(tile, row, start).begin, end = visible_keys(tile, row + rows - 1, start).end;
    score_rows(tile, row, rows, source, begin / kPanelKeys, divide_up(end, kPanelKeys), head_dim);
  }
  for (int64_t row = row_begin; row < row_end; ++row) {
    const KeyRange keys = visible_keys(tile, row, start);
    float* scores = tile.scores + row * kKeyStep;
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

// --- Where a step's keys lie ----------------------------------------------------------------------------------------

// One request's part of a KV cache, for one KV head.
template <typename Type>
struct HeadCache {
  using Element = typename Type::Element;
  const Element *keys, *values;
  const int32_t* block_table;
  int64_t head, num_heads, head_dim, block_size;

  // Where a block's part of this head starts, in elements; index: in the block table.
  int64_t block_offset(int64_t index) const { return (block_table[index] * num_heads + head) * head_dim * block_size; }
};

// The keys of the step at `start` from `begin` on, read where they lie: whole panels must lie in one block. The request's
// block table is read up to the block of key last_end - 1.
template <typename Type>
static StepSource<Type, true> direct_source(const HeadCache<Type>& cache, int64_t start, int64_t begin,
                                            int64_t last_end) {
  StepSource<Type, true> source;
  source.key_stride = cache.block_size;
  source.value_stride = cache.head_dim;
  const int64_t first = (begin - start) / kPanelKeys;
  const int64_t count = divide_up(last_end - start, kPanelKeys);  // panels from here to the last key
  int64_t position = start + first * kPanelKeys;
  int64_t block = position / cache.block_size, offset = position % cache.block_size;
  for (int64_t panel = first; panel < smaller(count, 2 * kStepPanels); ++panel) {
    const int64_t element = cache.block_offset(block);
    const typename Type::Element* const keys = cache.keys + element + offset;
    const typename Type::Element* const values = cache.values + element + offset * cache.head_dim;
    if (panel < kStepPanels) {
      source.keys[panel] = source.next_keys[panel] = keys;  // fetching them once more does no harm
      source.values[panel] = source.next_values[panel] = values;
    } else {
      source.next_keys[panel - kStepPanels] = keys;
      source.next_values[panel - kStepPanels] = values;
    }
    offset += kPanelKeys;
    if (offset == cache.block_size) {
      offset = 0;
      ++block;
    }
  }
  return source;
}

// The same keys, converted to floats in the tile's work space.
template <typename Type>
static StepSource<Float32, false> converted_source(const HeadCache<Type>& cache, const AttentionRows& tile,
                                                   int64_t start, int64_t begin, int64_t end) {
  StepSource<Float32, false> source;
  source.key_stride = kPanelKeys;
  source.value_stride = tile.channels;
  const int64_t head_dim = cache.head_dim, block_size = cache.block_size;
  for (int64_t panel = 0; panel < kStepPanels; ++panel) {
    source.keys[panel] = source.next_keys[panel] = tile.step_keys + panel * head_dim * kPanelKeys;
    source.values[panel] = source.next_values[panel] = tile.step_values + panel * kPanelKeys * tile.channels;
  }
  for (int64_t position = begin; position < end;) {
    // As many keys as lie side by side in the cache and in the panel.
    const int64_t block = cache.block_offset(position / block_size), offset = position % block_size;
    const int64_t place = position - start;
    const int64_t count = smaller(smaller(kVecSize - place % kVecSize, block_size - offset), end - position);
    const typename Type::Element* key = cache.keys + block + offset;
    float* keys = tile.step_keys + place / kPanelKeys * head_dim * kPanelKeys + place % kPanelKeys;
    if (count == kVecSize) {
      for (int64_t channel = 0; channel < head_dim; ++channel) {
        store(keys + channel * kPanelKeys, Type::load_all(key + channel * block_size));
      }
    } else {
      for (int64_t channel = 0; channel < head_dim; ++channel) {
        store_partial(keys + channel * kPanelKeys, Type::load_first(key + channel * block_size, count), count);
      }
    }
    const typename Type::Element* value = cache.values + block + offset * head_dim;
    for (int64_t i = 0; i < count; ++i, value += head_dim) {
      float* values = tile.step_values + (place + i) * tile.channels;
      for_vectors(
          head_dim, [&](int64_t channel) { store(values + channel, Type::load_all(value + channel)); },
          [&](int64_t channel, int64_t rest) { store(values + channel, Type::load_first(value + channel, rest)); });
    }
    position += count;
  }
  return source;
}

// --- Splits ---------------------------------------------------------------------------------------------------------

// Add a split's result to that of the splits before it. A sum of 0 says: no key was seen.
static void fold_split(float largest, float sum, const float* values, int64_t head_dim, float* total_largest,
                       float* total_sum, float* total_values) {
  if (sum == 0.0f) return;
  if (*total_sum == 0.0f) {
    *total_largest = largest;
    *total_sum = sum;
    std::memcpy(total_values, values, static_cast<size_t>(head_dim) * sizeof(float));
    return;
  }
  const float new_largest = largest > *total_largest ? largest : *total_largest;
  float factors[kVecSize] = {*total_largest - new_largest, largest - new_largest};
  store(factors, exp2_nonpositive(load(factors)));
  const Vec old_factor = broadcast(factors[0]), new_factor = broadcast(factors[1]);
  *total_largest = new_largest;
  *total_sum = *total_sum * factors[0] + sum * factors[1];
  for_vectors(
      head_dim,
      [&](int64_t channel) {
        const Vec total = mul(load(total_values + channel), old_factor);
        store(total_values + channel, fma(load(values + channel), new_factor, total));
      },
      [&](int64_t channel, int64_t rest) {
        const Vec total = mul(load_partial(total_values + channel, rest), old_factor);
        store_partial(total_values + channel, fma(load_partial(values + channel, rest), new_factor, total), rest);
      });
}

// output = values / sum; may be done in place.
static void normalize(const float* values, float sum, int64_t head_dim, float* output) {
  const Vec divisor = broadcast(sum);
  for_vectors(
      head_dim, [&](int64_t channel) { store(output + channel, div(load(values + channel), divisor)); },
      [&](int64_t channel, int64_t rest) {
        store_partial(output + channel, div(load_partial(values + channel, rest), divisor), rest);
      });
}

// All rows against one split's keys. Leaves largest, sum and values.
template <typename Type>
static void attend_split(const AttentionRows& tile, const HeadCache<Type>& cache, int64_t split, bool is_direct) {
  for (int64_t row = 0; row < round_up(tile.count, kVecSize); ++row) {
    tile.largest[row] = tile.new_largest[row] = -__builtin_inff();
    tile.sum[row] = 0.0f;
  }
  for (int64_t row = 0; row < tile.count; ++row) {
    std::memset(tile.values + row * tile.value_stride, 0, static_cast<size_t>(tile.channels) * sizeof(float));
  }
  int64_t row_begin = 0, row_end = 0;  // rows that see the step: both only grow from step to step
  for (int64_t start = split * kKeySplit; start < (split + 1) * kKeySplit; start += kKeyStep) {
    while (row_begin < tile.count && tile.key_end[row_begin] <= start) ++row_begin;
    while (row_end < tile.count && tile.key_begin[row_end] < start + kKeyStep) ++row_end;
    if (row_begin == tile.count) break;
    if (row_begin >= row_end) continue;
    const int64_t begin = larger(tile.key_begin[row_begin], start);
    const int64_t end = smaller(tile.key_end[row_end - 1], start + kKeyStep);
    if (is_direct) {
      const int64_t last_end = tile.key_end[tile.count - 1];
      attend_step(tile, row_begin, row_end, direct_source(cache, start, begin, last_end), start, cache.head_dim);
    } else {
      attend_step(tile, row_begin, row_end, converted_source(cache, tile, start, begin, end), start, cache.head_dim);
    }
  }
}

// --- Tasks ----------------------------------------------------------------------------------------------------------

static AttentionRows lay_out_rows(const AttentionStep& step, int64_t count, float* work) {
  AttentionRows tile;
  tile.count = count;
  tile.channels = round_up(step.head_dim, 16);
  const auto take = [&](int64_t floats) {
    float* const taken = work;
    work += floats;
    return taken;
  };
  tile.step_keys = take(kKeyStep * tile.channels);
  tile.step_values = take(kKeyStep * tile.channels);
  tile.query = take(count * tile.channels);
  tile.values = take(count * tile.channels);
  tile.value_stride = tile.channels;
  tile.total_values = take(count * tile.channels);
  tile.scores = take(count * kKeyStep);
  const int64_t padded = round_up(count, 16);
  for (float** const numbers : {&tile.largest, &tile.sum, &tile.total_largest, &tile.total_sum, &tile.correction,
                                &tile.new_largest}) {
    *numbers = take(padded);
  }
  tile.key_begin = reinterpret_cast<int32_t*>(take(padded));
  tile.key_end = reinterpret_cast<int32_t*>(take(padded));
  return tile;
}

// Which keys each row sees, and its scaled query.
static void set_rows(const AttentionStep& step, const AttentionTask& task, const AttentionRows& tile, int64_t kv_head) {
  const int64_t heads = step.num_heads / step.num_kv_heads, head_dim = step.head_dim;
  const int64_t first_position = step.seq_lens[task.request] - step.query_start[task.request + 1];
  const Vec scale = broadcast(step.scale * 1.4426950408889634f);
  for (int64_t token = task.token_begin, row = 0; token < task.token_end; ++token) {
    const int64_t position = first_position + token;
    for (int64_t head = 0; head < heads; ++head, ++row) {
      tile.key_begin[row] = static_cast<int32_t>(step.sliding_window > 0 ? larger(position + 1 - step.sliding_window, 0) : 0);
      tile.key_end[row] = static_cast<int32_t>(position + 1);
      tile.total_sum[row] = 0.0f;
      const float* query = step.query + token * step.query_stride + (kv_head * heads + head) * head_dim;
      float* scaled = tile.query + row * tile.channels;
      for_vectors(
          head_dim, [&](int64_t channel) { store(scaled + channel, mul(load(query + channel), scale)); },
          [&](int64_t channel, int64_t rest) { store(scaled + channel, mul(load_partial(query + channel, rest), scale)); });
    }
  }
}

// The splits' results stay apart, for attention_merge.
template <typename Type>
static void attend_to_partials(const AttentionStep& step, const AttentionTask& task, AttentionRows tile,
                               const HeadCache<Type>& cache, bool is_direct) {
  tile.value_stride = attention_partial_floats(step.head_dim);
  float* partial = step.partials + task.partial;
  for (int64_t split = task.split_begin; split < task.split_end; ++split) {
    tile.values = partial + kPartialHead;
    attend_split(tile, cache, split, is_direct);
    for (int64_t row = 0; row < tile.count; ++row, partial += tile.value_stride) {
      partial[0] = tile.largest[row];
      partial[1] = tile.sum[row];
    }
  }
}

template <typename Type>
static void attend_to_output(const AttentionStep& step, const AttentionTask& task, const AttentionRows& tile,
                             const HeadCache<Type>& cache, bool is_direct) {
  for (int64_t split = task.split_begin; split < task.split_end; ++split) {
    attend_split(tile, cache, split, is_direct);
    for (int64_t row = 0; row < tile.count; ++row) {
      fold_split(tile.largest[row], tile.sum[row], tile.values + row * tile.channels, step.head_dim,
                 tile.total_largest + row, tile.total_sum + row, tile.total_values + row * tile.channels);
    }
  }
  const int64_t heads = step.num_heads / step.num_kv_heads;
  for (int64_t row = 0; row < tile.count; ++row) {
    const int64_t token = task.token_begin + row / heads, head = cache.head * heads + row % heads;
    normalize(tile.total_values + row * tile.channels, tile.total_sum[row], step.head_dim,
              step.output + token * step.output_stride + head * step.head_dim);
  }
}

template <typename Type>
static void attention_task_as(const AttentionStep& step, const AttentionTask& task, float* work) {
  using Element = typename Type::Element;
  const int64_t heads = step.num_heads / step.num_kv_heads;
  const AttentionRows tile = lay_out_rows(step, (task.token_end - task.token_begin) * heads, work);
  // Rows that fit one block of them read each key once: they convert it on the way.
  const bool is_direct = tile.count <= kRowBlock && step.block_size % kPanelKeys == 0 && step.head_dim % kVecSize == 0;
  for (int64_t kv_head = task.kv_head_begin; kv_head < task.kv_head_end; ++kv_head) {
    const HeadCache<Type> cache = {static_cast<const Element*>(step.key_cache),
                                   static_cast<const Element*>(step.value_cache),
                                   step.block_tables + task.request * step.max_blocks,
                                   kv_head,
                                   step.num_kv_heads,
                                   step.head_dim,
                                   step.block_size};
    set_rows(step, task, tile, kv_head);
    if (task.partial >= 0) {
      attend_to_partials(step, task, tile, cache, is_direct);
    } else {
      attend_to_output(step, task, tile, cache, is_direct);
    }
  }
}

static void attention_task(const AttentionStep& step, const AttentionTask& task, void* work) {
  switch (step.kv_type) {
    case ElementType::kFloat32: return attention_task_as<Float32>(step, task, static_cast<float*>(work));
    case ElementType::kFloat16: return attention_task_as<Float16>(step, task, static_cast<float*>(work));
    case ElementType::kBFloat16: return attention_task_as<BFloat16>(step, task, static_cast<float*>(work));
  }
}

static void attention_merge(const AttentionStep& step, const AttentionMerge& merge) {
  const int64_t heads = step.num_heads / step.num_kv_heads, floats = attention_partial_floats(step.head_dim);
  const int64_t rows = (merge.token_end - merge.token_begin) * heads;
  for (int64_t row = 0; row < rows; ++row) {
    const int64_t token = merge.token_begin + row / heads, head = merge.kv_head * heads + row % heads;
    float* output = step.output + token * step.output_stride + head * step.head_dim;
    float largest = 0.0f, sum = 0.0f;
    for (int64_t split = 0; split < merge.num_splits; ++split) {
      const float* partial = step.partials + merge.partial + (split * rows + row) * floats;
      fold_split(partial[0], partial[1], partial + kPartialHead, step.head_dim, &largest, &sum, output);
    }
    normalize(output, sum, step.head_dim, output);
  }
}

// --- Writing the cache ----------------------------------------------------------------------------------------------

PAGEWIRE_INLINE char* cache_address(const void* cache, const AttentionStep& step, int64_t block, int64_t head,
                                    int64_t element) {
  const int64_t bytes = step.kv_type == ElementType::kFloat32 ? 4 : 2;
  const int64_t head_elements = step.head_dim * step.block_size;
  return static_cast<char*>(const_cast<void*>(cache)) + ((block * step.num_kv_heads + head) * head_elements + element) * bytes;
}

static void store_key(const float* key, int64_t slot, const AttentionStep& step) {
  const int64_t block = slot / step.block_size, offset = slot % step.block_size;
  for (int64_t head = 0; head < step.num_kv_heads; ++head) {
    store_elements(key + head * step.head_dim, step.head_dim, step.kv_type,
                   cache_address(step.key_cache, step, block, head, offset), step.block_size);
  }
}

static void store_value(const float* value, int64_t slot, const AttentionStep& step) {
  const int64_t block = slot / step.block_size, offset = slot % step.block_size;
  for (int64_t head = 0; head < step.num_kv_heads; ++head) {
    store_elements(value + head * step.head_dim, step.head_dim, step.kv_type,
                   cache_address(step.value_cache, step, block, head, offset * step.head_dim), 1);
  }
}
