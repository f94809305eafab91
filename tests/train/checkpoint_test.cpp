#include "train/checkpoint.h"

#include <catch2/catch.hpp>
#include <condition_variable>
#include <cstring>
#include <fstream>
#include <mutex>
#include <nlohmann/json.hpp>

#include "base/error.h"
#include "base/faults.h"
#include "base/os.h"
#include "base/size.h"
#include "temp_folder.h"
#include "train/safetensors.h"
#include "train/weights.h"

using namespace transload;
using Catch::Matchers::Contains;
using nlohmann::json;

namespace {

class Waiter final : public Completion {
 public:
  void done(const IoResult& result) noexcept override {
    const std::lock_guard lock(mutex_);
    result_ = result;
    done_ = true;
    changed_.notify_one();
  }
  std::uint64_t checksum() {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [&] { return done_; });
    if (result_.error) std::rethrow_exception(result_.error);
    return result_.checksum;
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  IoResult result_;
  bool done_ = false;
};

/// A value that depends on array, parameter and element alone.
float value_of(int array, std::size_t param, std::uint64_t element) {
  const std::uint64_t mixed = (element * 3 + static_cast<std::uint64_t>(array)) * 0x9E3779B97F4A7C15u + param;
  return std::ldexp(static_cast<float>(static_cast<std::int32_t>(mixed >> 32)), -34);
}

struct RunSpec {
  Dtype dtype = Dtype::bf16;
  std::uint64_t chunk_bytes = 16 * KiB;
  bool moments = true;  ///< false: never written
  std::vector<std::string> freeze = {};
};

/// A run of the small reference Llama as a trainer would leave it: masters, moments and step counts of known values.
class MadeRun {
 public:
  explicit MadeRun(RunSpec spec)
      : config_(read_model_config(TRANSLOAD_SOURCE_DIR "/tests/reference/llama/config.json")),
        layout_(model_params(config_, spec.freeze), training_planes(spec.dtype, spec.dtype, false), spec.chunk_bytes) {
    StoreOptions options;
    options.folder = folder_.path("store");
    std::vector<SlotClass> classes;
    for (const BlockSpec& block : layout_.blocks()) classes.push_back({block.bytes, 1});
    store_ = Store::create(options, classes, {});
    std::vector<StoredBlock> stored;
    for (std::size_t b = 0; b < layout_.blocks().size(); ++b) stored.push_back(write_block(BlockId(b), spec.moments));
    store_->commit(to_json(meta(spec.dtype)), stored);
  }
  void close() { store_.reset(); }
  Store& store() { return *store_; }
  const std::string& run() const { return folder_.path(); }
  const Layout& layout() const { return layout_; }
  const ModelConfig& config() const { return config_; }
  const TempFolder& folder() const { return folder_; }

  CheckpointMeta meta(Dtype dtype) const {
    CheckpointMeta meta;
    meta.step = 12;
    meta.steps_seen = 13;
    meta.samples_seen = 26;
    meta.seed = 99;
    meta.model_json = to_hf_config(config_, dtype);
    meta.dtype = meta.gradients = dtype;
    meta.layout_json = layout_.to_json();
    meta.model_identity = "seed 99";
    meta.data_identity = "5 bytes";
    meta.hyper_json = "{\"learning-rate\":0.001}";
    for (std::size_t p = 0; p < layout_.params().size(); ++p) meta.step_counts.push_back(100 + p);
    meta.tokenizer = "ids";
    return meta;
  }

 private:
  StoredBlock write_block(BlockId block, bool moments) {
    const BlockSpec& spec = layout_.blocks()[block.value];
    if (!spec.durable) return {};
    StoredBlock stored{{}, 1, spec.bytes, 0};
    const bool moment = spec.plane == "moment1" || spec.plane == "moment2";
    if (moment && !moments) return stored;
    const os::Memory memory(spec.bytes, false);
    fill(block, memory.data());
    stored.slot = store_->allocate(spec.bytes);
    REQUIRE(stored.slot.valid());
    const IoSlice slice{memory.data(), spec.bytes};
    Waiter waiter;
    store_->submit_write(stored.slot, {&slice, 1}, spec.name.c_str(), &waiter);
    stored.checksum = waiter.checksum();
    return stored;
  }
  void fill(BlockId block, std::byte* to) const {
    const std::string& plane = layout_.blocks()[block.value].plane;
    const int array = plane == "moment1" ? 1 : plane == "moment2" ? 2 : 0;
    for (const Piece& piece : layout_.chunk(layout_.chunk_of(block)).pieces)
      for (std::uint64_t i = 0; i < piece.count; ++i) {
        const float value = value_of(array, piece.param.value, piece.param_begin + i);
        const SplitMaster split = split_master(value);
        const std::uint64_t at = piece.chunk_begin + i;
        if (array != 0 || layout_.weight_dtype() == Dtype::f32)
          std::memcpy(to + 4 * at, &value, 4);
        else if (plane == "weight")
          std::memcpy(to + 2 * at, &split.weight, 2);
        else
          std::memcpy(to + 2 * at, &split.residue, 2);
      }
  }

