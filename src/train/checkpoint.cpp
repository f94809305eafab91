#include "train/checkpoint.h"

#include <fmt/format.h>
#include <xxhash.h>

#include <array>
#include <filesystem>
#include <map>
#include <memory>

#include "base/check.h"
#include "base/error.h"
#include "train/committed_state.h"
#include "train/input_file.h"
#include "train/store_group.h"

namespace transload {
namespace {

namespace fs = std::filesystem;
using Array = CommittedState::Array;

using Digest = std::array<unsigned char, 16>;

/// xxh3-128 of a stream of bytes.
class Hash {
 public:
  Hash() : state_(XXH3_createState(), XXH3_freeState) { reset(); }
  void reset() { XXH3_128bits_reset(state_.get()); }
  void add(const void* data, std::uint64_t bytes) { XXH3_128bits_update(state_.get(), data, bytes); }
  void add(std::uint64_t number) { add(&number, sizeof number); }
  Digest digest() const {
    XXH128_canonical_t bytes;
    XXH128_canonicalFromHash(&bytes, XXH3_128bits_digest(state_.get()));
    Digest digest;
    std::copy(std::begin(bytes.digest), std::end(bytes.digest), digest.begin());
    return digest;
  }

 private:
  std::unique_ptr<XXH3_state_t, XXH_errorcode (*)(XXH3_state_t*)> state_;
};

/// By parameter, the hash of its elements in one array; of no elements where it has none.
std::vector<Digest> digests(CommittedState& state, Array array) {
  const Digest nothing = Hash().digest();
  std::vector<Digest> digests(state.layout().params().size(), nothing);
  Hash hash;
  state.stream(array, [&](ParamId param, std::uint64_t begin, std::uint64_t count, const std::byte* data) {
    if (begin == 0) hash.reset();
    hash.add(data, count * size_of(state.dtype_of(array)));
    if (begin + count == state.layout().param(param).elements()) digests[param.value] = hash.digest();
  });
  return digests;
}

}  // namespace

std::string store_folder(const std::string& run) {
  std::error_code error;
  const fs::path folder = fs::weakly_canonical(fs::path(run) / "store", error);
  if (!is_folder(run)) throw InputError(fmt::format("{} is no run folder: there is no such folder.", run));
  if (error || !fs::is_directory(folder, error) || !Store::exists(folder.string()))
    throw InputError(fmt::format("{} has no store: nothing has been committed there ({}).", run, folder.string()));
  return folder.string();
}

OpenGroup open_run(const std::string& run) {
  static OnePeer alone;
  if (!is_folder(run)) throw InputError(fmt::format("{} is no run folder: there is no such folder.", run));
  const RunStores stores({run, ""}, alone);
  if (!stores.current()) throw InputError(fmt::format("{} has no store: nothing has been committed there.", run));
  return open_group(stores);
}

std::vector<std::string> verify_run(const std::string& run, const Progress& progress) {
  try {
    const OpenGroup group = open_run(run);
    return CommittedState(group.view, progress).verify();
  } catch (const DamageError& error) {
    return {error.what()};  // of manifests or whole files
  }
}

std::string fingerprint_run(const std::string& run, const Progress& progress) {
  const OpenGroup group = open_run(run);
  CommittedState state(group.view, progress);
  constexpr std::array kArrays = {Array::master, Array::moment1, Array::moment2};
  state.expect({kArrays.begin(), kArrays.end()});
  std::vector<std::vector<Digest>> by_array;
  for (const Array array : kArrays) by_array.push_back(digests(state, array));

  std::map<std::string, std::size_t> by_name;
  for (std::size_t p = 0; p < state.layout().params().size(); ++p) by_name.emplace(state.layout().params()[p].name, p);
  Hash hash;
  for (const auto& [name, p] : by_name) {
    hash.add(name.size());
    hash.add(name.data(), name.size());
    hash.add(state.meta().step_counts[p]);
    hash.add(state.layout().params()[p].elements());
    for (const std::vector<Digest>& of_array : by_array) hash.add(of_array[p].data(), of_array[p].size());
  }
  std::string text;
  for (const unsigned char byte : hash.digest()) text += fmt::format("{:02x}", byte);
  return text;
}

}  // namespace transload
