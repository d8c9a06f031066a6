// Checks one instruction set's kernels against arithmetic written out here, and against the portable kernels.
//
// Built by checker.py beside this, with the intrinsics in plain C++ that lie in emulated/, or with a compiler for another
// architecture, whose programs an emulator runs. The arguments are names of tables, none: all. Exits with 1 if a check
// fails.
#include <cmath>
#include <cstdio>
#include <cstring>
#include <functional>
#include <limits>
#include <random>
#include <string>
#include <vector>

#include "kernels/attention_plan.h"
#include "kernels/kernel_table.h"
#include "runtime/aligned_buffer.h"

namespace pagewire {

// PAGEWIRE_TABLES_UNDER_TEST is the builder's.
#define PAGEWIRE_TABLES(EACH) EACH(kPortableKernels) PAGEWIRE_TABLES_UNDER_TEST(EACH)
#define PAGEWIRE_DECLARE(table) extern const KernelTable table;
PAGEWIRE_TABLES(PAGEWIRE_DECLARE)

namespace {

int failures = 0;

void expect(bool holds, const char* table, const std::string& what) {
  if (holds) return;
  if (++failures <= 40) std::printf("%s: %s\n", table, what.c_str());
}

std::mt19937 generator(20261129);

float normal() { return std::normal_distribution<float>()(generator); }
int64_t below(int64_t limit) { return std::uniform_int_distribution<int64_t>(0, limit - 1)(generator); }
std::vector<float> normals(int64_t n) {
  std::vector<float> out(static_cast<size_t>(n));
  for (float& x : out) x = normal();
  return out;
}

bool same_bits(float a, float b) { return std::memcmp(&a, &b, sizeof(a)) == 0 || (std::isnan(a) && std::isnan(b)); }
bool same_bits(const std::vector<float>& a, const std::vector<float>& b) {
  for (size_t i = 0; i < a.size(); ++i) {
    if (!same_bits(a[i], b[i])) return false;
  }
  return a.size() == b.size();
}
// Within `tolerance` of the largest magnitude.
bool close(const std::vector<float>& a, const std::vector<float>& b, float tolerance) {
  float most = 0;
  for (float x : b) most = std::max(most, std::fabs(x));
  for (size_t i = 0; i < a.size(); ++i) {
    if (!(std::fabs(a[i] - b[i]) <= tolerance * most)) return false;
  }
  return true;
}

uint16_t to_half(float x) {
  uint16_t half;
  kPortableKernels.store_elements(&x, 1, ElementType::kFloat16, &half, 1);
  return half;
}
float from_half(uint16_t half) {
  float x;
  kPortableKernels.load_elements(&half, 1, ElementType::kFloat16, &x);
  return x;
}

// --- linear ---------------------------------------------------------------------------------------------------------

struct Shape {
  WeightLayout layout;
  bool has_minimum, has_bias, add;
  int64_t out_features, in_features;
};

std::string text_of(const Shape& shape) {
  char text[160];
  std::snprintf(text, sizeof(text), "layout %d, minimum %d, bias %d, add %d, %lld x %lld",
                static_cast<int>(shape.layout), shape.has_minimum, shape.has_bias, shape.add,
                static_cast<long long>(shape.out_features), static_cast<long long>(shape.in_features));
  return text;
}

// A packed matrix of random codes and scales, and its elements by the text of packed_matrix.h.
class Matrix {
 public:
  explicit Matrix(const Shape& shape) : shape_(shape) {
    packed_ = {shape.layout, shape.has_minimum, shape.out_features, shape.in_features, nullptr, nullptr};
    bytes_.resize(static_cast<size_t>(packed_.num_panels() * packed_.panel_bytes()) + 64);
    data_ = bytes_.data() + (64 - reinterpret_cast<uintptr_t>(bytes_.data()) % 64);
    packed_.data = data_;
    if (shape.has_bias) bias_ = normals(shape.out_features);
    if (shape.has_bias) packed_.bias = bias_.data();
    for (int64_t channel = 0; channel < shape.out_features; ++channel) fill(channel);
  }

  const PackedMatrix& packed() const { return packed_; }
  int64_t parts() const { return shape_.layout == WeightLayout::kInt8Half ? 2 : 1; }