  TempFolder folder_;
  ModelConfig config_;
  Layout layout_;
  std::unique_ptr<Store> store_;
};

std::string fingerprint(RunSpec spec) {
  MadeRun made(std::move(spec));
  made.close();
  return fingerprint_run(made.run(), {});
}

std::vector<float> tensor(const SafetensorsReader& reader, const std::string& name) {
  const TensorInfo& info = reader.tensors().at(name);
  std::vector<float> values((info.file_end - info.file_begin) / size_of(info.dtype));
  reader.read(info, 0, values.size(), values.data());
  return values;
}

/// What the export must hold of a parameter.
std::vector<float> expected(const MadeRun& made, std::size_t param, int array, bool rounded) {
  std::vector<float> values(made.layout().params()[param].elements());
  for (std::uint64_t i = 0; i < values.size(); ++i) {
    values[i] = value_of(array, param, i);
    if (rounded) values[i] = to_float(split_master(values[i]).weight);
  }
  return values;
}

std::string largest_slot_file(const TempFolder& folder) {
  std::string found;
  std::uintmax_t size = 0;
  for (const auto& file : std::filesystem::directory_iterator(folder.path("store")))
    if (file.file_size() > size) size = file.file_size(), found = file.path().string();
  return found;
}

}  // namespace

TEST_CASE("Metadata survives the way into the manifest and back", "[checkpoint]") {
  const MadeRun made({});
  CheckpointMeta meta = made.meta(Dtype::bf16);
  meta.run_id = "0123";
  meta.group = 4;
  const CheckpointMeta back = parse_meta(to_json(meta), "x");
  CHECK((back.run_id == "0123" && back.group == 4));
  CHECK((back.step == 12 && back.steps_seen == 13 && back.samples_seen == 26 && back.seed == 99));
  CHECK(back.step_counts == meta.step_counts);
  CHECK(json::parse(back.layout_json) == json::parse(meta.layout_json));
  CHECK(parse_model_config(back.model_json, "x") == made.config());
  CHECK(back.hyper_json == meta.hyper_json);
  CHECK((back.model_identity == "seed 99" && back.data_identity == "5 bytes" && back.tokenizer == "ids"));
  CHECK(to_json(back) == to_json(meta));

  json old = json::parse(to_json(meta));  // before there were several ranks
  old.erase("run_id");
  old.erase("group");
  CHECK((parse_meta(old.dump(), "x").run_id.empty() && parse_meta(old.dump(), "x").group == 0));

  json broken = json::parse(to_json(meta));
  broken.erase("seed");
  CHECK_THAT(MESSAGE_OF(DamageError, parse_meta(broken.dump(), "runs/x")), Contains("runs/x") && Contains("seed"));
  CHECK_THROWS_AS(parse_meta("{", "x"), DamageError);
  broken = json::parse(to_json(meta));
  broken["format"] = 2;
  CHECK_THAT(MESSAGE_OF(DamageError, parse_meta(broken.dump(), "x")), Contains("format is 2"));
}

TEST_CASE("The fingerprint does not depend on chunks, but on every value", "[checkpoint]") {
  const std::string first = fingerprint({});
  CHECK(first.size() == 32);
  CHECK(first.find_first_not_of("0123456789abcdef") == std::string::npos);
  CHECK(fingerprint({.chunk_bytes = 2 * KiB}) == first);
  CHECK(fingerprint({.chunk_bytes = 100 * KiB}) == first);
  CHECK(fingerprint({.chunk_bytes = 32 * MiB}) == first);
  // The same masters in fp32 are the same state.
  CHECK(fingerprint({.dtype = Dtype::f32}) == first);
  CHECK(fingerprint({.moments = false}) != first);
  const std::string frozen = fingerprint({.freeze = {"model.layers.1.*"}});
  CHECK(frozen != first);
  CHECK(fingerprint({.chunk_bytes = 5 * KiB, .freeze = {"model.layers.1.*"}}) == frozen);
}

