// SPDX-License-Identifier: Apache-2.0
// staticjob: a program with the CUDA runtime linked in. It makes an exactly
// known number of calls, and has no CUDA library mapped before the first one.
#define _GNU_SOURCE
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include "cuda_runtime.h"

#define BYTES 65536u

static uint64_t calls;

static void check(const char *name, cudaError_t error)
{
    calls++;
    if (error) {
        fprintf(stderr, "staticjob: %s failed with error %d\n", name, error);
        exit(1);
    }
}

#define CALL(name, ...) check(#name, name(__VA_ARGS__))

static void one_round(void *kernel, cudaStream_t stream, const char *host)
{
    dim3 one = {1, 1, 1};
    void *device;
    CALL(cudaMalloc, &device, BYTES);
    CALL(cudaMemcpy, device, host, BYTES, cudaMemcpyHostToDevice);
    CALL(cudaLaunchKernel, kernel, one, one, NULL, 0, stream);
    CALL(cudaStreamSynchronize, stream);
    CALL(cudaFree, device);
}

int main(int argc, char **argv)
{
    uint64_t rounds = argc > 1 ? strtoull(argv[1], NULL, 10) : 100;
    const char *wait = argc > 2 ? argv[2] : "0";
    static char host[BYTES];
    cudaStream_t stream;
    if (argc > 3) {
        fputs("usage: staticjob [ROUNDS [WAIT_MS | -]]   (-: waits for a line)\n", stderr);
        return 2;
    }
    printf("ready %d\n", (int)getpid());
    fflush(stdout);
    if (wait[0] == '-')
        for (int c = 0; c != '\n' && c != EOF;)
            c = getchar();
    else
        usleep((useconds_t)(strtoul(wait, NULL, 10) * 1000));
    CALL(cudaStreamCreate, &stream);
    void *kernel = simgpuKernel("staticjob_kernel", 1000);
    for (uint64_t i = 0; i < rounds; i++)
        one_round(kernel, stream, host);
    CALL(cudaStreamDestroy, stream);
    printf("{\"calls\":%" PRIu64 ",\"rounds\":%" PRIu64 "}\n", calls, rounds);
    return 0;
}
