/* A rank's telemetry file in shared memory, laid out as c4bench/collective/ring_layout.py says: it can be read at any
   time, also when its writer was stopped or killed in the middle of a record. Times are ns. */
#pragma once

#include <pthread.h>
#include <stdint.h>
#include <sys/types.h>

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

/* A communicator, as one of its ranks knows it: of the others only how many there are. */
struct telemetry_comm {
	const char *name;
	int rank, ranks;
};

/* `seat` is the job's rank, -1 where it is not known. */
struct telemetry_owner {
	char job[64], host[65];
	int seat;
};

struct telemetry_file {
	unsigned char *memory;
	char path[512];
	struct telemetry_owner owner;
	pthread_mutex_t lock; /* for the three below: which communicator has a place, counted from 1, or 0 */
	uint8_t comms[TELEMETRY_COMMS], sends[TELEMETRY_CONNS], receives[TELEMETRY_CONNS];
};

/* Wall-clock ns that never step back, as the recorder of c4bench has them. */
int64_t telemetry_now_ns(void);

/* The value of the first of these variables that is set, or NULL. */
const char *telemetry_first_set(const char *const names[], int count);
/* Copies what may stand in a name, and `_` for what may not. */
void telemetry_copy_name(char *to, size_t room, const char *from);

/* Makes PID.LIBRARY.ring in the folder that C4BENCH_ATTACH_RECORDS names and the agent has made; job and host are those
   of the environment. Returns NULL, or why there is no file; then nothing is left behind. */
const char *telemetry_create(struct telemetry_file *file, const char *library, int seat);
void telemetry_remove(struct telemetry_file *file);

/* These return a place, or -1 where the table or the memory is full. */
int telemetry_open_comm(struct telemetry_file *file, const struct telemetry_comm *comm);
int telemetry_open_send(struct telemetry_file *file, int comm, int peer, int qp, const struct telemetry_conn *conn);
int telemetry_open_receive(struct telemetry_file *file, int comm, int peer, int qp);
/* Releases a communicator with its operations and connections. */
void telemetry_close_comm(struct telemetry_file *file, int comm);

void telemetry_count(struct telemetry_tally *tally, int64_t now_ns);
void telemetry_write_op(struct telemetry_file *file, int comm, const struct telemetry_op *op);
void telemetry_write_send(struct telemetry_file *file, int place, const struct telemetry_conn *conn);
void telemetry_write_receive(struct telemetry_file *file, int place, const struct telemetry_tally *arrived);

#pragma GCC visibility pop
