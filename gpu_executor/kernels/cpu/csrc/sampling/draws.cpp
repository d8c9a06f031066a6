#include "draws.h"

#include <cmath>

namespace pagewire {

Draws::Draws(Runtime& runtime) : runtime_(runtime) {
  for (int thread = 0; thread < runtime.pool.num_threads(); ++thread) {
    scratch_.push_back(std::make_unique<Scratch>(runtime.kernels));
  }
}

void Draws::reserve(Scratch& scratch, int64_t num_drawable) const {
  const int64_t num_groups = round_up(divide_up(num_drawable, kScoreGroup), kGroupPadding);
  scratch.scores.reserve(num_groups * kScoreGroup * static_cast<int64_t>(sizeof(float)));
  scratch.group_max.reserve(num_groups * static_cast<int64_t>(sizeof(float)));
  scratch.finder.reserve(num_drawable);
}

ScoreRow Draws::make_row(Scratch& scratch, const float* logits, int64_t num_drawable, float temperature) const {
  const KernelTable& kernels = runtime_.kernels;
  float* const scores = scratch.scores.as<float>();
  kernels.make_scores(logits, num_drawable, temperature, scores, scratch.group_max.as<float>());
  float largest;
  return {
      .scores = scores,
      .group_max = scratch.group_max.as<float>(),
      .size = num_drawable,
      .num_groups = round_up(divide_up(num_drawable, kScoreGroup), kGroupPadding),
      .best_id = kernels.argmax_row(scores, num_drawable, &largest),
  };
}

void Draws::draw(const DrawRequest* requests, int64_t num_requests, int64_t num_drawable, int64_t* token_ids) {
  for (const std::unique_ptr<Scratch>& scratch : scratch_) reserve(*scratch, num_drawable);
  first_draw_.resize(num_requests);
  int64_t num_draws = 0;
  for (int64_t i = 0; i < num_requests; ++i) {
    first_draw_[i] = num_draws;
    num_draws += requests[i].num_draws;
  }
  const auto draw_from = [&](int64_t index, Scratch& scratch) {
    const DrawRequest& request = requests[index];
    const ScoreRow row = make_row(scratch, request.logits, num_drawable, request.temperature);
    const Cutoff cutoff = scratch.finder.cutoff(row, {request.top_k, request.top_p, request.min_p});
    const uint64_t seed = static_cast<uint64_t>(request.seed);
    NoiseKey key{static_cast<uint32_t>(seed), static_cast<uint32_t>(seed >> 32), request.position, request.child};
    for (int64_t draw = 0; draw < request.num_draws; ++draw, ++key.child) {
      token_ids[first_draw_[index] + draw] = runtime_.kernels.draw_row(row, cutoff, key);
    }
  };
  PhaseClock clock(&runtime_.profile);
  if (num_requests == 1) {  // to wake the other threads would take longer
    draw_from(0, *scratch_[0]);
  } else {
    runtime_.pool.run([&](Team& team) {
      team.for_tiles(num_requests, [&](int64_t index) { draw_from(index, *scratch_[team.thread()]); });
    });
  }
  clock.end_phase(PhaseKind::kSampling);
}

void Draws::describe(const float* logits, int64_t num_drawable, int64_t num_top, const int64_t* token_ids,
                     int64_t num_tokens, double* normalizer, int64_t* top_ids, int64_t* ranks) {
  const KernelTable& kernels = runtime_.kernels;
  Scratch& scratch = *scratch_[0];
  reserve(scratch, num_drawable);
  float largest;
  kernels.argmax_row(logits, num_drawable, &largest);
  *normalizer = largest + std::log(kernels.sum_of_exp(logits, num_drawable, largest));
  if (num_top > 0) {
    const ScoreRow row = make_row(scratch, logits, num_drawable, 1.0f);
    for (const Candidate& candidate : scratch.finder.best(row, num_top)) *top_ids++ = candidate.id;
  }
  for (int64_t i = 0; i < num_tokens; ++i) ranks[i] = kernels.rank_in_row(logits, num_drawable, token_ids[i]);
}

}  // namespace pagewire
