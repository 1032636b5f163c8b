// llama.cpp in process, behind the line protocol of protocol.py: llama_worker MODEL.gguf THREADS.
//
// A context for each number of streams, kept; within it every stream has its own part of the KV
// cache, which is the faster choice for streams that share no prefix. `score` writes raw fp32
// logits [T, V] without a header.

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <iostream>
#include <map>
#include <sstream>
#include <stdexcept>
#include <string>
#include <vector>

#include "llama.h"

namespace {

constexpr int kLongContext = 1280, kShortContext = 288, kLogicalBatch = 4096;

using Clock = std::chrono::steady_clock;
using Tokens = std::vector<llama_token>;

double seconds_since(Clock::time_point start) {
  return std::chrono::duration<double>(Clock::now() - start).count();
}

class Batch {
 public:
  explicit Batch(int capacity) : batch_(llama_batch_init(capacity, 0, 1)) {}
  ~Batch() { llama_batch_free(batch_); }
  Batch(const Batch&) = delete;
  Batch& operator=(const Batch&) = delete;

  void clear() { batch_.n_tokens = 0; }
  int size() const { return batch_.n_tokens; }
  void add(llama_token token, int position, int sequence, bool wants_logits) {
    const int i = batch_.n_tokens++;
    batch_.token[i] = token;
    batch_.pos[i] = position;
    batch_.n_seq_id[i] = 1;
    batch_.seq_id[i][0] = sequence;
    batch_.logits[i] = wants_logits;
  }
  void decode(llama_context* context) {
    if (llama_decode(context, batch_) != 0) throw std::runtime_error("llama_decode failed");
  }

 private:
  llama_batch batch_;
};

class Engine {
 public:
  Engine(const char* path, int threads) : threads_(threads), batch_(kLogicalBatch) {
    model_ = llama_model_load_from_file(path, llama_model_default_params());
    if (model_ == nullptr) throw std::runtime_error("the model cannot be loaded");
    vocabulary_ = llama_vocab_n_tokens(llama_model_get_vocab(model_));
  }

  std::string run(const std::vector<Tokens>& prompts, int fresh) {
    llama_context* context = context_for(static_cast<int>(prompts.size()));
    llama_memory_clear(llama_get_memory(context), false);
    const Clock::time_point begin = Clock::now();
    Tokens last = prefill(context, prompts);
    double first = seconds_since(begin);
    const int length = static_cast<int>(prompts[0].size());
    for (int step = 1; step < fresh; ++step) {
      batch_.clear();
      for (size_t s = 0; s < last.size(); ++s) {
        batch_.add(last[s], length + step - 1, static_cast<int>(s), true);
      }
      batch_.decode(context);
      for (size_t s = 0; s < last.size(); ++s) last[s] = likeliest(context, static_cast<int>(s));
    }
    std::ostringstream answer;
    answer << "{\"first\": " << first << ", \"last\": " << seconds_since(begin)
           << ", \"tokens\": " << prompts.size() * fresh << "}";
    return answer.str();
  }

  std::string score(const std::string& path, const Tokens& ids) {
    llama_context* context = context_for(1);
    llama_memory_clear(llama_get_memory(context), false);
    batch_.clear();
    for (size_t i = 0; i < ids.size(); ++i) batch_.add(ids[i], static_cast<int>(i), 0, true);
    batch_.decode(context);
    std::ofstream file(path, std::ios::binary);
    for (size_t i = 0; i < ids.size(); ++i) {
      const float* row = llama_get_logits_ith(context, static_cast<int>(i));
      file.write(reinterpret_cast<const char*>(row), sizeof(float) * vocabulary_);
    }
    return "{\"path\": \"" + path + "\", \"kind\": \"raw\"}";
  }

 private:
  llama_context* context_for(int streams) {
    llama_context*& context = contexts_[streams];
    if (context != nullptr) return context;
    llama_context_params params = llama_context_default_params();
    params.n_seq_max = streams;
    params.n_ctx = streams == 1 ? kLongContext : streams * kShortContext;
    params.n_batch = kLogicalBatch;
    params.n_threads = params.n_threads_batch = threads_;
    params.kv_unified = false;
    context = llama_init_from_model(model_, params);
    if (context == nullptr) throw std::runtime_error("no context");
    return context;
  }

  // Feeds whole prompts, as many a call as fit; returns the first new token of each.
  Tokens prefill(llama_context* context, const std::vector<Tokens>& prompts) {
    Tokens first;
    std::vector<int> ends;
    batch_.clear();
    for (size_t s = 0; s <= prompts.size(); ++s) {
      const bool over = s == prompts.size();
      if (over || batch_.size() + static_cast<int>(prompts[s].size()) > kLogicalBatch) {
        batch_.decode(context);
        for (int end : ends) first.push_back(likeliest(context, end));
        ends.clear();
        batch_.clear();
      }
      if (over) break;
      for (size_t i = 0; i < prompts[s].size(); ++i) {
        const bool final = i + 1 == prompts[s].size();
        if (final) ends.push_back(batch_.size());
        batch_.add(prompts[s][i], static_cast<int>(i), static_cast<int>(s), final);
      }
    }
    return first;
  }

  llama_token likeliest(llama_context* context, int row) const {
    const float* logits = llama_get_logits_ith(context, row);
    return static_cast<llama_token>(std::max_element(logits, logits + vocabulary_) - logits);
  }

  int threads_, vocabulary_ = 0;
  llama_model* model_ = nullptr;
  std::map<int, llama_context*> contexts_;
  Batch batch_;
};

Tokens rest_of(std::istringstream& words) {
  Tokens ids;
  for (llama_token id; words >> id;) ids.push_back(id);
  return ids;
}

void silent(ggml_log_level level, const char* text, void*) {
  if (level >= GGML_LOG_LEVEL_ERROR) std::fputs(text, stderr);
}

int serve(const char* path, int threads) {
  llama_log_set(silent, nullptr);
  llama_backend_init();
  Engine engine(path, threads);
  Tokens warm_up(16);
  for (size_t i = 0; i < warm_up.size(); ++i) warm_up[i] = static_cast<llama_token>(300 + i);
  engine.run({warm_up}, 2);
  std::cout << "{\"ready\": true, \"version\": \"" LLAMA_VERSION "\"}" << std::endl;
  for (std::string line; std::getline(std::cin, line);) {
    std::istringstream words(line);
    std::string command;
    words >> command;
    if (command == "quit") break;
    if (command == "run") {
      size_t count = 0, length = 0;
      int fresh = 0;
      words >> count >> length >> fresh;
      const Tokens ids = rest_of(words);
      std::vector<Tokens> prompts;
      for (size_t s = 0; s < count; ++s) {
        prompts.emplace_back(ids.begin() + s * length, ids.begin() + (s + 1) * length);
      }
      std::cout << engine.run(prompts, fresh) << std::endl;
    } else {
      std::string target;
      words >> target;
      std::cout << engine.score(target, rest_of(words)) << std::endl;
    }
  }
  return 0;
}

}  // namespace

int main(int count, char** arguments) {
  if (count != 3) return 2;
  try {
    const int code = serve(arguments[1], std::atoi(arguments[2]));
    std::cout.flush();
    std::_Exit(code);  // the process ends: nothing to gain from freeing the model first
  } catch (const std::exception& error) {
    std::cerr << "llama_worker: " << error.what() << std::endl;
    return 1;
  }
}
