// The C interface of the output layer and of draws; see capi.h for its rules, and kernels/cpu/native_sampling.py for the
// mirror of it.
#include "capi.h"
#include "engine.h"
#include "sampling/draws.h"
#include "sampling/output_layer.h"
#include "status.h"

namespace pagewire {

// Work space between calls.
struct SamplingHandle {
  explicit SamplingHandle(Runtime& runtime_of_engine)
      : runtime(runtime_of_engine), output_layer(runtime_of_engine), draws(runtime_of_engine) {}

  Runtime& runtime;
  OutputLayer output_layer;
  Draws draws;
  std::vector<BestToken> best;
};

}  // namespace pagewire

using pagewire::DrawRequest;
using pagewire::Engine;
using pagewire::LinearView;
using pagewire::LinearWeight;
using pagewire::SamplingHandle;
using pagewire::status_of;

// It refers to the engine, which must live longer.
PAGEWIRE_API SamplingHandle* pagewire_sampling_create(Engine* engine) {
  SamplingHandle* handle = nullptr;
  status_of([&] { handle = new SamplingHandle(engine->runtime); });
  return handle;
}

PAGEWIRE_API void pagewire_sampling_destroy(SamplingHandle* handle) { delete handle; }

PAGEWIRE_API int64_t pagewire_draw_request_bytes() { return sizeof(DrawRequest); }

PAGEWIRE_API int32_t pagewire_output_layer(SamplingHandle* handle, LinearView weight, const float* hidden,
                                           int64_t num_rows, int64_t num_drawable, const int64_t* kept_rows,
                                           int64_t num_kept, float* logits, float* best_values, int64_t* best_ids) {
  return status_of([&] {
    handle->best.resize(num_rows);
    handle->output_layer.run(LinearWeight(weight), hidden, num_rows, num_drawable, kept_rows, num_kept,
                             logits, handle->best.data());
    for (int64_t row = 0; row < num_rows; ++row) {
      best_values[row] = handle->best[row].value;
      best_ids[row] = handle->best[row].id;
    }
  });
}

PAGEWIRE_API int64_t pagewire_argmax(SamplingHandle* handle, const float* row, int64_t size, float* value) {
  return handle->runtime.kernels.argmax_row(row, size, value);
}

PAGEWIRE_API int32_t pagewire_draw(SamplingHandle* handle, const DrawRequest* requests, int64_t num_requests,
                                   int64_t num_drawable, int64_t* token_ids) {
  return status_of([&] { handle->draws.draw(requests, num_requests, num_drawable, token_ids); });
}

PAGEWIRE_API int32_t pagewire_describe_row(SamplingHandle* handle, const float* logits, int64_t num_drawable,
                                           int64_t num_top, const int64_t* token_ids, int64_t num_tokens,
                                           double* normalizer, int64_t* top_ids, int64_t* ranks) {
  return status_of([&] {
    handle->draws.describe(logits, num_drawable, num_top, token_ids, num_tokens, normalizer, top_ids, ranks);
  });
}
