#include "train/capacity.h"

#include <algorithm>
#include <optional>

#include "base/error.h"
#include "base/size.h"
#include "chunk/chunk_search.h"
#include "train/fits.h"

namespace transload {
namespace {

constexpr std::int64_t kMostBatch = 1 << 16, kMostLength = 1 << 20, kMostLayers = 1 << 12;

std::uint64_t parameters_of(const ModelConfig& config, const TrainOptions& options) {
  std::uint64_t parameters = 0;
  for (const ParamSpec& param : model_params(config, options.freeze)) parameters += param.elements();
  return parameters;
}

MachineRates with_drive(MachineRates rates, double factor) {
  rates.links.nvme_read *= factor;
  rates.links.nvme_write *= factor;
  rates.links.nvme_duplex *= factor;
  return rates;
}

/// Nothing where the budgets are too small.
std::optional<Prepared> try_prepare(TrainOptions options, const ModelConfig& config, Accelerator* accelerator) {
  try {
    return prepare(options, config, options.chunk_size, accelerator);
  } catch (const BudgetError&) {
    return std::nullopt;
  }
}

Candidate evaluate(const TrainOptions& options, const ModelConfig& config, const MachineRates& rates,
                   Accelerator* accelerator) {
  Candidate candidate;
  candidate.chunk_bytes = options.chunk_size;
  candidate.device_memory = options.device_memory;
  candidate.host_memory = given_host_memory(options);
  candidate.batch = options.shape.batch;
  candidate.accumulate = options.shape.accumulate;
  candidate.recompute = options.shape.recompute;
  const std::optional<Prepared> prepared = try_prepare(options, config, accelerator);
  if (!prepared || prepared->plan.store_bytes > options.nvme_capacity) return candidate;
  const Forecast result = forecast(*prepared, options, rates);
  candidate.fits = true;
  candidate.step_s = result.time.step_s;
  candidate.tokens = result.tokens;
  candidate.computed_s = result.time.forward_s + result.time.backward_s + result.time.update_s;
  std::copy_n(prepared->plan.plan.bytes, kLinks, candidate.link_bytes);
  candidate.tokens_per_s = result.tokens_per_s();
  candidate.binds = result.time.binds;
  return candidate;
}

/// The options' own first, then other shares of the same sum for the device.
std::vector<TrainOptions> splits_of(const TrainOptions& options, bool shared) {
  std::vector<TrainOptions> splits{options};
  if (!shared || options.device_memory == 0) return splits;
  const std::uint64_t sum = options.device_memory + options.host_memory;
  for (const std::uint64_t eighths : {1, 2, 4, 6}) {
    TrainOptions o = options;
    o.device_memory = sum / 8 * eighths;
    o.host_memory = sum - o.device_memory;
    if (o.device_memory != options.device_memory) splits.push_back(o);
  }
  return splits;
}

std::vector<TrainOptions> grid_of(const TrainOptions& options, bool shared) {
  std::vector<TrainOptions> grid;
  const std::uint64_t least_chunk = kTile * size_of(options.dtype);
  const std::int64_t most_batch =
      options.global_batch > 0 ? static_cast<std::int64_t>(options.global_batch) : kMostBatch;
  for (TrainOptions o : splits_of(options, shared))
    for (const std::uint64_t chunk : {options.chunk_size / 4, options.chunk_size, options.chunk_size * 4})
      for (const Recompute recompute : {Recompute::layer, Recompute::none})
        for (const std::int64_t batch :
             {options.shape.batch / 2, options.shape.batch, options.shape.batch * 2, options.shape.batch * 4}) {
          if (batch < 1 || batch > most_batch || chunk < least_chunk || chunk > kMaxChunkBytes) continue;
          o.chunk_size = chunk;
          o.shape = options.shape;
          o.shape.recompute = recompute;
          o.shape.batch = batch;
          if (o.global_batch > 0) o.shape.accumulate = 1;  // it follows
          resolve_batch(o);
          grid.push_back(o);
        }
  return grid;
}

/// By halves; each budget that becomes the answer was planned.
std::uint64_t least_host_for(TrainOptions best, double tokens_per_s, const ModelConfig& config,
                             const MachineRates& rates, Accelerator* accelerator) {
  const std::uint64_t all = best.host_memory, part = all / 16;
  std::uint64_t good = 16, bad = 0;
  while (good - bad > 1) {
    const std::uint64_t middle = (good + bad) / 2;
    best.host_memory = middle * part;
    const Candidate candidate = evaluate(best, config, rates, accelerator);
    (candidate.fits && candidate.tokens_per_s >= Search::kKept * tokens_per_s ? good : bad) = middle;
  }
  best.host_memory = good == 16 ? all : good * part;
  return given_host_memory(best);
}

}  // namespace

std::uint64_t given_host_memory(const TrainOptions& options) {
  return options.host_memory + (options.comm_tier == Tier::host ? options.comm_bytes : 0);
}

std::int64_t largest_that_fits(std::int64_t most, const std::function<bool(std::int64_t)>& fits) {
  if (most < 1 || !fits(1)) return 0;
  std::int64_t good = 1, bad = most + 1;
  for (std::int64_t next = 2; next < bad; next = 2 * good) {
    if (!fits(next)) {
      bad = next;
      break;
    }
    good = next;
  }
  while (bad - good > 1) {
    const std::int64_t middle = good + (bad - good) / 2;
    (fits(middle) ? good : bad) = middle;
  }
  return good;
}

Capacity capacity_of(const TrainOptions& options, const ModelConfig& config, std::uint64_t store_bytes) {
  Capacity capacity;
  TrainOptions o = options;
  o.shape.samples = 0;
  capacity.batch = largest_that_fits(kMostBatch, [&](std::int64_t n) {
    o.shape.batch = n;
    return fits_budgets(o, config, options.chunk_size);
  });
  o.shape = options.shape;
  const std::int64_t most_length = std::min(kMostLength, config.max_positions);
  capacity.length = largest_that_fits(most_length, [&](std::int64_t n) {
    o.shape.length = n;
    return fits_budgets(o, config, options.chunk_size);
  });
  ModelConfig grown = config;
  const double a_parameter = static_cast<double>(store_bytes) / static_cast<double>(parameters_of(config, options));
  capacity.layers = largest_that_fits(kMostLayers, [&](std::int64_t n) {
    grown.layers = n;
    const double store = a_parameter * static_cast<double>(parameters_of(grown, options));
    return store <= static_cast<double>(options.nvme_capacity) && fits_budgets(options, grown, options.chunk_size);
  });
  grown.layers = capacity.layers;
  if (capacity.layers > 0) capacity.parameters = parameters_of(grown, options);
  return capacity;
}

std::vector<WhatIf> what_if(const TrainOptions& options, const ModelConfig& config, const MachineRates& rates,
                            Accelerator* accelerator) {
  std::vector<WhatIf> table;
  const std::uint64_t beside = given_host_memory(options) - options.host_memory;
  for (const double memory : {0.5, 1.0, 2.0, 4.0}) {
    TrainOptions o = options;
    const auto given = static_cast<std::uint64_t>(static_cast<double>(given_host_memory(options)) * memory);
    o.host_memory = given - std::min(given, beside);
    const std::optional<Prepared> prepared = try_prepare(o, config, accelerator);
    for (const double drive : {0.5, 1.0, 2.0}) {
      WhatIf cell{.memory_factor = memory, .nvme_factor = drive, .fits = prepared.has_value()};
      if (prepared) {
        cell.step_s = forecast(*prepared, o, with_drive(rates, drive)).time.step_s;
        for (const Link link : {Link::nvme_read, Link::nvme_write})
          cell.nvme_bytes += prepared->plan.plan.bytes[static_cast<int>(link)];
      }
      table.push_back(cell);
    }
  }
  return table;
}

Search search_settings(const TrainOptions& options, const ModelConfig& config, const MachineRates& rates,
                       Accelerator* accelerator, bool shared,
                       const std::function<void(std::size_t, std::size_t)>& done) {
  Search search;
  const std::vector<TrainOptions> grid = grid_of(options, shared);
  double most = 0;
  const TrainOptions* best = nullptr;
  for (const TrainOptions& o : grid) {
    search.candidates.push_back(evaluate(o, config, rates, accelerator));
    const Candidate& tried = search.candidates.back();
    if (tried.fits && tried.tokens_per_s > most) {
      most = tried.tokens_per_s;
      best = &o;
    }
    if (done) done(search.candidates.size(), grid.size());
  }
  std::stable_sort(search.candidates.begin(), search.candidates.end(), [](const Candidate& a, const Candidate& b) {
    return a.fits != b.fits ? a.fits : a.tokens_per_s > b.tokens_per_s;
  });
  if (best != nullptr) search.least_host_bytes = least_host_for(*best, most, config, rates, accelerator);
  return search;
}

}  // namespace transload
