// The emulated device: kernels are compiled for the host and run by the emulator, which checks every access. Work runs
// when it is submitted: Launch::run() itself throws the EmulatorReport.
//
// Launches of a graph run in any order that its edges allow, another one each time, by the seed. Copies from and to
// pinned memory run as late as streams and events allow: a kernel that does not wait for one meets the old bytes.
//
// Memory is the host's. A new buffer holds 0xff bytes (NaN in every float type), and reading it in a kernel before
// anything was written there is a finding. A kernel may touch the buffers that it was given as arguments, within their
// bounds, and write those that are not read-only arguments. 64 KiB on both sides of a buffer belong to none, so that an
// index that is somewhat too large does not hit another argument.
#pragma once
#include <chrono>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <string_view>

#include "runtime/driver/driver.h"
#include "runtime/driver/late_copies.h"
#include "runtime/emulator/emulator.h"

namespace tw {

class EmulatedDevice final : public Device {
public:
    explicit EmulatedDevice(std::string_view arch);

    /// Seed, statistics and limits of the launches after.
    void set_options(const emulator::Options& options);

    /// What the emulator said of the last launch, findings and statistics.
    emulator::Report last_report() const;

    /// The counts of all launches since the last reset, added up; all zero unless the options ask for them. The sites
    /// are in last_report().
    emulator::Statistics statistics() const;
    void reset_statistics();

    DeviceKind kind() const override { return DeviceKind::Emulated; }
    void synchronize() override;
    uint64_t allocate_memory(int64_t bytes, const std::string& name) override;
    void free_memory(uint64_t pointer, int64_t bytes) noexcept override;
    void register_memory(uint64_t pointer, int64_t bytes, const std::string& name) override;
    void unregister_memory(uint64_t pointer) noexcept override;
    void copy_in(uint64_t to, const void* from, int64_t bytes) override;
    void copy_out(void* to, uint64_t from, int64_t bytes) override;
    void copy_across(uint64_t to, uint64_t from, int64_t bytes, void* stream) override;
    void copy_in_later(uint64_t to, const void* from, int64_t bytes, void* stream) override;
    void copy_out_later(void* to, uint64_t from, int64_t bytes, void* stream) override;
    void fill_memory(uint64_t pointer, uint8_t value, int64_t bytes) override;
    void fill_later(uint64_t to, uint32_t pattern, int64_t element_bytes, int64_t bytes, void* stream) override;
    void* default_stream_handle() override { return nullptr; }
    void* make_stream() override { return new char(); }
    void drop_stream(void* stream) noexcept override;
    void wait_stream(void* stream) override;
    void* make_event() override;
    void drop_event(void* event) noexcept override;
    void register_event(void* event, const std::string& name) override;
    void record_event(void* event, void* stream) override;
    void wait_event(void* event) override;
    void stream_wait_event(void*, void* event) override { wait_event(event); }
    double event_seconds(void* begin, void* end) override;
    std::vector<std::shared_ptr<Kernel::State>> load_kernels(std::span<const KernelImage> images) override;
    void prepare_kernel(Kernel::State& kernel, const LaunchShape& shape) override;
    void encode_tensor_map(const emulator::TensorMapBits& map, void* bits) override;
    void launch(const Launch& launch, void* stream) override;
    std::shared_ptr<Graph::State> make_graph(std::vector<Launch> launches,
                                             std::vector<std::vector<size_t>> after) override;
    void update_graph(Graph::State&, size_t, const Launch&) override {}  // it is the list itself
    void run_graph(Graph::State& graph, void* stream) override;

private:
    // Which parts of an allocation have been written: begin to end, apart from each other.
    struct Allocation {
        int64_t bytes = 0;
        std::map<uint64_t, uint64_t> written = {};
        std::string name = {};
        int wraps = 0;  // handles of wrapped memory that lie in it
        bool owned = true;
    };
    void add_tensor(const emulator::TensorMapBits& map, std::vector<emulator::Region>& regions);
    Allocation* allocation_of(uint64_t pointer);
    Allocation* allocation_around(uint64_t pointer, int64_t bytes, const std::string& name);
    void mark_written(uint64_t pointer, int64_t bytes);
    bool anything_written(uint64_t pointer, int64_t bytes);
    std::vector<emulator::Region> regions_of(const Launch& launch);
    void note_writes(const std::vector<emulator::Region>& regions);

    // A point in a stream's copies, and when it was recorded.
    struct EmulatedEvent {
        std::chrono::steady_clock::time_point time;
        void* stream = nullptr;
        uint64_t copies = 0;
    };

    mutable std::recursive_mutex mutex_;  // also keeps launches one at a time
    std::map<uint64_t, Allocation> allocations_;
    std::set<void*> events_;
    LateCopies late_;
    uint64_t graph_runs_ = 0;
    emulator::Options options_;
    emulator::Report report_;
    emulator::Statistics statistics_;
};

std::shared_ptr<Device> make_emulated_device(std::string_view arch);

/// The device as what it is; throws LaunchError when it is no emulated one.
EmulatedDevice& as_emulated(Device& device);

}  // namespace tw
