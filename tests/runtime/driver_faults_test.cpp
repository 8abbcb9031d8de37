// Every driver call of a whole program fails once, with each of several codes: a typed error, nothing left alive, no
// abort.
#include <map>

#include "runtime/driver/cuda_device.h"
#include "runtime/driver/pinned_buffer.h"
#include "runtime/driver/timer.h"
#include "tests/runtime/support.h"

namespace tw {
namespace {

constexpr int64_t N = 64;

// A program that uses all of the interface. Returns what it computed.
std::vector<float> run_program(const Driver& driver, const std::vector<float>& values,
                               std::shared_ptr<Device>& device) {
    start_driver(driver.library);
    device = make_cuda_device(driver, 1);
    { Buffer pooled = device->allocate(N * 4, "pooled"); }
    Buffer x = device->allocate(N * 4, "x"), y = device->allocate(N * 4, "y");
    x.write(values);
    y.fill(0xff);
    Kernel kernel = device->load({.entry = "scale", .cubin = "any bytes"});
    Launch launch = device->prepare(kernel, {.grid = {1}, .block = {64}, .dynamic_shared_bytes = 100000}, {2.0f, x, N});
    launch.run();
    Stream stream = device->create_stream();
    Event event = device->create_event();
    event.record(stream);
    device->default_stream().wait(event);
    event.synchronize();
    stream.synchronize();
    PinnedBuffer pinned = device->allocate_pinned(N * 4, "pinned");
    device->copy(pinned, x, stream);
    pinned.wait();
    device->copy(x, pinned, stream);
    fake().stream_flags = 1;
    Stream theirs = device->wrap_stream(stream.handle(), "theirs");
    device->wrap_event(event.handle(), "theirs").record(theirs);
    device->copy(device->wrap(y.pointer(), N * 4, "y of others"), x, theirs);
    launch.set(1, y);
    std::vector<Launch> launches{launch, launch};
    Graph graph = device->record(launches);
    launch.set(0, 0.5f);
    graph.update(1, launch);
    graph.run(stream);
    time_launch(launch, {.warmups = 1, .samples = 2});
    { Buffer again = device->allocate(N * 4, "again"); }
    device->memory_state();
    device->synchronize();
    device->release_pool();
    return y.read<float>();
}

enum class End { Finished, OutOfMemory, NoDevice, NoDriver, Launch, Driver, Sticky };

End end_of(const Driver& driver, const std::vector<float>& values, const std::vector<float>& expected,
           std::shared_ptr<Device>& device) {
    try {
        EXPECT_EQ(run_program(driver, values, device), expected);
        return End::Finished;
    } catch (const OutOfMemory&) {
        return End::OutOfMemory;
    } catch (const NoDevice&) {
        return End::NoDevice;
    } catch (const NoDriver&) {
        return End::NoDriver;
    } catch (const LaunchError&) {
        return End::Launch;
    } catch (const DriverError&) {
        return End::Driver;
    } catch (const StickyError&) {
        return End::Sticky;
    }  // any other exception ends the test
}

TEST(DriverFaults, EveryCallMayFailInEveryWay) {
    Driver driver = fake_driver();
    std::vector<float> values = random_floats(N), expected = values;
    for (float& value : expected) value = value * 2 * 2 * 0.5f * 0.5f * 0.5f * 0.5f;  // see run_program
    std::shared_ptr<Device> device;

    fake() = {};
    ASSERT_EQ(end_of(driver, values, expected, device), End::Finished);
    device = nullptr;
    long num_calls = fake().num_calls;
    ASSERT_GT(num_calls, 60);
    ASSERT_EQ(fake().num_alive, 0);

    std::map<End, int> ends;
    for (int code : {1, 2, 3, 100, 201, 214, 304, 400, 500, 700, 701, 702, 715, 716, 717, 719, 801, 999}) {
        bool sticky = code == 214 || code == 700 || code == 702 || (code >= 715 && code <= 719);
        for (long n = 0; n < num_calls; ++n) {
            fake() = {};
            fake().fail_at = n;
            fake().fail_code = code;
            SCOPED_TRACE(fmt::format("call {} fails with {}", n, code));
            End end = end_of(driver, values, expected, device);
            ++ends[end];
            fake().fail_at = -1;
            if (sticky && device && end == End::Sticky) {
                EXPECT_THROW(device->synchronize(), StickyError);
                EXPECT_THROW(device->allocate(4), StickyError);
            }
            if (!sticky) {
                EXPECT_NE(end, End::Sticky);
                if (device) {
                    EXPECT_NO_THROW(device->synchronize()) << "a harmless failure stayed";
                }
            }
            device = nullptr;
            EXPECT_EQ(fake().num_alive, 0) << "something leaks";
            EXPECT_EQ(fake().memory_used, 0);
            EXPECT_EQ(fake().num_misuses, 0) << "the driver was misused";
        }
    }
    for (End end :
         {End::Finished, End::OutOfMemory, End::NoDevice, End::NoDriver, End::Launch, End::Driver, End::Sticky})
        EXPECT_GT(ends[end], 0) << "no failure ended as kind " << int(end);
}

}  // namespace
}  // namespace tw
