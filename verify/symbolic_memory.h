// The buffers of a kernel that runs on terms.
#pragma once
#include <map>
#include <vector>

#include "verify/symbolic_run.h"

namespace tw::fuzz {

/// Threads of a block, ascending, and a value for each of them.
using Threads = std::vector<int>;
using Values = std::vector<Term>;

/// What nobody wrote.
constexpr Term kUnwritten = -1;
/// What an asynchronous copy is about to write.
constexpr Term kUnderWay = -2;

/// A term for each element of each buffer.
class SymbolicMemory {
public:
    /// Global memory holds what the kernel is given.
    SymbolicMemory(Terms& terms, const codegen::ThreadKernel& kernel, const Bindings& sizes);

    /// Shared memory as a block finds it, and registers as they are declared: unwritten.
    void start_block();
    void declare_registers(const codegen::Buffer& buffer);

    /// Where the threads' elements stand in the buffer's memory: `indices` has a list for each dimension, with an index
    /// for each thread. Throws Misuse if one leaves its array.
    std::vector<size_t> places(const codegen::Buffer& buffer, const std::vector<std::vector<int64_t>>& indices,
                               const Threads& threads);
    /// Throws Misuse if the place is not one of the thread's own registers.
    void check_registers(const codegen::Buffer& buffer, int thread, size_t place) const;
    Values read(const codegen::Buffer& buffer, const std::vector<size_t>& places);
    /// A read of global memory at indices that depend on data. Throws Undecided if the kernel writes that memory.
    Values read_unknown(const codegen::Buffer& buffer, const Values& indices);
    void write(const codegen::Buffer& buffer, const std::vector<size_t>& places, const Values& values);
    /// The array begins in bytes that others had.
    void begin_array(const codegen::Buffer& buffer);

    /// What global memory holds. Throws Misuse if an element depends on what nobody wrote.
    Stored stored() const;

private:
    struct GlobalMemory {
        int number;
        bool written;
        std::vector<Term> elements;
    };

    void add_argument(const codegen::Buffer& buffer, int number);
    GlobalMemory& global(const codegen::Buffer& buffer);
    std::vector<Term>& elements_of(const codegen::Buffer& buffer);
    void overwrite_others(const codegen::Buffer& buffer, size_t place);

    Terms& terms_;
    const codegen::ThreadKernel& kernel_;
    const Bindings& sizes_;
    const codegen::SharedStruct struct_;  // of the arrays of shared memory
    std::map<const BufferNode*, GlobalMemory> global_;
    std::map<const BufferNode*, std::vector<Term>> local_;  // registers: those of one thread after another
};

}  // namespace tw::fuzz
