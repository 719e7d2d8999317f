/* A rank's telemetry file in shared memory, laid out as c4bench/collective/ring_layout.py says: it can be read at any
   time, also when its writer was stopped or killed in the middle of a record. Times are ns. */
#pragma once

#include "record_file.h"
#include "slot.h"

#include <pthread.h>
#include <stdint.h>

#pragma GCC visibility push(hidden)

enum {
	TELEMETRY_COMMS = 64,
	TELEMETRY_CONNS = 1024, /* sending ends, and as many receiving ones */
	TELEMETRY_NAME_BYTES = 16,
	TELEMETRY_STRIDES = 8,
	TELEMETRY_RANKS = 1024, /* that an operation can await */
};

/* Counts messages and sums their times, as of the last multiple of each stride (1, 4, 16, ...). */
struct telemetry_tally {
	uint64_t count;
	uint64_t sums[TELEMETRY_STRIDES];
};

struct telemetry_op {
	uint64_t seq, size_bytes;
	int64_t entered_ns, started_ns, finished_ns;
	char kind[TELEMETRY_NAME_BYTES], algorithm[TELEMETRY_NAME_BYTES], dtype[TELEMETRY_NAME_BYTES];
	unsigned char awaits[TELEMETRY_RANKS / 8]; /* a bit for each rank whose data is missing */
};

enum telemetry_state { TELEMETRY_IDLE, TELEMETRY_CREDIT, TELEMETRY_DATA, TELEMETRY_TRANSFER };

struct telemetry_conn {
	uint64_t messages, size_bytes;
	int64_t credit_ns, data_ns, transfer_ns, shared_ns, last_progress_ns;
	uint32_t outstanding, owed, source_port, state;
	int64_t since_ns;
	struct telemetry_tally posted;
};

/* A communicator, as one of its ranks knows it: of the others only how many there are, 0 where not even that is known. */
struct telemetry_comm {
	const char *name;
	int rank, ranks;
};

/* An end of a connection: of which communicator, by its place, and to whom. NICs are known by their addresses, and stay
   empty where the library that records does not know them. */
struct telemetry_end {
	int comm, peer;
	const char *source, *destination;
	uint32_t qp;
};

enum telemetry_table { TELEMETRY_SENDS, TELEMETRY_RECEIVES };

struct telemetry_file {
	struct record_file file;
	pthread_mutex_t lock; /* for the two below: which communicator has a place, counted from 1, or 0 */
	uint8_t comms[TELEMETRY_COMMS], ends[2][TELEMETRY_CONNS];
};

/* Wall-clock ns that never step back, as the recorder of c4bench has them. */
int64_t telemetry_now_ns(void);

/* The value of the first of these variables that is set, or NULL. */
const char *telemetry_first_set(const char *const names[], int count);
/* Copies what may stand in a name, and `_` for what may not. */
void telemetry_copy_name(char *to, size_t room, const char *from);

/* Has the agent know this process, at most once a second: of the library for verbs, where that is loaded too. */
__attribute__((weak, visibility("default"))) void c4bench_attach_process(uint64_t now_ns);

/* Makes PID and `suffix` in the folder of records, of this rank of the job, -1 where it is not known. Returns NULL, or why
   there is no file; then nothing is left behind. */
const char *telemetry_create(struct telemetry_file *file, const char *suffix, int rank);

/* These return a place, or -1 where the table or the memory is full. */
int telemetry_open_comm(struct telemetry_file *file, const struct telemetry_comm *comm);
int telemetry_open_send(struct telemetry_file *file, const struct telemetry_end *end, const struct telemetry_conn *conn);
int telemetry_open_receive(struct telemetry_file *file, const struct telemetry_end *end);
/* Releases a communicator with its operations and connections. */
void telemetry_close_comm(struct telemetry_file *file, int comm);

void telemetry_count(struct telemetry_tally *tally, int64_t now_ns);
void telemetry_write_op(struct telemetry_file *file, int comm, const struct telemetry_op *op);
void telemetry_write_send(struct telemetry_file *file, int place, const struct telemetry_conn *conn);
void telemetry_write_receive(struct telemetry_file *file, int place, const struct telemetry_tally *arrived);

/* For a library that keeps the places of connections itself: reserves `count` of each table, names an end or, without one,
   releases its place, and finds its numbers. */
bool telemetry_reserve_ends(struct telemetry_file *file, int first, int count);
void telemetry_name_end(struct telemetry_file *file, enum telemetry_table table, int place, const struct telemetry_end *end);
struct slot telemetry_end_numbers(struct telemetry_file *file, enum telemetry_table table, int place);

#pragma GCC visibility pop
