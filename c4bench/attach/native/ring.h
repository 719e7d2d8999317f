/* A process's telemetry file, as c4bench's own ranks write it (collective/ring_layout.py), and its table of queue pairs. */
#pragma once

#include "telemetry_file.h"

#include <infiniband/verbs.h>
#include <sys/types.h>

#pragma GCC visibility push(hidden)

enum { QP_BYTES = 128, STRIDES = TELEMETRY_STRIDES, NO_PLACE = -1 };

/* Begin to record this process, at the first call. Returns 0, and has said why, where that is not possible. */
int ring_ready(void);

/* The name of its telemetry file, empty where nothing is recorded. */
const char *ring_name(void);

/* The records of a queue pair: its sending end, its receiving end, and what only this library records. */
struct ring_qp {
	int place; /* in the tables, NO_PLACE where there is none left */
	pid_t owner;
	struct slot sending, arriving, queue_pair;
};

/* Take a place for a queue pair between two NICs, each known by its address, and give it back. What only this library
   records stays there until the place is taken again. */
struct ring_qp ring_take(const union ibv_gid *local, uint32_t number, const union ibv_gid *remote, uint32_t remote_number);
void ring_give(struct ring_qp *records);

#pragma GCC visibility pop
