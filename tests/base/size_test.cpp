#include "base/size.h"

#include <catch2/catch.hpp>
#include <cmath>
#include <limits>
#include <string>

#include "base/error.h"

namespace transload {

TEST_CASE("sizes are read exactly") {
  struct Case {
    const char* text;
    std::uint64_t bytes;
  };
  const Case cases[] = {{"0", 0},
                        {"1", 1},
                        {"4096", 4096},
                        {"17B", 17},
                        {"1KiB", 1024},
                        {"1kB", 1000},
                        {"1KB", 1000},
                        {"512MiB", 512 * MiB},
                        {"24GiB", 24 * GiB},
                        {"1GB", 1000000000},
                        {"1.5GB", 1500000000},
                        {"1.5GiB", 3 * GiB / 2},
                        {"0.001kB", 1},
                        {"2TiB", 2048 * GiB},
                        {"640.0 MiB", 640 * MiB},
                        {"18446744073709551615", UINT64_MAX},
                        {"16383PiB", 16383ull << 50}};
  for (const Case& c : cases) {
    INFO(c.text);
    CHECK(parse_size(c.text, "--host-memory") == c.bytes);
  }
}

TEST_CASE("sizes set against each other differ in text where they differ") {
  CHECK(format_sizes(2 * MiB, 3 * MiB) == std::pair<std::string, std::string>{"2.0 MiB", "3.0 MiB"});
  CHECK(format_sizes(2 * MiB, 2 * MiB + 1) == std::pair<std::string, std::string>{"2097152 bytes", "2097153 bytes"});
  CHECK(format_sizes(2 * MiB, 2 * MiB) == std::pair<std::string, std::string>{"2.0 MiB", "2.0 MiB"});
}

TEST_CASE("what is not a size is refused by name") {
  for (const char* text : {"",
                           " ",
                           "1g",
                           "1G",
                           "1GIB",
                           "1gib",
                           "-1",
                           "+1",
                           "x",
                           "GiB",
                           "1.5",
                           ".5GiB",
                           "5.GiB",
                           "1e9",
                           "1 ",
                           " 1",
                           "1  MiB",
                           "1GiB ",
                           "0x10",
                           "18446744073709551616",
                           "16384PiB",
                           "99999999999999999999PiB",
                           "184467440737095516160",
                           "nan",
                           "inf",
                           "1,5GB"}) {
    INFO(text);
    REQUIRE_THROWS_AS(parse_size(text, "--host-memory"), InputError);
    try {
      parse_size(text, "--host-memory");
    } catch (const InputError& error) {
      CHECK(std::string(error.what()).find("--host-memory") != std::string::npos);
    }
  }
}

TEST_CASE("rates are read, and need a unit and a second") {
  CHECK(parse_rate("6GB/s", "--link-rate") == 6e9);
  CHECK(parse_rate("3.5GiB/s", "--link-rate") == 3.5 * 1024 * 1024 * 1024);
  CHECK(parse_rate("1B/s", "--link-rate") == 1);
  for (const char* text : {"", "/s", "6", "6GB", "6/s", "0GB/s", "-1GB/s", "6GB/m", "6gb/s", "0.0B/s"}) {
    INFO(text);
    CHECK_THROWS_AS(parse_rate(text, "--link-rate"), InputError);
  }
}

TEST_CASE("sizes, rates and durations are written for people") {
  CHECK(format_size(0) == "0 B");
  CHECK(format_size(12) == "12 B");
  CHECK(format_size(1023) == "1023 B");
  CHECK(format_size(1024) == "1.0 KiB");
  CHECK(format_size(640 * MiB) == "640.0 MiB");
  CHECK(format_size(GiB - 1) == "1.00 GiB");
  CHECK(format_size(3 * GiB / 2) == "1.50 GiB");
  CHECK(format_size(UINT64_MAX) == "16384.00 PiB");
  CHECK(format_rate(3.31e9) == "3.31 GB/s");
  CHECK(format_rate(999.999e6) == "1.00 GB/s");
  CHECK(format_rate(5e11) == "500.00 GB/s");
  CHECK(format_rate(0) == "0.00 B/s");
  CHECK(format_rate(std::nan("")) == "unknown");
  CHECK(format_duration(0.31) == "310 ms");
  CHECK(format_duration(0.9996) == "1.0 s");
  CHECK(format_duration(4.2) == "4.2 s");
  CHECK(format_duration(59.97) == "1 min 0 s");
  CHECK(format_duration(200) == "3 min 20 s");
  CHECK(format_duration(3720) == "1 h 02 min");
  CHECK(format_duration(26 * 3600) == "26 h 00 min");
  CHECK(format_duration(std::numeric_limits<double>::infinity()) == "unknown");
}

}  // namespace transload
