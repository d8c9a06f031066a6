#include "output_layer.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>

namespace pagewire {
namespace {

// Panels [panel, panel_end) of one part of the weight: channels [channel, channel_end) of the product.
struct ChannelTile {
  const PackedMatrix* part;
  int64_t panel, panel_end;
  int64_t channel, channel_end;
};

// Cut a weight, but for channels that can't be drawn, into tiles. `rows`: how many rows a tile is to have.
std::vector<ChannelTile> cut(const LinearWeight& weight, int64_t num_drawable, int64_t num_rows, int num_threads,
                             int64_t* rows) {
  std::vector<ChannelTile> tiles;
  int64_t first_channel = 0;
  *rows = 1;
  for (const PackedMatrix& part : weight.parts()) {
    const int64_t num_channels = std::min(part.out_features, num_drawable - first_channel);
    if (num_channels <= 0) break;
    const int64_t num_panels = divide_up(num_channels, kPanel);
    const Tiling tiling = choose_tiling(num_rows, num_panels, part.panel_bytes(), num_threads);
    *rows = std::max(*rows, tiling.rows);
    for (int64_t panel = 0; panel < num_panels; panel += tiling.panels) {
      const int64_t panel_end = std::min(panel + tiling.panels, num_panels);
      tiles.push_back({&part, panel, panel_end, first_channel + panel * kPanel,
                       first_channel + std::min(panel_end * kPanel, num_channels)});
    }
    first_channel += part.out_features;
  }
  return tiles;
}

// The first of the tiles' best, in the order of their channels; a NaN stays.
BestToken merge(const BestToken* tile_best, int64_t num_tiles, int64_t stride) {
  BestToken best = tile_best[0];
  for (int64_t tile = 1; tile < num_tiles; ++tile) {
    const BestToken& other = tile_best[tile * stride];
    if (other.value > best.value || (std::isnan(other.value) && !std::isnan(best.value))) best = other;
  }
  return best;
}

}  // namespace

void OutputLayer::run(const LinearWeight& weight, const float* hidden, int64_t num_rows, int64_t num_drawable,
                      const int64_t* kept_rows, int64_t num_kept, float* logits, BestToken* best) {
  const KernelTable& kernels = runtime_.kernels;
  const int num_threads = runtime_.pool.num_threads();
  const int64_t in_features = weight.in_features();
  int64_t tile_rows;
  const std::vector<ChannelTile> tiles = cut(weight, num_drawable, num_rows, num_threads, &tile_rows);
  const int64_t num_tiles = static_cast<int64_t>(tiles.size());
  int64_t widest = 0;
  for (const ChannelTile& tile : tiles) widest = std::max(widest, (tile.panel_end - tile.panel) * kPanel);

  input_.reserve(weight, num_rows);
  const InputView input = input_.view(weight);
  work_.resize(num_threads);
  products_.resize(num_threads);
  for (int thread = 0; thread < num_threads; ++thread) {
    work_[thread].reserve(weight.work_bytes(kernels));
    products_[thread].reserve(tile_rows * widest * static_cast<int64_t>(sizeof(float)));
  }
  tile_best_.resize(num_tiles * num_rows);
  kept_place_.assign(num_rows, -1);
  for (int64_t i = 0; i < num_kept; ++i) kept_place_[kept_rows[i]] = i;

  const int64_t row_tiles = divide_up(num_rows, tile_rows);
  runtime_.pool.run([&](Team& team) {
    PhaseClock clock(team.thread() == 0 ? &runtime_.profile : nullptr);
    write_rows(team, kernels, input, num_rows, in_features, hidden, in_features);
    team.for_tiles(row_tiles * num_tiles, [&](int64_t index) {
      // Rows change fastest: threads that work side by side read the same weights.
      const int64_t row_begin = index % row_tiles * tile_rows;
      const int64_t row_end = std::min(row_begin + tile_rows, num_rows);
      const ChannelTile& tile = tiles[index / row_tiles];
      const int64_t width = (tile.panel_end - tile.panel) * kPanel;
      float* const product = products_[team.thread()].as<float>();
      // The kernel writes channel c of row r to out[r * stride + c]; the tile's first of both goes to product[0].
      const OutputRows out{product - row_begin * width - tile.panel * kPanel, width, false};
      kernels.linear_tile(*tile.part, tile.panel, tile.panel_end, input.rows(), row_begin, row_end, out,
                          work_[team.thread()].as<void>());
      const int64_t count = tile.channel_end - tile.channel;
      for (int64_t row = row_begin; row < row_end; ++row) {
        const float* const values = product + (row - row_begin) * width;
        BestToken& found = tile_best_[index / row_tiles * num_rows + row];
        found.id = tile.channel + kernels.argmax_row(values, count, &found.value);
        if (kept_place_[row] >= 0) {
          std::memcpy(logits + kept_place_[row] * num_drawable + tile.channel, values,
                      static_cast<size_t>(count) * sizeof(float));
        }
      }
    });
    for_rows(team, num_rows, [&](int64_t begin, int64_t end) {
      for (int64_t row = begin; row < end; ++row) best[row] = merge(&tile_best_[row], num_tiles, num_rows);
    });
    clock.end_phase(PhaseKind::kLinear);
  });
}

}  // namespace pagewire
