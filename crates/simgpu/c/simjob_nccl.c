// SPDX-License-Identifier: Apache-2.0
// simjob nccl: several communicators in one process, made in every way, and
// told apart only by their pointers.
#define _GNU_SOURCE
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "nccl.h"
#include "simjob_plays.h"

enum { INT8 = 0, FLOAT = 7, DOUBLE = 8, NO_COLOR = -1 };

typedef struct Cast {
    void *nccl, *cuda;
    cudaStream_t stream, other_stream;
    void *device;
    ncclComm_t world, pair, part; // world's part is what a split of it gave
    uint64_t world_operations, pair_operations, part_operations;
} Cast;

static void say(const char *name, ncclComm_t comm, int ranks, int rank, uint64_t operations)
{
    printf("communicator %s %" PRIuPTR " %d %d %" PRIu64 "\n", name, (uintptr_t)comm, ranks,
           rank, operations);
}

static void make(Play *play, Cast *cast)
{
    ncclUniqueId world, pair;
    ncclComm_t none;
    FROM(cast->nccl, ncclGetUniqueId)(&world);
    FROM(cast->nccl, ncclGetUniqueId)(&pair);
    printf("id world %.16s\nid pair %.16s\n", world.internal, pair.internal);
    CALL(cast->nccl, ncclCommInitRank, &cast->world, 4, world, 1);
    CALL(cast->nccl, ncclCommInitRankConfig, &cast->pair, 2, pair, 0, NULL);
    CALL(cast->nccl, ncclCommSplit, cast->world, 3, 7, &cast->part, NULL);
    CALL(cast->nccl, ncclCommSplit, cast->world, NO_COLOR, 0, &none, NULL);
    if (none || cast->part == cast->world)
        die("a split gave the wrong communicator");
}

static void one_round(Play *play, Cast *cast)
{
    void *data = cast->device, *nccl = cast->nccl;
    cudaStream_t stream = cast->stream, other = cast->other_stream;
    CALL(nccl, ncclAllReduce, data, data, 1000, FLOAT, 0, cast->world, stream);
    CALL(nccl, ncclBroadcast, data, data, 500, DOUBLE, 1, cast->pair, other);
    CALL(nccl, ncclReduce, data, data, 10, INT8, 0, 2, cast->world, stream);
    CALL(nccl, ncclAllGather, data, data, 256, FLOAT, cast->pair, other);
    CALL(nccl, ncclReduceScatter, data, data, 64, FLOAT, 0, cast->world, stream);
    CALL(nccl, ncclAllReduce, data, data, 2000, FLOAT, 0, cast->part, stream);
    CALL(nccl, ncclBcast, data, 3000, INT8, 3, cast->part, stream);
    CALL(nccl, ncclAlltoAll, data, data, 16, FLOAT, cast->world, stream);
    CALL(nccl, ncclGroupStart, );
    CALL(nccl, ncclSend, data, 100, FLOAT, 0, cast->world, stream);
    CALL(nccl, ncclRecv, data, 100, FLOAT, 2, cast->world, stream);
    CALL(nccl, ncclGroupEnd, );
    // A group of two communicators, inside another group.
    CALL(nccl, ncclGroupStart, );
    CALL(nccl, ncclGroupStart, );
    CALL(nccl, ncclAllReduce, data, data, 1, FLOAT, 0, cast->world, stream);
    CALL(nccl, ncclAllReduce, data, data, 2, FLOAT, 0, cast->pair, other);
    CALL(nccl, ncclGroupEnd, );
    CALL(nccl, ncclGroupEnd, );
    cast->world_operations += 7;
    cast->pair_operations += 3;
    cast->part_operations += 2;
}

// Made after the others are gone, so that it may well have the address of one.
static void late_ones(Play *play, Cast *cast)
{
    ncclComm_t late, all[2];
    ncclUniqueId ids[2];
    FROM(cast->nccl, ncclGetUniqueId)(&ids[0]);
    FROM(cast->nccl, ncclGetUniqueId)(&ids[1]);
    CALL(cast->nccl, ncclCommInitRankScalable, &late, 16, 15, 2, ids, NULL);
    CALL(cast->nccl, ncclAllReduce, cast->device, cast->device, 77, FLOAT, 0, late,
         cast->stream);
    say("late", late, 16, 15, 1);
    CALL(cast->nccl, ncclCommDestroy, late);
    CALL(cast->nccl, ncclCommInitAll, all, 2, NULL);
    for (int i = 0; i < 2; i++) {
        CALL(cast->nccl, ncclAllReduce, cast->device, cast->device, 5, FLOAT, 0, all[i],
             cast->stream);
        say(i ? "all1" : "all0", all[i], 2, i, 1);
    }
    for (int i = 0; i < 2; i++)
        CALL(cast->nccl, ncclCommDestroy, all[i]);
}

void play_nccl(Play *play)
{
    Api api = load_api(play->cudart[0]);
    Cast cast = {.cuda = api.handle, .nccl = open_beside(play->cudart[0], "libnccl.so.2")};
    made(play, "cudaStreamCreate", api.cudaStreamCreate(&cast.stream));
    made(play, "cudaStreamCreate", api.cudaStreamCreate(&cast.other_stream));
    made(play, "cudaMalloc", api.cudaMalloc(&cast.device, 1u << 20));
    make(play, &cast);
    for (uint64_t i = 0; i < play->rounds; i++)
        one_round(play, &cast);
    made(play, "cudaDeviceSynchronize", api.cudaDeviceSynchronize());
    say("world", cast.world, 4, 1, cast.world_operations);
    say("pair", cast.pair, 2, 0, cast.pair_operations);
    say("part", cast.part, 4, 1, cast.part_operations);
    CALL(cast.nccl, ncclCommFinalize, cast.world);
    CALL(cast.nccl, ncclCommDestroy, cast.part);
    CALL(cast.nccl, ncclCommDestroy, cast.world);
    CALL(cast.nccl, ncclCommAbort, cast.pair);
    late_ones(play, &cast);
    made(play, "cudaDeviceSynchronize", api.cudaDeviceSynchronize());
    made(play, "cudaFree", api.cudaFree(cast.device));
    print_end(play, "nccl");
    printf(",\"rounds\":%" PRIu64 "}\n", play->rounds);
}
