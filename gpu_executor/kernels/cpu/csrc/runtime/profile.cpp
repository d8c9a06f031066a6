#include "profile.h"

#include <algorithm>
#include <iterator>

namespace pagewire {

const char* phase_name(PhaseKind kind) {
  switch (kind) {
    case PhaseKind::kEmbedding: return "embedding";
    case PhaseKind::kNorm: return "norm";
    case PhaseKind::kQkv: return "qkv";
    case PhaseKind::kRotary: return "rotary_and_store";
    case PhaseKind::kAttention: return "attention";
    case PhaseKind::kContext: return "context";
    case PhaseKind::kOutput: return "output_projection";
    case PhaseKind::kRouter: return "router";
    case PhaseKind::kGateUp: return "gate_up";
    case PhaseKind::kDown: return "down";
    case PhaseKind::kRanks: return "rank_sums";
    case PhaseKind::kLinear: return "linear";
    case PhaseKind::kSampling: return "sampling";
    case PhaseKind::kOther: return "other";
  }
  return "unknown";
}

void Profile::start() {
  std::fill(std::begin(nanoseconds_), std::end(nanoseconds_), 0);
  std::fill(std::begin(num_phases_), std::end(num_phases_), 0);
  is_on_ = true;
}

void Profile::read(int64_t* nanoseconds, int64_t* num_phases) {
  std::copy(std::begin(nanoseconds_), std::end(nanoseconds_), nanoseconds);
  std::copy(std::begin(num_phases_), std::end(num_phases_), num_phases);
  start();
}

}  // namespace pagewire
