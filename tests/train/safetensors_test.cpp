#include "train/safetensors.h"

#include <bit>
#include <catch2/catch.hpp>
#include <cstring>
#include <nlohmann/json.hpp>
#include <random>

#include "base/error.h"
#include "temp_folder.h"

using namespace transload;
using Catch::Matchers::Contains;
using nlohmann::json;

namespace {

const std::string kReference = TRANSLOAD_SOURCE_DIR "/tests/reference/";

std::string file_of(const std::string& header, std::uint64_t data_bytes) {
  const std::uint64_t size = header.size();
  return std::string(reinterpret_cast<const char*>(&size), 8) + header + std::string(data_bytes, '\1');
}
std::string entry(const char* dtype, const std::string& shape, const std::string& range) {
  return std::string("{\"dtype\":\"") + dtype + "\",\"shape\":[" + shape + "],\"data_offsets\":[" + range + "]}";
}

/// What is said of a file that lies.
std::string damage(const std::string& content) {
  const TempFolder folder;
  const std::string path = folder.write("model.safetensors", content);
  const std::string message = MESSAGE_OF(DamageError, SafetensorsReader::open_file(path));
  CHECK_THAT(message, Contains(path));
  return message;
}

bool same_bits(const std::vector<float>& a, const std::vector<float>& b) {
  return a.size() == b.size() && (a.empty() || std::memcmp(a.data(), b.data(), a.size() * 4) == 0);
}

std::vector<float> read_all(const SafetensorsReader& reader, const std::string& name) {
  const TensorInfo& tensor = reader.tensors().at(name);
  std::vector<float> values((tensor.file_end - tensor.file_begin) / size_of(tensor.dtype));
  reader.read(tensor, 0, values.size(), values.data());
  return values;
}

}  // namespace

TEST_CASE("What is written is read back bit for bit", "[safetensors]") {
  const TempFolder folder;
  std::mt19937 random(7);
  std::vector<std::uint32_t> f32(1025);
  std::vector<std::uint16_t> bf16s(65536), f16s(65536);  // every pattern
  for (auto& bits : f32) bits = random() & 0xFF7FFFFFu;
  for (std::uint32_t i = 0; i < 65536; ++i) bf16s[i] = f16s[i] = static_cast<std::uint16_t>(i);
  const std::string path = folder.path("x.safetensors");
  {
    SafetensorsWriter writer(path,
                             {{"a \"quoted\" é name", Dtype::f32, {1025}},
                              {"empty", Dtype::f32, {0, 3}},
                              {"scalar", Dtype::f32, {}},
                              {"b", Dtype::bf16, {256, 256}},
                              {"h", Dtype::f16, {65536}}},
                             {{"format", "pt"}});
    writer.append(f32.data(), 4 * 1000);  // in any pieces
    writer.append(f32.data() + 1000, 4 * 25);
    writer.append(f32.data(), 4);
    writer.append(bf16s.data(), 2 * bf16s.size());
    writer.append(f16s.data(), 2 * f16s.size());
    CHECK_FALSE(std::filesystem::exists(path));  // not before it is whole
    writer.finish();
  }
  const SafetensorsReader reader = SafetensorsReader::open_file(path);
  REQUIRE(reader.tensors().size() == 5);
  const TensorInfo& first = reader.tensors().at("a \"quoted\" é name");
  CHECK(first.file_begin % 8 == 0);
  std::vector<float> expected(1025);
  std::memcpy(expected.data(), f32.data(), 4 * 1025);
  CHECK(same_bits(read_all(reader, first.name), expected));
  std::vector<float> part(24);
  reader.read(first, 1001, 24, part.data());
  CHECK(same_bits(part, {expected.begin() + 1001, expected.end()}));
  reader.read(first, 1025, 0, part.data());
  CHECK(read_all(reader, "empty").empty());
  CHECK(reader.tensors().at("scalar").shape.empty());

  const std::vector<float> b = read_all(reader, "b"), h = read_all(reader, "h");
  for (std::uint32_t i = 0; i < 65536; ++i) {
    if (std::bit_cast<std::uint32_t>(b[i]) != i << 16) FAIL("bf16 pattern " << i);
    const std::uint32_t sign = i >> 15, exponent = i >> 10 & 31, mantissa = i & 1023;
    double value =
        exponent == 0 ? std::ldexp(mantissa, -24) : std::ldexp(1024 + mantissa, static_cast<int>(exponent) - 25);
    if (sign) value = -value;
    const bool right = exponent < 31   ? h[i] == value && std::signbit(h[i]) == (sign == 1)
                       : mantissa == 0 ? std::isinf(h[i]) && std::signbit(h[i]) == (sign == 1)
                                       : std::isnan(h[i]);
    if (!right) FAIL("f16 pattern " << i << " became " << h[i]);
  }
  float odd[3] = {};
  reader.read(reader.tensors().at("h"), 0x3C00, 1, odd);
  CHECK(odd[0] == 1.0f);
}

