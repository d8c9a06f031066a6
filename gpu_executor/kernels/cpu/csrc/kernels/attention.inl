// Paged attention of one task in the calling thread: see attention.h for layout, order and tasks.
// Included inside an instruction set's namespace, after its Vec and elementwise.inl.

#include "attention_step.inl"
#include "attention_keys.inl"

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

// output = values / sum * scale; may be done in place.
static void normalize(const float* values, float sum, float scale, int64_t head_dim, float* output) {
  const Vec divisor = broadcast(sum), factor = broadcast(scale);
  for_vectors(
      head_dim, [&](int64_t channel) { store(output + channel, mul(div(load(values + channel), divisor), factor)); },
      [&](int64_t channel, int64_t rest) {
        store_partial(output + channel, mul(div(load_partial(values + channel, rest), divisor), factor), rest);
      });
}

// The KV heads that a tile has rows for, and how they meet keys: read in place, or converted first (one head only).
struct HeadRange {
  int64_t begin, end;
  bool is_direct;
};

static void forget_split(const AttentionRows& tile) {
  for (int64_t row = 0; row < round_up(tile.count, kVecSize); ++row) {
    tile.largest[row] = tile.new_largest[row] = -__builtin_inff();
    tile.sum[row] = 0.0f;
  }
  for (int64_t row = 0; row < tile.count; ++row) {
    std::memset(tile.values + row * tile.value_stride, 0, static_cast<size_t>(tile.channels) * sizeof(float));
  }
}

// All rows against one split's keys. Leaves largest, sum and values.
template <typename Type>
static void attend_split(const AttentionRows& tile, const RequestCache<Type>& cache, const HeadRange& heads,
                         int64_t split) {
  forget_split(tile);
  const int64_t head_dim = cache.head_dim, last_end = tile.key_end[tile.head_rows - 1];
  int64_t row_begin = 0, row_end = 0;  // a head's rows that see the step: both only grow from step to step
  for (int64_t start = split * kKeySplit; start < (split + 1) * kKeySplit; start += kKeyStep) {
    while (row_begin < tile.head_rows && tile.key_end[row_begin] <= start) ++row_begin;
    while (row_end < tile.head_rows && tile.key_begin[row_end] < start + kKeyStep) ++row_end;
    if (row_begin == tile.head_rows) break;
    if (row_begin >= row_end) continue;
    const int64_t begin = larger(tile.key_begin[row_begin], start);
    const int64_t end = smaller(tile.key_end[row_end - 1], start + kKeyStep);
    if (!heads.is_direct) {
      const auto source = converted_source(cache, heads.begin, tile, start, begin, end);
      attend_step(tile, row_begin, row_end, source, start, head_dim);
      continue;
    }
    // All heads before the next step: their parts of a block lie side by side in memory.
    const int64_t next = start + kKeyStep;
    const PanelPlaces places = find_panels(cache, start, begin, end);
    const PanelPlaces next_places = next < last_end ? find_panels(cache, next, next, last_end) : places;
    for (int64_t head = heads.begin, row = 0; head < heads.end; ++head, row += tile.head_rows) {
      const bool is_last = head + 1 == heads.end;
      const auto source = direct_source(cache, places, head, is_last ? next_places : places,
                                        is_last ? heads.begin : head + 1);
      attend_step(tile, row + row_begin, row + row_end, source, start, head_dim);
    }
  }
}

// --- Tasks ----------------------------------------------------------------------------------------------------------

constexpr float kLog2E = 1.4426950408889634f;

// What keys and values that were loaded are still to be multiplied by.
static float stored_unit(const AttentionStep& step) {
  return step.kv_type == ElementType::kFloat8E4M3 ? Float8E4M3::kUnit : 1.0f;
}

