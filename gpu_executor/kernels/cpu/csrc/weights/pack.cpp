// Panels are written in order, 16 rows of the source being read side by side: as fast as memory.
#include "pack.h"

#include <cstring>
#include <initializer_list>

namespace pagewire {
namespace {

// A view of one panel's part of the canonical matrix.
struct Source {
  const uint8_t* codes;  // the panel's first row
  int64_t row_bytes;
  const uint16_t* scale;
  const uint16_t* minimum;
  int64_t scales_per_row;
  int64_t channels;  // real output channels, at most kPanel
};

// Bytes [offset, offset + kBytes) of each channel's row go to rows of kPanel quads: quad q of channel c to
// to[q * 4 * kPanel + 4 * c]. `available` bytes are there, the rest is zero, as are the channels that pad.
template <int64_t kBytes>
void interleave_quads(const Source& source, int64_t offset, int64_t available, uint8_t* to) {
  if (source.channels < kPanel || available < kBytes) std::memset(to, 0, kBytes * kPanel);
  for (int64_t channel = 0; channel < source.channels; ++channel) {
    const uint8_t* from = source.codes + channel * source.row_bytes + offset;
    uint8_t bytes[kBytes] = {};
    if (available < kBytes) {
      std::memcpy(bytes, from, static_cast<size_t>(available));
      from = bytes;
    }
    for (int64_t quad = 0; quad < kBytes / 4; ++quad) {
      std::memcpy(to + quad * 4 * kPanel + 4 * channel, from + 4 * quad, 4);
    }
  }
}

uint8_t* gather_scales(const uint16_t* scales, const Source& source, int64_t index, uint8_t* to) {
  uint16_t row[kPanel] = {};
  for (int64_t channel = 0; channel < source.channels; ++channel) {
    row[channel] = scales[channel * source.scales_per_row + index];
  }
  std::memcpy(to, row, sizeof(row));
  return to + sizeof(row);
}

void pack_int4(const Source& source, int64_t num_groups, uint8_t* to) {
  constexpr int64_t kBytes = kGroup / 2;
  for (int64_t group = 0; group < num_groups; ++group) {
    interleave_quads<kBytes>(source, group * kBytes, kBytes, to);
    to = gather_scales(source.scale, source, group, to + kBytes * kPanel);
    to = gather_scales(source.minimum, source, group, to);
  }
}

void pack_int8(const Source& source, int64_t num_groups, int64_t parts, uint8_t* to) {
  for (int64_t group = 0; group < num_groups; ++group) {
    interleave_quads<kGroup>(source, group * kGroup, source.row_bytes - group * kGroup, to);
    to += kGroup * kPanel;
    for (const uint16_t* numbers : {source.scale, source.minimum}) {
      if (numbers == nullptr) continue;
      for (int64_t index = group * parts; index < (group + 1) * parts; ++index) {
        if (index < source.scales_per_row) {
          to = gather_scales(numbers, source, index, to);
        } else {
          std::memset(to, 0, kPanel * sizeof(uint16_t));
          to += kPanel * sizeof(uint16_t);
        }
      }
    }
  }
}

template <typename Element>
void pack_dense(const Source& source, int64_t in_features, int64_t padded_features, uint8_t* panel) {
  // A run of input channels of all rows stays in the level-1 cache while it is turned.
  constexpr int64_t kRun = 64 / sizeof(Element);
  Element* to = reinterpret_cast<Element*>(panel);
  const int64_t row_elements = source.row_bytes / static_cast<int64_t>(sizeof(Element));
  const Element* from = reinterpret_cast<const Element*>(source.codes);
  if (source.channels < kPanel) std::memset(to, 0, static_cast<size_t>(in_features * kPanel) * sizeof(Element));
  for (int64_t begin = 0; begin < in_features; begin += kRun) {
    const int64_t run = in_features - begin < kRun ? in_features - begin : kRun;
    for (int64_t channel = 0; channel < source.channels; ++channel) {
      for (int64_t i = 0; i < run; ++i) to[(begin + i) * kPanel + channel] = from[channel * row_elements + begin + i];
    }
  }
  std::memset(to + in_features * kPanel, 0,
              static_cast<size_t>((padded_features - in_features) * kPanel) * sizeof(Element));
}

}  // namespace

int64_t packed_bytes(WeightLayout layout, bool has_minimum, int64_t out_features, int64_t in_features) {
  const PackedMatrix matrix{layout, has_minimum, out_features, in_features, nullptr, nullptr};
  return matrix.num_panels() * matrix.panel_bytes();
}

void pack_panels(WeightLayout layout, bool has_minimum, int64_t out_features, int64_t in_features, const void* codes,
                 const uint16_t* scale, const uint16_t* minimum, uint8_t* packed_panels, int64_t panel_begin,
                 int64_t panel_end) {
  const PackedMatrix matrix{layout, has_minimum, out_features, in_features, packed_panels, nullptr};
  const int64_t num_groups = matrix.num_groups();
  int64_t row_bytes = in_features, parts = 1;
  if (layout == WeightLayout::kFloat32) row_bytes *= 4;
  if (layout == WeightLayout::kFloat16 || layout == WeightLayout::kBFloat16) row_bytes *= 2;
  if (layout == WeightLayout::kInt4) row_bytes = num_groups * kGroup / 2;
  if (layout == WeightLayout::kInt8Half) parts = 2;
  const int64_t scales_per_row = divide_up(in_features, kGroup / parts);
  if (!has_minimum && layout != WeightLayout::kInt4) minimum = nullptr;
  for (int64_t panel = panel_begin; panel < panel_end; ++panel) {
    const int64_t row = panel * kPanel;
    const int64_t channels = out_features - row < kPanel ? out_features - row : kPanel;
    const Source source{static_cast<const uint8_t*>(codes) + row * row_bytes,
                        row_bytes,
                        scale == nullptr ? nullptr : scale + row * scales_per_row,
                        minimum == nullptr ? nullptr : minimum + row * scales_per_row,
                        scales_per_row,
                        channels};
    uint8_t* to = packed_panels + panel * matrix.panel_bytes();
    switch (layout) {
      case WeightLayout::kInt4: pack_int4(source, num_groups, to); break;
      case WeightLayout::kInt8:
      case WeightLayout::kInt8Half: pack_int8(source, num_groups, parts, to); break;
      case WeightLayout::kFloat32: pack_dense<uint32_t>(source, in_features, num_groups * kGroup, to); break;
      case WeightLayout::kFloat16:
      case WeightLayout::kBFloat16: pack_dense<uint16_t>(source, in_features, num_groups * kGroup, to); break;
    }
  }
}

}  // namespace pagewire