TEST_CASE("An unfinished file is removed", "[safetensors]") {
  const TempFolder folder;
  {
    SafetensorsWriter writer(folder.path("x.safetensors"), {{"a", Dtype::f32, {4}}}, {});
    writer.append("1234", 4);
  }
  CHECK(std::filesystem::is_empty(folder.path()));
}

TEST_CASE("The reference folders are read, the sharded one too", "[safetensors]") {
  const SafetensorsReader llama = SafetensorsReader::open_folder(kReference + "llama");
  CHECK(llama.tensors().size() == 2 + 3 * 9 + 1);
  const TensorInfo& head = llama.tensors().at("lm_head.weight");
  CHECK_THAT(head.file, Contains("model-0000"));
  CHECK(head.shape == std::vector<std::uint64_t>{307, 64});
  for (const auto& [name, tensor] : llama.tensors()) CHECK(read_all(llama, name).size() > 0);
  CHECK(SafetensorsReader::open_folder(kReference + "gpt2").tensors().size() == 28);
}

TEST_CASE("Files that lie are damage, said with what and where", "[safetensors]") {
  CHECK_THAT(damage(""), Contains("0 bytes are too few"));
  CHECK_THAT(damage("1234567"), Contains("too few"));
  CHECK_THAT(damage(std::string(8, '\xff') + "{}"), Contains("claims a header"));
  CHECK_THAT(damage(file_of("{}", 0).substr(0, 9)), Contains("claims a header of 2 bytes"));
  CHECK_THAT(damage(file_of("{", 0)), Contains("not valid"));
  CHECK_THAT(damage(file_of("[]", 0)), Contains("no JSON object"));
  CHECK_THAT(damage(file_of("7", 0)), Contains("no JSON object"));
  CHECK_THAT(damage(file_of("{\"a\":\"\xff\"}", 0)), Contains("not valid"));
  CHECK_THAT(damage(file_of("{\"a\":3}", 0)), Contains("tensor a") && Contains("not an object"));
  CHECK_THAT(damage(file_of("{\"a\":{}}", 0)), Contains("missing"));
  const auto one = [](const std::string& value, std::uint64_t bytes) {
    return damage(file_of("{\"a\":" + value + "}", bytes));
  };
  CHECK_THAT(one(entry("F32", "2", "0,8"), 4), Contains("0 to 8 of 4 bytes"));
  CHECK_THAT(one(entry("F32", "2", "8,0"), 8), Contains("8 to 0"));
  CHECK_THAT(one(entry("F32", "3", "0,8"), 8), Contains("takes 12 bytes") && Contains("has 8"));
  CHECK_THAT(one(entry("BF16", "2", "0,8"), 8), Contains("BF16"));
  CHECK_THAT(one(entry("F33", "2", "0,8"), 8), Contains("F33"));
  CHECK_THAT(one(entry("F32", "-2", "0,8"), 8), Contains("not a size"));
  CHECK_THAT(one(entry("F32", "2.0", "0,8"), 8), Contains("not a size"));
  CHECK_THAT(one(entry("F32", "2", "0,8.0"), 8), Contains("two numbers"));
  CHECK_THAT(one(entry("F32", "2", "0"), 8), Contains("two numbers"));
  CHECK_THAT(one(entry("F32", "4611686018427387904,4", "0,0"), 0), Contains("64 bits"));
  CHECK_THAT(one(entry("F32", "99999999999999999999", "0,8"), 8), Contains("not a size"));
  CHECK_THAT(one(entry("F32", "2", "0,8"), 12), Contains("end at byte 8 of 12"));
  CHECK_THAT(one(entry("F32", "1", "4,8"), 8), Contains("no tensor has bytes 0 to 4"));
  const auto two = [](const std::string& a, const std::string& b, std::uint64_t bytes) {
    return damage(file_of("{\"a\":" + a + ",\"b\":" + b + "}", bytes));
  };
  CHECK_THAT(two(entry("F32", "2", "0,8"), entry("F32", "2", "4,12"), 12), Contains("tensor b overlaps"));
  CHECK_THAT(two(entry("F32", "2", "0,8"), entry("F32", "2", "0,8"), 8), Contains("overlaps"));
  CHECK_THAT(damage(file_of("{\"a\":" + entry("F32", "1", "0,4") + ",\"a\":" + entry("F32", "1", "4,8") + "}", 8)),
             Contains("names a twice"));
}