TEST_CASE("A whole run verifies, and each damaged block is named", "[checkpoint]") {
  MadeRun made({});
  made.close();
  std::uint64_t last = 0, total = 0;
  CHECK(verify_run(made.run(), [&](std::uint64_t done, std::uint64_t all) { last = done, total = all; }).empty());
  CHECK(last == total);
  std::uint64_t durable = 0;
  for (const BlockSpec& block : made.layout().blocks()) durable += block.durable ? block.bytes : 0;
  CHECK(total == durable);

  const std::string path = largest_slot_file(made.folder());
  std::string content = read_whole(path);
  const std::string whole = content;
  content[4096] = static_cast<char>(content[4096] ^ 4);
  std::ofstream(path, std::ios::binary) << content;
  const std::vector<std::string> damage = verify_run(made.run(), {});
  REQUIRE(damage.size() == 1);
  CHECK_THAT(damage[0], Contains(path) && Contains("chunk ") && Contains("of step 12"));
  CHECK_THROWS_AS(fingerprint_run(made.run(), {}), DamageError);

  std::ofstream(path, std::ios::binary) << whole.substr(0, whole.size() - 1);
  const std::vector<std::string> truncated = verify_run(made.run(), {});
  REQUIRE(truncated.size() == 1);
  CHECK_THAT(truncated[0], Contains(path) && Contains("truncated"));

  std::ofstream(path, std::ios::binary) << whole;
  CHECK(verify_run(made.run(), {}).empty());
  std::string manifest = read_whole(made.folder().path("store/manifest"));
  manifest[manifest.size() / 2] = static_cast<char>(manifest[manifest.size() / 2] ^ 1);
  std::ofstream(made.folder().path("store/manifest"), std::ios::binary) << manifest;
  CHECK(verify_run(made.run(), {}).size() == 1);
}

TEST_CASE("A manifest that contradicts its layout is damage", "[checkpoint]") {
  MadeRun made({});
  std::vector<StoredBlock> blocks = made.store().committed().blocks;
  CheckpointMeta meta = made.meta(Dtype::bf16);
  SECTION("step counts") { meta.step_counts.pop_back(); }
  SECTION("dtype") { meta.dtype = Dtype::f32; }
  SECTION("blocks") { blocks.resize(blocks.size() - 3); }
  SECTION("sizes") { blocks[0].bytes -= 128; }
  SECTION("layout") {
    json layout = json::parse(meta.layout_json);
    layout["params"][1]["name"] = layout["params"][0]["name"];
    meta.layout_json = layout.dump();
  }
  made.store().commit(to_json(meta), blocks);
  made.close();
  CHECK(verify_run(made.run(), {}).size() == 1);
  CHECK_THROWS_AS(export_run(made.run(), made.folder().path("out"), {}, {}), DamageError);
}

TEST_CASE("Runs that cannot be read are said", "[checkpoint]") {
  const TempFolder folder;
  CHECK_THAT(MESSAGE_OF(InputError, verify_run(folder.path("none"), {})), Contains("none"));
  CHECK_THAT(MESSAGE_OF(InputError, verify_run(folder.path(), {})), Contains("no store"));
  MadeRun made({});
  CHECK_THAT(MESSAGE_OF(InputError, verify_run(made.run(), {})), Contains("in use"));
  made.close();
  // The store may lie elsewhere, behind a link.
  std::filesystem::create_directory_symlink(made.folder().path("store"), folder.path("store"));
  CHECK(verify_run(folder.path(), {}).empty());
}

TEST_CASE("An export holds the weights in the training dtype or the masters", "[checkpoint]") {
  for (const bool master : {false, true}) {
    MadeRun made({.freeze = {"model.layers.1.*", "*norm.weight"}});
    const std::string out = made.folder().path("deep/out");
    export_store(made.store(), out, {.master = master}, {});  // while the run has it open
    const ModelConfig config = read_model_config(out + "/config.json");
    CHECK(config == made.config());
    CHECK(json::parse(read_whole(out + "/config.json"))["dtype"] == (master ? "float32" : "bfloat16"));
    const SafetensorsReader reader = SafetensorsReader::open_folder(out);
    CHECK(reader.tensors().size() == made.layout().params().size());
    for (std::size_t p = 0; p < made.layout().params().size(); ++p) {
      const TensorInfo& info = reader.tensors().at(made.layout().params()[p].name);
      CHECK(info.shape == made.layout().params()[p].shape);
      CHECK(info.stored_as == (master ? "F32" : "BF16"));
      CHECK(tensor(reader, info.name) == expected(made, p, 0, !master));
    }
    // It is a model folder: a run can begin from it.
    CHECK_NOTHROW(weights_from_folder(config, model_params(config, {}), out));
    CHECK_THAT(MESSAGE_OF(InputError, export_store(made.store(), out, {}, {})), Contains("not empty"));
  }
}

