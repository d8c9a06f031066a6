// Kernels of one row without a product: norms, gates, rotation, conversion, the largest element. See kernel_table.h.
// Included inside an instruction set's namespace, after its Vec.

// Visit a row of n floats vector by vector: whole(i) for kVecSize floats at i, and rest(i, count) for what is left.
template <typename Whole, typename Rest>
PAGEWIRE_INLINE void for_vectors(int64_t n, Whole&& whole, Rest&& rest) {
  int64_t i = 0;
  for (; i + kVecSize <= n; i += kVecSize) whole(i);
  if (i < n) rest(i, n - i);
}

// Four sums side by side hide the latency of the additions; which element goes to which depends on its place alone.
static float sum_of_squares(const float* x, int64_t n) {
  Vec sums[4] = {zero(), zero(), zero(), zero()};
  int64_t i = 0;
  for (; i + 4 * kVecSize <= n; i += 4 * kVecSize) {
    for (int64_t part = 0; part < 4; ++part) {
      const Vec value = load(x + i + part * kVecSize);
      sums[part] = fma(value, value, sums[part]);
    }
  }
  for (int64_t part = 0; i < n; ++part, i += kVecSize) {
    const Vec value = load_partial(x + i, n - i < kVecSize ? n - i : kVecSize);
    sums[part] = fma(value, value, sums[part]);
  }
  return reduce_add(add(add(sums[0], sums[1]), add(sums[2], sums[3])));
}

void rms_norm_row(const float* x, const float* weight, int64_t n, float eps, float* out) {
  const float mean_square = sum_of_squares(x, n) / static_cast<float>(n);
  const Vec scale = div(broadcast(1.0f), sqrt(broadcast(mean_square + eps)));
  for_vectors(
      n, [&](int64_t i) { store(out + i, mul(mul(load(x + i), scale), load(weight + i))); },
      [&](int64_t i, int64_t count) {
        store_partial(out + i, mul(mul(load_partial(x + i, count), scale), load_partial(weight + i, count)), count);
      });
}

void add_row(const float* x, int64_t n, float* total) {
  for_vectors(
      n, [&](int64_t i) { store(total + i, add(load(total + i), load(x + i))); },
      [&](int64_t i, int64_t count) {
        store_partial(total + i, add(load_partial(total + i, count), load_partial(x + i, count)), count);
      });
}

void scale_row(const float* x, int64_t n, float factor, float* out) {
  const Vec factors = broadcast(factor);
  for_vectors(
      n, [&](int64_t i) { store(out + i, mul(load(x + i), factors)); },
      [&](int64_t i, int64_t count) { store_partial(out + i, mul(load_partial(x + i, count), factors), count); });
}

// out = gate / (1 + e^exponent(gate)) * up
template <typename Exponent>
PAGEWIRE_INLINE void gate_row(const float* gate, const float* up, int64_t n, float* out, Exponent&& exponent) {
  const auto gated = [&](Vec g, Vec u) { return mul(div(g, add(broadcast(1.0f), exp(exponent(g)))), u); };
  for_vectors(
      n, [&](int64_t i) { store(out + i, gated(load(gate + i), load(up + i))); },
      [&](int64_t i, int64_t count) {
        store_partial(out + i, gated(load_partial(gate + i, count), load_partial(up + i, count)), count);
      });
}

void silu_and_mul_row(const float* gate, const float* up, int64_t n, float* out) {
  gate_row(gate, up, n, out, [](Vec g) { return sub(zero(), g); });
}

// (1 + tanh(y)) / 2 = 1 / (1 + e^(-2y)).
void gelu_tanh_and_mul_row(const float* gate, const float* up, int64_t n, float* out) {
  gate_row(gate, up, n, out, [](Vec g) {
    const Vec cube = mul(mul(mul(broadcast(0.044715f), g), g), g);
    return mul(broadcast(-1.5957691216057308f), add(g, cube));  // -2 sqrt(2 / pi)
  });
}

void rotate_head(float* head, const float* cos, const float* sin, int64_t half) {
  float* const first = head;
  float* const second = head + half;
  for_vectors(
      half,
      [&](int64_t i) {
        const Vec a = load(first + i), b = load(second + i), c = load(cos + i), s = load(sin + i);
        store(first + i, sub(mul(a, c), mul(b, s)));
        store(second + i, add(mul(b, c), mul(a, s)));
      },
      [&](int64_t i, int64_t count) {
        const Vec a = load_partial(first + i, count), b = load_partial(second + i, count);
        const Vec c = load_partial(cos + i, count), s = load_partial(sin + i, count);
        store_partial(first + i, sub(mul(a, c), mul(b, s)), count);
        store_partial(second + i, add(mul(b, c), mul(a, s)), count);
      });
}