static AttentionRows lay_out_rows(int64_t head_rows, int64_t num_heads, int64_t head_dim, float* work) {
  AttentionRows tile;
  tile.head_rows = head_rows;
  tile.count = head_rows * num_heads;
  tile.channels = round_up(head_dim, 16);
  const auto take = [&](int64_t floats) {
    float* const taken = work;
    work += floats;
    return taken;
  };
  tile.step_keys = take(kKeyStep * tile.channels);
  tile.step_values = take(kKeyStep * tile.channels);
  tile.query = take(tile.count * tile.channels);
  tile.values = take(tile.count * tile.channels);
  tile.value_stride = tile.channels;
  tile.total_values = take(tile.count * tile.channels);
  tile.scores = take(tile.count * kKeyStep);
  const int64_t padded = round_up(tile.count, 16);
  for (float** const numbers : {&tile.largest, &tile.sum, &tile.total_largest, &tile.total_sum, &tile.correction,
                                &tile.new_largest}) {
    *numbers = take(padded);
  }
  tile.key_begin = reinterpret_cast<int32_t*>(take(padded));
  tile.key_end = reinterpret_cast<int32_t*>(take(padded));
  return tile;
}

// A row's token and query head.
struct RowPlace {
  int64_t token, head;
};
static RowPlace row_place(const AttentionStep& step, int64_t token_begin, int64_t kv_head, int64_t head_row) {
  const int64_t heads = step.num_heads / step.num_kv_heads;
  return {token_begin + head_row / heads, kv_head * heads + head_row % heads};
}

// Call visit(row, kv_head, head_row) for all rows of a tile.
template <typename Visit>
PAGEWIRE_INLINE void for_tile_rows(const AttentionRows& tile, const HeadRange& heads, Visit&& visit) {
  int64_t row = 0;
  for (int64_t kv_head = heads.begin; kv_head < heads.end; ++kv_head) {
    for (int64_t head_row = 0; head_row < tile.head_rows; ++head_row, ++row) visit(row, kv_head, head_row);
  }
}

// Which keys each row sees, and its scaled query.
static void set_rows(const AttentionStep& step, const AttentionTask& task, const AttentionRows& tile,
                     const HeadRange& heads) {
  const int64_t head_dim = step.head_dim, window = step.sliding_window;
  const int64_t first_position = step.seq_lens[task.request] - step.query_start[task.request + 1];
  const float to_score = step.scale * step.key_scale * stored_unit(step);
  const float factor = step.soft_cap == 0.0f ? to_score : 2.0f * to_score / step.soft_cap;
  const Vec scale = broadcast(factor * kLog2E);
  for_tile_rows(tile, heads, [&](int64_t row, int64_t kv_head, int64_t head_row) {
    const RowPlace place = row_place(step, task.token_begin, kv_head, head_row);
    const int64_t key_end = first_position + place.token + 1;
    tile.key_begin[row] = static_cast<int32_t>(window > 0 ? larger(key_end - window, 0) : 0);
    tile.key_end[row] = static_cast<int32_t>(key_end);
    tile.total_sum[row] = 0.0f;
    const float* query = step.query + place.token * step.query_stride + place.head * head_dim;
    float* scaled = tile.query + row * tile.channels;
    for_vectors(
        head_dim, [&](int64_t channel) { store(scaled + channel, mul(load(query + channel), scale)); },
        [&](int64_t channel, int64_t rest) {
          store(scaled + channel, mul(load_partial(query + channel, rest), scale));
        });
  });
}

// Offset, within a tile's partial results, of one row of a split: by split, then by KV head, then by row.
static int64_t partial_offset(const AttentionStep& step, int64_t head_rows, int64_t split, int64_t kv_head,
                              int64_t head_row) {
  return ((split * step.num_kv_heads + kv_head) * head_rows + head_row) * attention_partial_floats(step.head_dim);
}

// The splits' results stay apart, for attention_merge.
template <typename Type>
static void attend_to_partials(const AttentionStep& step, const AttentionTask& task, AttentionRows tile,
                               const RequestCache<Type>& cache, const HeadRange& heads) {
  tile.value_stride = attention_partial_floats(step.head_dim);
  for (int64_t split = task.split_begin; split < task.split_end; ++split) {
    float* partial = step.partials + task.partial +
                     partial_offset(step, tile.head_rows, split - task.split_begin, heads.begin, 0);
    tile.values = partial + kPartialHead;
    attend_split(tile, cache, heads, split);
    for (int64_t row = 0; row < tile.count; ++row, partial += tile.value_stride) {
      partial[0] = tile.largest[row];
      partial[1] = tile.sum[row];
    }
  }
}

