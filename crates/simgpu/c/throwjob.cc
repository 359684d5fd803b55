// SPDX-License-Identifier: Apache-2.0
// throwjob: C++ exceptions that pass through a traced function's frame, as
// those of PyTorch's reporters do, between ordinary CUDA calls, in a process
// and in the tree of processes that it forks. Fails unless everything that was
// thrown arrived, with what it carried.
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <stdexcept>
#include <string>

#include <sys/wait.h>
#include <unistd.h>

extern "C" {
#include "c10.h"
#include "cuda_runtime.h"
}

namespace {

struct Counts {
    unsigned long thrown, caught, passed, cuda_calls, bad;
};

Counts counts;
unsigned long long cleaned_up;

// Counts that destructors between throw and catch run.
struct Guard {
    ~Guard() { cleaned_up++; }
};

void throwing_reporter(void *, int64_t size, size_t, size_t, C10Device)
{
    Guard guard;
    // Every third report comes back as usual.
    if (size % 3 == 0) {
        counts.passed++;
        return;
    }
    counts.thrown++;
    throw std::runtime_error("report of " + std::to_string(size));
}

void check(int error)
{
    counts.cuda_calls++;
    counts.bad += error != 0;
}

void cuda_calls(void *kernel, cudaStream_t stream)
{
    dim3 one = {1, 1, 1};
    void *device = nullptr;
    check(cudaMalloc(&device, 4096));
    check(cudaLaunchKernel(kernel, one, one, nullptr, 0, stream));
    check(cudaStreamSynchronize(stream));
    check(cudaFree(device));
}

// Straight through the traced function. Not inlined: its frame is the next one.
__attribute__((noinline)) void report_directly(int64_t size)
{
    Guard guard;
    report_memory_usage(&counts, size, 1000, 2000, C10Device{1, 0});
}

// Through the traced function and the allocator that called it.
__attribute__((noinline)) void report_by_allocating(int64_t size)
{
    void *block = nullptr;
    Guard guard;
    try {
        c10sim_alloc(static_cast<size_t>(size), 0, &block);
    } catch (const std::runtime_error &) {
        counts.caught++;
        // The block was handed out before the report threw; its free throws again.
        c10sim_free(block);
        throw;
    }
    c10sim_free(block);
}

void expect_throw(void (*what)(int64_t), int64_t size)
{
    unsigned long before = counts.thrown;
    bool arrived = false;
    try {
        what(size);
    } catch (const std::runtime_error &error) {
        arrived = true;
        counts.caught++;
        counts.bad += std::strncmp(error.what(), "report of ", 10) != 0;
    }
    counts.bad += arrived != (counts.thrown != before);
}

void work(unsigned long rounds)
{
    cudaStream_t stream;
    check(cudaStreamCreate(&stream));
    void *kernel = simgpuKernel("throwjob_kernel", 1000);
    for (unsigned long i = 0; i < rounds; i++) {
        expect_throw(report_directly, static_cast<int64_t>(i));
        if (i % 8 == 0)
            cuda_calls(kernel, stream);
        if (i % 16 == 0)
            expect_throw(report_by_allocating, static_cast<int64_t>(512 * (i + 1)));
    }
    check(cudaStreamDestroy(stream));
    counts.bad += counts.thrown != counts.caught;
}

bool report_counts(const char *who)
{
    std::printf("{\"who\":\"%s\",\"pid\":%d,\"thrown\":%lu,\"caught\":%lu,\"passed\":%lu,"
                "\"cuda_calls\":%lu,\"bad\":%lu}\n",
                who, static_cast<int>(getpid()), counts.thrown, counts.caught, counts.passed,
                counts.cuda_calls, counts.bad);
    std::fflush(stdout);
    return counts.bad == 0;
}

// Each child works and forks its own children, before and after its work.
bool fork_tree(int children, int levels, unsigned long rounds)
{
    bool fine = true;
    for (int i = 0; i < children; i++) {
        pid_t pid = fork();
        if (pid == 0) {
            counts = Counts();
            work(rounds);
            bool good = levels <= 1 || fork_tree(children, levels - 1, rounds);
            std::_Exit(report_counts("child") && good ? 0 : 1);
        }
        int status = 0;
        fine = fine && pid > 0 && waitpid(pid, &status, 0) == pid && status == 0;
    }
    return fine;
}

unsigned long argument(int argc, char **argv, int index, unsigned long otherwise)
{
    return argc > index ? std::strtoul(argv[index], nullptr, 10) : otherwise;
}

} // namespace

// throwjob [ROUNDS [CHILDREN [LEVELS [CHILD_ROUNDS [WAIT_MS]]]]]
int main(int argc, char **argv)
{
    unsigned long rounds = argument(argc, argv, 1, 3000);
    int children = static_cast<int>(argument(argc, argv, 2, 2));
    int levels = static_cast<int>(argument(argc, argv, 3, 2));
    unsigned long child_rounds = argument(argc, argv, 4, 32);
    usleep(static_cast<useconds_t>(argument(argc, argv, 5, 0) * 1000));
    c10sim_set_reporter(throwing_reporter);
    work(rounds);
    bool fine = levels < 1 || fork_tree(children, levels, child_rounds);
    fine = report_counts("parent") && fine && cleaned_up > 0;
    return fine ? 0 : 1;
}
