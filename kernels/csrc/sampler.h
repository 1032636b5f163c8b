// Sampling one token a row: the C interface that kernels/sampling.py mirrors.
//
// Every field is 8 bytes wide, so the layout is the same for every compiler. Ids are int64, masks
// are 32-bit words with bit i % 32 of word i / 32 set for each token that may stay.
#ifndef ORTLOOM_SAMPLER_H_
#define ORTLOOM_SAMPLER_H_

#include <cstdint>

extern "C" {

// Log-probability entries of one position, written by the library: the own token, then the top ones
// in order, then the extra ones.
struct OrtloomLogprobs {
  int64_t kind;      // 0 nothing is wanted, 1 log-probabilities, 2 logits
  int64_t num_top;   // at most V
  int64_t num_extra;
  const int64_t* extra;  // [num_extra]
  int64_t* ids;          // [1 + num_top + num_extra]
  double* values;        // the same; kCut stands for what is cut or masked
  int64_t* ranks;        // the same; 1 is best
};

// What one row needs, and what becomes of it.
struct OrtloomSampleRow {
  const uint32_t* grammar;  // [ceil(V / 32)] or null: applied before raw values are taken
  const uint32_t* allowed;  // the same, applied after
  const int64_t* forbidden;  // [num_forbidden] bad words of this step
  int64_t num_forbidden;
  const int64_t* ends;  // [num_ends] end tokens held back by min_tokens
  int64_t num_ends;
  const int64_t* bias_ids;  // [num_bias] distinct
  const float* bias;
  int64_t num_bias;
  const int64_t* seen_ids;  // [num_seen] distinct ids of prompt and output: repetition penalty
  int64_t num_seen;
  const int64_t* output_ids;   // [num_output] distinct ids of the output
  const float* output_counts;  // how often each was generated
  int64_t num_output;
  double repetition_penalty;
  double frequency_penalty;
  double presence_penalty;
  double inverse_temperature;  // 0 = greedy
  double log_min_p;            // -inf = off
  double top_p;                // 1 = off
  int64_t top_k;               // 0 = off
  uint64_t seed;
  int64_t sample_index;
  int64_t position;  // tokens generated before this one
  OrtloomLogprobs raw;
  OrtloomLogprobs processed;
  int64_t detail;            // not 0: the three below are wanted
  double raw_logprob;        // out: of the token, before allowed ids and all that follows them
  double processed_logprob;  // out: in the distribution it was drawn from
  int64_t rank;              // out: how many raw values are at least the token's
  int64_t* kept;      // null = not wanted; out: the tokens that survived masks and cuts, in order
  int64_t kept_room;  // ids that fit there; the rest is left out, and all if none was cut or masked
  int64_t num_kept;   // out: how many survived
  int64_t token;   // out: valid if status is 0
  int64_t status;  // out: a SampleStatus
};

}  // extern "C"

namespace ortloom {

enum SampleStatus : int64_t {
  kSampled = 0,
  kNotFinite = 1,       // the row holds NaN or +inf, or nothing but -inf
  kNothingAllowed = 2,  // the constraints leave no token
  kBadId = 3,           // an id outside the vocabulary
};

constexpr double kCut = -9999.0;

// Values of a row in blocks of this many; the last block is padded with -inf where it is read.
constexpr int64_t kSampleBlock = 64;

// Buckets of a histogram: a value's distance from the top, times this, cut to an integer. They
// reach to where masses end; the last one takes all that is farther away.
constexpr int64_t kBuckets = 520;
constexpr float kBucketsPerUnit = -21.0f;
constexpr float kBucketFloor = -30.0f;

// One row as it is looked at: each value times `inverse` (one float32 product), relative to `top`,
// the largest such product.
struct RowView {
  const float* row;
  const float* maxima;  // [blocks] largest value of each block, before the product
  int64_t size;         // V
  float inverse;
  float top;

  int64_t blocks() const { return (size + kSampleBlock - 1) / kSampleBlock; }
  float at(int64_t id) const { return row[id] * inverse; }
};

// The loops over whole rows, in one instruction set tier. Sums are of multiples of 2^-34 (see
// sampler_body.h), hence exact in any order for vocabularies up to 2^19: all tiers agree bitwise.
struct SamplerKernels {
  // Fills `maxima`; gives the largest of all, or NaN if a value is NaN.
  float (*block_maxima)(const float* row, int64_t size, float* maxima);
  // The same largest value alone, and the lowest id that has it.
  float (*argmax)(const float* row, int64_t size, int64_t* id);
  // -inf wherever the bit is clear.
  void (*apply_mask)(float* row, int64_t size, const uint32_t* bits);
  // Sum of exp(value - top).
  double (*mass)(const RowView& view);
  // exp(value - top) of each of `count` values that are already scaled.
  void (*masses)(const float* values, int64_t count, float top, double* out);
  // Sum of exp(value - top), or number, of the values in each of kBuckets buckets, over every
  // step-th block. Buckets that lie wholly below `lowest` may miss some of theirs; padding of the
  // last block is counted in the last bucket.
  void (*histogram)(const RowView& view, bool counting, int64_t step, float lowest,
                    double* buckets);
  // Ids and scaled values at least `lowest` and below `limit`, by ascending id; gives their number.
  int64_t (*collect)(const RowView& view, float lowest, float limit, uint32_t* ids, float* values);
  // How many scaled values are at least `lowest`.
  int64_t (*count)(const RowView& view, float lowest);
};

extern const SamplerKernels kPortableSampler;
#if defined(ORTLOOM_X86_TIERS)
extern const SamplerKernels kAvx2Sampler;
extern const SamplerKernels kAvx512Sampler;
#endif

}  // namespace ortloom

#endif  // ORTLOOM_SAMPLER_H_
