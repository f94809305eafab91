#include "train/safetensors.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <bit>
#include <cstring>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <optional>
#include <set>

#include "base/check.h"
#include "base/error.h"

namespace transload {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;

constexpr std::uint64_t kMostHeaderBytes = 100'000'000;  // the format's own limit
constexpr std::uint64_t kMostIndexBytes = 100'000'000;

[[noreturn]] void damaged(const std::string& path, const std::string& sentence) {
  throw DamageError(fmt::format("{} is damaged: {}", path, sentence));
}

struct NamedType {
  const char* name;
  std::uint64_t bytes;
};
constexpr NamedType kTypes[] = {{"F32", 4},  {"BF16", 2}, {"F16", 2},     {"F64", 8},    {"I64", 8}, {"I32", 4},
                                {"I16", 2},  {"I8", 1},   {"U64", 8},     {"U32", 4},    {"U16", 2}, {"U8", 1},
                                {"BOOL", 1}, {"C64", 8},  {"F8_E4M3", 1}, {"F8_E5M2", 1}};

/// Parses JSON text member by member: `member(name, value)` for each of the top object, or of its member `section`;
/// each is dropped after it was seen, so that a large header is never held as a tree. A name that comes twice is
/// refused. Returns whether there was such an object.
template <class Fn>
bool for_each_member(const std::string& text, const std::string& path, const char* section, Fn&& member) {
  const int level = section == nullptr ? 1 : 2;
  std::set<std::string> names;
  std::string outer, name;
  bool found = section == nullptr;
  const auto callback = [&](int depth, json::parse_event_t event, json& parsed) {
    using Event = json::parse_event_t;
    const bool starts = event == Event::object_start || event == Event::array_start;
    if (depth == 0 && (event == Event::array_start || event == Event::value)) damaged(path, "no JSON object.");
    if (depth == 1 && event == Event::key) outer = parsed.get<std::string>();
    if (level == 2 && outer != section) return true;
    if (level == 2 && depth == 1 && starts) found = event == Event::object_start;
    if (depth != level || !found || starts) return true;
    if (event == Event::key) {
      name = parsed.get<std::string>();
      if (!names.insert(name).second) damaged(path, fmt::format("it names {} twice.", name));
      return true;
    }
    member(name, parsed);
    return false;
  };
  if (json::parse(text, callback, false).is_discarded()) damaged(path, "what should be JSON is not valid.");
  return found;
}

std::optional<std::uint64_t> multiply(std::uint64_t a, std::uint64_t b) {
  std::uint64_t product = 0;
  if (__builtin_mul_overflow(a, b, &product)) return std::nullopt;
  return product;
}

/// One tensor's entry of the header, its range still relative to the data section.
TensorInfo parse_tensor(const std::string& path, const std::string& name, const json& entry, std::uint64_t data_bytes) {
  const auto bad = [&](const std::string& what) { damaged(path, fmt::format("tensor {}: {}", name, what)); };
  if (!entry.is_object()) bad("its entry in the header is not an object.");
  const json dtype = entry.value("dtype", json()), shape = entry.value("shape", json()),
             range = entry.value("data_offsets", json());
  if (!dtype.is_string() || !shape.is_array()) bad("dtype or shape is missing.");
  if (!range.is_array() || range.size() != 2 || !range[0].is_number_unsigned() || !range[1].is_number_unsigned())
    bad("data_offsets must be two numbers.");
  TensorInfo info;
  info.name = name;
  info.file = path;
  info.stored_as = dtype.get<std::string>();
  info.file_begin = range[0].get<std::uint64_t>();
  info.file_end = range[1].get<std::uint64_t>();
  if (info.file_begin > info.file_end || info.file_end > data_bytes)
    bad(fmt::format("it claims bytes {} to {} of {} bytes of data.", info.file_begin, info.file_end, data_bytes));
  const auto type =
      std::find_if(std::begin(kTypes), std::end(kTypes), [&](const NamedType& t) { return info.stored_as == t.name; });
  if (type == std::end(kTypes)) bad(fmt::format("the dtype {} is not known.", info.stored_as));
  if (info.stored_as == "BF16") info.dtype = Dtype::bf16;
  if (info.stored_as == "F16") info.dtype = Dtype::f16;
  std::optional<std::uint64_t> bytes = type->bytes;
  for (const json& size : shape) {
    if (!size.is_number_unsigned()) bad("its shape has something that is not a size.");
    info.shape.push_back(size.get<std::uint64_t>());
    bytes = multiply(*bytes, info.shape.back());
    if (!bytes) bad("the product of its shape does not fit in 64 bits.");
  }
  if (*bytes != info.file_end - info.file_begin)
    bad(fmt::format("shape [{}] in {} takes {} bytes, but its range has {}.", fmt::join(info.shape, ", "),
                    info.stored_as, *bytes, info.file_end - info.file_begin));
  return info;
}

/// The ranges must cover the data exactly: none missing, none twice.
void check_coverage(const std::string& path, const std::vector<TensorInfo>& tensors, std::uint64_t data_bytes) {
  std::vector<const TensorInfo*> order;
  for (const TensorInfo& tensor : tensors) order.push_back(&tensor);
  std::sort(order.begin(), order.end(), [](const TensorInfo* a, const TensorInfo* b) {
    return std::pair(a->file_begin, a->file_end) < std::pair(b->file_begin, b->file_end);
  });
  std::uint64_t end = 0;
  for (const TensorInfo* tensor : order) {
    if (tensor->file_begin < end) damaged(path, fmt::format("tensor {} overlaps the one before it.", tensor->name));
    if (tensor->file_begin > end)
      damaged(path, fmt::format("no tensor has bytes {} to {} of the data.", end, tensor->file_begin));
    end = tensor->file_end;
  }
  if (end != data_bytes) damaged(path, fmt::format("its tensors end at byte {} of {} bytes of data.", end, data_bytes));
}

std::vector<TensorInfo> parse_file(const InputFile& file) {
  const std::string& path = file.path();
  if (file.size() < 8) damaged(path, fmt::format("{} bytes are too few for a safetensors file.", file.size()));
  std::uint64_t header_bytes = 0;
  static_assert(std::endian::native == std::endian::little);
  file.read(0, &header_bytes, 8);
  if (header_bytes > kMostHeaderBytes || header_bytes > file.size() - 8)
    damaged(path, fmt::format("it claims a header of {} bytes, but has {} bytes in all (a header has at most {}).",
                              header_bytes, file.size(), kMostHeaderBytes));
  std::string header(header_bytes, '\0');
  file.read(8, header.data(), header_bytes);
  const std::uint64_t data_begin = 8 + header_bytes, data_bytes = file.size() - data_begin;
  std::vector<TensorInfo> tensors;
  for_each_member(header, path, nullptr, [&](const std::string& name, const json& entry) {
    if (name != "__metadata__") tensors.push_back(parse_tensor(path, name, entry, data_bytes));
  });
  check_coverage(path, tensors, data_bytes);
  for (TensorInfo& tensor : tensors) {
    tensor.file_begin += data_begin;
    tensor.file_end += data_begin;
  }
  return tensors;
}

/// The index of a sharded set: tensor → file.
std::map<std::string, std::string> parse_index(const std::string& path) {
  std::map<std::string, std::string> files;
  const auto add = [&](const std::string& name, const json& file) {
    const std::string shard = file.is_string() ? file.get<std::string>() : "";
    if (shard.empty() || shard != fs::path(shard).filename().string() || shard == "." || shard == "..")
      damaged(path,
              fmt::format("tensor {} lies in {}, which is no name of a file beside the index.", name, file.dump()));
    files[name] = shard;
  };
  if (!for_each_member(read_text_file(path, kMostIndexBytes), path, "weight_map", add))
    damaged(path, "it has no weight_map.");
  return files;
}

float half_to_float(std::uint16_t h) {
  const std::uint32_t sign = static_cast<std::uint32_t>(h & 0x8000u) << 16, magnitude = h & 0x7FFFu;
  if (magnitude >= 0x7C00u) return std::bit_cast<float>(sign | 0x7F800000u | (magnitude << 13));  // infinity, NaN
  // Exponent and mantissa moved into place are 2⁻¹¹² of the value, subnormals included; the product is exact.
  const float value = std::bit_cast<float>(magnitude << 13) * 0x1p112f;
  return std::bit_cast<float>(sign | std::bit_cast<std::uint32_t>(value));
}

/// Widens n 16-bit values that lie in the upper half of `to`'s n floats, in place: a float is written only over values
/// that were read before.
template <class Fn>
void widen_in_place(float* to, std::uint64_t n, Fn&& widen) {
  const char* from = reinterpret_cast<const char*>(to) + 2 * n;
  for (std::uint64_t i = 0; i < n; ++i) {
    std::uint16_t raw = 0;
    std::memcpy(&raw, from + 2 * i, 2);
    to[i] = widen(raw);
  }
}

}  // namespace

