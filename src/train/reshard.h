// Fills a rank's new shards from the last commit of a group of stores, for any two numbers of ranks and chunk sizes.
//
// Plane by plane, chunk by chunk, bit by bit: master weights, residues and moments are copied, not computed. Both
// layouts have the parameters in one order, so both sides are gone through once, ascending, with one chunk of the new
// layout pinned and a few blocks of the old one in memory. A rank reads those old blocks alone that overlap its shards,
// and those that it broadcasts. A block that is zeros throughout, as moments before the first step are, stays
// unwritten.
#pragma once

#include "chunk/layout.h"
#include "engine/engine.h"
#include "offload/stream.h"
#include "train/checkpoint.h"
#include "train/group_reader.h"

namespace transload {

/// All ranks together where some store is broadcast. Every durable block of `to` has content afterwards; `engine` has
/// to have none. InputError: other parameters, frozen flags or element types than the old group's; DamageError: an old
/// block that cannot be read.
void reshard(const GroupView& from, const Layout& to, Engine& engine, Stream& stream, const Progress& progress);

}  // namespace transload
