// Buffers that a pipelined loop fills in advance, and which of an op's accesses are to which of their stages.
#pragma once
#include <functional>
#include <map>

#include "codegen/tile_ir/tile_ir.h"

namespace tw::codegen {

/// Buffers -> the same with a first dimension, the stages.
using StagedBuffers = std::map<const BufferNode*, Buffer>;

/// The op's accesses of buffers that have stages, in the stage that `which` tells of a staged buffer.
TileOp in_stage(const TileOp& op, const StagedBuffers& staged, const std::function<Expr(const Buffer&)>& which);
/// The same stage of each buffer.
std::function<Expr(const Buffer&)> always(const Expr& stage);
/// The buffer so many times, in its place among the kernel's shared ones.
Buffer repeated(TileKernel& kernel, const Buffer& buffer, int64_t times);
/// Groups that take turns have shared memory of their own, but for what other roles fill.
void separate_turns(TileKernel& kernel);

}  // namespace tw::codegen
