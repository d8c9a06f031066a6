// The library's C interface: what Python calls, by ctypes. native_library.py mirrors every signature and struct.
//
// Nothing throws through it. Arguments are checked by the caller; memory is the caller's unless a handle holds it.
// Calls on one handle come from one thread at a time, and take all threads of the pool.
#pragma once

#include <cstdint>

#include "model/step.h"

#define PAGEWIRE_API extern "C" __attribute__((visibility("default")))

namespace pagewire {
struct Engine;  // kernels, threads and the work space of the small ops
class Decoder;
class SharedRanks;
}  // namespace pagewire

// --- what was built, and what it was built from ---------------------------------------------------------------------
PAGEWIRE_API const char* pagewire_source_digest();
// sizeof of the structs that Python mirrors: 0 PackedMatrix, 1 LinearView, 2 LayerView, 3 CacheView, 4 StepView,
// 5 DecoderView, 6 ExpertView, 7 MixtureView, 8 LowRankView, 9 AdapterView; else 0.
PAGEWIRE_API int64_t pagewire_struct_bytes(int32_t which);
// Name of the index-th set of kernels that was built, the best first, and whether this CPU can run it; null: no more.
PAGEWIRE_API const char* pagewire_built_kernels(int32_t index, int32_t* runs_here);

// --- an engine ------------------------------------------------------------------------------------------------------
// kernels: a name, or "auto"; null if this CPU or this build lacks them, or the system has no memory or threads left.
PAGEWIRE_API pagewire::Engine* pagewire_create(const char* kernels, int32_t num_threads);
PAGEWIRE_API void pagewire_destroy(pagewire::Engine* engine);
PAGEWIRE_API const char* pagewire_kernels(const pagewire::Engine* engine);
PAGEWIRE_API int32_t pagewire_num_threads(const pagewire::Engine* engine);
// Run empty phases of so many tiles each; returns the tiles that ran. What the pool itself costs.
PAGEWIRE_API int64_t pagewire_run_empty_phases(pagewire::Engine* engine, int64_t num_phases, int64_t num_tiles);

// --- what the machine can do: see limits/limits.h -------------------------------------------------------------------
// Work on all threads, for the caller to time; bytes read, and operations done.
PAGEWIRE_API int64_t pagewire_read_memory(pagewire::Engine* engine, const void* data, int64_t num_bytes,
                                          int64_t passes);
PAGEWIRE_API int64_t pagewire_multiply_floats(pagewire::Engine* engine, int64_t rounds);
PAGEWIRE_API int64_t pagewire_multiply_integers(pagewire::Engine* engine, int64_t rounds);

// --- weights --------------------------------------------------------------------------------------------------------
PAGEWIRE_API int64_t pagewire_packed_bytes(int32_t layout, int32_t has_minimum, int64_t out_features,
                                           int64_t in_features);
// From the canonical layout (see weights/pack.h) to panels at dst, on all threads.
PAGEWIRE_API int32_t pagewire_pack(pagewire::Engine* engine, int32_t layout, int32_t has_minimum, int64_t out_features,
                                   int64_t in_features, const void* codes, const void* scales, const void* minima,
                                uint8_t* dst);

// --- small ops: see model/single_ops.h ------------------------------------------------------------------------------
// These, and pagewire_decoder_run, return 0, or 1 if their work space could not be allocated.
PAGEWIRE_API int32_t pagewire_linear(pagewire::Engine* engine, pagewire::LinearView weight, const float* x,
                                  int64_t num_rows, float* out);
PAGEWIRE_API int32_t pagewire_embedding(pagewire::Engine* engine, pagewire::LinearView weight, const int64_t* ids,
                                     int64_t num_tokens, float* out);
PAGEWIRE_API int32_t pagewire_rms_norm(pagewire::Engine* engine, const float* x, const float* residual,
                                    const float* weight, int64_t num_rows, int64_t size, float eps, float* total,
                                    float* out);
PAGEWIRE_API int32_t pagewire_rotary(pagewire::Engine* engine, float* heads, const int64_t* positions, int64_t num_tokens,
                                  int64_t num_heads, int64_t head_dim, int64_t rotary_dim, const float* cos,
                                  const float* sin);
PAGEWIRE_API int32_t pagewire_store_kv(pagewire::Engine* engine, const float* key, const float* value,
                                    const int64_t* slots, int64_t num_tokens, int64_t num_kv_heads, int64_t head_dim,
                                    const pagewire::CacheView* cache);
PAGEWIRE_API int32_t pagewire_paged_attention(pagewire::Engine* engine, const pagewire::StepView* step,
                                           const pagewire::CacheView* cache, int64_t num_heads, int64_t num_kv_heads,
                                           int64_t head_dim, int64_t sliding_window, float scale, float soft_cap,
                                           const float* query, float* out);
PAGEWIRE_API int32_t pagewire_silu_and_mul(pagewire::Engine* engine, const float* gate_up, int64_t num_rows, int64_t size,
                                        float* out);
PAGEWIRE_API int32_t pagewire_gelu_tanh_and_mul(pagewire::Engine* engine, const float* gate_up, int64_t num_rows,
                                             int64_t size, float* out);

// The likeliest experts of each token: see model/expert_choice.h. logits [num_tokens, num_experts]; ids and weights
// [num_tokens, num_chosen].
PAGEWIRE_API int32_t pagewire_choose_experts(pagewire::Engine* engine, const float* logits, int64_t num_tokens,
                                             int64_t num_experts, int64_t num_chosen, int32_t is_renormalized,
                                             int32_t* ids, float* weights);

// --- ranks that share layers: see ranks/shared_ranks.h --------------------------------------------------------------
PAGEWIRE_API int64_t pagewire_ranks_bytes(int32_t size, int64_t area_bytes);
PAGEWIRE_API pagewire::SharedRanks* pagewire_ranks_join(void* memory, int32_t rank, int32_t size, int64_t area_bytes);
PAGEWIRE_API void pagewire_ranks_leave(pagewire::SharedRanks* ranks);
PAGEWIRE_API void pagewire_ranks_sum(pagewire::SharedRanks* ranks, const float* x, int64_t n, float* total);
PAGEWIRE_API void pagewire_ranks_gather(pagewire::SharedRanks* ranks, const uint8_t* x, int64_t num_bytes,
                                        uint8_t* out);

// --- a whole decoder at once: see model/decoder.h ------------------------------------------------------------------
// ranks: null where the layers are whole; else it must outlive the decoder.
PAGEWIRE_API pagewire::Decoder* pagewire_decoder_create(pagewire::Engine* engine, const pagewire::DecoderView* view,
                                                        pagewire::SharedRanks* ranks);
PAGEWIRE_API void pagewire_decoder_destroy(pagewire::Decoder* decoder);
PAGEWIRE_API int32_t pagewire_decoder_run(pagewire::Decoder* decoder, const pagewire::StepView* step,
                                          const pagewire::CacheView* caches, const int64_t* ids,
                                          const float* stream, float* hidden);
PAGEWIRE_API int64_t pagewire_decoder_work_bytes(const pagewire::Decoder* decoder);

// --- profile: see runtime/profile.h ---------------------------------------------------------------------------------
PAGEWIRE_API const char* pagewire_phase_name(int32_t kind);  // null from the number of kinds on
PAGEWIRE_API void pagewire_profile_start(pagewire::Engine* engine);
// Nanoseconds and phases of each kind since the start or the last read.
PAGEWIRE_API void pagewire_profile_read(pagewire::Engine* engine, int64_t* nanoseconds, int64_t* num_phases);
PAGEWIRE_API void pagewire_profile_stop(pagewire::Engine* engine);
