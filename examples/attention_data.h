// The test data of the examples 15 and 16: their flags, queries, keys and values, and what the
// attention to these is. No part of Iris: a program that has a model needs none of it.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <vector>

#include "CLI/CLI.hpp"
#include "iris/context.h"
#include "iris/device.h"
#include "iris/launch.h"
#include "iris/status.h"
#include "iris/stream.h"

namespace example {

enum Lines : uint32_t { kQueries, kKeys, kValues };

// Element d of a line of the queries, keys or values, on the host and on the device.
template <typename T>
IRIS_HOST_DEVICE inline T AttentionElement(uint32_t kind, uint64_t line, uint32_t d) {
  uint64_t x = (line * 1024 + d) * 4 + kind + 1;
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9ull;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebull;
  const float value = static_cast<float>(static_cast<int32_t>(x >> 44)) / (1 << 19) - 1.0f;
  return T(kind == kQueries ? 4 * value : value);
}

// What a rank has of [heads][tokens] lines of `dim` elements: `own` tokens of each head, the first
// of which is `first`, and so many are from one to the next.
struct Share {
  uint32_t dim, heads;
  uint64_t tokens, own, first, stride;
};

// Writes n_kinds times the share's lines: [n_kinds][heads][own][dim]. For any grid of blocks.
template <typename T>
IRIS_KERNEL void FillLines(uint32_t kind, uint32_t n_kinds, T* to, Share share) {
  const uint64_t each = share.heads * share.own * share.dim;
  for (uint64_t i = iris::backend::ThreadOfGrid(); i < n_kinds * each;
       i += iris::backend::ThreadsOfGrid()) {
    const uint64_t line = i % each / share.dim, head = line / share.own;
    const uint64_t token = share.first + line % share.own * share.stride;
    to[i] = AttentionElement<T>(kind + static_cast<uint32_t>(i / each), head * share.tokens + token,
                                static_cast<uint32_t>(i % share.dim));
  }
}

// The share's queries, keys or values in the memory of the device, as soon as `stream` comes there.
// n_kinds: 2 for keys and values, one behind the other.
template <typename T>
iris::StatusOr<iris::DeviceArray<T>> MakeLines(const iris::Context& context, iris::Stream& stream,
                                               Lines kind, const Share& share,
                                               uint32_t n_kinds = 1) {
  const uint64_t count = n_kinds * share.heads * share.own * share.dim;
  IRIS_ASSIGN_OR_RETURN(auto made, iris::DeviceArray<T>::Create(context, count > 0 ? count : 1));
  const iris::LaunchConfig all = {4 * iris::backend::MultiprocessorCount(), 128};
  IRIS_RETURN_IF_ERROR(iris::Launch(all, stream, FillLines<T>, kind, n_kinds, made.get(), share));
  return made;
}

// kInternal unless `output` is, within `bound`, the attention of a line of the queries to n_tokens
// lines of the keys and values. It is compared with sums in double.
template <typename T>
iris::Status CheckAttention(uint64_t query, uint64_t first_token, uint64_t n_tokens, uint32_t dim,
                            const float* output, double bound) {
  const auto element = [](uint32_t lines, uint64_t line, uint32_t d) {
    return static_cast<double>(static_cast<float>(AttentionElement<T>(lines, line, d)));
  };
  std::vector<double> q(dim), o(dim), scores(n_tokens);
  for (uint32_t d = 0; d < dim; ++d) q[d] = element(kQueries, query, d) / std::sqrt(dim);
  double most = -1e30, l = 0;
  for (uint64_t t = 0; t < n_tokens; ++t) {
    for (uint32_t d = 0; d < dim; ++d) scores[t] += q[d] * element(kKeys, first_token + t, d);
    most = std::max(most, scores[t]);
  }
  for (uint64_t t = 0; t < n_tokens; ++t) {
    const double p = std::exp(scores[t] - most);
    l += p;
    for (uint32_t d = 0; d < dim; ++d) o[d] += p * element(kValues, first_token + t, d);
  }
  for (uint32_t d = 0; d < dim; ++d) {
    const double apart = std::abs(output[d] - o[d] / l);
    if (apart < bound) continue;
    return {iris::StatusCode::kInternal, "element " + std::to_string(d) + " of query " +
                                             std::to_string(query) + " is wrong by " +
                                             std::to_string(apart)};
  }
  return iris::OkStatus();
}

struct DecodeOptions {
  uint32_t heads = 32, kv_heads = 0, dim = 128, splits = 0, rounds = 20;
  uint64_t tokens = 65536;
  std::string dtype = "bf16";
};

struct RingOptions {
  uint32_t heads = 32, tokens = 32768, rounds = 5, check = 32;
  bool causal = false;
};

// kInvalidArgument unless the ranks divide the tokens.
inline iris::Status CheckTokens(const RingOptions& options, uint32_t n_ranks) {
  if (options.tokens % n_ranks == 0) return iris::OkStatus();
  return {iris::StatusCode::kInvalidArgument,
          "--tokens must be a multiple of the " + std::to_string(n_ranks) + " ranks"};
}

// Compares options.check rows of a rank's output, [heads][own][dim] in memory of the device, once
// `stream` has come here. Weights are rounded to bf16, by one part in 512 at most, and the values
// are at most 1.
template <typename T>
iris::Status CheckRing(iris::Stream& stream, const float* device_output, const RingOptions& options,
                       const Share& share) {
  const uint64_t lines = share.heads * share.own,
                 checked = std::min<uint64_t>(options.check, lines);
  IRIS_ASSIGN_OR_RETURN(const auto output, stream.Read(device_output, lines * share.dim));
  for (uint64_t i = 0; i < checked; ++i) {
    const uint64_t line = i * lines / checked, first = line / share.own * share.tokens;
    const uint64_t token = share.first + line % share.own * share.stride;
    IRIS_RETURN_IF_ERROR(CheckAttention<T>(first + token, first,
                                           options.causal ? token + 1 : share.tokens, share.dim,
                                           &output[line * share.dim], 1.0 / 256));
  }
  return iris::OkStatus();
}

// `us`: of all steps, and of computing alone.
inline void PrintRing(double us, double us_alone) {
  std::printf("%.1f us, of which computing alone takes %.1f us, %.0f %%\n", us, us_alone,
              100 * us_alone / us);
  std::printf("result ok figure %.1f us\n", us);
}

// What run_all.py reads, and the exit code.
inline int Report(const iris::Status& status) {
  if (status.ok()) return 0;
  std::fprintf(stderr, "error: %s\n", status.message().c_str());
  std::printf("result failed %s\n", status.message().c_str());
  return 1;
}

// Ends the program after --help and after flags that cannot be.
inline void Parse(CLI::App& app, int argc, char** argv) {
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    std::exit(app.exit(error) == 0 ? 0 : 1);
  }
}

