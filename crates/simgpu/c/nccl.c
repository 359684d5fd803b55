// SPDX-License-Identifier: Apache-2.0
// Simulated NCCL: a collective is one kernel on the caller's stream, as long
// as its bytes take at the bandwidth of the link. Ranks do not wait for each
// other. Inside a group, kernels are launched when the group ends.
#include "nccl.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "cuda_driver.h"
#include "simgpu.h"

#define LINK_BYTES_PER_NS 100u // 100 GB/s
#define MAX_GROUP 256
#define NCCL_UNHANDLED_CUDA_ERROR 1
#define NCCL_INVALID_ARGUMENT 4
#define NCCL_INVALID_USAGE 5
#define NCCL_SPLIT_NOCOLOR (-1)

#define END(result) return simgpu_leave(&call, (int)(result))

struct ncclComm {
    int ranks, rank;
    uint64_t sequence; // of the next collective, send or receive
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

// What the log says of a collective; `peer` is the root where there is one.
static SimDetail describe(ncclComm_t comm, size_t count, ncclDataType_t type, int peer)
{
    SimDetail detail = {.kind = DETAIL_COLLECTIVE, .values = {(uintptr_t)comm, 0, count}};
    if (comm) {
        detail.values[1] = __atomic_fetch_add(&comm->sequence, 1, __ATOMIC_RELAXED);
        detail.numbers[0] = comm->ranks;
        detail.numbers[1] = comm->rank;
    }
    detail.numbers[2] = type;
    detail.numbers[3] = peer;
    return detail;
}

// Opens the log entry of a collective and takes the communicator's next number for it.
#define BEGIN_COLLECTIVE(name, buffer, peer)                                           \
    SimDetail detail = describe(comm, count, type, (peer));                            \
    BEGIN(name, .bytes = count * type_bytes(type), .pointer = (uintptr_t)(buffer),     \
          .stream = (uintptr_t)stream, .detail = &detail)

#define NO_PEER (-1)

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

static SimDetail describe_comm(ncclComm_t comm, const ncclUniqueId *id)
{
    SimDetail detail = {.kind = DETAIL_COMM, .values = {(uintptr_t)comm}};
    if (id)
        memcpy(&detail.values[2], id->internal, 16);
    if (comm) {
        detail.numbers[0] = comm->ranks;
        detail.numbers[1] = comm->rank;
    }
    return detail;
}

static ncclResult_t new_comm(SimCall *call, SimDetail *detail, ncclComm_t *comm, int ranks,
                             int rank)
{
    detail->numbers[0] = ranks;
    detail->numbers[1] = rank;
    if (!comm || ranks < 1 || rank < 0 || rank >= ranks)
        return NCCL_INVALID_ARGUMENT;
    *comm = malloc(sizeof **comm);
    if (!*comm)
        return NCCL_UNHANDLED_CUDA_ERROR;
    **comm = (struct ncclComm){.ranks = ranks, .rank = rank};
    detail->values[0] = (uintptr_t)*comm;
    if (!call->pointer)
        call->pointer = (uintptr_t)*comm;
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
    SimDetail detail = describe_comm(NULL, &id);
    BEGIN(ncclCommInitRank, .detail = &detail);
    END(new_comm(&call, &detail, comm, ranks, rank));
}

API(ncclResult_t, ncclCommInitRankConfig,
    (ncclComm_t * comm, int ranks, ncclUniqueId id, int rank, void *config))
{
    (void)config;
    SimDetail detail = describe_comm(NULL, &id);
    BEGIN(ncclCommInitRankConfig, .detail = &detail);
    END(new_comm(&call, &detail, comm, ranks, rank));
}

API(ncclResult_t, ncclCommInitRankScalable,
    (ncclComm_t * comm, int ranks, int rank, int ids, ncclUniqueId *id, void *config))
{
    (void)config;
    SimDetail detail = describe_comm(NULL, ids > 0 ? id : NULL);
    BEGIN(ncclCommInitRankScalable, .detail = &detail);
    END(ids > 0 && id ? new_comm(&call, &detail, comm, ranks, rank) : NCCL_INVALID_ARGUMENT);
}

// One communicator for each device; the log has the first one.
API(ncclResult_t, ncclCommInitAll, (ncclComm_t * comms, int devices, const int *list))
{
    (void)list;
    SimDetail detail = describe_comm(NULL, NULL);
    BEGIN(ncclCommInitAll, .detail = &detail);
    ncclResult_t result = devices > 0 ? 0 : NCCL_INVALID_ARGUMENT;
    for (int i = devices; i-- > 0 && result == 0;)
        result = new_comm(&call, &detail, &comms[i], devices, i);
    call.pointer = detail.values[0];
    END(result);
}

// Who else has the color is not known here: the new communicator is as large
// as its parent.
API(ncclResult_t, ncclCommSplit,
    (ncclComm_t comm, int color, int key, ncclComm_t *out, void *config))
{
    (void)config;
    SimDetail detail = describe_comm(NULL, NULL);
    detail.values[1] = (uintptr_t)comm;
    detail.numbers[2] = color;
    detail.numbers[3] = key;
    BEGIN(ncclCommSplit, .pointer = (uintptr_t)comm, .detail = &detail);
    if (!comm || !out || color < NCCL_SPLIT_NOCOLOR)
        END(NCCL_INVALID_ARGUMENT);
    *out = NULL;
    END(color == NCCL_SPLIT_NOCOLOR
            ? 0
            : new_comm(&call, &detail, out, comm->ranks, comm->rank));
}

API(ncclResult_t, ncclCommFinalize, (ncclComm_t comm))
{
    SimDetail detail = describe_comm(comm, NULL);
    BEGIN(ncclCommFinalize, .pointer = (uintptr_t)comm, .detail = &detail);
    END(comm ? 0 : NCCL_INVALID_ARGUMENT);
}

API(ncclResult_t, ncclCommAbort, (ncclComm_t comm))
{
    SimDetail detail = describe_comm(comm, NULL);
    BEGIN(ncclCommAbort, .pointer = (uintptr_t)comm, .detail = &detail);
    free(comm);
    END(comm ? 0 : NCCL_INVALID_ARGUMENT);
}

API(ncclResult_t, ncclCommDestroy, (ncclComm_t comm))
{
    SimDetail detail = describe_comm(comm, NULL);
    BEGIN(ncclCommDestroy, .pointer = (uintptr_t)comm, .detail = &detail);
    free(comm);
    END(comm ? 0 : NCCL_INVALID_ARGUMENT);
}

API(ncclResult_t, ncclAllReduce,
    (const void *send, void *recv, size_t count, ncclDataType_t type, ncclRedOp_t op,
     ncclComm_t comm, cudaStream_t stream))
{
    (void)send, (void)op;
    BEGIN_COLLECTIVE(ncclAllReduce, recv, NO_PEER);
    END(collective(&call, comm, stream));
}

API(ncclResult_t, ncclBroadcast,
    (const void *send, void *recv, size_t count, ncclDataType_t type, int root,
     ncclComm_t comm, cudaStream_t stream))
{
    (void)send;
    BEGIN_COLLECTIVE(ncclBroadcast, recv, root);
    END(collective(&call, comm, stream));
}

API(ncclResult_t, ncclBcast,
    (void *buffer, size_t count, ncclDataType_t type, int root, ncclComm_t comm,
     cudaStream_t stream))
{
    BEGIN_COLLECTIVE(ncclBcast, buffer, root);
    END(collective(&call, comm, stream));
}

API(ncclResult_t, ncclAlltoAll,
    (const void *send, void *recv, size_t count, ncclDataType_t type, ncclComm_t comm,
     cudaStream_t stream))
{
    (void)send;
    BEGIN_COLLECTIVE(ncclAlltoAll, recv, NO_PEER);
    END(collective(&call, comm, stream));
}

API(ncclResult_t, ncclReduce,
    (const void *send, void *recv, size_t count, ncclDataType_t type, ncclRedOp_t op,
     int root, ncclComm_t comm, cudaStream_t stream))
{
    (void)send, (void)op;
    BEGIN_COLLECTIVE(ncclReduce, recv, root);
    END(collective(&call, comm, stream));
}

API(ncclResult_t, ncclAllGather,
    (const void *send, void *recv, size_t count, ncclDataType_t type, ncclComm_t comm,
     cudaStream_t stream))
{
    (void)send;
    BEGIN_COLLECTIVE(ncclAllGather, recv, NO_PEER);
    END(collective(&call, comm, stream));
}

API(ncclResult_t, ncclReduceScatter,
    (const void *send, void *recv, size_t count, ncclDataType_t type, ncclRedOp_t op,
     ncclComm_t comm, cudaStream_t stream))
{
    (void)send, (void)op;
    BEGIN_COLLECTIVE(ncclReduceScatter, recv, NO_PEER);
    END(collective(&call, comm, stream));
}

API(ncclResult_t, ncclSend,
    (const void *send, size_t count, ncclDataType_t type, int peer, ncclComm_t comm,
     cudaStream_t stream))
{
    BEGIN_COLLECTIVE(ncclSend, send, peer);
    END(collective(&call, comm, stream));
}

API(ncclResult_t, ncclRecv,
    (void *recv, size_t count, ncclDataType_t type, int peer, ncclComm_t comm,
     cudaStream_t stream))
{
    BEGIN_COLLECTIVE(ncclRecv, recv, peer);
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
