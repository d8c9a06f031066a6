// The form in which kernels read a weight matrix.
//
// A matrix of [out_features, in_features] is cut into panels of kPanel output channels. Within a panel the input
// channels come in groups of kGroup, and within a group in quads of 4: the kPanel channels of a quad lie side by side,
// so that one vector of 4-byte lanes meets 4 activations broadcast to all lanes and serves an output channel a lane,
// without a horizontal sum. The vectors of 256 bits take half a quad's bytes at a time, those of 512 bits all of them.
//
// One group of one panel, back to back (numbers for kPanel 16, kGroup 32):
//
//   kInt4        256 bytes of codes, 4 rows of 64: byte (row r, channel c, i) holds the code of input channel
//                4r + i in its low half and that of input channel 16 + 4r + i in its high half, 0 to 15;
//                then 16 scales and 16 minima in fp16: 64 bytes.      weight = scale * code + minimum
//   kInt8        512 bytes of codes, 8 quads of 64: byte (quad q, channel c, i) is input channel 4q + i, -128 to 127;
//                then 16 scales in fp16, and 16 minima if has_minimum.
//   kInt8Half    like kInt8, with scales (and minima) of each half group of 16 input channels: those of the first
//                half, then those of the second (scales, scales, minima, minima).
//   kFloat32, kFloat16, kBFloat16
//                the elements of input channel 0 for all 16 output channels, then of input channel 1, ...
//
// Channels that pad a matrix to whole panels and groups have codes, scales and minima of zero.
// A panel starts at a multiple of 64 bytes.
#pragma once

#include <cstddef>
#include <cstdint>

namespace pagewire {

constexpr int64_t kPanel = 16;
constexpr int64_t kGroup = 32;

enum class WeightLayout : int32_t { kFloat32 = 0, kFloat16 = 1, kBFloat16 = 2, kInt4 = 3, kInt8 = 4, kInt8Half = 5 };

inline bool is_quantized(WeightLayout layout) { return layout >= WeightLayout::kInt4; }

constexpr int64_t smaller(int64_t a, int64_t b) { return a < b ? a : b; }
constexpr int64_t larger(int64_t a, int64_t b) { return a > b ? a : b; }
constexpr int64_t divide_up(int64_t value, int64_t by) { return (value + by - 1) / by; }
constexpr int64_t round_up(int64_t value, int64_t to) { return divide_up(value, to) * to; }

struct PackedMatrix {
  WeightLayout layout;
  int32_t has_minimum;   // kInt8 and kInt8Half: minima are stored. kInt4 always has them.
  int64_t out_features;  // as the model counts them, without padding
  int64_t in_features;
  const uint8_t* data;   // num_panels() * panel_bytes()
  const float* bias;     // [out_features], or null

  int64_t num_panels() const { return divide_up(out_features, kPanel); }
  int64_t num_groups() const { return divide_up(in_features, kGroup); }
  int64_t group_bytes() const {
    switch (layout) {
      case WeightLayout::kFloat32: return kPanel * kGroup * 4;
      case WeightLayout::kFloat16:
      case WeightLayout::kBFloat16: return kPanel * kGroup * 2;
      case WeightLayout::kInt4: return kPanel * (kGroup / 2 + 4);
      case WeightLayout::kInt8: return kPanel * (kGroup + (has_minimum ? 4 : 2));
      case WeightLayout::kInt8Half: return kPanel * (kGroup + (has_minimum ? 8 : 4));
    }
    return 0;
  }
  int64_t panel_bytes() const { return num_groups() * group_bytes(); }
  const uint8_t* panel(int64_t index) const { return data + index * panel_bytes(); }
};

}  // namespace pagewire
