#include "offload/slot_table.h"

#include <catch2/catch.hpp>

namespace transload {
namespace {
StoredBlock in_slot(SlotId slot) { return {slot, 1, 1, 0}; }
}  // namespace

TEST_CASE("the smallest class that fits, until it is used up") {
  SlotTable table(true);
  table.add_extent({100, 2});
  table.add_extent({50, 1});
  CHECK(table.slot_bytes(table.allocate(50)) == 50);
  CHECK_FALSE(table.allocate(50).valid());
  CHECK(table.slot_bytes(table.allocate(51)) == 100);
  CHECK(table.slot_bytes(table.allocate(100)) == 100);
  CHECK_FALSE(table.allocate(100).valid());
  CHECK_FALSE(table.allocate(101).valid());
  table.add_extent({100, 1});
  CHECK(table.allocate(100) == SlotId(3));
}

TEST_CASE("a committed slot comes free with the commit that leaves it out, not before") {
  SlotTable table(true);
  table.add_extent({64, 2});
  const SlotId a = table.allocate(64), b = table.allocate(64);
  std::vector<StoredBlock> blocks = {in_slot(a), StoredBlock{}};
  CHECK(table.note_write(a));
  table.commit(blocks);
  CHECK_FALSE(table.note_write(a));
  CHECK(table.note_write(b));
  table.free(a);
  CHECK_FALSE(table.allocate(64).valid());
  blocks = {in_slot(b)};
  table.commit(blocks);
  CHECK(table.allocate(64) == a);
  table.free(a);
  CHECK(table.allocate(64) == a);
  CHECK_FALSE(table.commit_overwritten());
}

TEST_CASE("without second slots a freed slot is taken again at once, and the commit is gone") {
  SlotTable table(false);
  table.add_extent({64, 1});
  const SlotId a = table.allocate(64);
  const std::vector<StoredBlock> blocks = {in_slot(a)};
  table.commit(blocks);
  table.free(a);
  CHECK_FALSE(table.commit_overwritten());
  CHECK(table.allocate(64) == a);
  CHECK(table.commit_overwritten());
  table.commit(blocks);
  CHECK_FALSE(table.commit_overwritten());
  CHECK(table.note_write(a));
  CHECK(table.commit_overwritten());
  table.free(a);
  table.commit({});
  CHECK(table.allocate(64) == a);
  CHECK_FALSE(table.allocate(64).valid());
}

TEST_CASE("a commit from disk is taken over only if its slots can be") {
  const auto fresh = [] {
    auto table = std::make_unique<SlotTable>(true);
    table->add_extent({64, 3});
    return table;
  };
  CHECK(fresh()->adopt(std::vector{in_slot(SlotId(2)), StoredBlock{}, in_slot(SlotId(0))}));
  CHECK_FALSE(fresh()->adopt(std::vector{in_slot(SlotId(3))}));
  CHECK_FALSE(fresh()->adopt(std::vector{in_slot(SlotId(1)), in_slot(SlotId(1))}));
  CHECK_FALSE(fresh()->adopt(std::vector{StoredBlock{SlotId(1), 1, 65, 0}}));
  const auto table = fresh();
  REQUIRE(table->adopt(std::vector{in_slot(SlotId(1))}));
  CHECK(table->allocate(1) == SlotId(0));
  CHECK(table->allocate(1) == SlotId(2));
  CHECK_FALSE(table->allocate(1).valid());
}

}  // namespace transload
