// Where a step's keys and values lie in the paged cache: read in place, or converted to floats first.
// Included by attention.inl, after attention_step.inl.

// One request's part of a KV cache.
template <typename Type>
struct RequestCache {
  using Element = typename Type::Element;
  const Element *keys, *values;
  const int32_t* block_table;
  int64_t num_kv_heads, head_dim, block_size;

  // Where a KV head's part of a block starts, in elements; index: in the block table.
  int64_t block_offset(int64_t index, int64_t kv_head) const {
    return (block_table[index] * num_kv_heads + kv_head) * head_dim * block_size;
  }
};

// Where the panels of a step lie in the cache, for KV head 0: the offsets of their keys and of their values.
struct PanelPlaces {
  int64_t keys[kStepPanels], values[kStepPanels];
};

// The panels of the step at `start` that hold keys [begin, end); whole panels must lie in one block. The places of the
// others are those of a neighbour: they may be fetched, to no use.
template <typename Type>
static PanelPlaces find_panels(const RequestCache<Type>& cache, int64_t start, int64_t begin, int64_t end) {
  PanelPlaces places;
  const int64_t first = (begin - start) / kPanelKeys, position = start + first * kPanelKeys;
  int64_t index = position / cache.block_size, offset = position % cache.block_size;
  for (int64_t panel = first; panel < kStepPanels; ++panel) {
    if (start + panel * kPanelKeys < end) {
      const int64_t block = cache.block_offset(index, 0);
      places.keys[panel] = block + offset;
      places.values[panel] = block + offset * cache.head_dim;
    } else {
      places.keys[panel] = places.keys[panel - 1];
      places.values[panel] = places.values[panel - 1];
    }
    offset += kPanelKeys;
    if (offset == cache.block_size) {
      offset = 0;
      ++index;
    }
  }
  for (int64_t panel = 0; panel < first; ++panel) {
    places.keys[panel] = places.keys[first];
    places.values[panel] = places.values[first];
  }
  return places;
}

// A step's keys of one KV head, read where they lie. What comes next is the next head's part of the same blocks, and
// after the last head the first one's part of the next step.
template <typename Type>
static StepSource<Type, true> direct_source(const RequestCache<Type>& cache, const PanelPlaces& places,
                                            int64_t kv_head, const PanelPlaces& next_places, int64_t next_kv_head) {
  StepSource<Type, true> source;
  source.key_stride = cache.block_size;
  source.value_stride = cache.head_dim;
  const int64_t head_elements = cache.head_dim * cache.block_size;
  const int64_t head = kv_head * head_elements, next_head = next_kv_head * head_elements;
  for (int64_t panel = 0; panel < kStepPanels; ++panel) {
    source.keys[panel] = cache.keys + places.keys[panel] + head;
    source.values[panel] = cache.values + places.values[panel] + head;
    source.next_keys[panel] = cache.keys + next_places.keys[panel] + next_head;
    source.next_values[panel] = cache.values + next_places.values[panel] + next_head;
  }
  return source;
}

// Keys [begin, end) of the step at `start` of one KV head, converted to floats in the tile's work space.
template <typename Type>
static StepSource<Float32, false> converted_source(const RequestCache<Type>& cache, int64_t kv_head,
                                                   const AttentionRows& tile, int64_t start, int64_t begin,
                                                   int64_t end) {
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
    const int64_t block = cache.block_offset(position / block_size, kv_head), offset = position % block_size;
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
