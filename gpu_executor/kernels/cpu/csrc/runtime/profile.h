// Where the time of a step goes, by kind of phase. Off unless somebody asks: then a phase costs two looks at the clock.
#pragma once

#include <chrono>
#include <cstdint>

namespace pagewire {

enum class PhaseKind : int32_t {
  kEmbedding,
  kNorm,       // with the quantization of the rows for the product that follows
  kQkv,
  kRotary,     // with head norms and the KV store
  kAttention,  // with the merge of long contexts' parts
  kContext,    // attention's rows, quantized for the product that follows
  kOutput,
  kRouter,     // of a mixture: the product, the choice of experts, and the order of the tokens by expert
  kGateUp,     // with the activation, the product of both, and its quantization
  kDown,
  kRanks,      // what several ranks add up: the wait for the others, and the sums
  kLinear,     // products outside of the layers: the output layer
  kSampling,
  kOther,
};
constexpr int32_t kNumPhaseKinds = static_cast<int32_t>(PhaseKind::kOther) + 1;

const char* phase_name(PhaseKind kind);

// Written by the thread that called into the library; others only help it.
class Profile {
 public:
  bool is_on() const { return is_on_; }
  void start();
  // Nanoseconds and phases since the last call, of each kind; and starts over.
  void read(int64_t* nanoseconds, int64_t* num_phases);
  void stop() { is_on_ = false; }
  void add(PhaseKind kind, int64_t nanoseconds) {
    nanoseconds_[static_cast<int32_t>(kind)] += nanoseconds;
    num_phases_[static_cast<int32_t>(kind)] += 1;
  }

 private:
  bool is_on_ = false;
  int64_t nanoseconds_[kNumPhaseKinds] = {};
  int64_t num_phases_[kNumPhaseKinds] = {};
};

// Times the phases of a region as the calling thread sees them, one after the other.
class PhaseClock {
 public:
  // `profile` null: times nothing. Threads but the caller's pass null.
  explicit PhaseClock(Profile* profile) : profile_(profile != nullptr && profile->is_on() ? profile : nullptr) {
    if (profile_ != nullptr) last_ = std::chrono::steady_clock::now();
  }
  // The phase that began with the last call is over.
  void end_phase(PhaseKind kind) {
    if (profile_ == nullptr) return;
    const auto now = std::chrono::steady_clock::now();
    profile_->add(kind, std::chrono::duration_cast<std::chrono::nanoseconds>(now - last_).count());
    last_ = now;
  }

 private:
  Profile* profile_;
  std::chrono::steady_clock::time_point last_;
};

}  // namespace pagewire
