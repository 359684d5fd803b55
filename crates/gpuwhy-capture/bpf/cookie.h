/* SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause */
/* How a function's arguments are read: the other half of gpuwhy-model's decode.rs. */
#pragma once

#define NO_TWIN 0x3ff
#define STREAM_IN_CONFIG 15

#define COOKIE_OP(c) ((__u32)((c) & 0x3ff))
#define COOKIE_SHAPE(c) ((__u32)((c) >> 10 & 0x3f))
#define COOKIE_A(c) ((__u32)((c) >> 16 & 0xf))
#define COOKIE_B(c) ((__u32)((c) >> 20 & 0xf))
#define COOKIE_STREAM(c) ((__u32)((c) >> 24 & 0xf))
#define COOKIE_EXTRA(c) ((__u32)((c) >> 28 & 0xf))
#define COOKIE_TWIN(c) ((__u32)((c) >> 32 & 0x3ff))
#define COOKIE_RUNTIME(c) ((bool)((c) >> 42 & 1))
/* The runtime is linked into the file that calls it, so its own driver calls also come from that file. */
#define COOKIE_LINKED_IN(c) ((bool)((c) >> 43 & 1))

enum shape {
	PLAIN = 0,
	ALLOC = 1,
	ALLOC_AT = 2,
	ALLOC_PITCH = 3,
	ALLOC_3D = 4,
	ALLOC_OPAQUE = 5,
	FREE = 6,
	RANGE = 7,
	COPY = 8,
	COPY_KIND = 9,
	COPY_2D = 10,
	COPY_3D_RUNTIME = 11,
	COPY_2D_DRIVER = 12,
	COPY_3D_DRIVER = 13,
	FILL = 14,
	FILL_2D = 15,
	FILL_3D = 16,
	LAUNCH = 17,
	LAUNCH_DIM3 = 18,
	LAUNCH_CONFIG = 19,
	HANDLE = 20,
	SET_DEVICE = 21,
	NEW_CONTEXT = 22,
	SET_CONTEXT = 23,
	POP_CONTEXT = 24,
	DROP_CONTEXT = 25,
	/* From here on: rare.h. */
	HANDLES = 26,
	NEW_HANDLE = 27,
	NAMED = 28,
	TRANSFER = 29,
	COMMUNICATOR = 30,
};
