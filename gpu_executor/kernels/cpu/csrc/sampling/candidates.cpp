#include "candidates.h"

#include <algorithm>
#include <cmath>
#include <functional>
#include <limits>

namespace pagewire {
namespace {

// Tokens that are looked at first when top_p searches for its border: a language model's mass mostly lies in few.
constexpr int64_t kFirstNucleus = 256;
// A nucleus longer than this is narrowed down by a histogram before anything is sorted.
constexpr size_t kMostSorted = 512;
constexpr int64_t kBins = 1024;
constexpr float kLowestFinite = std::numeric_limits<float>::lowest();

bool comes_before(const Candidate& a, const Candidate& b) { return a < b; }

}  // namespace

void CandidateFinder::reserve(int64_t row_size) {
  list_.reserve(row_size);
  numbers_.reserve(row_size);
  weights_.reserve(row_size);
  masses_.reserve(kBins);
}

Cutoff CandidateFinder::cutoff(const ScoreRow& row, const Filters& filters) {
  const float largest = row.scores[row.best_id];
  const bool has_top_k = filters.top_k > 0 && filters.top_k < row.size;
  const bool has_min_p = filters.min_p > 0;
  if (!has_top_k && !has_min_p && filters.top_p >= 1) return {};
  // p >= min_p * largest p, without computing a probability. Masked tokens are no candidates: they can't be drawn.
  const float floor = has_min_p ? largest + static_cast<float>(std::log(filters.min_p)) : kLowestFinite;
  if (has_top_k) {
    gather(row, std::max(floor, reached_by(row, filters.top_k)));
    keep_best(filters.top_k);
  } else if (has_min_p) {
    gather(row, floor);
  }
  if (filters.top_p < 1) {
    const bool is_listed = has_top_k || has_min_p;
    const double total = is_listed ? weigh(largest) : gather_nucleus(row, filters.top_p);
    keep_nucleus(largest, total * filters.top_p);
  }
  const Candidate last = *std::max_element(list_.begin(), list_.end(), comes_before);
  return {last.score, last.id};
}

const std::vector<Candidate>& CandidateFinder::best(const ScoreRow& row, int64_t count) {
  gather(row, reached_by(row, count));
  keep_best(count);
  std::sort(list_.begin(), list_.end(), comes_before);
  return list_;
}

void CandidateFinder::gather(const ScoreRow& row, float least_score) {
  list_.clear();
  for (int64_t group = 0; group < row.num_groups; ++group) {
    if (!(row.group_max[group] >= least_score)) continue;
    const int64_t end = std::min((group + 1) * kScoreGroup, row.size);
    for (int64_t id = group * kScoreGroup; id < end; ++id) {
      if (row.scores[id] >= least_score) list_.push_back({row.scores[id], static_cast<int32_t>(id)});
    }
  }
}

float CandidateFinder::reached_by(const ScoreRow& row, int64_t count) {
  const int64_t num_groups = divide_up(row.size, kScoreGroup);
  if (count > num_groups) return -std::numeric_limits<float>::infinity();
  numbers_.assign(row.group_max, row.group_max + num_groups);
  std::nth_element(numbers_.begin(), numbers_.begin() + (count - 1), numbers_.end(), std::greater<float>());
  return numbers_[count - 1];
}

void CandidateFinder::keep_best(int64_t count) {
  if (static_cast<size_t>(count) >= list_.size()) return;
  std::nth_element(list_.begin(), list_.begin() + (count - 1), list_.end(), comes_before);
  list_.resize(count);
}

double CandidateFinder::weigh(float largest) {
  numbers_.resize(list_.size());
  weights_.resize(list_.size());
  std::transform(list_.begin(), list_.end(), numbers_.begin(), [](const Candidate& c) { return c.score; });
  kernels_.exp_row(numbers_.data(), static_cast<int64_t>(list_.size()), largest, weights_.data());
  double total = 0;
  for (float weight : weights_) total += weight;
  return total;
}

double CandidateFinder::gather_nucleus(const ScoreRow& row, double top_p) {
  const float largest = row.scores[row.best_id];
  const double total = kernels_.sum_of_exp(row.scores, row.size, largest);
  gather(row, std::max(kLowestFinite, reached_by(row, std::min(kFirstNucleus, divide_up(row.size, kScoreGroup)))));
  if (weigh(largest) >= total * top_p) return total;
  // All tokens below this weight hold less than half of what the nucleus may leave out: they are none of it.
  const double least_weight = 0.5 * (1 - top_p) * total / static_cast<double>(row.size);
  gather(row, std::max(kLowestFinite, largest + static_cast<float>(std::log(least_weight))));
  weigh(largest);
  return total;
}

void CandidateFinder::keep_nucleus(float largest, double target) {
  double reached = 0;  // weight of the tokens before `begin`
  auto begin = list_.begin(), end = list_.end();
  if (list_.size() > kMostSorted) {
    // Bins of equal width over the scores, the best first; then only the bin with the border is sorted.
    float least = largest;
    for (const Candidate& candidate : list_) least = std::min(least, candidate.score);
    const double top = largest;  // differences of floats are finite in double
    const double bins_per_unit = largest > least ? (kBins - 1) / (top - least) : 0.0;
    const auto bin_of = [&](float score) { return static_cast<int64_t>((top - score) * bins_per_unit); };
    masses_.assign(kBins, 0.0);
    for (size_t i = 0; i < list_.size(); ++i) masses_[bin_of(list_[i].score)] += weights_[i];
    int64_t border = 0;
    while (border < kBins - 1 && reached + masses_[border] < target) reached += masses_[border++];
    begin = std::partition(begin, end, [&](const Candidate& c) { return bin_of(c.score) < border; });
    end = std::partition(begin, end, [&](const Candidate& c) { return bin_of(c.score) == border; });
  }
  std::sort(begin, end, comes_before);
  const int64_t count = end - begin;
  numbers_.resize(count);
  weights_.resize(count);
  std::transform(begin, end, numbers_.begin(), [](const Candidate& c) { return c.score; });
  kernels_.exp_row(numbers_.data(), count, largest, weights_.data());
  // Rounding alone can leave the whole sum below the target: then all of them stay.
  int64_t kept = 0;
  while (kept < count && (kept == 0 || reached < target)) reached += weights_[kept++];
  list_.erase(begin + kept, list_.end());
}

}  // namespace pagewire