TEST_CASE("Other dtypes are refused when read", "[safetensors]") {
  const TempFolder folder;
  const std::string path = folder.write("x.safetensors", file_of("{\"a\":" + entry("I64", "1", "0,8") + "}", 8));
  const SafetensorsReader reader = SafetensorsReader::open_file(path);
  float value = 0;
  CHECK_THAT(MESSAGE_OF(InputError, reader.read(reader.tensors().at("a"), 0, 1, &value)), Contains("I64"));
}

TEST_CASE("Random damage of a header never gets past the checks", "[safetensors]") {
  const TempFolder folder;
  const std::string whole = read_whole(kReference + "qwen2/model.safetensors");
  std::uint64_t header = 0;
  std::memcpy(&header, whole.data(), 8);
  std::mt19937 random(1);
  int refused = 0;
  for (int round = 0; round < 300; ++round) {
    std::string content = whole;
    for (std::uint32_t n = random() % 4; n < 4; ++n) content[random() % (8 + header)] = static_cast<char>(random());
    if (random() % 4 == 0) content.resize(random() % content.size());
    const std::string path = folder.write("x.safetensors", content);
    try {
      const SafetensorsReader reader = SafetensorsReader::open_file(path);
      for (const auto& [name, tensor] : reader.tensors()) {
        REQUIRE(tensor.file_begin <= tensor.file_end);
        REQUIRE(tensor.file_end <= content.size());
        if (tensor.stored_as == safetensors_name(tensor.dtype)) read_all(reader, name);
      }
    } catch (const DamageError&) {
      ++refused;
    }
  }
  CHECK(refused > 150);
}

namespace {

/// A copy of the sharded llama whose index can be changed.
struct Sharded {
  TempFolder folder;
  json index;
  Sharded() {
    for (const auto& file : std::filesystem::directory_iterator(kReference + "llama"))
      std::filesystem::copy(file.path(), folder.path());
    index = json::parse(read_whole(folder.path("model.safetensors.index.json")));
  }
  std::string damage() {
    folder.write("model.safetensors.index.json", index.dump());
    return MESSAGE_OF(DamageError, SafetensorsReader::open_folder(folder.path()));
  }
};

}  // namespace

TEST_CASE("A sharded set must agree with its index", "[safetensors]") {
  Sharded set;
  SECTION("a shard is missing") {
    std::filesystem::remove(set.folder.path("model-00003-of-00004.safetensors"));
    CHECK_THAT(set.damage(), Contains("model-00003-of-00004.safetensors is missing"));
  }
  SECTION("a tensor lies elsewhere") {
    set.index["weight_map"]["lm_head.weight"] = "model-00001-of-00004.safetensors";
    CHECK_THAT(set.damage(), Contains("lm_head.weight"));
  }
  SECTION("a tensor is nowhere") {
    set.index["weight_map"]["extra"] = "model-00001-of-00004.safetensors";
    CHECK_THAT(set.damage(), Contains("extra"));
  }
  SECTION("the index misses one") {
    set.index["weight_map"].erase("model.norm.weight");
    CHECK_THAT(set.damage(), Contains("misses tensor model.norm.weight"));
  }
  SECTION("a shard outside the folder") {
    set.index["weight_map"]["lm_head.weight"] = "../model.safetensors";
    CHECK_THAT(set.damage(), Contains("../model.safetensors"));
  }
  SECTION("no map") {
    set.index.erase("weight_map");
    CHECK_THAT(set.damage(), Contains("no weight_map"));
    set.index["weight_map"] = 3;
    CHECK_THAT(set.damage(), Contains("no weight_map"));
    set.folder.write("model.safetensors.index.json", "{\"weight_map\": {\"a\": ");
    CHECK_THROWS_AS(SafetensorsReader::open_folder(set.folder.path()), DamageError);
    set.folder.write("model.safetensors.index.json", "{\"weight_map\":{\"a\":\"b\",\"a\":\"b\"}}");
    CHECK_THAT(MESSAGE_OF(DamageError, SafetensorsReader::open_folder(set.folder.path())), Contains("a twice"));
  }
  SECTION("the same tensor in two shards") {
    std::filesystem::copy(set.folder.path("model-00001-of-00004.safetensors"), set.folder.path("again.safetensors"));
    set.index["weight_map"]["extra"] = "again.safetensors";
    CHECK_THAT(set.damage(), Contains("is in ") && Contains("again.safetensors"));
  }
}

TEST_CASE("A folder without weights is said", "[safetensors]") {
  const TempFolder folder;
  CHECK_THAT(MESSAGE_OF(InputError, SafetensorsReader::open_folder(folder.path())), Contains(folder.path()));
}
