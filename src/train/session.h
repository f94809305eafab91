// What lives while a run trains: store, engine, streams, optimizer; and the state's beginning and commits. Members are
// destroyed in the order that the work in flight allows: optimizer, streams (drained), engine, store.
#pragma once

#include <atomic>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/timeline.h"
#include "engine/engine.h"
#include "optim/optimizer.h"
#include "train/busy_stream.h"
#include "train/inputs.h"
#include "train/planning.h"
#include "train/recording_access.h"
#include "train/resume.h"
#include "train/store_group.h"
#include "train/trainer.h"

namespace transload {

/// Where training is; what a commit says of it.
struct Position {
  std::uint64_t step = 0;          ///< optimizer steps taken
  std::uint64_t steps_seen = 0;    ///< steps of data consumed
  std::uint64_t samples_seen = 0;  ///< position in the data order
  std::uint64_t skipped_in_a_row = 0;
};

class Session {
 public:
  /// Takes the memory, makes or opens the store, measures the links, writes the first weights or adopts the commit.
  Session(const TrainOptions& options, const Prepared& prepared, const Inputs& inputs,
          const std::optional<ResumePoint>& resume, RunStores* stores, Accelerator* accelerator,
          Communicator& communicator, const Observer& observer);
  ~Session();  ///< waits for what was launched

  Runtime runtime();
  Engine& engine() { return *engine_; }
  Optimizer& optimizer() { return *optimizer_; }
  RecordingAccess& access() { return *access_; }
  const Timeline& timeline() const { return timeline_; }
  /// Before a step: whether its timeline will be written. Returns by how much its lanes' times may differ, ns.
  std::uint64_t time_by_events(bool on) {
    return accelerator_ == nullptr ? 0 : accelerator_->device().time_by_events(on);
  }
  Accelerator* accelerator() const { return accelerator_; }
  const Rates& rates() const { return rates_; }
  Communicator& communicator() { return communicator_; }
  /// What the next collectives are for, should this rank be lost.
  void begin_step(std::uint64_t step) { step_ = step; }
  std::optional<Store::Facts> store_facts() const;
  /// Of forward and backward, and of updates.
  std::uint64_t compute_busy_ns() const { return compute_->busy_ns(); }
  std::uint64_t update_busy_ns() const { return host_->busy_ns(); }
  /// Of collectives, waiting for other ranks included.
  std::uint64_t comm_busy_ns() const { return comm_->busy_ns(); }

  /// Applies pending updates and makes everything durable. Nothing without a store.
  void commit(const Position& position);
  /// The last commit as a model folder; `folder` must not exist. All ranks call it together, the one that writes with a
  /// folder, the others with an empty one.
  void export_to(const std::string& folder, const Progress& progress);
  /// A clean end of a store without durability.
  void close();

 private:
  /// Where events are noted; null: nowhere.
  Timeline* noted() { return options_.record_events ? &timeline_ : nullptr; }
  void open_store(bool resumed, const Observer& observer);
  void go_on(const ResumePoint& resume, const Observer& observer);
  Device* make_device();
  void note_host_memory(const Observer& observer) const;
  void measure_links();
  void make_streams();
  void begin_state(const std::optional<ResumePoint>& resume, const Observer& observer);
  std::string metadata(const Position& position) const;

  const TrainOptions& options_;
  const Prepared& prepared_;
  const Inputs& inputs_;
  Timeline timeline_;
  RunStores* stores_;    // null without a store
  OpenGroup old_group_;  // where the state comes from stores that cannot be gone on with
  std::optional<WorldCommit> commits_;
  std::uint64_t group_ = 0;
  std::string run_id_;
  std::unique_ptr<Store> store_;
  Rates rates_;
  Accelerator* accelerator_;  // of --device cuda
  Communicator& communicator_;
  std::atomic<std::uint64_t> step_{0};
  std::unique_ptr<Device> emulated_;
  std::unique_ptr<Engine> engine_;
  std::unique_ptr<RecordingAccess> access_;
  std::unique_ptr<Stream> compute_inner_, host_inner_, comm_inner_;
  std::unique_ptr<BusyStream> compute_, host_, comm_;
  std::unique_ptr<Optimizer> optimizer_;
};

}  // namespace transload
