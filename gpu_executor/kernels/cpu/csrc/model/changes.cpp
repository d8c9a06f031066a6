#include "changes.h"

#include <algorithm>

namespace pagewire {
namespace {

constexpr auto kFloat = static_cast<int64_t>(sizeof(float));

}  // namespace

void StepChanges::begin(const KernelTable& kernels, const StepView& step, int64_t num_layers,
                        std::vector<AlignedBuffer>& work) {
  adapters_.clear();
  most_channels_ = 0;
  int64_t num_rows = 0, most_ranks = 0, work_bytes = 0;
  for (int64_t i = 0; i < step.num_adapters; ++i) {
    const AdapterView& view = step.adapters[i];
    Adapter adapter{view.tokens, view.num_tokens, num_rows, {}};
    num_rows += view.num_tokens;
    adapter.changes.reserve(static_cast<size_t>(num_layers * kNumProducts));
    for (int64_t place = 0; place < num_layers * kNumProducts; ++place) {
      const Change& change = adapter.changes.emplace_back(
          Change{LinearWeight(view.changes[place].a), LinearWeight(view.changes[place].b)});
      if (change.is_none()) continue;
      most_ranks = std::max(most_ranks, change.a.out_features());
      most_channels_ = std::max(most_channels_, change.b.out_features());
      input_.reserve(change.a, view.num_tokens);
      hidden_input_.reserve(change.b, view.num_tokens);
      work_bytes = std::max({work_bytes, change.a.work_bytes(kernels), change.b.work_bytes(kernels)});
    }
    adapters_.push_back(std::move(adapter));
  }
  if (adapters_.empty()) return;
  hidden_.reserve(step.num_tokens * most_ranks * kFloat);
  outputs_.reserve(num_rows * most_channels_ * kFloat);
  for (AlignedBuffer& each : work) each.reserve(work_bytes);
}

void StepChanges::compute(Team& team, const KernelTable& kernels, int64_t layer, Product product, const float* x,
                          int64_t stride, const std::vector<AlignedBuffer>& work) const {
  for (const Adapter& adapter : adapters_) {
    const Change& change = adapter.change(layer, product);
    if (change.is_none()) continue;
    const int64_t size = change.a.in_features(), ranks = change.a.out_features();
    const InputView input = input_.view(change.a);
    for_rows(team, adapter.num_tokens, [&](int64_t row, int64_t row_end) {
      for (; row < row_end; ++row) input.write(kernels, row, 0, size, x + adapter.token(row) * stride);
    });
    multiply(team, kernels, change.a, input.rows(), adapter.num_tokens, {hidden_.as<float>(), ranks, false}, work);
    const InputView hidden = hidden_input_.view(change.b);
    write_rows(team, kernels, hidden, adapter.num_tokens, ranks, hidden_.as<float>(), ranks);
    const int64_t channels = change.b.out_features();
    float* outputs = outputs_.as<float>() + adapter.first_row * most_channels_;
    multiply(team, kernels, change.b, hidden.rows(), adapter.num_tokens, {outputs, channels, false}, work);
  }
}

void StepChanges::add(Team& team, const KernelTable& kernels, int64_t layer, Product product, int64_t first,
                      int64_t count, float* y, int64_t stride) const {
  for (const Adapter& adapter : adapters_) {
    const Change& change = adapter.change(layer, product);
    if (change.is_none()) continue;
    const int64_t channels = change.b.out_features();
    const float* outputs = outputs_.as<float>() + adapter.first_row * most_channels_;
    for_rows(team, adapter.num_tokens, [&](int64_t row, int64_t row_end) {
      for (; row < row_end; ++row) {
        const int64_t token = adapter.token(row) - first;
        if (token < 0 || token >= count) continue;
        kernels.add_row(outputs + row * channels, channels, y + token * stride);
      }
    });
  }
}

int64_t StepChanges::num_bytes() const {
  return input_.num_bytes() + hidden_input_.num_bytes() + hidden_.num_bytes() + outputs_.num_bytes();
}

}  // namespace pagewire