const char* safetensors_name(Dtype dtype) {
  return dtype == Dtype::f32 ? "F32" : dtype == Dtype::bf16 ? "BF16" : dtype == Dtype::f16 ? "F16" : "I16";
}

void SafetensorsReader::add_file(const std::string& path) {
  auto file = std::make_shared<const InputFile>(path);
  for (TensorInfo& tensor : parse_file(*file)) {
    const auto [other, added] = tensors_.emplace(tensor.name, tensor);
    if (!added) damaged(path, fmt::format("tensor {} is in {} too.", tensor.name, other->second.file));
  }
  files_.emplace(path, std::move(file));
}

SafetensorsReader SafetensorsReader::open_file(const std::string& path) {
  SafetensorsReader reader;
  reader.add_file(path);
  return reader;
}

SafetensorsReader SafetensorsReader::open_folder(const std::string& folder) {
  const fs::path whole = fs::path(folder) / "model.safetensors",
                 index = fs::path(folder) / "model.safetensors.index.json";
  if (path_exists(whole.string())) return open_file(whole.string());
  if (!path_exists(index.string()))
    throw InputError(fmt::format("{} has neither model.safetensors nor model.safetensors.index.json.", folder));
  const std::map<std::string, std::string> map = parse_index(index.string());
  std::set<std::string> shards;
  for (const auto& [name, shard] : map) shards.insert(shard);
  SafetensorsReader reader;
  for (const std::string& shard : shards) {
    const fs::path path = fs::path(folder) / shard;
    if (!path_exists(path.string()))
      throw DamageError(fmt::format("{} is missing; {} says that weights lie in it.", path.string(), index.string()));
    reader.add_file(path.string());
  }
  for (const auto& [name, shard] : map) {
    const auto found = reader.tensors_.find(name);
    if (found == reader.tensors_.end() || fs::path(found->second.file).filename() != shard)
      damaged(index.string(), fmt::format("it says that tensor {} lies in {}, where it is not.", name, shard));
  }
  for (const auto& [name, tensor] : reader.tensors_)
    if (map.count(name) == 0) damaged(index.string(), fmt::format("it misses tensor {} of {}.", name, tensor.file));
  return reader;
}

void SafetensorsReader::read(const TensorInfo& tensor, std::uint64_t begin, std::uint64_t count, float* to) const {
  if (tensor.stored_as != safetensors_name(tensor.dtype))
    throw InputError(fmt::format("Tensor {} of {} is {}; weights are read from F32, BF16 and F16.", tensor.name,
                                 tensor.file, tensor.stored_as));
  const std::uint64_t size = size_of(tensor.dtype);
  const std::uint64_t elements = (tensor.file_end - tensor.file_begin) / size;
  TRANSLOAD_CHECK(begin <= elements && count <= elements - begin, "elements {} + {} of {} in {}", begin, count,
                  elements, tensor.name);
  const InputFile& file = *files_.at(tensor.file);
  char* raw = reinterpret_cast<char*>(to) + (4 - size) * count;
  file.read(tensor.file_begin + begin * size, raw, count * size);
  if (tensor.dtype == Dtype::bf16) widen_in_place(to, count, [](std::uint16_t u) { return to_float(bf16{u}); });
  if (tensor.dtype == Dtype::f16) widen_in_place(to, count, half_to_float);
}

}  // namespace transload
