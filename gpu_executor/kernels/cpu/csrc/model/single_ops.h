// The small ops, one parallel region each: what the decoder stack is made of, for models and layers that call them
// one by one. All numbers are fp32 but where a struct says otherwise; rows are contiguous.
#pragma once

#include <cstdint>
#include <vector>

#include "../runtime/runtime.h"
#include "attention_phase.h"
#include "expert_choice.h"
#include "linear.h"
#include "step.h"

namespace pagewire {

class SingleOps {
 public:
  explicit SingleOps(Runtime& runtime);

  // out [num_rows, out_features] = x W^T + bias; x [num_rows, in_features].
  void linear(const LinearWeight& weight, const float* x, int64_t num_rows, float* out);
  // out [num_tokens, in_features] = the weight's rows `ids`.
  void embedding(const LinearWeight& weight, const int64_t* ids, int64_t num_tokens, float* out);
  // [num_rows, size]. residual and total may be null: out is then the norm of x, else of total = residual + x.
  void rms_norm(const float* x, const float* residual, const float* weight, int64_t num_rows, int64_t size, float eps,
                float* total, float* out);
  // Rotate in place: heads [num_tokens, num_heads, head_dim]; cos and sin [positions, rotary_dim / 2].
  void rotary(float* heads, const int64_t* positions, int64_t num_tokens, int64_t num_heads, int64_t head_dim,
              int64_t rotary_dim, const float* cos, const float* sin);
  // key [num_tokens, num_kv_heads, head_dim], value alike; slots of -1 are skipped.
  void store_kv(const float* key, const float* value, const int64_t* slots, int64_t num_tokens, int64_t num_kv_heads,
                int64_t head_dim, const CacheView& cache);
  // query and out [num_tokens, num_heads, head_dim]; soft_cap of the scaled scores, 0: none.
  void paged_attention(const StepView& step, const AttentionShape& shape, const CacheView& cache, float scale,
                       float soft_cap, const float* query, float* out);
  // gate_up [num_rows, 2 * size], out [num_rows, size].
  void silu_and_mul(const float* gate_up, int64_t num_rows, int64_t size, float* out);
  void gelu_tanh_and_mul(const float* gate_up, int64_t num_rows, int64_t size, float* out);

  // logits [num_tokens, num_experts]; ids and weights [num_tokens, num_chosen]: see choose_experts().
  void choose_experts(const RouterShape& shape, const float* logits, int64_t num_tokens, int32_t* ids, float* weights);

 private:
  void gate(GateRow gate_row, const float* gate_up, int64_t num_rows, int64_t size, float* out);
  void reserve_work(int64_t num_bytes);

  Runtime& runtime_;
  InputRows input_;
  AttentionPlans plans_;
  std::vector<AlignedBuffer> work_;  // of each thread
};

}  // namespace pagewire
