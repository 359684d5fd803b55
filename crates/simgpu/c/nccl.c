// SPDX-License-Identifier: Apache-2.0
// Simulated NCCL: a collective is one kernel on the caller's stream, as long
// as its bytes take at the bandwidth of the link. Ranks do not wait for each
// other. Inside a group, kernels are launched when the group ends.
#include "nccl.h"

#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include "cuda_driver.h"
#include "simgpu.h"

#define LINK_BYTES_PER_NS 100u // 100 GB/s
#define MAX_GROUP 256
#define NCCL_UNHANDLED_CUDA_ERROR 1
#define NCCL_INVALID_ARGUMENT 4
#define NCCL_INVALID_USAGE 5

#define END(result) return simgpu_leave(&call, (int)(result))

struct ncclComm {
    int ranks, rank;
};

typedef struct {
    uint64_t duration_ns;
    cudaStream_t stream;
} Pending;

static __thread int group_depth;
static __thread int pending_count;
static __thread Pending *pending;

static size_t type_bytes(ncclDataType_t type)
{
    // ncclInt8, Uint8, Int32, Uint32, Int64, Uint64, Float16, Float32,
    // Float64, Bfloat16, Float8e4m3, Float8e5m2
    static const unsigned char bytes[] = {1, 1, 4, 4, 8, 8, 2, 4, 8, 2, 1, 1};
    return type >= 0 && type < (int)sizeof bytes ? bytes[type] : 1;
}

static ncclResult_t launch(const Pending *work)
{
    // Rounding to 1 us keeps the number of different kernels small.
    uint64_t duration = (work->duration_ns + 999) / 1000 * 1000;
    CUlaunchConfig config = {.gridDimX = 1, .gridDimY = 1, .gridDimZ = 1, .blockDimX = 1,
                             .blockDimY = 1, .blockDimZ = 1, .hStream = work->stream};
    CUfunction kernel = simgpu_kernel("ncclDevKernel", duration);
    CUresult result = cuLaunchKernelEx(&config, kernel, NULL, NULL);
    return result == CUDA_SUCCESS ? 0 : NCCL_UNHANDLED_CUDA_ERROR;
}

static ncclResult_t collective(SimCall *call, ncclComm_t comm, cudaStream_t stream)
{
    if (!comm)
        return NCCL_INVALID_ARGUMENT;
    Pending work = {call->bytes / LINK_BYTES_PER_NS, stream};
    if (!group_depth)
        return launch(&work);
    if (!pending && !(pending = malloc(MAX_GROUP * sizeof *pending)))
        return NCCL_UNHANDLED_CUDA_ERROR;
    if (pending_count == MAX_GROUP)
        return NCCL_INVALID_USAGE;
    pending[pending_count++] = work;
    return 0;
}

static ncclResult_t new_comm(ncclComm_t *comm, int ranks, int rank)
{
    if (!comm || ranks < 1 || rank < 0 || rank >= ranks)
        return NCCL_INVALID_ARGUMENT;
    *comm = malloc(sizeof **comm);
    if (!*comm)
        return NCCL_UNHANDLED_CUDA_ERROR;
    **comm = (struct ncclComm){ranks, rank};
    return 0;
}

API(ncclResult_t, ncclGetUniqueId, (ncclUniqueId * id))
{
    QUERY_BEGIN();
    static int next;
    *id = (ncclUniqueId){{0}};
    int n = __atomic_fetch_add(&next, 1, __ATOMIC_RELAXED);
    snprintf(id->internal, sizeof id->internal, "simgpu-%d-%d", (int)getpid(), n);
    return 0;
}

API(ncclResult_t, ncclCommInitRank, (ncclComm_t * comm, int ranks, ncclUniqueId id, int rank))
{
    (void)id;
    BEGIN(ncclCommInitRank);
    END(new_comm(comm, ranks, rank));
}

API(ncclResult_t, ncclCommInitRankConfig,
    (ncclComm_t * comm, int ranks, ncclUniqueId id, int rank, void *config))
{
    (void)id, (void)config;
    BEGIN(ncclCommInitRankConfig);
    END(new_comm(comm, ranks, rank));
}

API(ncclResult_t, ncclCommSplit,
    (ncclComm_t comm, int color, int key, ncclComm_t *out, void *config))
{
    (void)color, (void)key, (void)config;
    BEGIN(ncclCommSplit, .pointer = (uintptr_t)comm);
    END(comm ? new_comm(out, comm->ranks, comm->rank) : NCCL_INVALID_ARGUMENT);
}