  float dense(int64_t channel, int64_t k) const {
    if (shape_.layout == WeightLayout::kFloat32) {
      float x;
      std::memcpy(&x, at_dense(channel, k), sizeof(x));
      return x;
    }
    uint16_t bits;
    std::memcpy(&bits, at_dense(channel, k), sizeof(bits));
    if (shape_.layout == WeightLayout::kFloat16) return from_half(bits);
    float x;
    kPortableKernels.load_elements(&bits, 1, ElementType::kBFloat16, &x);
    return x;
  }
  int32_t code(int64_t channel, int64_t k) const {
    const int64_t i = k % kGroup, lane = channel % kPanel;
    if (shape_.layout == WeightLayout::kInt4) {
      const uint8_t both = group(channel, k)[(i % 16) / 4 * 64 + lane * 4 + i % 4];
      return i < 16 ? both & 15 : both >> 4;
    }
    return static_cast<int8_t>(group(channel, k)[i / 4 * 64 + lane * 4 + i % 4]);
  }
  float scale(int64_t channel, int64_t k) const { return from_half(*scale_at(channel, k, 0)); }
  float minimum(int64_t channel, int64_t k) const {
    return shape_.has_minimum ? from_half(*scale_at(channel, k, parts())) : 0.0f;
  }

 private:
  uint8_t* group(int64_t channel, int64_t k) const {
    return data_ + channel / kPanel * packed_.panel_bytes() + k / kGroup * packed_.group_bytes();
  }
  uint8_t* at_dense(int64_t channel, int64_t k) const {
    const int64_t bytes = shape_.layout == WeightLayout::kFloat32 ? 4 : 2;
    return data_ + channel / kPanel * packed_.panel_bytes() + (k * kPanel + channel % kPanel) * bytes;
  }
  uint16_t* scale_at(int64_t channel, int64_t k, int64_t after) const {
    const int64_t code_bytes = shape_.layout == WeightLayout::kInt4 ? 256 : 512;
    const int64_t part = k % kGroup * parts() / kGroup;
    return reinterpret_cast<uint16_t*>(group(channel, k) + code_bytes) + (after + part) * kPanel + channel % kPanel;
  }
  void fill(int64_t channel) {
    for (int64_t k = 0; k < shape_.in_features; ++k) {
      if (!is_quantized(shape_.layout)) {
        const float x = normal();
        if (shape_.layout == WeightLayout::kFloat32) {
          std::memcpy(at_dense(channel, k), &x, sizeof(x));
        } else {
          const ElementType type =
              shape_.layout == WeightLayout::kFloat16 ? ElementType::kFloat16 : ElementType::kBFloat16;
          kPortableKernels.store_elements(&x, 1, type, at_dense(channel, k), 1);
        }
        continue;
      }
      // The extremes are likely: they are what an integer sum overflows on.
      const int64_t i = k % kGroup, extreme = below(3);
      if (shape_.layout == WeightLayout::kInt4) {
        uint8_t& both = group(channel, k)[(i % 16) / 4 * 64 + channel % kPanel * 4 + i % 4];
        const uint8_t code = static_cast<uint8_t>(extreme == 0 ? 15 : below(16));
        both = static_cast<uint8_t>(i < 16 ? (both & 0xf0) | code : (both & 0x0f) | code << 4);
      } else {
        // Some rows have nothing else: with rows of activations that are all -127 or 127, the largest sums that exist.
        const bool all_least = channel % 8 == 0, all_most = channel % 8 == 1;
        const int64_t code = all_least || extreme == 0 ? -128 : all_most || extreme == 1 ? 127 : below(256) - 128;
        group(channel, k)[i / 4 * 64 + channel % kPanel * 4 + i % 4] = static_cast<uint8_t>(code);
      }
      *scale_at(channel, k, 0) = to_half(0.01f * normal());
      if (shape_.has_minimum) *scale_at(channel, k, parts()) = to_half(0.1f * normal());
    }
  }

