// From canonical weights, row by row as files hold them, to the panels that kernels read (packed_matrix.h).
//
// Canonical forms, row-major, [out_features] rows of:
//   kInt4      num_groups * 16 bytes: byte j of a group holds input channel j of it in the low half, j + 16 in the high;
//              scale and minimum fp16, one a group.
//   kInt8      in_features bytes, signed; scale (and minimum) fp16, one a group of 32.
//   kInt8Half  like kInt8, one a group of 16.
//   kFloat32, kFloat16, kBFloat16   in_features elements.
// A last group may be short of channels in codes, never in scales.
#pragma once

#include <cstdint>

#include "packed_matrix.h"

namespace pagewire {

// Bytes of all panels. Their memory must start at a multiple of 64 bytes.
int64_t packed_bytes(WeightLayout layout, bool has_minimum, int64_t out_features, int64_t in_features);

// Write panels [panel_begin, panel_end) of a matrix to their place after packed_panels, the memory of panel 0. Panels
// are independent: threads may each take some. scale and minimum are null for dense layouts, minimum also without one.
void pack_panels(WeightLayout layout, bool has_minimum, int64_t out_features, int64_t in_features, const void* codes,
                 const uint16_t* scale, const uint16_t* minimum, uint8_t* packed_panels, int64_t panel_begin,
                 int64_t panel_end);

}  // namespace pagewire
