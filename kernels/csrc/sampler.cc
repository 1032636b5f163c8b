// The sampler's exported functions, and the order of the stages for one row.

#include "sampler.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <exception>
#include <limits>
#include <string>

#include "isa.h"
#include "sampler_draw.h"
#include "sampler_report.h"
#include "sampler_select.h"
#include "team.h"

#define ORTLOOM_EXPORT extern "C" __attribute__((visibility("default")))

namespace ortloom {
namespace {

constexpr float kMasked = -std::numeric_limits<float>::infinity();
constexpr float kLargestPenalised = 1e30f;  // as in runtime/logits_processors.py
constexpr int64_t kLargestVocabulary = int64_t{1} << 19;  // beyond it sums would not be exact

const SamplerKernels& kernels_of(const char* tier) {
#if defined(ORTLOOM_X86_TIERS)
  if (std::strncmp(tier, "avx512", 6) == 0) return kAvx512Sampler;
  if (std::strncmp(tier, "avx", 3) == 0) return kAvx2Sampler;  // avx2 and what extends it
#else
  (void)tier;
#endif
  return kPortableSampler;
}

struct Sampler {
  const SamplerKernels* kernels;
  int64_t vocab;
};

SampleScratch& scratch_for(int64_t vocab) {
  thread_local SampleScratch scratch;
  scratch.reserve(vocab);
  return scratch;
}

bool outside(const int64_t* ids, int64_t count, int64_t vocab) {
  for (int64_t i = 0; i < count; ++i) {
    if (ids[i] < 0 || ids[i] >= vocab) return true;
  }
  return false;
}

bool bad_report(const OrtloomLogprobs& report, int64_t vocab) {
  return report.kind != 0 && (report.num_top < 0 || report.num_top > vocab ||
                              outside(report.extra, report.num_extra, vocab));
}

bool bad_ids(const OrtloomSampleRow& row, int64_t vocab) {
  return outside(row.forbidden, row.num_forbidden, vocab) ||
         outside(row.ends, row.num_ends, vocab) || outside(row.bias_ids, row.num_bias, vocab) ||
         outside(row.seen_ids, row.num_seen, vocab) ||
         outside(row.output_ids, row.num_output, vocab) || bad_report(row.raw, vocab) ||
         bad_report(row.processed, vocab);
}

bool processes(const OrtloomSampleRow& row) {
  return row.allowed != nullptr || row.num_forbidden + row.num_ends + row.num_bias + row.num_seen +
                                           row.num_output > 0;
}

void penalise(float* logits, const OrtloomSampleRow& row) {
  const auto repetition = static_cast<float>(row.repetition_penalty);
  for (int64_t i = 0; i < row.num_seen; ++i) {
    float& x = logits[row.seen_ids[i]];
    if (x == kMasked) continue;
    const float scaled = x > 0 ? x / repetition : x * repetition;
    x = std::min(std::max(scaled, -kLargestPenalised), kLargestPenalised);
  }
  const auto frequency = static_cast<float>(row.frequency_penalty);
  const auto presence = static_cast<float>(row.presence_penalty);
  for (int64_t i = 0; i < row.num_output; ++i) {
    logits[row.output_ids[i]] -= frequency * row.output_counts[i] + presence;
  }
}

void process(const Sampler& sampler, float* logits, const OrtloomSampleRow& row) {
  if (row.allowed != nullptr) sampler.kernels->apply_mask(logits, sampler.vocab, row.allowed);
  for (int64_t i = 0; i < row.num_forbidden; ++i) logits[row.forbidden[i]] = kMasked;
  for (int64_t i = 0; i < row.num_ends; ++i) logits[row.ends[i]] = kMasked;
  for (int64_t i = 0; i < row.num_bias; ++i) logits[row.bias_ids[i]] += row.bias[i];
  penalise(logits, row);
}

void report(const Sampler& sampler, const RowView& view, const OrtloomLogprobs& out, int64_t own,
            const Draw& draw, SampleScratch* scratch) {
  const double offset = out.kind == 1 ? draw.log_mass : 0.0;
  describe(*sampler.kernels, view, own, offset, draw.kept, out, scratch);
}

RowView raw_view(const Sampler& sampler, const float* logits, SampleScratch* scratch) {
  scratch->raw_maxima.resize(scratch->maxima.size());
  float* maxima = scratch->raw_maxima.data();
  const float top = sampler.kernels->block_maxima(logits, sampler.vocab, maxima);
  return {logits, maxima, sampler.vocab, 1.0f, top};
}

// Raw values: nothing is cut, and the mass is that of the whole row.
void report_raw(const Sampler& sampler, const float* logits, const OrtloomLogprobs& out,
                int64_t own, SampleScratch* scratch) {
  const SamplerKernels& kernels = *sampler.kernels;
  const RowView view = raw_view(sampler, logits, scratch);
  const double offset = out.kind == 1 ? log_normaliser(kernels, view) : 0.0;
  describe(kernels, view, own, offset, Kept{}, out, scratch);
}

// The drawn token in both distributions.
void report_detail(const Sampler& sampler, const float* raw, const RowView& view, const Draw& draw,
                   OrtloomSampleRow* row, SampleScratch* scratch) {
  const SamplerKernels& kernels = *sampler.kernels;
  const RowView unprocessed = raw_view(sampler, raw, scratch);
  const float value = unprocessed.at(draw.token);
  row->raw_logprob = static_cast<double>(value) - log_normaliser(kernels, unprocessed);
  row->rank = kernels.count(unprocessed, value);
  row->processed_logprob = static_cast<double>(view.at(draw.token)) - draw.log_mass;
}

SampleStatus sample(const Sampler& sampler, float* logits, OrtloomSampleRow* row) {
  const SamplerKernels& kernels = *sampler.kernels;
  const int64_t vocab = sampler.vocab;
  if (bad_ids(*row, vocab)) return kBadId;
  SampleScratch& scratch = scratch_for(vocab);
  float* maxima = scratch.maxima.data();
  float top = kernels.block_maxima(logits, vocab, maxima);
  if (!std::isfinite(top)) return kNotFinite;
  if (row->grammar != nullptr) kernels.apply_mask(logits, vocab, row->grammar);
  const float* raw = logits;
  const bool changes = processes(*row);
  if (changes) {
    if (row->raw.kind != 0 || row->detail != 0) {
      scratch.row.assign(logits, logits + vocab);
      raw = scratch.row.data();
    }
    process(sampler, logits, *row);
  }
  if (changes || row->grammar != nullptr) {
    top = kernels.block_maxima(logits, vocab, maxima);
    if (!std::isfinite(top)) return kNothingAllowed;
  }
  const bool greedy = row->inverse_temperature == 0.0;
  RowView view{logits, maxima, vocab, 1.0f, top};
  Draw draw{0, {}, static_cast<double>(top)};
  if (greedy) {
    // A cut that leaves one token, which then has all the mass.
    const float* block = std::find(maxima, maxima + view.blocks(), top);
    const float* first = logits + (block - maxima) * kSampleBlock;
    draw.token = std::find(first, static_cast<const float*>(logits) + vocab, top) - logits;
    draw.kept = {false, order_key(top, static_cast<uint32_t>(draw.token))};
  } else {
    view.inverse = static_cast<float>(row->inverse_temperature);
    view.top = top * view.inverse;
    if (!std::isfinite(view.top)) return kNotFinite;
    draw = draw_token(kernels, view, *row, &scratch);
  }
  row->token = draw.token;
  if (row->processed.kind != 0) {
    report(sampler, view, row->processed, draw.token, draw, &scratch);
  }
  if (row->kept != nullptr) {
    row->num_kept = list_kept(kernels, view, draw.kept, row->kept, row->kept_room, &scratch);
  }
  if (row->raw.kind != 0) report_raw(sampler, raw, row->raw, draw.token, &scratch);
  if (row->detail != 0) report_detail(sampler, raw, view, draw, row, &scratch);
  return kSampled;
}

// Runs `body` for each row, shared out over the team; false if memory ran out.
template <class Body>
bool for_rows(int64_t rows, const Body& body) {
  try {
    if (rows == 1) {
      body(size_t{0});
    } else {
      team::run(static_cast<size_t>(rows), body);
    }
    return true;
  } catch (const std::exception&) {
    return false;
  }
}

}  // namespace
}  // namespace ortloom

