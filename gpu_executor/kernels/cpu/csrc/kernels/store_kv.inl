// Writing one token's keys and values into the cache: see attention.h for its layout.
// Included inside an instruction set's namespace, after its Vec and elementwise.inl.
//
// What is stored is the quotient by the cache's scale, rounded as store_elements does.

PAGEWIRE_INLINE char* cache_address(const void* cache, const AttentionStep& step, int64_t block, int64_t head,
                                    int64_t element) {
  const int64_t head_elements = step.head_dim * step.block_size;
  const int64_t index = (block * step.num_kv_heads + head) * head_elements + element;
  return static_cast<char*>(const_cast<void*>(cache)) + index * element_bytes(step.kv_type);
}

// Divide one head by its cache's scale, and write its channels `stride` elements apart.
static void store_head(const float* head, float scale, const AttentionStep& step, char* to, int64_t stride) {
  if (scale == 1.0f) {
    store_elements(head, step.head_dim, step.kv_type, to, stride);
    return;
  }
  constexpr int64_t kPiece = 64;
  float quotients[kPiece];
  const Vec divisor = broadcast(scale);
  for (int64_t begin = 0; begin < step.head_dim; begin += kPiece) {
    const int64_t count = smaller(kPiece, step.head_dim - begin);
    const float* from = head + begin;
    for_vectors(
        count, [&](int64_t i) { store(quotients + i, div(load(from + i), divisor)); },
        [&](int64_t i, int64_t rest) { store_partial(quotients + i, div(load_partial(from + i, rest), divisor), rest); });
    store_elements(quotients, count, step.kv_type, to + begin * stride * element_bytes(step.kv_type), stride);
  }
}

void store_key(const float* key, int64_t slot, const AttentionStep& step) {
  const int64_t block = slot / step.block_size, offset = slot % step.block_size;
  for (int64_t head = 0; head < step.num_kv_heads; ++head) {
    store_head(key + head * step.head_dim, step.key_scale, step,
               cache_address(step.key_cache, step, block, head, offset), step.block_size);
  }
}

void store_value(const float* value, int64_t slot, const AttentionStep& step) {
  const int64_t block = slot / step.block_size, offset = slot % step.block_size;
  for (int64_t head = 0; head < step.num_kv_heads; ++head) {
    store_head(value + head * step.head_dim, step.value_scale, step,
               cache_address(step.value_cache, step, block, head, offset * step.head_dim), 1);
  }
}
