/* What NCCL and a profiler plugin of its exchange, interfaces 4 to 7, as far as this plugin uses it. The interfaces
   differ in what follows these members, in the width of `type` (one byte in 4), and in the order of init's arguments
   (4). */
#pragma once

#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

enum { NCCL_SUCCESS = 0 };

/* Sorts of events, which a mask turns on. NCCL starts GROUP and COLL_API also for a mask that has only what is below
   them. */
enum {
	NCCL_GROUP = 1 << 0,
	NCCL_COLL = 1 << 1,
	NCCL_P2P = 1 << 2,
	NCCL_PROXY_OP = 1 << 3,
	NCCL_PROXY_STEP = 1 << 4,
	NCCL_KERNEL_CH = 1 << 6,
	NCCL_COLL_API = 1 << 9,
};

/* States of a proxy step. Each lasts until the next one, or until the step stops. */
enum {
	NCCL_SEND_GPU_WAIT = 8,
	NCCL_SEND_WAIT = 9,
	NCCL_RECV_WAIT = 10,
	NCCL_RECV_FLUSH_WAIT = 11,
	NCCL_RECV_GPU_WAIT = 12,
	NCCL_SEND_PEER_WAIT = 20,
};

struct nccl_event {
	uint64_t type;
	void *parent;
	int rank;
	union {
		struct {
			uint64_t seq; /* counts the calls of this function on this communicator */
			const char *func;
			const void *send;
			void *receive;
			size_t count;
			int root;
			const char *datatype;
			uint8_t channels;
			uint8_t warps;
			const char *algo;
			const char *proto;
		} coll;
		struct {
			pid_t pid; /* of the process whose collective it is: with PXN another one, and then `parent` is its */
			uint8_t channel;
			int peer;
			int steps;
			int chunk_bytes;
			int is_send;
		} proxy_op;
		struct {
			int step;
		} proxy_step;
	};
};

union nccl_state_args {
	size_t transferred_bytes;
	uint64_t gpu_timer;
};

typedef void (*nccl_logger)(int level, unsigned long flags, const char *file, int line, const char *format, ...);

struct nccl_profiler_v4 {
	const char *name;
	int (*init)(void **context, int *mask, const char *comm_name, uint64_t comm_id, int nodes, int ranks, int rank,
		    nccl_logger log);
	int (*start_event)(void *context, void **handle, struct nccl_event *event);
	int (*stop_event)(void *handle);
	int (*record_event_state)(void *handle, int state, union nccl_state_args *args);
	int (*finalize)(void *context);
};

/* Interfaces 5, 6 and 7. */
struct nccl_profiler_v5 {
	const char *name;
	int (*init)(void **context, uint64_t comm_id, int *mask, const char *comm_name, int nodes, int ranks, int rank,
		    nccl_logger log);
	int (*start_event)(void *context, void **handle, struct nccl_event *event);
	int (*stop_event)(void *handle);
	int (*record_event_state)(void *handle, int state, union nccl_state_args *args);
	int (*finalize)(void *context);
	void *appended[8]; /* by an NCCL that somebody has changed: callbacks that it finds missing */
};