API(ncclResult_t, ncclCommDestroy, (ncclComm_t comm))
{
    BEGIN(ncclCommDestroy, .pointer = (uintptr_t)comm);
    free(comm);
    END(comm ? 0 : NCCL_INVALID_ARGUMENT);
}

API(ncclResult_t, ncclAllReduce,
    (const void *send, void *recv, size_t count, ncclDataType_t type, ncclRedOp_t op,
     ncclComm_t comm, cudaStream_t stream))
{
    (void)send, (void)op;
    BEGIN(ncclAllReduce, .bytes = count * type_bytes(type), .pointer = (uintptr_t)recv,
          .stream = (uintptr_t)stream);
    END(collective(&call, comm, stream));
}

API(ncclResult_t, ncclBroadcast,
    (const void *send, void *recv, size_t count, ncclDataType_t type, int root,
     ncclComm_t comm, cudaStream_t stream))
{
    (void)send, (void)root;
    BEGIN(ncclBroadcast, .bytes = count * type_bytes(type), .pointer = (uintptr_t)recv,
          .stream = (uintptr_t)stream);
    END(collective(&call, comm, stream));
}

API(ncclResult_t, ncclReduce,
    (const void *send, void *recv, size_t count, ncclDataType_t type, ncclRedOp_t op,
     int root, ncclComm_t comm, cudaStream_t stream))
{
    (void)send, (void)op, (void)root;
    BEGIN(ncclReduce, .bytes = count * type_bytes(type), .pointer = (uintptr_t)recv,
          .stream = (uintptr_t)stream);
    END(collective(&call, comm, stream));
}

API(ncclResult_t, ncclAllGather,
    (const void *send, void *recv, size_t count, ncclDataType_t type, ncclComm_t comm,
     cudaStream_t stream))
{
    (void)send;
    BEGIN(ncclAllGather, .bytes = count * type_bytes(type), .pointer = (uintptr_t)recv,
          .stream = (uintptr_t)stream);
    END(collective(&call, comm, stream));
}

API(ncclResult_t, ncclReduceScatter,
    (const void *send, void *recv, size_t count, ncclDataType_t type, ncclRedOp_t op,
     ncclComm_t comm, cudaStream_t stream))
{
    (void)send, (void)op;
    BEGIN(ncclReduceScatter, .bytes = count * type_bytes(type), .pointer = (uintptr_t)recv,
          .stream = (uintptr_t)stream);
    END(collective(&call, comm, stream));
}

API(ncclResult_t, ncclSend,
    (const void *send, size_t count, ncclDataType_t type, int peer, ncclComm_t comm,
     cudaStream_t stream))
{
    (void)peer;
    BEGIN(ncclSend, .bytes = count * type_bytes(type), .pointer = (uintptr_t)send,
          .stream = (uintptr_t)stream);
    END(collective(&call, comm, stream));
}

API(ncclResult_t, ncclRecv,
    (void *recv, size_t count, ncclDataType_t type, int peer, ncclComm_t comm,
     cudaStream_t stream))
{
    (void)peer;
    BEGIN(ncclRecv, .bytes = count * type_bytes(type), .pointer = (uintptr_t)recv,
          .stream = (uintptr_t)stream);
    END(collective(&call, comm, stream));
}

API(ncclResult_t, ncclGroupStart, (void))
{
    BEGIN(ncclGroupStart);
    group_depth++;
    END(0);
}

API(ncclResult_t, ncclGroupEnd, (void))
{
    BEGIN(ncclGroupEnd);
    if (!group_depth)
        END(NCCL_INVALID_USAGE);
    ncclResult_t result = 0;
    if (--group_depth == 0) {
        for (int i = 0; i < pending_count && result == 0; i++)
            result = launch(&pending[i]);
        pending_count = 0;
        free(pending);
        pending = NULL;
    }
    END(result);
}

API(const char *, ncclGetErrorString, (ncclResult_t result))
{
    QUERY_BEGIN();
    switch (result) {
    case 0: return "no error";
    case NCCL_UNHANDLED_CUDA_ERROR: return "unhandled cuda error";
    case NCCL_INVALID_ARGUMENT: return "invalid argument";
    case NCCL_INVALID_USAGE: return "invalid usage";
    default: return "unknown result code";
    }
}
