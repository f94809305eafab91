// Records made by hand, line by line, for the report's tests.
#pragma once

#include <fmt/format.h>

#include <cstdio>
#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include <unistd.h>

namespace transload::report::test {

/// A folder that goes with the test.
class Folder {
 public:
  Folder() : path_(std::filesystem::temp_directory_path() / fmt::format("transload-report-{}-{}", ::getpid(), next())) {
    std::filesystem::create_directories(path_);
  }
  ~Folder() { std::filesystem::remove_all(path_); }
  Folder(const Folder&) = delete;
  std::string path() const { return path_.string(); }
  std::string write(const std::string& name, const std::string& text) const {
    const std::string file = (path_ / name).string();
    std::ofstream(file, std::ios::binary) << text;
    return file;
  }

 private:
  static int next() {
    static int n = 0;
    return n++;
  }
  std::filesystem::path path_;
};

inline const std::string kHeader =
    R"({"event":"run","format":1,"version":"0.1.0","model":"tiny","device":"emulated","parameters":1000,)"
    R"("blocks":[["chunk 0 weight",64,"weight",true],["chunk 1 weight",64,"weight",true],["layer 0 input 0",32,"kept",false]],)"
    R"("budgets":{"device":100,"host":200,"nvme":null,"frame":8},"least":{"device":50,"host":60},)"
    R"("links":{"nvme_read":{"planned_step_bytes":100,"least_bytes":80},"nvme_write":{"planned_step_bytes":50,"least_bytes":40},)"
    R"("host_to_device":{"planned_step_bytes":64,"least_bytes":64},"device_to_host":{"planned_step_bytes":32,"least_bytes":32}},)"
    R"("shape":{"accumulate":1,"batch":2,"length":8,"recompute":"layer"},"rates":{"nvme_read":1e9},"paths":{"io":"io_uring"}})"
    "\n";
inline const std::string kEnd = "{\"event\":\"end\",\"step\":1,\"interrupted\":false}\n";

inline std::string span(int step, const char* lane, long begin, long end, int block = 0, int bytes = 10) {
  return fmt::format(
      R"({{"event":"span","step":{},"lane":"{}","begin_ns":{},"end_ns":{},"block":{},"bytes":{},"ahead":true}})"
      "\n",
      step, lane, begin, end, block, bytes);
}
inline std::string work(int step, const char* lane, const char* name, long begin, long end, int index = 0) {
  return fmt::format(
      R"({{"event":"span","step":{},"lane":"{}","begin_ns":{},"end_ns":{},"name":"{}","tasks":1,"index":{}}})"
      "\n",
      step, lane, begin, end, name, index);
}
inline std::string wait(int step, const char* lane, const char* cause, long begin, long end, const char* more = "") {
  return fmt::format(R"({{"event":"wait","step":{},"lane":"{}","begin_ns":{},"end_ns":{},"cause":"{}"{}}})"
                     "\n",
                     step, lane, begin, end, cause, more);
}
inline std::string access(int step, int tick, int block, const char* tier, long start, long waited, const char* found) {
  return fmt::format(
      R"({{"event":"access","step":{},"tick":{},"block":{},"tier":"{}","kind":"read","start_ns":{},"wait_ns":{},"ready":true,"found":"{}"}})"
      "\n",
      step, tick, block, tier, start, waited, found);
}
inline std::string memory(int step, const char* tier, long at, long weight, long workspace) {
  return fmt::format(R"({{"event":"memory","step":{},"tier":"{}","at_ns":{},"used":{},"weight":{},"workspace":{}}})"
                     "\n",
                     step, tier, at, weight + workspace, weight, workspace);
}
inline std::string step(int number, long wall, long read_bytes, const char* more = "") {
  return fmt::format(
      R"({{"event":"step","step":{},"deviated":false,"loss":{},"planned":{},"tokens":16,"wall_ns":{},"compute_ns":500,"update_ns":100,)"
      R"("wait_ns":300,"hits":3,"late":2,"demand":1,"wasted":1,"resident_bytes":4096,"links":{{)"
      R"("nvme_read":{{"bytes":{},"transfers":2,"busy_ns":200}},"nvme_write":{{"bytes":50,"transfers":1,"busy_ns":100}},)"
      R"("host_to_device":{{"bytes":64,"transfers":1,"busy_ns":50}},"device_to_host":{{"bytes":32,"transfers":1,"busy_ns":20}}}}{}}})"
      "\n",
      number, 6.0 - number, number > 1 ? "true" : "false", wall, read_bytes, more);
}

/// Three steps; the third has events whose parts are known.
inline std::string whole_record() {
  std::string text = kHeader;
  text += "{\"event\":\"note\",\"text\":\"the \\\"first\\\" <note>\"}\n";
  text += step(1, 900, 10) + step(2, 1010, 100);
  text += access(3, 0, 0, "device", 0, 150, "late") + access(3, 1, 1, "device", 400, 0, "hit");
  text += access(3, 2, 2, "device", 420, 0, "none") + access(3, 3, 0, "host", 900, 50, "demand");
  text += span(3, "host_to_device", -20, 100, 0, 64) + span(3, "nvme_read", 50, 250, 0, 60) +
          span(3, "nvme_read", 100, 300, 1, 40);
  text += work(3, "compute", "layer forward", 300, 600) + work(3, "compute", "layer recompute", 600, 650);
  text += work(3, "host", "update", 650, 800);
  text += wait(3, "issue", "content", 0, 300, R"(,"block":0,"tier":"device","source":"host_to_device")");
  text += wait(3, "issue", "room", 800, 900, R"(,"tier":"host")") + span(3, "nvme_write", 820, 880, 1, 50);
  text += memory(3, "host", 0, 64, 20) + memory(3, "host", 500, 128, 40) + memory(3, "device", 10, 64, 8);
  return text + step(3, 1000, 100) + "{\"event\":\"commit\",\"step\":3,\"seconds\":0.5,\"written_bytes\":77}\n" + kEnd;
}

}  // namespace transload::report::test
