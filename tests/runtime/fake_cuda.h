// A libcuda for tests: its "GPU" is host memory and one kernel, `scale(float a, float* x, int64_t n)`, which does x *=
// a. It can fail the n-th call, counts what is alive, and notes misuse (unknown handles, a missing current context).
#pragma once
#include <cstdint>

struct FakeCuda {
    long fail_at = -1;   // fails the call of this number; -1: none
    int fail_code = 0;   // with this code; a sticky one stays
    long num_calls = 0;  // so far
    int stuck_code = 0;  // what every call returns since a sticky failure
    int num_devices = 2;
    int init_code = 0;
    int64_t memory_limit = 64 << 20;
    int64_t memory_used = 0;
    long num_alive = 0;  // allocations, page-locked ones, streams, events, modules, graphs, retained contexts
    long num_misuses = 0;
    long num_allocations = 0, num_launches = 0, num_synchronizations = 0;
    long num_later_copies = 0;       // that the host does not wait for
    long num_refused_questions = 0;  // for parameters that the kernel has not
    long num_early_launches = 0;     // of num_launches: those that may start while the one before ends
    long num_edges = 0;              // of graphs, those of early launches included
    long num_copy_nodes = 0, num_fill_nodes = 0;
    unsigned last_shared_bytes = 0;
    int max_dynamic_shared_bytes = 48 << 10;
    int memory_device = 0;             // what the driver says that memory belongs to: at first, the device in use
    bool streams_are_foreign = false;  // whether streams belong to another context
    unsigned stream_flags = 0;         // of all streams
};

/// Exported by the library.
extern "C" FakeCuda* fake_cuda();
