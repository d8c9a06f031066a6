#include "single_ops.h"

#include <cstring>

namespace pagewire {

SingleOps::SingleOps(Runtime& runtime) : runtime_(runtime), work_(static_cast<size_t>(runtime.pool.num_threads())) {}

void SingleOps::reserve_work(int64_t num_bytes) {
  for (AlignedBuffer& work : work_) work.reserve(num_bytes);
}

void SingleOps::linear(const LinearWeight& weight, const float* x, int64_t num_rows, float* out) {
  const KernelTable& kernels = runtime_.kernels;
  const int64_t size = weight.in_features();
  reserve_work(weight.work_bytes(kernels));
  input_.reserve(weight, num_rows);
  const InputView input = input_.view(weight);
  runtime_.pool.run([&](Team& team) {
    PhaseClock clock(team.thread() == 0 ? &runtime_.profile : nullptr);
    write_rows(team, kernels, input, num_rows, size, x, size);
    multiply(team, kernels, weight, input.rows(), num_rows, {out, weight.out_features(), false}, work_);
    clock.end_phase(PhaseKind::kLinear);
  });
}

void SingleOps::embedding(const LinearWeight& weight, const int64_t* ids, int64_t num_tokens, float* out) {
  const int64_t size = weight.in_features();
  reserve_work(size * static_cast<int64_t>(sizeof(float)));
  runtime_.pool.run([&](Team& team) {
    PhaseClock clock(team.thread() == 0 ? &runtime_.profile : nullptr);
    for_rows(team, num_tokens, [&](int64_t begin, int64_t end) {
      for (int64_t token = begin; token < end; ++token) {
        weight.unpack_row(runtime_.kernels, ids[token], work_[team.thread()].as<float>(), out + token * size);
      }
    });
    clock.end_phase(PhaseKind::kEmbedding);
  });
}

void SingleOps::rms_norm(const float* x, const float* residual, const float* weight, int64_t num_rows, int64_t size,
                         float eps, float* total, float* out) {
  const KernelTable& kernels = runtime_.kernels;
  runtime_.pool.run([&](Team& team) {
    PhaseClock clock(team.thread() == 0 ? &runtime_.profile : nullptr);
    for_rows(team, num_rows, [&](int64_t begin, int64_t end) {
      for (int64_t row = begin; row < end; ++row) {
        const float* from = x + row * size;
        if (residual != nullptr) {
          float* sum = total + row * size;
          std::memcpy(sum, residual + row * size, static_cast<size_t>(size) * sizeof(float));
          kernels.add_row(from, size, sum);
          from = sum;
        }
        kernels.rms_norm_row(from, weight, size, eps, out + row * size);
      }
    });
    clock.end_phase(PhaseKind::kNorm);
  });
}

void SingleOps::rotary(float* heads, const int64_t* positions, int64_t num_tokens, int64_t num_heads,
                       int64_t head_dim, int64_t rotary_dim, const float* cos, const float* sin) {
  const int64_t half = rotary_dim / 2;
  runtime_.pool.run([&](Team& team) {
    PhaseClock clock(team.thread() == 0 ? &runtime_.profile : nullptr);
    for_rows(team, num_tokens, [&](int64_t begin, int64_t end) {
      for (int64_t token = begin; token < end; ++token) {
        const int64_t row = positions[token] * half;
        for (int64_t head = 0; head < num_heads; ++head) {
          runtime_.kernels.rotate_head(heads + (token * num_heads + head) * head_dim, cos + row, sin + row, half);
        }
      }
    });
    clock.end_phase(PhaseKind::kRotary);
  });
}

void SingleOps::store_kv(const float* key, const float* value, const int64_t* slots, int64_t num_tokens,
                         int64_t num_kv_heads, int64_t head_dim, const CacheView& cache) {
  const AttentionStep step = attention_step({}, {num_kv_heads, num_kv_heads, head_dim, 0}, cache, 1.0f, 0.0f);
  const int64_t size = num_kv_heads * head_dim;
  runtime_.pool.run([&](Team& team) {
    PhaseClock clock(team.thread() == 0 ? &runtime_.profile : nullptr);
    for_rows(team, num_tokens, [&](int64_t begin, int64_t end) {
      for (int64_t token = begin; token < end; ++token) {
        if (slots[token] < 0) continue;
        runtime_.kernels.store_key(key + token * size, slots[token], step);
        runtime_.kernels.store_value(value + token * size, slots[token], step);
      }
    });
    clock.end_phase(PhaseKind::kRotary);
  });
}

void SingleOps::paged_attention(const StepView& step, const AttentionShape& shape, const CacheView& cache, float scale,
                                float soft_cap, const float* query, float* out) {
  plans_.begin_step();
  const AttentionPlan& plan = plans_.plan(shape, step, runtime_.pool.num_threads());
  reserve_work(attention_work_bytes(shape.num_heads, shape.num_kv_heads, shape.head_dim));
  AttentionStep attention = attention_step(step, shape, cache, scale, soft_cap);
  attention.query = query;
  attention.query_stride = shape.num_heads * shape.head_dim;
  attention.output = out;
  attention.output_stride = attention.query_stride;
  attention.partials = plans_.reserve_partials();
  runtime_.pool.run([&](Team& team) {
    PhaseClock clock(team.thread() == 0 ? &runtime_.profile : nullptr);
    run_attention(team, runtime_.kernels, attention, plan, work_);
    clock.end_phase(PhaseKind::kAttention);
  });
}

void SingleOps::silu_and_mul(const float* gate_up, int64_t num_rows, int64_t size, float* out) {
  gate(runtime_.kernels.silu_and_mul_row, gate_up, num_rows, size, out);
}

void SingleOps::gelu_tanh_and_mul(const float* gate_up, int64_t num_rows, int64_t size, float* out) {
  gate(runtime_.kernels.gelu_tanh_and_mul_row, gate_up, num_rows, size, out);
}

void SingleOps::gate(GateRow gate_row, const float* gate_up, int64_t num_rows, int64_t size, float* out) {
  runtime_.pool.run([&](Team& team) {
    PhaseClock clock(team.thread() == 0 ? &runtime_.profile : nullptr);
    for_rows(team, num_rows, [&](int64_t begin, int64_t end) {
      for (int64_t row = begin; row < end; ++row) {
        const float* gate = gate_up + row * 2 * size;
        gate_row(gate, gate + size, size, out + row * size);
      }
    });
    clock.end_phase(PhaseKind::kOther);
  });
}

void SingleOps::choose_experts(const RouterShape& shape, const float* logits, int64_t num_tokens, int32_t* ids,
                               float* weights) {
  reserve_work(shape.num_experts * static_cast<int64_t>(sizeof(float)));
  runtime_.pool.run([&](Team& team) {
    PhaseClock clock(team.thread() == 0 ? &runtime_.profile : nullptr);
    for_rows(team, num_tokens, [&](int64_t row, int64_t end) {
      for (; row < end; ++row) {
        pagewire::choose_experts(runtime_.kernels, shape, logits + row * shape.num_experts,
                                 work_[team.thread()].as<float>(), ids + row * shape.num_chosen,
                                 weights + row * shape.num_chosen);
      }
    });
    clock.end_phase(PhaseKind::kRouter);
  });
}

}  // namespace pagewire