// A sampler for rows of `vocab` logits, in the tier ORTLOOM_CPU_ISA names or the best one; null
// and `*error` set (valid until this thread's next call) if there is none. `row_size` is the size
// that the caller's OrtloomSampleRow has.
ORTLOOM_EXPORT void* OrtloomSamplerCreate(int64_t vocab, int64_t row_size, const char** error) {
  thread_local std::string text;
  try {
    if (row_size != static_cast<int64_t>(sizeof(OrtloomSampleRow))) {
      text = "the sampler's row has another size in this library";
    } else if (vocab < 1 || vocab > ortloom::kLargestVocabulary) {
      text = "the sampler takes vocabularies of 1 to 524288 tokens";
    } else {
      return new ortloom::Sampler{&ortloom::kernels_of(ortloom::choose_tier().name), vocab};
    }
    *error = text.c_str();
  } catch (const std::exception& problem) {
    try {
      text = problem.what();
      *error = text.c_str();
    } catch (const std::exception&) {
      *error = "out of memory";
    }
  }
  return nullptr;
}

ORTLOOM_EXPORT void OrtloomSamplerDestroy(void* sampler) {
  delete static_cast<ortloom::Sampler*>(sampler);
}

// One token for each of `count` rows, null ones left out; `logits` [count, vocab] may be changed.
// 0, or 1 if memory ran out. Different threads may share a sampler.
ORTLOOM_EXPORT int OrtloomSamplerRun(const void* sampler, float* logits, int64_t count,
                                     OrtloomSampleRow* const* rows) {
  const auto& self = *static_cast<const ortloom::Sampler*>(sampler);
  return ortloom::for_rows(count, [&](size_t i) {
    if (rows[i] == nullptr) return;
    rows[i]->status = ortloom::sample(self, logits + static_cast<int64_t>(i) * self.vocab, rows[i]);
  }) ? 0 : 1;
}

