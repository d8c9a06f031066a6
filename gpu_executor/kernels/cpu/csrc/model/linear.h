// Products of rows with a weight, on all threads: the input rows in the forms that kernels read, and the tiles.
#pragma once

#include <cstdint>
#include <vector>

#include "../kernels/kernel_table.h"
#include "../runtime/aligned_buffer.h"
#include "../runtime/thread_pool.h"
#include "step.h"

namespace pagewire {

// A matrix, perhaps of several layouts: the rows of each part lie below those of the one before. Its columns may be
// those of the input channels in another order.
class LinearWeight {
 public:
  LinearWeight() = default;
  // The view's memory must live as long as the weight does.
  explicit LinearWeight(const LinearView& view)
      : parts_(view.parts, view.parts + view.num_parts), permutation_(view.permutation) {}

  const std::vector<PackedMatrix>& parts() const { return parts_; }
  int64_t out_features() const;
  int64_t in_features() const { return parts_.front().in_features; }
  const int32_t* permutation() const { return permutation_; }  // as LinearView's
  bool is_permuted() const { return permutation_ != nullptr; }
  bool reads_integers() const;  // some part is quantized
  bool reads_floats() const;    // some part is dense
  bool reads_half_sums() const;
  // Whether every part but the last begins and ends with a whole panel: output channels at multiples of kPanel are then
  // the begin of a panel.
  bool has_whole_panels() const;
  int64_t work_bytes(const KernelTable& kernels) const;
  // One row as floats, in the order of input channels: an embedding. scratch: in_features floats, where is_permuted().
  void unpack_row(const KernelTable& kernels, int64_t row, float* scratch, float* out) const;

 private:
  std::vector<PackedMatrix> parts_;
  const int32_t* permutation_ = nullptr;
};

// The input rows of one product, in the forms that its weight's parts read.
struct InputView {
  float* floats;  // null where no part reads floats; as ActivationRows, so the others
  int64_t float_stride;
  int8_t* values;  // null where no part reads integers
  float* scales;
  float* sums;
  float* half_sums;
  int64_t num_groups;
  const int32_t* permutation;  // as LinearView's: the forms hold the channels in the order of the weight's columns

  // From a row on: row 0 of what is returned.
  ActivationRows rows(int64_t first = 0) const {
    const int64_t group = first * num_groups;
    return {from(floats, first * float_stride), float_stride, from(values, group * kGroup), from(scales, group),
            from(sums, group), from(half_sums, group * 2), num_groups};
  }
  // Where a row that is computed for this product is best put before write() takes it: its own place, if that can be.
  float* place_for(int64_t row, float* scratch) const {
    return floats == nullptr || permutation != nullptr ? scratch : floats + row * float_stride;
  }
  // Take columns [begin, begin + n) of a row; begin is a multiple of kGroup, and so is n unless the row ends there.
  // x: the whole row, by input channel; it may be place_for(row, ...).
  void write(const KernelTable& kernels, int64_t row, int64_t begin, int64_t n, const float* x) const;
  // The same of what lies in the order of columns already, from `begin` on; it may be place_for(row, ...) + begin.
  void write_columns(const KernelTable& kernels, int64_t row, int64_t begin, int64_t n, const float* x) const;

 private:
  template <typename Number>
  static const Number* from(const Number* numbers, int64_t offset) {
    return numbers == nullptr ? nullptr : numbers + offset;
  }
};

// Memory for the input rows of products that come one after the other.
class InputRows {
 public:
  // Make room for so many rows of a weight's input. Views end here.
  void reserve(const LinearWeight& weight, int64_t num_rows);
  InputView view(const LinearWeight& weight) const;
  int64_t num_bytes() const;

 private:
  AlignedBuffer floats_, values_, scales_, sums_, half_sums_;
};

// How a product of num_rows rows is cut: tiles of so many rows and panels.
struct Tiling {
  int64_t rows;
  int64_t panels;
};
Tiling choose_tiling(int64_t num_rows, int64_t num_panels, int64_t panel_bytes, int num_threads);

// One phase: y (+)= x W^T + bias. work: a buffer of work_bytes for each thread.
void multiply(Team& team, const KernelTable& kernels, const LinearWeight& weight, const ActivationRows& x,
              int64_t num_rows, const OutputRows& y, const std::vector<AlignedBuffer>& work);

// Output channels [begin, end) of a weight with whole panels, begin a multiple of kPanel, for rows [row_begin, row_end):
// in the calling thread. Channel c of row r goes to y.out[r * y.stride + c].
void multiply_channels(const KernelTable& kernels, const LinearWeight& weight, int64_t begin, int64_t end,
                       const ActivationRows& x, int64_t row_begin, int64_t row_end, const OutputRows& y, void* work);

// Call tile(begin, end) for all of [0, num_rows) in runs of rows.
template <typename Tile>
void for_rows(Team& team, int64_t num_rows, Tile&& tile) {
  // A row's work is a microsecond or less, to take a tile a twentieth of that.
  const int64_t per_tile = num_rows < 8 * team.num_threads() ? 1 : num_rows < 256 ? 2 : 8;
  team.for_tiles(divide_up(num_rows, per_tile), [&](int64_t index) {
    const int64_t begin = index * per_tile;
    tile(begin, begin + per_tile < num_rows ? begin + per_tile : num_rows);
  });
}

// Call tile(row, begin, end) for channels [begin, end) of all rows of `size` channels, begin a multiple of kGroup: whole
// rows, or pieces of them where there are too few rows for all threads.
template <typename Tile>
void for_row_pieces(Team& team, int64_t num_rows, int64_t size, Tile&& tile) {
  constexpr int64_t kLeastPiece = 512;  // under a microsecond's work
  const int64_t wanted = num_rows < team.num_threads() ? divide_up(2 * team.num_threads(), num_rows) : 1;
  const int64_t piece = round_up(larger(divide_up(size, wanted), smaller(kLeastPiece, size)), kGroup);
  const int64_t pieces = divide_up(size, piece);
  for_rows(team, num_rows * pieces, [&](int64_t index, int64_t index_end) {
    for (; index < index_end; ++index) {
      const int64_t begin = index % pieces * piece;
      tile(index / pieces, begin, smaller(begin + piece, size));
    }
  });
}

// One phase: take rows of `size` channels, [num_rows] at `stride`, as a product's input.
void write_rows(Team& team, const KernelTable& kernels, const InputView& input, int64_t num_rows, int64_t size,
                const float* x, int64_t stride);

}  // namespace pagewire
