// Batches that a second stream uploads beside a step of training.
#include <random>

#include <gmock/gmock.h>

#include "ops/layers.h"
#include "ops/optimizer.h"
#include "ops/step/compile_step.h"
#include "runtime/driver/pinned_buffer.h"
#include "tests/support/expect_error.h"
#include "tests/support/on_device.h"

namespace tw {
namespace {

constexpr size_t Batches = 9;

class Uploads : public OnDevice {
protected:
    void SetUp() override {
        OnDevice::SetUp();
        if (!device_) return;
        for (size_t n = 0; n < Batches; ++n) {
            batches_.push_back(host_array(f32, {24, 12}));
            fill_uniform(batches_.back(), -1, 1, std::random_device{}());
        }
    }

    /// A step from the same weights each time, over `x`.
    struct Training {
        std::shared_ptr<nn::Backend> backend;
        nn::Tensor x;
        nn::CompiledStep step;
    };
    Training training(bool branches) {
        const auto backend = std::make_shared<nn::Backend>(device_);
        const nn::Tensor x(backend, f32, {24, 12}, "x");
        const nn::Linear layer(backend, 12, 12, 7);
        nn::Sgd sgd(layer.parameters(), 0.5, 0.9);
        return {backend, x,
                nn::compile(backend,
                            [&] {
                                const nn::Tensor loss = nn::mse_loss(layer(x), x);
                                nn::backward(loss);
                                sgd.step();
                                return std::vector{loss};
                            },
                            {.branches = branches})};
    }

    std::vector<float> losses_of_copies() {
        const Training made = training(false);
        std::vector<float> losses;
        for (const HostArray& batch : batches_) {
            made.x.copy_from_host(batch);
            made.step.run();
            losses.push_back(static_cast<float>(made.step.results()[0].to_host().at({}).real));
        }
        return losses;
    }

    /// By two slots in turn; the step waits for its batch, or does not.
    std::vector<float> losses_of_uploads(bool waits) {
        const Training made = training(true);
        made.x.copy_from_host(batches_[0]);
        struct Slot {
            PinnedBuffer host;
            nn::Tensor batch;
            Event full, empty;
        };
        std::vector<Slot> slots;
        for (int k = 0; k < 2; ++k) {
            slots.push_back({device_->allocate_pinned(24 * 12 * 4, "batch"),
                             nn::Tensor(made.backend, batches_[0], "batch"), device_->create_event(),
                             device_->create_event()});
        }
        const Stream uploads = device_->create_stream(), work = device_->create_stream();
        const PinnedBuffer losses = device_->allocate_pinned(4 * Batches, "losses");
        for (size_t n = 0; n < Batches; ++n) {
            const Slot& slot = slots[n % 2];
            slot.host.write(batches_[n].bytes);
            uploads.wait(slot.empty);
            slot.batch.upload(slot.host, uploads);
            slot.full.record(uploads);
            if (waits) work.wait(slot.full);
            device_->copy(made.x.data(), slot.batch.data(), work);
            slot.empty.record(work);
            made.step.planned().run(work);
            device_->copy(losses.view(int64_t(4 * n), 4), made.step.results()[0].data(), work);
        }
        return losses.read<float>();
    }

    std::vector<HostArray> batches_;
};

TW_ON_EACH_DEVICE(Uploads);

TEST_P(Uploads, TrainAsCopiesDo) { EXPECT_EQ(losses_of_uploads(true), losses_of_copies()); }

TEST_P(Uploads, ShowOnTheEmulatorThatNobodyHasWaited) {
    if (device_->kind() == DeviceKind::Cuda) GTEST_SKIP() << "a GPU may be fast enough";
    EXPECT_NE(losses_of_uploads(false), losses_of_copies());
}

TEST_P(Uploads, AreOfAllBytes) {
    const auto backend = std::make_shared<nn::Backend>(device_);
    const nn::Tensor x(backend, f32, {24, 12}, "x");
    EXPECT_ERROR(x.upload(device_->allocate_pinned(8, "batch"), device_->default_stream()),
                 "copy from pinned buffer 'batch' of 8 bytes: 'x' has 1152; give views of equal sizes");
    EXPECT_ERROR(nn::compile(backend,
                             [&] {
                                 const nn::Tensor y = nn::relu(x);
                                 y.upload(device_->allocate_pinned(1152), device_->default_stream());
                                 return std::vector{y};
                             }),
                 "'relu' is made by a step that was captured, and has no data");
}

}  // namespace
}  // namespace tw
