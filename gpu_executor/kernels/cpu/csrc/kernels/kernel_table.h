// What each instruction set provides: kernels that work on one tile, in the calling thread.
//
// Everything about threads, tiles and the order of a step lies above this table and is compiled once; everything about
// vectors lies below it and is compiled once an instruction set (isa/*.cpp), with that set's compiler flags.
//
// Rows never meet: what a kernel computes for a row (a token, or a token's head) has the same bits whatever rows are in
// the same call, and however rows and panels were cut into tiles. Each number's operations follow one fixed order.
#pragma once

#include <cstdint>

#include "../weights/packed_matrix.h"

namespace pagewire {

enum class ElementType : int32_t { kFloat32 = 0, kFloat16 = 1, kBFloat16 = 2, kFloat8E4M3 = 3, kFloat8E5M2 = 4 };

constexpr int64_t element_bytes(ElementType type) {
  return type == ElementType::kFloat32 ? 4 : type <= ElementType::kBFloat16 ? 2 : 1;
}

// The input rows of a product. Quantized layouts read the integers, dense ones the floats; what is not read may be null.
// Quantized: value ~ scales[group] * values, each group of kGroup input channels by itself; rows are padded to whole
// groups with zeros. sums[group] = scales[group] * (sum of the group's values): what a weight's minimum multiplies.
// half_sums is the same for each half group (two a group), read by kInt8Half with minima.
struct ActivationRows {
  const float* floats;  // row r at floats + r * float_stride
  int64_t float_stride;
  const int8_t* values;  // row r at values + r * num_groups * kGroup
  const float* scales;   // row r at scales + r * num_groups
  const float* sums;     // row r at sums + r * num_groups
  const float* half_sums;  // row r at half_sums + r * num_groups * 2
  int64_t num_groups;
};

// Where a product goes: element (row, output channel) at out[row * stride + channel]. Only real output channels are
// written, padding is not.
struct OutputRows {
  float* out;
  int64_t stride;
  bool add;  // add to what is there (the residual stream), instead of replacing it
};

// out = activation(gate) * up, n channels.
using GateRow = void (*)(const float* gate, const float* up, int64_t n, float* out);

struct KernelTable {
  const char* name;  // "avx2", "avx512", "avx512_vnni", "amx", "neon", "neon_dot", "portable"

  // --- linear.inl -------------------------------------------------------------------------------------------------
  // Quantize one row of n floats: see ActivationRows. sums and half_sums may be null. Rounds half to even; a group of
  // zeros has scale 0; a NaN or infinity in a group makes that group's scale NaN (so that it shows in the output).
  void (*quantize_row)(const float* x, int64_t n, int8_t* values, float* scales, float* sums, float* half_sums);

  // Rows [row_begin, row_end) times panels [panel_begin, panel_end), any of them; bias included (once, when given).
  // work: linear_work_bytes(matrix) bytes of the calling thread's own, 64-byte aligned.
  void (*linear_tile)(const PackedMatrix& matrix, int64_t panel_begin, int64_t panel_end, const ActivationRows& x,
                      int64_t row_begin, int64_t row_end, const OutputRows& y, void* work);
  int64_t (*linear_work_bytes)(const PackedMatrix& matrix);

  // --- elementwise.inl --------------------------------------------------------------------------------------------
  // out = x / sqrt(mean(x^2) + eps) * weight
  void (*rms_norm_row)(const float* x, const float* weight, int64_t n, float eps, float* out);
  // total += x
  void (*add_row)(const float* x, int64_t n, float* total);
  // out = x * factor
  void (*scale_row)(const float* x, int64_t n, float factor, float* out);
  // out = gate / (1 + exp(-gate)) * up
  GateRow silu_and_mul_row;
  // out = gate / (1 + exp(-2 sqrt(2 / pi) (gate + 0.044715 gate^3))) * up: GELU by the formula with a tanh.
  GateRow gelu_tanh_and_mul_row;
  // Rotate one head in place: channel i pairs with channel i + half.
  void (*rotate_head)(float* head, const float* cos, const float* sin, int64_t half);
  // Convert n floats to a KV dtype, written `stride` elements apart; and n elements of any dtype to floats. Numbers
  // beyond the largest of an 8-bit dtype become that one.
  void (*store_elements)(const float* x, int64_t n, ElementType type, void* out, int64_t stride);
  void (*load_elements)(const void* x, int64_t n, ElementType type, float* out);
  // One row of a matrix, as floats: an embedding.
  void (*unpack_row)(const PackedMatrix& matrix, int64_t row, float* out);

  // --- store_kv.inl -----------------------------------------------------------------------------------------------
  // Write a token's key or value heads, [num_kv_heads, head_dim] floats, into its slot of that cache: see attention.h.
  void (*store_key)(const float* key, int64_t slot, const struct AttentionStep& step);
  void (*store_value)(const float* value, int64_t slot, const struct AttentionStep& step);

  // --- attention.inl: see attention.h -----------------------------------------------------------------------------
  // Tasks of a plan, in any order; when all are done, its merges. work: attention_work_bytes() of the thread's own.
  void (*attention_task)(const struct AttentionStep& step, const struct AttentionTask& task, void* work);
  void (*attention_merge)(const struct AttentionStep& step, const struct AttentionMerge& merge);

  // --- sampling.inl -----------------------------------------------------------------------------------------------
  // Index of the largest of n floats, the lowest of equals; *value is that largest (NaN if any is NaN).
  int64_t (*argmax_row)(const float* x, int64_t n, float* value);
  // scores[i] = logits[i] / temperature, and the largest of each group; see ScoreRow for their sizes. No NaN.
  void (*make_scores)(const float* logits, int64_t size, float temperature, float* scores, float* group_max);
  // out[i] = e^(x[i] - largest), and the sum of that for i in [0, n), in an order that n alone settles.
  void (*exp_row)(const float* x, int64_t n, float largest, float* out);
  double (*sum_of_exp)(const float* x, int64_t n, float largest);
  // Place of an element in the order "larger first, of equals the lower index", 1 for the first.
  int64_t (*rank_in_row)(const float* x, int64_t n, int64_t index);
  // argmax(score + noise) among the tokens that the cutoff keeps.
  int64_t (*draw_row)(const struct ScoreRow& row, const struct Cutoff& cutoff, const struct NoiseKey& key);

  // --- limits_floats.inl, limits_integers.inl ---------------------------------------------------------------------
  // Multiply in registers, and 8-bit numbers from the level-1 cache; return operations. result: two floats.
  int64_t (*multiply_floats)(int64_t rounds, float* result);
  int64_t (*multiply_integers)(int64_t rounds, float* result);
};

// The best table that this CPU can run, or the one of that name; null if the build or the CPU lacks it.
const KernelTable* find_kernels(const char* name_or_auto);

}  // namespace pagewire