// The lowest id with the largest value of each row, or -1 for a row without a finite maximum.
ORTLOOM_EXPORT int OrtloomSamplerArgmax(const void* sampler, const float* logits, int64_t count,
                                        int64_t* tokens) {
  const auto& self = *static_cast<const ortloom::Sampler*>(sampler);
  return ortloom::for_rows(count, [&](size_t i) {
    const float* row = logits + static_cast<int64_t>(i) * self.vocab;
    if (!std::isfinite(self.kernels->argmax(row, self.vocab, &tokens[i]))) tokens[i] = -1;
  }) ? 0 : 1;
}

// Raw entries of token `own` in one row without NaN: 0, 1 if memory ran out, 3 for an id outside
// the vocabulary.
ORTLOOM_EXPORT int OrtloomSamplerDescribe(const void* sampler, const float* logits, int64_t own,
                                          const OrtloomLogprobs* out) {
  const auto& self = *static_cast<const ortloom::Sampler*>(sampler);
  try {
    if (ortloom::outside(&own, 1, self.vocab) || ortloom::bad_report(*out, self.vocab)) {
      return ortloom::kBadId;
    }
    ortloom::report_raw(self, logits, *out, own, &ortloom::scratch_for(self.vocab));
    return 0;
  } catch (const std::exception&) {
    return 1;
  }
}