template <typename Type>
static void attend_to_output(const AttentionStep& step, const AttentionTask& task, const AttentionRows& tile,
                             const RequestCache<Type>& cache, const HeadRange& heads) {
  for (int64_t split = task.split_begin; split < task.split_end; ++split) {
    attend_split(tile, cache, heads, split);
    for (int64_t row = 0; row < tile.count; ++row) {
      fold_split(tile.largest[row], tile.sum[row], tile.values + row * tile.channels, step.head_dim,
                 tile.total_largest + row, tile.total_sum + row, tile.total_values + row * tile.channels);
    }
  }
  const float value_scale = step.value_scale * stored_unit(step);
  for_tile_rows(tile, heads, [&](int64_t row, int64_t kv_head, int64_t head_row) {
    const RowPlace place = row_place(step, task.token_begin, kv_head, head_row);
    normalize(tile.total_values + row * tile.channels, tile.total_sum[row], value_scale, step.head_dim,
              step.output + place.token * step.output_stride + place.head * step.head_dim);
  });
}

template <typename Type>
static void attention_task_as(const AttentionStep& step, const AttentionTask& task, float* work) {
  using Element = typename Type::Element;
  const RequestCache<Type> cache = {static_cast<const Element*>(step.key_cache),
                                    static_cast<const Element*>(step.value_cache),
                                    step.block_tables + task.request * step.max_blocks,
                                    step.num_kv_heads,
                                    step.head_dim,
                                    step.block_size};
  const int64_t head_rows = (task.token_end - task.token_begin) * (step.num_heads / step.num_kv_heads);
  // A head's rows that are multiplied all at once read each key once: they convert it on the way, and the task's KV
  // heads take turns. More rows, or caches whose panels or channels don't fill vectors: a head at a time, converted.
  const bool is_direct = head_rows <= kRowBlock && step.block_size % kPanelKeys == 0 && step.head_dim % kVecSize == 0;
  const int64_t heads_at_once = is_direct ? task.kv_head_end - task.kv_head_begin : 1;
  AttentionRows tile = lay_out_rows(head_rows, heads_at_once, step.head_dim, work);
  tile.score_cap = step.soft_cap * kLog2E;
  for (int64_t kv_head = task.kv_head_begin; kv_head < task.kv_head_end; kv_head += heads_at_once) {
    const HeadRange heads = {kv_head, kv_head + heads_at_once, is_direct};
    set_rows(step, task, tile, heads);
    if (task.partial >= 0) {
      attend_to_partials(step, task, tile, cache, heads);
    } else {
      attend_to_output(step, task, tile, cache, heads);
    }
  }
}

void attention_task(const AttentionStep& step, const AttentionTask& task, void* work) {
  switch (step.kv_type) {
    case ElementType::kFloat32: return attention_task_as<Float32>(step, task, static_cast<float*>(work));
    case ElementType::kFloat16: return attention_task_as<Float16>(step, task, static_cast<float*>(work));
    case ElementType::kBFloat16: return attention_task_as<BFloat16>(step, task, static_cast<float*>(work));
    case ElementType::kFloat8E4M3: return attention_task_as<Float8E4M3>(step, task, static_cast<float*>(work));
    case ElementType::kFloat8E5M2: return attention_task_as<Float8E5M2>(step, task, static_cast<float*>(work));
  }
}

void attention_merge(const AttentionStep& step, const AttentionMerge& merge) {
  const int64_t head_rows = (merge.token_end - merge.token_begin) * (step.num_heads / step.num_kv_heads);
  for (int64_t head_row = 0; head_row < head_rows; ++head_row) {
    const RowPlace place = row_place(step, merge.token_begin, merge.kv_head, head_row);
    float* output = step.output + place.token * step.output_stride + place.head * step.head_dim;
    float largest = 0.0f, sum = 0.0f;
    for (int64_t split = 0; split < merge.num_splits; ++split) {
      const float* partial =
          step.partials + merge.partial + partial_offset(step, head_rows, split, merge.kv_head, head_row);
      fold_split(partial[0], partial[1], partial + kPartialHead, step.head_dim, &largest, &sum, output);
    }
    normalize(output, sum, step.value_scale * stored_unit(step), step.head_dim, output);
  }
}