TEST_CASE("A large export is sharded, with an index", "[checkpoint]") {
  MadeRun made({});
  made.close();
  const std::string out = made.folder().path("out");
  std::uint64_t last = 0, total = 0;
  export_run(made.run(), out, {.shard_bytes = 60'000},
             [&](std::uint64_t done, std::uint64_t all) { last = done, total = all; });
  CHECK((last == total && total > 0));
  CHECK_FALSE(std::filesystem::exists(out + "/model.safetensors"));
  const json index = json::parse(read_whole(out + "/model.safetensors.index.json"));
  std::uint64_t bytes = 0;
  for (const ParamSpec& param : made.layout().params()) bytes += 2 * param.elements();
  CHECK(index["metadata"]["total_size"] == bytes);
  const SafetensorsReader reader = SafetensorsReader::open_folder(out);
  for (std::size_t p = 0; p < made.layout().params().size(); ++p)
    CHECK(tensor(reader, made.layout().params()[p].name) == expected(made, p, 0, true));
  for (const auto& file : std::filesystem::directory_iterator(out))
    CHECK(file.file_size() < 60'000 + 10'000);  // data and header
}

TEST_CASE("An export of the optimizer has moments and steps by name", "[checkpoint]") {
  MadeRun made({.freeze = {"lm_head.weight"}});
  made.close();
  const std::string out = made.folder().path("out");
  export_run(made.run(), out, {.optimizer = true}, {});
  const SafetensorsReader reader = SafetensorsReader::open_file(out + "/optimizer.safetensors");
  CHECK(reader.tensors().size() == 3 * (made.layout().params().size() - 1));
  CHECK(reader.tensors().count("lm_head.weight.exp_avg") == 0);
  for (std::size_t p = 0; p + 1 < made.layout().params().size(); ++p) {
    const std::string& name = made.layout().params()[p].name;
    CHECK(tensor(reader, name + ".exp_avg") == expected(made, p, 1, false));
    CHECK(tensor(reader, name + ".exp_avg_sq") == expected(made, p, 2, false));
    CHECK(tensor(reader, name + ".step") == std::vector<float>{static_cast<float>(100 + p)});
  }
}

TEST_CASE("A failed export leaves nothing and says why", "[checkpoint]") {
  MadeRun made({});
  made.close();
  const std::string path = largest_slot_file(made.folder());
  std::string content = read_whole(path);
  content[4096] = static_cast<char>(content[4096] ^ 4);
  std::ofstream(path, std::ios::binary) << content;
  const std::string out = made.folder().path("out");
  // Which plane the damaged block belongs to is the layout's matter: the optimizer's export reads all of them.
  CHECK_THAT(MESSAGE_OF(DamageError, export_run(made.run(), out, {.master = true, .optimizer = true}, {})),
             Contains(path));
  CHECK(std::filesystem::is_empty(out));
}

TEST_CASE("A full disk in the middle of an export leaves nothing of it", "[checkpoint]") {
  MadeRun made({});
  made.close();
  const std::string out = made.folder().path("out");
  for (const auto& [kind, result] :
       {std::pair{os::OpKind::write, -ENOSPC}, {os::OpKind::sync, -EIO}, {os::OpKind::rename, -EIO}}) {
    const os::InterceptScope scope(os::fail_at(os::ops({kind}, "/out/"), kind == os::OpKind::write ? 9 : 2, result));
    const std::string said = MESSAGE_OF(IoError, export_run(made.run(), out, {.shard_bytes = 60'000}, {}));
    CHECK_THAT(said, Contains(out));
    if (result == -ENOSPC) CHECK_THAT(said, Contains("are free"));
    CHECK(std::filesystem::is_empty(out));
  }
  export_run(made.run(), out, {}, {});
}

TEST_CASE("Files that come back short or interrupted are read on", "[checkpoint]") {
  const std::string folder = TRANSLOAD_SOURCE_DIR "/tests/reference/qwen2";
  const SafetensorsReader reader = SafetensorsReader::open_folder(folder);
  const std::vector<float> whole = tensor(reader, "model.embed_tokens.weight");
  int calls = 0;
  const os::InterceptScope scope([&](const os::IoOp& op) -> std::optional<std::int64_t> {
    if (op.kind != os::OpKind::read) return std::nullopt;
    ++calls;
    return calls % 3 == 0 ? -EINTR : calls % 3 == 1 ? 1000 : 7;
  });
  CHECK(tensor(reader, "model.embed_tokens.weight") == whole);
  CHECK(calls > 10);
}
