// The struct that holds a block's shared memory, as the compiler lays it out.
#pragma once
#include <string>
#include <vector>

#include "codegen/access/access.h"

namespace tw::codegen {

/// Of each block's shared memory, the driver's: CUDA C++ Programming Guide, "Shared Memory".
constexpr int64_t driver_bytes = 1024;

/// Arrays that take turns at the same bytes: one alternative at a time, whose arrays lie side by side.
struct SharedUnion {
    std::vector<std::vector<Buffer>> alternatives;
};

/// "a_shared, b_shared in turn with c_shared"
std::string to_string(const SharedUnion& shared);

/// Where an array lies in the struct.
struct SharedPlace {
    int64_t offset, bytes;
};
struct SharedStruct {
    std::vector<SharedPlace> places;  ///< of each array, in the order of the kernel's
    int64_t bytes = 0;                ///< all of it
};

/// Bytes that the start of an array in it is a multiple of.
int64_t alignment_of(const BufferNode& buffer);
/// All of them, one behind another, but for those of unions; a union stands where its first array would.
SharedStruct shared_struct(const std::vector<Buffer>& buffers, const std::vector<SharedUnion>& unions);
int64_t bytes_of_shared(const std::vector<Buffer>& buffers, const std::vector<SharedUnion>& unions);

/// The union that an array stands in, and in which of its alternatives; both -1 if in none.
struct UnionPlace {
    int number = -1, alternative = -1;
};
UnionPlace place_in_unions(const BufferNode* buffer, const std::vector<SharedUnion>& unions);
/// Whether two arrays take turns at the same bytes.
bool take_turns(const BufferNode* a, const BufferNode* b, const std::vector<SharedUnion>& unions);

}  // namespace tw::codegen
