#include "runtime/driver/null_device.h"

#include <atomic>

#include "runtime/driver/arch.h"
#include "runtime/driver/compile_images.h"

namespace tw {
namespace {

class NullDevice final : public Device {
public:
    explicit NullDevice(std::string_view arch) {
        properties_ = properties_of(arch);
        properties_.name = fmt::format("null ({})", arch);
    }

    DeviceKind kind() const override { return DeviceKind::Null; }
    void synchronize() override {}

    // Addresses that differ and are aligned, of no memory.
    uint64_t allocate_memory(int64_t bytes, const std::string&) override {
        return next_address_.fetch_add((uint64_t(bytes) + 511) / 256 * 256);
    }
    void free_memory(uint64_t, int64_t) noexcept override {}
    void copy_in(uint64_t, const void*, int64_t) override { refuse("copy_from_host"); }
    void copy_out(void*, uint64_t, int64_t) override { refuse("copy_to_host"); }
    void copy_across(uint64_t, uint64_t, int64_t, void*) override { refuse("copy"); }
    void copy_in_later(uint64_t, const void*, int64_t, void*) override { refuse("copy"); }
    void copy_out_later(void*, uint64_t, int64_t, void*) override { refuse("copy"); }
    void fill_memory(uint64_t, uint8_t, int64_t) override { refuse("fill"); }
    void fill_later(uint64_t, uint32_t, int64_t, int64_t, void*) override { refuse("fill"); }

    void* default_stream_handle() override { return nullptr; }
    void* make_stream() override { return nullptr; }
    void drop_stream(void*) noexcept override {}
    void wait_stream(void*) override {}
    void* make_event() override { return nullptr; }
    void drop_event(void*) noexcept override {}
    void record_event(void*, void*) override { refuse("record an event"); }
    void wait_event(void*) override { refuse("wait for an event"); }
    void stream_wait_event(void*, void*) override { refuse("wait for an event"); }
    double event_seconds(void*, void*) override { refuse("time"); }

    std::vector<std::shared_ptr<Kernel::State>> load_kernels(std::span<const KernelImage> images) override {
        auto compiled = compile_images(images);
        std::vector<std::shared_ptr<Kernel::State>> kernels;
        for (size_t i = 0; i < images.size(); ++i) {
            auto& kernel = kernels.emplace_back(std::make_shared<Kernel::State>());
            kernel->compiled = compiled[i];
            if (compiled[i]) kernel->static_shared_bytes = compiled[i]->of(images[i].entry).static_shared_bytes;
        }
        return kernels;
    }

    void launch(const Launch&, void*) override { refuse("launch"); }
    std::shared_ptr<Graph::State> make_graph(std::vector<Launch> launches,
                                             std::vector<std::vector<size_t>> after) override {
        auto graph = std::make_shared<Graph::State>();
        graph->device = shared_from_this();
        graph->launches = std::move(launches);
        graph->after = std::move(after);
        return graph;
    }
    void update_graph(Graph::State&, size_t, const Launch&) override {}
    void run_graph(Graph::State&, void*) override { refuse("launch"); }

private:
    [[noreturn]] static void refuse(const char* what) {
        throw_error(LaunchError, "{}: the null device only compiles; open \"cuda\" or \"emulated\" to run", what);
    }

    std::atomic<uint64_t> next_address_ = 1 << 20;
};

}  // namespace

std::shared_ptr<Device> make_null_device(std::string_view arch) { return std::make_shared<NullDevice>(arch); }

}  // namespace tw
