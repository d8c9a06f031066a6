#include "linear.h"

#include <algorithm>
#include <cstring>

namespace pagewire {
namespace {

// A tile of one row takes about as long as its weights take to read: 16 KiB are 1 to 2 microseconds of two threads'
// share of the memory, against 0.1 to take a tile. Many small tiles end a phase evenly.
constexpr int64_t kLeastTileBytes = 16 * 1024;
// Weights of a tile of many rows: they are read once a tile and row block from a core's own cache.
constexpr int64_t kMostTileBytes = 96 * 1024;
constexpr int64_t kMostTileRows = 64;
constexpr int64_t kTilesPerThread = 8;

// A row that has to be brought into another order is brought there as floats, whatever is read of it then.
bool has_floats(const LinearWeight& weight) { return weight.reads_floats() || weight.is_permuted(); }

}  // namespace

int64_t LinearWeight::out_features() const {
  int64_t total = 0;
  for (const PackedMatrix& part : parts_) total += part.out_features;
  return total;
}

bool LinearWeight::reads_integers() const {
  return std::any_of(parts_.begin(), parts_.end(), [](const PackedMatrix& part) { return is_quantized(part.layout); });
}

bool LinearWeight::reads_floats() const {
  return std::any_of(parts_.begin(), parts_.end(), [](const PackedMatrix& part) { return !is_quantized(part.layout); });
}

bool LinearWeight::reads_half_sums() const {
  return std::any_of(parts_.begin(), parts_.end(), [](const PackedMatrix& part) {
    return part.layout == WeightLayout::kInt8Half && part.has_minimum;
  });
}

bool LinearWeight::has_whole_panels() const {
  return std::all_of(parts_.begin(), parts_.end() - 1,
                     [](const PackedMatrix& part) { return part.out_features % kPanel == 0; });
}

void LinearWeight::unpack_row(const KernelTable& kernels, int64_t row, float* scratch, float* out) const {
  const PackedMatrix* part = parts_.data();
  for (; row >= part->out_features; ++part) row -= part->out_features;
  if (!is_permuted()) {
    kernels.unpack_row(*part, row, out);
    return;
  }
  kernels.unpack_row(*part, row, scratch);
  for (int64_t column = 0; column < part->in_features; ++column) out[permutation_[column]] = scratch[column];
}

int64_t LinearWeight::work_bytes(const KernelTable& kernels) const {
  int64_t most = 0;
  for (const PackedMatrix& part : parts_) most = std::max(most, kernels.linear_work_bytes(part));
  return most;
}

void InputView::write(const KernelTable& kernels, int64_t row, int64_t begin, int64_t n, const float* x) const {
  if (permutation == nullptr) {
    write_columns(kernels, row, begin, n, x + begin);
    return;
  }
  float* to = floats + row * float_stride + begin;
  for (int64_t i = 0; i < n; ++i) to[i] = x[permutation[begin + i]];
  write_columns(kernels, row, begin, n, to);
}

void InputView::write_columns(const KernelTable& kernels, int64_t row, int64_t begin, int64_t n, const float* x) const {
  if (floats != nullptr) {
    float* to = floats + row * float_stride + begin;
    if (to != x) std::memcpy(to, x, static_cast<size_t>(n) * sizeof(float));
  }
  if (values != nullptr) {
    const int64_t group = row * num_groups + begin / kGroup;
    kernels.quantize_row(x, n, values + group * kGroup, scales + group, sums + group,
                         half_sums == nullptr ? nullptr : half_sums + group * 2);
  }
}

void InputRows::reserve(const LinearWeight& weight, int64_t num_rows) {
  const int64_t num_groups = num_rows * divide_up(weight.in_features(), kGroup);
  constexpr auto kFloat = static_cast<int64_t>(sizeof(float));
  if (has_floats(weight)) floats_.reserve(num_groups * kGroup * kFloat);
  if (weight.reads_integers()) {
    values_.reserve(num_groups * kGroup);
    scales_.reserve(num_groups * kFloat);
    sums_.reserve(num_groups * kFloat);
  }
  if (weight.reads_half_sums()) half_sums_.reserve(num_groups * 2 * kFloat);
}

InputView InputRows::view(const LinearWeight& weight) const {
  InputView view{};
  view.num_groups = divide_up(weight.in_features(), kGroup);
  view.float_stride = view.num_groups * kGroup;
  view.permutation = weight.permutation();
  if (has_floats(weight)) view.floats = floats_.as<float>();
  if (weight.reads_integers()) {
    view.values = values_.as<int8_t>();
    view.scales = scales_.as<float>();
    view.sums = sums_.as<float>();
  }
  if (weight.reads_half_sums()) view.half_sums = half_sums_.as<float>();
  return view;
}

int64_t InputRows::num_bytes() const {
  return floats_.num_bytes() + values_.num_bytes() + scales_.num_bytes() + sums_.num_bytes() + half_sums_.num_bytes();
}

Tiling choose_tiling(int64_t num_rows, int64_t num_panels, int64_t panel_bytes, int num_threads) {
  Tiling tiling{};
  tiling.rows = std::max<int64_t>(1, std::min(num_rows, kMostTileRows));
  const int64_t least = std::max<int64_t>(1, kLeastTileBytes / panel_bytes);
  const int64_t most = std::max<int64_t>(1, kMostTileBytes / panel_bytes);
  const int64_t even = divide_up(num_panels, num_threads * kTilesPerThread);
  tiling.panels = std::min({std::max(even, least), std::max(least, most), num_panels});
  return tiling;
}

void multiply(Team& team, const KernelTable& kernels, const LinearWeight& weight, const ActivationRows& x,
              int64_t num_rows, const OutputRows& y, const std::vector<AlignedBuffer>& work) {
  int64_t first_channel = 0;
  for (const PackedMatrix& part : weight.parts()) {
    const int64_t num_panels = part.num_panels();
    const Tiling tiling = choose_tiling(num_rows, num_panels, part.panel_bytes(), team.num_threads());
    const int64_t row_tiles = divide_up(num_rows, tiling.rows);
    const OutputRows out{y.out + first_channel, y.stride, y.add};
    team.for_tiles(row_tiles * divide_up(num_panels, tiling.panels), [&](int64_t index) {
      // Rows change fastest: a thread's share of the tiles takes all rows past a weight while it is near.
      const int64_t row = index % row_tiles * tiling.rows, panel = index / row_tiles * tiling.panels;
      kernels.linear_tile(part, panel, std::min(panel + tiling.panels, num_panels), x, row,
                          std::min(row + tiling.rows, num_rows), out, work[team.thread()].as<void>());
    });
    first_channel += part.out_features;
  }
}

void multiply_channels(const KernelTable& kernels, const LinearWeight& weight, int64_t begin, int64_t end,
                       const ActivationRows& x, int64_t row_begin, int64_t row_end, const OutputRows& y, void* work) {
  int64_t first_channel = 0;
  for (const PackedMatrix& part : weight.parts()) {
    const int64_t from = std::max(begin - first_channel, int64_t{0});
    const int64_t to = std::min(end - first_channel, part.out_features);
    if (from < to) {
      kernels.linear_tile(part, from / kPanel, divide_up(to, kPanel), x, row_begin, row_end,
                          {y.out + first_channel, y.stride, y.add}, work);
    }
    first_channel += part.out_features;
  }
}

void write_rows(Team& team, const KernelTable& kernels, const InputView& input, int64_t num_rows, int64_t size,
                const float* x, int64_t stride) {
  for_row_pieces(team, num_rows, size, [&](int64_t row, int64_t begin, int64_t end) {
    input.write(kernels, row, begin, end - begin, x + row * stride);
  });
}

}  // namespace pagewire