template <typename Type>
static void store_elements_as(const float* x, int64_t n, typename Type::Element* out, int64_t stride) {
  if (stride == 1) {
    for_vectors(
        n, [&](int64_t i) { Type::store_all(out + i, load(x + i)); },
        [&](int64_t i, int64_t count) { Type::store_first(out + i, load_partial(x + i, count), count); });
    return;
  }
  typename Type::Element converted[kVecSize];
  const auto scatter = [&](int64_t i, int64_t count) {
    for (int64_t lane = 0; lane < count; ++lane) out[(i + lane) * stride] = converted[lane];
  };
  for_vectors(
      n,
      [&](int64_t i) {
        Type::store_all(converted, load(x + i));
        scatter(i, kVecSize);
      },
      [&](int64_t i, int64_t count) {
        Type::store_all(converted, load_partial(x + i, count));
        scatter(i, count);
      });
}

void store_elements(const float* x, int64_t n, ElementType type, void* out, int64_t stride) {
  switch (type) {
    case ElementType::kFloat32: return store_elements_as<Float32>(x, n, static_cast<float*>(out), stride);
    case ElementType::kFloat16: return store_elements_as<Float16>(x, n, static_cast<uint16_t*>(out), stride);
    case ElementType::kBFloat16: return store_elements_as<BFloat16>(x, n, static_cast<uint16_t*>(out), stride);
    case ElementType::kFloat8E4M3: return store_elements_as<Float8E4M3>(x, n, static_cast<uint8_t*>(out), stride);
    case ElementType::kFloat8E5M2: return store_elements_as<Float8E5M2>(x, n, static_cast<uint8_t*>(out), stride);
  }
}

template <typename Type>
static void load_elements_as(const typename Type::Element* x, int64_t n, float* out) {
  const Vec unit = broadcast(Type::kUnit);
  for_vectors(
      n, [&](int64_t i) { store(out + i, mul(Type::load_all(x + i), unit)); },
      [&](int64_t i, int64_t count) { store_partial(out + i, mul(Type::load_first(x + i, count), unit), count); });
}

void load_elements(const void* x, int64_t n, ElementType type, float* out) {
  switch (type) {
    case ElementType::kFloat32: return load_elements_as<Float32>(static_cast<const float*>(x), n, out);
    case ElementType::kFloat16: return load_elements_as<Float16>(static_cast<const uint16_t*>(x), n, out);
    case ElementType::kBFloat16: return load_elements_as<BFloat16>(static_cast<const uint16_t*>(x), n, out);
    case ElementType::kFloat8E4M3: return load_elements_as<Float8E4M3>(static_cast<const uint8_t*>(x), n, out);
    case ElementType::kFloat8E5M2: return load_elements_as<Float8E5M2>(static_cast<const uint8_t*>(x), n, out);
  }
}

// The largest of n floats (n >= 1), and whether any is NaN, which a maximum alone would lose.
static float largest_of(const float* x, int64_t n, bool* any_nan) {
  const Vec lowest = broadcast(-3.402823466e38f), highest = broadcast(3.402823466e38f);
  Vec largest[2] = {broadcast(-__builtin_inff()), broadcast(-__builtin_inff())};
  Vec marks[2] = {zero(), zero()};  // 0 times a number is 0, unless it is NaN: infinities are clamped away before
  const auto visit = [&](Vec value, int64_t part) {
    largest[part] = max(value, largest[part]);
    marks[part] = fma(max(lowest, min(highest, value)), zero(), marks[part]);
  };
  int64_t i = 0;
  for (; i + 2 * kVecSize <= n; i += 2 * kVecSize) {
    visit(load(x + i), 0);
    visit(load(x + i + kVecSize), 1);
  }
  for (; i < n; ++i) visit(broadcast(x[i]), 0);
  const float mark = reduce_add(add(marks[0], marks[1]));
  *any_nan = mark != mark;
  return reduce_max(max(largest[0], largest[1]));
}

int64_t argmax_row(const float* x, int64_t n, float* value) {
  // Which piece holds the largest is remembered, so that only that one is searched for its place.
  constexpr int64_t kPiece = 64 * kVecSize;
  int64_t best_piece = 0;
  float best = -__builtin_inff();
  for (int64_t begin = 0; begin < n; begin += kPiece) {
    bool any_nan;
    const float largest = largest_of(x + begin, n - begin < kPiece ? n - begin : kPiece, &any_nan);
    if (any_nan) {
      int64_t index = begin;
      while (x[index] == x[index]) ++index;
      *value = x[index];
      return index;
    }
    if (largest > best) {
      best = largest;
      best_piece = begin;
    }
  }
  int64_t index = best_piece;
  while (x[index] != best) ++index;
  *value = best;
  return index;
}
