#include "capi.h"

#include <exception>

#include "engine.h"
#include "limits/limits.h"
#include "model/decoder.h"
#include "ranks/shared_ranks.h"
#include "runtime/build_info.h"
#include "status.h"
#include "weights/pack.h"

using pagewire::Decoder;
using pagewire::Engine;
using pagewire::LinearView;
using pagewire::LinearWeight;
using pagewire::SharedRanks;
using pagewire::status_of;
using pagewire::Team;

const char* pagewire_source_digest() { return pagewire::source_digest(); }

int64_t pagewire_struct_bytes(int32_t which) {
  switch (which) {
    case 0: return sizeof(pagewire::PackedMatrix);
    case 1: return sizeof(pagewire::LinearView);
    case 2: return sizeof(pagewire::LayerView);
    case 3: return sizeof(pagewire::CacheView);
    case 4: return sizeof(pagewire::StepView);
    case 5: return sizeof(pagewire::DecoderView);
    case 6: return sizeof(pagewire::ExpertView);
    case 7: return sizeof(pagewire::MixtureView);
    case 8: return sizeof(pagewire::LowRankView);
    case 9: return sizeof(pagewire::AdapterView);
    default: return 0;
  }
}

const char* pagewire_built_kernels(int32_t index, int32_t* runs_here) {
  const pagewire::BuiltKernels* built = pagewire::built_kernels();
  for (int32_t i = 0; i < index; ++i) {
    if (built[i].table == nullptr) return nullptr;
  }
  if (built[index].table == nullptr) return nullptr;
  *runs_here = built[index].runs_here() ? 1 : 0;
  return built[index].table->name;
}

Engine* pagewire_create(const char* kernels, int32_t num_threads) {
  const pagewire::KernelTable* table = pagewire::find_kernels(kernels);
  if (table == nullptr) return nullptr;
  try {
    return new Engine(*table, num_threads);
  } catch (const std::exception&) {  // no memory, or no more threads
    return nullptr;
  }
}

void pagewire_destroy(Engine* engine) { delete engine; }

const char* pagewire_kernels(const Engine* engine) { return engine->runtime.kernels.name; }

int32_t pagewire_num_threads(const Engine* engine) { return engine->runtime.pool.num_threads(); }

int64_t pagewire_run_empty_phases(Engine* engine, int64_t num_phases, int64_t num_tiles) {
  std::atomic<int64_t> count{0};
  engine->runtime.pool.run([&](Team& team) {
    int64_t taken = 0;
    for (int64_t phase = 0; phase < num_phases; ++phase) team.for_tiles(num_tiles, [&](int64_t) { ++taken; });
    count.fetch_add(taken);
  });
  return count.load();
}

int64_t pagewire_read_memory(Engine* engine, const void* data, int64_t num_bytes, int64_t passes) {
  return pagewire::read_memory(engine->runtime, data, num_bytes, passes);
}

int64_t pagewire_multiply_floats(Engine* engine, int64_t rounds) {
  return pagewire::multiply_floats(engine->runtime, rounds);
}

int64_t pagewire_multiply_integers(Engine* engine, int64_t rounds) {
  return pagewire::multiply_integers(engine->runtime, rounds);
}

int64_t pagewire_packed_bytes(int32_t layout, int32_t has_minimum, int64_t out_features, int64_t in_features) {
  return pagewire::packed_bytes(static_cast<pagewire::WeightLayout>(layout), has_minimum != 0, out_features,
                                in_features);
}

int32_t pagewire_pack(Engine* engine, int32_t layout, int32_t has_minimum, int64_t out_features, int64_t in_features,
                      const void* codes, const void* scales, const void* minima, uint8_t* dst) {
  const auto pack = [&](int64_t panel) {
    pagewire::pack_panels(static_cast<pagewire::WeightLayout>(layout), has_minimum != 0, out_features, in_features,
                          codes, static_cast<const uint16_t*>(scales), static_cast<const uint16_t*>(minima), dst,
                          panel, panel + 1);
  };
  return status_of([&] {
    engine->runtime.pool.run(
        [&](Team& team) { team.for_tiles(pagewire::divide_up(out_features, pagewire::kPanel), pack); });
  });
}

int32_t pagewire_linear(Engine* engine, LinearView weight, const float* x, int64_t num_rows, float* out) {
  return status_of([&] { engine->ops.linear(LinearWeight(weight), x, num_rows, out); });
}

int32_t pagewire_embedding(Engine* engine, LinearView weight, const int64_t* ids, int64_t num_tokens, float* out) {
  return status_of([&] { engine->ops.embedding(LinearWeight(weight), ids, num_tokens, out); });
}

