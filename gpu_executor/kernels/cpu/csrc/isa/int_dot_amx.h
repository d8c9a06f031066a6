// AMX: products of whole tiles of 8-bit integers, beside the vectors of AVX-512 VNNI, which take what is less than a
// tile. Called by linear_tiles.inl.
//
// A tile register holds up to 16 rows of 64 bytes. One operand is 16 rows of activations, a row's input channels side
// by side; the other has 4 input channels of 16 output channels in a row, which is a panel's quad as it is packed.
#pragma once

#include <atomic>

#include "int_dot_avx512_vnni.h"

namespace pagewire::amx {

using namespace avx512_vnni;

constexpr int kTileRows16 = 16;

// The shapes of the tile registers that a group (8 quads) and half a group (4) use, set for the calling thread while
// this lives. Registers left in use would be saved at every switch of tasks.
class TileShapes {
 public:
  TileShapes() {
    alignas(64) uint8_t config[64] = {};
    config[0] = 1;  // the palette; the rest by the processor's manual: bytes a row from 16 on, rows from 48 on
    const auto shape = [&config](int tile, uint8_t rows, uint8_t row_bytes) {
      config[16 + 2 * tile] = row_bytes;
      config[48 + tile] = rows;
    };
    shape(0, kTileRows16, 64);  // sums
    shape(1, kTileRows16, 32);  // activations of a group
    shape(2, 8, 64);            // its codes
    shape(3, kTileRows16, 16);  // activations of half a group
    shape(4, 4, 64);            // its codes
    _tile_loadconfig(config);
  }
  ~TileShapes() { _tile_release(); }
  TileShapes(const TileShapes&) = delete;
  TileShapes& operator=(const TileShapes&) = delete;
};

// sums[row][channel] of 16 rows, row_bytes apart, times codes of 16 output channels: 8 quads, or 4 of half a group.
// Codes are signed bytes; 4-bit ones are 0 to 15.
template <bool kHalf>
PAGEWIRE_INLINE void sum_tile(const int8_t* values, int64_t row_bytes, const uint8_t* codes, int32_t* sums) {
  // The intrinsics don't tell the compiler that they read memory.
  std::atomic_signal_fence(std::memory_order_seq_cst);
  _tile_zero(0);
  if constexpr (kHalf) {
    _tile_loadd(3, values, row_bytes);
    _tile_loadd(4, codes, 64);
    _tile_dpbssd(0, 3, 4);
  } else {
    _tile_loadd(1, values, row_bytes);
    _tile_loadd(2, codes, 64);
    _tile_dpbssd(0, 1, 2);
  }
  _tile_stored(0, sums, 64);
  std::atomic_signal_fence(std::memory_order_seq_cst);
}

PAGEWIRE_INLINE Vec load_sums(const int32_t* sums) { return to_floats(NibbleSum{_mm512_loadu_si512(sums)}); }

}  // namespace pagewire::amx