  Shape shape_;
  PackedMatrix packed_;
  std::vector<uint8_t> bytes_;
  uint8_t* data_;
  std::vector<float> bias_;
};

// Activations as a table's own kernel quantizes them; every third group has only the largest values, and the first two
// rows nothing else, of one sign.
struct Activations {
  Activations(const KernelTable& table, int64_t rows, int64_t n) : size(n), num_groups(divide_up(n, kGroup)) {
    floats = normals(rows * n);
    for (int64_t i = 0; i < rows * n; ++i) {
      float& x = floats[static_cast<size_t>(i)];
      if (i / kGroup % 3 == 0) x = i % 5 == 0 ? -3.0f : 3.0f;
      if (i < 2 * n) x = i < n ? 3.0f : -3.0f;
    }
    values.resize(static_cast<size_t>(rows * num_groups * kGroup));
    scales.resize(static_cast<size_t>(rows * num_groups));
    sums.resize(static_cast<size_t>(rows * num_groups));
    half_sums.resize(static_cast<size_t>(rows * num_groups * 2));
    for (int64_t row = 0; row < rows; ++row) {
      const int64_t at = row * num_groups;
      table.quantize_row(&floats[static_cast<size_t>(row * n)], n, &values[static_cast<size_t>(at * kGroup)],
                         &scales[static_cast<size_t>(at)], &sums[static_cast<size_t>(at)],
                         &half_sums[static_cast<size_t>(at * 2)]);
    }
  }
  ActivationRows rows() const {
    return {floats.data(), size, values.data(), scales.data(), sums.data(), half_sums.data(), num_groups};
  }
  int64_t size, num_groups;
  std::vector<float> floats, scales, sums, half_sums;
  std::vector<int8_t> values;
};

// One output by the order that linear.inl and linear_dense.inl state.
float expected_output(const Matrix& matrix, const Shape& shape, const Activations& x, int64_t row, int64_t channel) {
  float total = 0;
  if (!is_quantized(shape.layout)) {
    for (int64_t k = 0; k < shape.in_features; ++k) {
      total = std::fma(x.floats[static_cast<size_t>(row * x.size + k)], matrix.dense(channel, k), total);
    }
  } else {
    const int64_t part_size = kGroup / matrix.parts();
    for (int64_t begin = 0; begin < x.num_groups * kGroup; begin += part_size) {
      if (begin >= shape.in_features && begin % kGroup == 0) break;
      const size_t group = static_cast<size_t>(row * x.num_groups + begin / kGroup);
      int32_t sum = 0;
      for (int64_t k = begin; k < begin + part_size; ++k) {
        sum += matrix.code(channel, k) * x.values[group * kGroup + static_cast<size_t>(k % kGroup)];
      }
      total = std::fma(matrix.scale(channel, begin) * x.scales[group], static_cast<float>(sum), total);
      if (!shape.has_minimum) continue;
      const float activations = matrix.parts() == 1 ? x.sums[group] : x.half_sums[2 * group + begin % kGroup / part_size];
      total = std::fma(matrix.minimum(channel, begin), activations, total);
    }
  }
  return matrix.packed().bias != nullptr ? total + matrix.packed().bias[channel] : total;
}

void check_linear(const KernelTable& table, const Shape& shape) {
  constexpr int64_t kRows = 37;
  const Matrix matrix(shape);
  const Activations x(table, kRows, shape.in_features);
  AlignedBuffer work;
  work.reserve(table.linear_work_bytes(matrix.packed()));
  const int64_t stride = shape.out_features + 1;
  const std::vector<float> before = normals(kRows * stride);
  std::vector<float> expected = before;
  for (int64_t row = 0; row < kRows; ++row) {
    for (int64_t channel = 0; channel < shape.out_features; ++channel) {
      const float value = expected_output(matrix, shape, x, row, channel);
      float& out = expected[static_cast<size_t>(row * stride + channel)];
      out = shape.add ? out + value : value;
    }
  }
  const bool fused = &table != &kPortableKernels;  // plain C++ rounds twice
  for (const int64_t rows_at_once : {1, 2, 3, 7, 17, 37}) {
    std::vector<float> out = before;
    const int64_t panels = matrix.packed().num_panels(), panels_at_once = 1 + rows_at_once % 5;
    for (int64_t row = 0; row < kRows; row += rows_at_once) {
      for (int64_t panel = 0; panel < panels; panel += panels_at_once) {
        table.linear_tile(matrix.packed(), panel, smaller(panel + panels_at_once, panels), x.rows(), row,
                          smaller(row + rows_at_once, kRows), {out.data(), stride, shape.add}, work.as<void>());
      }
    }
    expect(fused ? same_bits(out, expected) : close(out, expected, 1e-5f), table.name,
           "linear_tile, " + std::to_string(rows_at_once) + " rows at once, " + text_of(shape));
  }
  std::vector<float> row(static_cast<size_t>(shape.in_features)), row_expected = row;
  for (const int64_t channel : {int64_t{0}, shape.out_features - 1}) {
    table.unpack_row(matrix.packed(), channel, row.data());
    for (int64_t k = 0; k < shape.in_features; ++k) {
      row_expected[static_cast<size_t>(k)] =
          is_quantized(shape.layout)
              ? std::fma(matrix.scale(channel, k), static_cast<float>(matrix.code(channel, k)), matrix.minimum(channel, k))
              : matrix.dense(channel, k);
    }
    expect(same_bits(row, row_expected), table.name, "unpack_row, " + text_of(shape));
  }
}

void check_all_linear(const KernelTable& table) {
  const std::pair<int64_t, int64_t> sizes[] = {{1, 32}, {40, 96}, {16, 800}};
  int64_t turn = 0;
  for (const auto& [out_features, in_features] : sizes) {
    for (int32_t layout = 0; layout <= 5; ++layout, ++turn) {
      for (const bool has_minimum : {false, true}) {
        if (layout < 3 && has_minimum) continue;
        if (layout == 3 && !has_minimum) continue;
        const int64_t odd = layout < 3 ? 5 : 0;
        check_linear(table, {static_cast<WeightLayout>(layout), has_minimum, turn % 2 == 0, turn % 3 == 0, out_features,
                             in_features - odd});
      }
    }
  }
}

constexpr ElementType kElementTypes[] = {ElementType::kFloat32, ElementType::kFloat16, ElementType::kBFloat16,
                                         ElementType::kFloat8E4M3, ElementType::kFloat8E5M2};

// --- rows -----------------------------------------------------------------------------------------------------------

// Numbers that conversion and rounding treat in different ways.
std::vector<float> ugly_floats() {
  const float inf = std::numeric_limits<float>::infinity();
  std::vector<float> out = {0.0f, -0.0f, 1.0f, -1.0f, inf, -inf, std::nanf(""), 65504.0f, 65519.0f, 65520.0f, 1e-8f,
                            6e-8f, 3e-8f, 2.98e-8f, 6.1e-5f, 6.09e-5f, 1e-40f, -1e-40f, 3.4e38f, 3.39e38f, 1.00390625f,
                            1.01171875f, 2049.0f, 2051.0f, 127.5f, 126.5f,
                            // At the ends of 8-bit floats, and halfway between two of them.
                            448.0f, 464.0f, 465.0f, 57344.0f, 61440.0f, 0.001953125f, 0.0009765625f, 0.00292968f,
                            0.015625f, 0.0146484375f, 1.0625f, 1.1875f, 1.125f, 1.375f, 1.52587890625e-05f,
                            7.62939453125e-06f, 2.288818359375e-05f, 5.340576171875e-05f};
  uint32_t bits = 0x7f800001u;  // a NaN of the smallest payload
  float small_nan;
  std::memcpy(&small_nan, &bits, sizeof(small_nan));
  out.push_back(small_nan);
  for (int i = 0; i < 40; ++i) out.push_back(normal() * std::exp2(static_cast<float>(below(60) - 30)));
  return out;
}

void check_conversions(const KernelTable& table) {
  const std::vector<float> x = ugly_floats();
  const int64_t size = static_cast<int64_t>(x.size());
  for (const ElementType type : kElementTypes) {
    for (const int64_t n : {int64_t{1}, int64_t{7}, int64_t{16}, int64_t{35}, size}) {
      for (const int64_t stride : {1, 3}) {
        std::vector<float> stored(static_cast<size_t>(n * stride + 1), 7.0f), expected = stored;
        table.store_elements(x.data(), n, type, stored.data(), stride);
        kPortableKernels.store_elements(x.data(), n, type, expected.data(), stride);
        std::vector<float> back(static_cast<size_t>(n)), back_expected = back;
        if (stride == 1) {
          table.load_elements(stored.data(), n, type, back.data());
          kPortableKernels.load_elements(expected.data(), n, type, back_expected.data());
        }
        // The payload of a NaN is the hardware's own.
        const bool same = stride == 1 ? same_bits(back, back_expected) : n > 4 || same_bits(stored, expected);
        expect(same, table.name, "store_elements of type " + std::to_string(static_cast<int>(type)));
      }
    }
  }
}

void check_quantization(const KernelTable& table) {
  std::vector<float> x = ugly_floats();
  for (const int64_t n : {int64_t{5}, int64_t{32}, int64_t{48}, static_cast<int64_t>(x.size()), int64_t{200}}) {
    if (n == 200) x = normals(n);
    const size_t groups = static_cast<size_t>(divide_up(n, kGroup));
    std::vector<int8_t> values(groups * kGroup), values_expected = values;
    std::vector<float> numbers(groups * 4), numbers_expected = numbers;
    table.quantize_row(x.data(), n, values.data(), &numbers[0], &numbers[groups], &numbers[2 * groups]);
    kPortableKernels.quantize_row(x.data(), n, values_expected.data(), &numbers_expected[0], &numbers_expected[groups],
                                  &numbers_expected[2 * groups]);
    expect(values == values_expected && same_bits(numbers, numbers_expected), table.name, "quantize_row");
    table.quantize_row(x.data(), n, values.data(), &numbers[0], nullptr, nullptr);
  }
}

void check_rows(const KernelTable& table) {
  for (const int64_t n : {1, 3, 8, 31, 64, 100, 576}) {
    const std::vector<float> a = normals(n), b = normals(n), c = normals(n);
    const auto compare = [&](const char* name, float tolerance,
                             const std::function<void(const KernelTable&, float*)>& kernel) {
      std::vector<float> out = c, expected = c;
      kernel(table, out.data());
      kernel(kPortableKernels, expected.data());
      expect(close(out, expected, tolerance), table.name, std::string(name) + " of " + std::to_string(n));
    };
    compare("rms_norm_row", 1e-6f, [&](const KernelTable& t, float* out) { t.rms_norm_row(a.data(), b.data(), n, 1e-5f, out); });
    compare("add_row", 0.0f, [&](const KernelTable& t, float* out) { t.add_row(a.data(), n, out); });
    compare("silu_and_mul_row", 1e-6f, [&](const KernelTable& t, float* out) { t.silu_and_mul_row(a.data(), b.data(), n, out); });
    compare("gelu_tanh_and_mul_row", 1e-6f, [&](const KernelTable& t, float* out) { t.gelu_tanh_and_mul_row(a.data(), b.data(), n, out); });
    compare("scale_row", 0.0f, [&](const KernelTable& t, float* out) { t.scale_row(a.data(), n, 0.3f, out); });
    compare("rotate_head", 1e-6f, [&](const KernelTable& t, float* out) { t.rotate_head(out, a.data(), b.data(), n / 2); });
    compare("exp_row", 1e-6f, [&](const KernelTable& t, float* out) { t.exp_row(a.data(), n, 3.0f, out); });
    const double sum = table.sum_of_exp(a.data(), n, 3.0f), sum_expected = kPortableKernels.sum_of_exp(a.data(), n, 3.0f);
    expect(std::fabs(sum - sum_expected) <= 1e-6 * sum_expected, table.name, "sum_of_exp");
    float value, value_expected;
    std::vector<float> twice = a;
    twice.insert(twice.end(), a.begin(), a.end());
    expect(table.argmax_row(twice.data(), 2 * n, &value) == kPortableKernels.argmax_row(twice.data(), 2 * n, &value_expected) &&
               value == value_expected, table.name, "argmax_row of " + std::to_string(n));
    twice[static_cast<size_t>(n)] = std::nanf("");
    expect(table.argmax_row(twice.data(), 2 * n, &value) == n && std::isnan(value), table.name, "argmax_row with a NaN");
    expect(table.rank_in_row(a.data(), n, n / 2) == kPortableKernels.rank_in_row(a.data(), n, n / 2), table.name, "rank_in_row");
  }
}

// --- attention ------------------------------------------------------------------------------------------------------

std::vector<float> attend(const KernelTable& table, ElementType type, int64_t head_dim, int64_t window, float soft_cap,
                          int64_t threads, const std::vector<float>& query, const std::vector<float>& keys, const std::vector<float>& values) {
  constexpr int64_t kHeads = 6, kKvHeads = 2, kBlock = 16, kMaxBlocks = 20;
  const std::vector<int32_t> query_start = {0, 1, 4, 24}, seq_lens = {270, 30, 20};
  std::vector<int32_t> tables(3 * kMaxBlocks);
  for (size_t i = 0; i < tables.size(); ++i) tables[i] = static_cast<int32_t>((i * 7 + 3) % tables.size());
  const float nan = std::nanf("");
  const bool is_small = element_bytes(type) == 1;  // such caches have scales
  std::vector<float> key_cache(tables.size() * static_cast<size_t>(kBlock * kKvHeads * head_dim), nan), value_cache = key_cache;
  std::vector<float> out(24 * static_cast<size_t>(kHeads * head_dim));
  AttentionStep step{query.data(), kHeads * head_dim, out.data(), kHeads * head_dim, key_cache.data(), value_cache.data(),
                     type, is_small ? 0.5f : 1.0f, is_small ? 2.0f : 1.0f, kHeads, kKvHeads, head_dim, kBlock, 0.125f, soft_cap, window, tables.data(), kMaxBlocks,
                     query_start.data(), seq_lens.data(), nullptr};
  size_t at = 0;
  for (int64_t request = 0; request < 3; ++request) {
    for (int64_t position = 0; position < seq_lens[static_cast<size_t>(request)]; ++position) {
      const int64_t block = tables[static_cast<size_t>(request * kMaxBlocks + position / kBlock)];
      const int64_t slot = block * kBlock + position % kBlock;
      table.store_key(&keys[at], slot, step);
      table.store_value(&values[at], slot, step);
      at += static_cast<size_t>(kKvHeads * head_dim);
    }
  }
  AttentionPlan plan;
  plan.build({kHeads, kKvHeads, head_dim, window}, 3, query_start.data(), seq_lens.data(), threads);
  AlignedBuffer partials, work;
  partials.reserve(plan.partial_floats() * 4);
  work.reserve(attention_work_bytes(kHeads, kKvHeads, head_dim));
  step.partials = partials.as<float>();
  for (const AttentionTask& task : plan.tasks()) table.attention_task(step, task, work.as<void>());
  for (const AttentionMerge& merge : plan.merges()) table.attention_merge(step, merge);
  return out;
}

void check_attention(const KernelTable& table) {
  for (const int64_t head_dim : {64, 40}) {
    const std::vector<float> query = normals(24 * 6 * head_dim), keys = normals(320 * 2 * head_dim);
    const std::vector<float> values = normals(320 * 2 * head_dim);
    for (const ElementType type : kElementTypes) {
      for (const int64_t window : {0, 50}) {
        const float soft_cap = window == 0 ? 0.0f : 2.0f;
        const auto out = attend(table, type, head_dim, window, soft_cap, 1, query, keys, values);
        const auto expected = attend(kPortableKernels, type, head_dim, window, soft_cap, 1, query, keys, values);
        expect(close(out, expected, 1e-5f), table.name, "attention over keys of type " + std::to_string(static_cast<int>(type)));
        expect(same_bits(out, attend(table, type, head_dim, window, soft_cap, 64, query, keys, values)), table.name,
               "attention cut for 64 threads gives other bits");
      }
    }
  }
}

void check(const KernelTable& table) {
  generator.seed(20261129);
  check_conversions(table);
  check_quantization(table);
  check_rows(table);
  check_all_linear(table);
  check_attention(table);
  std::printf("%s: %s\n", table.name, failures == 0 ? "as expected" : "FAILED");
}

}  // namespace
}  // namespace pagewire

int main(int num_arguments, char** arguments) {
  const auto is_asked_for = [&](const pagewire::KernelTable& table) {
    bool asked = num_arguments == 1;
    for (int i = 1; i < num_arguments; ++i) asked = asked || std::strcmp(arguments[i], table.name) == 0;
    return asked;
  };
#define PAGEWIRE_CHECK(table) \
  if (is_asked_for(pagewire::table)) pagewire::check(pagewire::table);
  PAGEWIRE_TABLES(PAGEWIRE_CHECK)
  return pagewire::failures == 0 ? 0 : 1;
}