inline DecodeOptions ParseDecode(int argc, char** argv) {
  CLI::App app("Attention of one token to a cache that is split over the ranks.",
               "15_flash_decode");
  DecodeOptions options;
  app.add_option("--heads", options.heads, "Of the queries [32]")->check(CLI::Range(1, 1024));
  app.add_option("--kv-heads", options.kv_heads, "Of the cache; divides the heads [as many]");
  app.add_option("--dim", options.dim, "Of a head: 64 or 128 [128]")
      ->check(CLI::IsMember({64, 128}));
  app.add_option("--tokens", options.tokens, "In the cache, all ranks together [65536]")
      ->check(CLI::Range(1, 1 << 24));
  app.add_option("--splits", options.splits, "Blocks for a head on each rank [by the device]")
      ->check(CLI::Range(1, 1024));
  app.add_option("--rounds", options.rounds, "To measure [20]")->check(CLI::Range(1, 1 << 20));
  app.add_option("--dtype", options.dtype, "Of queries and cache: bf16 or f16 [bf16]")
      ->check(CLI::IsMember({"bf16", "f16"}));
  Parse(app, argc, argv);
  if (options.kv_heads == 0) options.kv_heads = options.heads;
  return options;
}

inline RingOptions ParseRing(int argc, char** argv) {
  CLI::App app("Attention whose keys and values travel around a ring of ranks.",
               "16_ring_attention");
  RingOptions options;
  app.add_option("--heads", options.heads, "Each of 128 [32]")->check(CLI::Range(1, 1024));
  app.add_option("--tokens", options.tokens, "Of all ranks together, which divide it [32768]")
      ->check(CLI::Range(1, 1 << 22));
  app.add_flag("--causal", options.causal, "No token sees a later one");
  app.add_option("--rounds", options.rounds, "To measure [5]")->check(CLI::Range(1, 1 << 20));
  app.add_option("--check", options.check, "Rows that each rank compares [32]");
  Parse(app, argc, argv);
  return options;
}

}  // namespace example
