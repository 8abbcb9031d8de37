#include "verify/workers.h"

#include <poll.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstring>
#include <deque>
#include <set>

#include "support/die_with_parent.h"
#include "support/error.h"

namespace tw::fuzz {
namespace {

using Clock = std::chrono::steady_clock;

struct Header {
    Message::Kind kind;
    int64_t number;
    uint64_t bytes;
};

void write_all(int file, const void* data, size_t bytes) {
    auto* at = static_cast<const char*>(data);
    while (bytes > 0) {
        ssize_t written = ::write(file, at, bytes);
        if (written < 0 && errno == EINTR) continue;
        if (written <= 0) _exit(3);  // the parent is gone
        at += written;
        bytes -= static_cast<size_t>(written);
    }
}

struct Worker {
    pid_t process;
    int from;  // the pipe's end that we read
    std::vector<int64_t> cases;
    std::set<int64_t> finished = {};
    std::string received = {};  // bytes not yet understood
    int64_t begun = -1;
    std::string notes = {};
    Clock::time_point last_sign = Clock::now();
    bool hung = false;
};

class Pool {
public:
    Pool(const WorkerOptions& options, const std::function<void(const std::vector<int64_t>&, const Tell&)>& work,
         const std::function<void(const Message&)>& result,
         const std::function<void(int64_t, const std::string&, const std::string&)>& died)
        : options_(options), work_(work), result_(result), died_(died) {}

    void run(const std::vector<std::vector<int64_t>>& batches) {
        waiting_.assign(batches.begin(), batches.end());
        while (!waiting_.empty() || !workers_.empty()) {
            while (!waiting_.empty() && workers_.size() < static_cast<size_t>(std::max(options_.workers, 1))) start();
            listen();
        }
    }

private:
    void start() {
        std::vector<int64_t> cases = std::move(waiting_.front());
        waiting_.pop_front();
        int ends[2];
        if (pipe(ends) != 0) throw_error(Error, "cannot make a pipe: {}", std::strerror(errno));
        fflush(nullptr);
        const pid_t parent = getpid();
        pid_t process = fork();
        if (process < 0) throw_error(Error, "cannot fork: {}", std::strerror(errno));
        if (process == 0) {
            die_with_parent(parent);
            close(ends[0]);
            work_(cases, [out = ends[1]](const Message& message) {
                Header header{message.kind, message.number, message.text.size()};
                write_all(out, &header, sizeof header);
                write_all(out, message.text.data(), message.text.size());
            });
            _exit(0);
        }
        close(ends[1]);
        workers_.push_back({process, ends[0], std::move(cases)});
    }

    void listen() {
        std::vector<pollfd> files;
        for (const Worker& worker : workers_) files.push_back({worker.from, POLLIN, 0});
        poll(files.data(), files.size(), 200);
        for (size_t k = files.size(); k-- > 0;) {
            Worker& worker = workers_[k];
            bool ended = files[k].revents != 0 && !receive(worker);
            std::chrono::duration<double> silent = Clock::now() - worker.last_sign;
            if (!ended && silent.count() > options_.time_limit_s) {
                worker.hung = true;
                kill(worker.process, SIGKILL);
                ended = true;
            }
            if (!ended) continue;
            Worker gone = std::move(worker);
            workers_.erase(workers_.begin() + static_cast<ptrdiff_t>(k));
            bury(gone);
        }
    }

    /// Reads what is there; false at the end.
    bool receive(Worker& worker) {
        char buffer[65536];
        ssize_t got = read(worker.from, buffer, sizeof buffer);
        if (got < 0 && errno == EINTR) return true;
        if (got <= 0) return false;
        worker.last_sign = Clock::now();
        worker.received.append(buffer, static_cast<size_t>(got));
        size_t at = 0;
        Header header;
        while (worker.received.size() - at >= sizeof header) {
            std::memcpy(&header, worker.received.data() + at, sizeof header);
            if (worker.received.size() - at - sizeof header < header.bytes) break;
            understand(worker, {header.kind, header.number, worker.received.substr(at + sizeof header, header.bytes)});
            at += sizeof header + header.bytes;
        }
        worker.received.erase(0, at);
        return true;
    }

    void understand(Worker& worker, const Message& message) {
        switch (message.kind) {
            case Message::Kind::Begin:
                worker.begun = message.number;
                worker.notes = message.text;
                break;
            case Message::Kind::Note: worker.notes += "\n" + message.text; break;
            case Message::Kind::Result:
                worker.finished.insert(message.number);
                result_(message);
                break;
        }
    }

    void bury(Worker& worker) {
        close(worker.from);
        int status = 0;
        while (waitpid(worker.process, &status, 0) < 0 && errno == EINTR) {
        }
        std::vector<int64_t> left;
        for (int64_t number : worker.cases)
            if (!worker.finished.count(number)) left.push_back(number);
        bool well = !worker.hung && WIFEXITED(status) && WEXITSTATUS(status) == 0;
        if (well && left.empty()) return;
        bool alone = worker.cases.size() == 1;
        if (alone || worker.begun >= 0) {
            // In a batch of several the culprit is known only while its own steps ran.
            int64_t culprit = alone ? worker.cases[0] : worker.begun;
            if (alone || !worker.finished.count(culprit)) {
                died_(culprit, how(worker, status), worker.notes);
                std::erase(left, culprit);
            }
        }
        for (int64_t number : left) waiting_.push_front({number});
    }

    static std::string how(const Worker& worker, int status) {
        if (worker.hung) return "the worker hung and was stopped";
        if (WIFSIGNALED(status))
            return fmt::format("the worker died of signal {} ({})", WTERMSIG(status), strsignal(WTERMSIG(status)));
        return fmt::format("the worker ended with status {} before the case was done", WEXITSTATUS(status));
    }

    const WorkerOptions& options_;
    const std::function<void(const std::vector<int64_t>&, const Tell&)>& work_;
    const std::function<void(const Message&)>& result_;
    const std::function<void(int64_t, const std::string&, const std::string&)>& died_;
    std::deque<std::vector<int64_t>> waiting_;
    std::vector<Worker> workers_;
};

}  // namespace

void run_in_workers(const std::vector<std::vector<int64_t>>& batches, const WorkerOptions& options,
                    const std::function<void(const std::vector<int64_t>& cases, const Tell& tell)>& work,
                    const std::function<void(const Message&)>& result,
                    const std::function<void(int64_t number, const std::string& how, const std::string& notes)>& died) {
    Pool(options, work, result, died).run(batches);
}

}  // namespace tw::fuzz