int32_t pagewire_rms_norm(Engine* engine, const float* x, const float* residual, const float* weight,
                          int64_t num_rows, int64_t size, float eps, float* total, float* out) {
  return status_of([&] { engine->ops.rms_norm(x, residual, weight, num_rows, size, eps, total, out); });
}

int32_t pagewire_rotary(Engine* engine, float* heads, const int64_t* positions, int64_t num_tokens, int64_t num_heads,
                        int64_t head_dim, int64_t rotary_dim, const float* cos, const float* sin) {
  return status_of(
      [&] { engine->ops.rotary(heads, positions, num_tokens, num_heads, head_dim, rotary_dim, cos, sin); });
}

int32_t pagewire_store_kv(Engine* engine, const float* key, const float* value, const int64_t* slots,
                          int64_t num_tokens, int64_t num_kv_heads, int64_t head_dim,
                          const pagewire::CacheView* cache) {
  return status_of([&] { engine->ops.store_kv(key, value, slots, num_tokens, num_kv_heads, head_dim, *cache); });
}

int32_t pagewire_paged_attention(Engine* engine, const pagewire::StepView* step, const pagewire::CacheView* cache,
                                 int64_t num_heads, int64_t num_kv_heads, int64_t head_dim, int64_t sliding_window,
                                 float scale, float soft_cap, const float* query, float* out) {
  const pagewire::AttentionShape shape{num_heads, num_kv_heads, head_dim, sliding_window};
  return status_of([&] { engine->ops.paged_attention(*step, shape, *cache, scale, soft_cap, query, out); });
}

int32_t pagewire_silu_and_mul(Engine* engine, const float* gate_up, int64_t num_rows, int64_t size, float* out) {
  return status_of([&] { engine->ops.silu_and_mul(gate_up, num_rows, size, out); });
}

int32_t pagewire_gelu_tanh_and_mul(Engine* engine, const float* gate_up, int64_t num_rows, int64_t size, float* out) {
  return status_of([&] { engine->ops.gelu_tanh_and_mul(gate_up, num_rows, size, out); });
}

int32_t pagewire_choose_experts(Engine* engine, const float* logits, int64_t num_tokens, int64_t num_experts,
                                int64_t num_chosen, int32_t is_renormalized, int32_t* ids, float* weights) {
  const pagewire::RouterShape shape{num_experts, num_chosen, is_renormalized != 0};
  return status_of([&] { engine->ops.choose_experts(shape, logits, num_tokens, ids, weights); });
}

int64_t pagewire_ranks_bytes(int32_t size, int64_t area_bytes) { return SharedRanks::num_bytes(size, area_bytes); }

SharedRanks* pagewire_ranks_join(void* memory, int32_t rank, int32_t size, int64_t area_bytes) {
  SharedRanks* ranks = nullptr;
  status_of([&] { ranks = new SharedRanks(memory, rank, size, area_bytes); });
  return ranks;
}

void pagewire_ranks_leave(SharedRanks* ranks) { delete ranks; }

void pagewire_ranks_sum(SharedRanks* ranks, const float* x, int64_t n, float* total) { ranks->sum(x, n, total); }

void pagewire_ranks_gather(SharedRanks* ranks, const uint8_t* x, int64_t num_bytes, uint8_t* out) {
  ranks->gather(x, num_bytes, out);
}

Decoder* pagewire_decoder_create(Engine* engine, const pagewire::DecoderView* view, SharedRanks* ranks) {
  Decoder* decoder = nullptr;
  status_of([&] { decoder = new Decoder(engine->runtime, *view, ranks); });
  return decoder;
}

void pagewire_decoder_destroy(Decoder* decoder) { delete decoder; }

int32_t pagewire_decoder_run(Decoder* decoder, const pagewire::StepView* step, const pagewire::CacheView* caches,
                             const int64_t* ids, const float* stream, float* hidden) {
  return status_of([&] { decoder->run(*step, caches, ids, stream, hidden); });
}

int64_t pagewire_decoder_work_bytes(const Decoder* decoder) { return decoder->work_bytes(); }

const char* pagewire_phase_name(int32_t kind) {
  if (kind < 0 || kind >= pagewire::kNumPhaseKinds) return nullptr;
  return pagewire::phase_name(static_cast<pagewire::PhaseKind>(kind));
}

void pagewire_profile_start(Engine* engine) { engine->runtime.profile.start(); }

void pagewire_profile_read(Engine* engine, int64_t* nanoseconds, int64_t* num_phases) {
  engine->runtime.profile.read(nanoseconds, num_phases);
}

void pagewire_profile_stop(Engine* engine) { engine->runtime.profile.stop(); }
