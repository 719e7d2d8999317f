/* Writes a rank's telemetry file with plain stores. */
#define _GNU_SOURCE
#include "telemetry_file.h"

#include "pack.h"

#include <ctype.h>
#include <dlfcn.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#define HEADER_BYTES 4096
#define PROCESS_BYTES 512
#define COMM_BYTES (128 << 10)
#define OPS_PER_COMM 64
#define OP_BYTES 256
#define CONN_NAME_BYTES 256
#define CONN_BYTES 192
#define ARRIVAL_BYTES 96
#define RECORD_HEAD_BYTES 16

/* Every record has two copies, one behind the other. */
#define COMMS_AT (HEADER_BYTES + 2 * PROCESS_BYTES)
#define OPS_AT (COMMS_AT + 2 * COMM_BYTES * TELEMETRY_COMMS)
#define CONN_NAMES_AT (OPS_AT + 2 * OP_BYTES * OPS_PER_COMM * TELEMETRY_COMMS)
#define CONNS_AT (CONN_NAMES_AT + 2 * CONN_NAME_BYTES * TELEMETRY_CONNS)
#define ARRIVAL_NAMES_AT (CONNS_AT + 2 * CONN_BYTES * TELEMETRY_CONNS)
#define ARRIVALS_AT (ARRIVAL_NAMES_AT + 2 * CONN_NAME_BYTES * TELEMETRY_CONNS)
#define FILE_BYTES (ARRIVALS_AT + 2 * ARRIVAL_BYTES * TELEMETRY_CONNS)

struct header {
	char magic[8];
	uint32_t sizes[9];
};

static const struct header HEADER = {"C4RING07",
				     {PROCESS_BYTES, TELEMETRY_COMMS, COMM_BYTES, OPS_PER_COMM, OP_BYTES,
				      TELEMETRY_CONNS, CONN_NAME_BYTES, CONN_BYTES, ARRIVAL_BYTES}};

struct table {
	size_t names_at, at, size;
};

static const struct table TABLES[2] = {
	[TELEMETRY_SENDS] = {CONN_NAMES_AT, CONNS_AT, CONN_BYTES},
	[TELEMETRY_RECEIVES] = {ARRIVAL_NAMES_AT, ARRIVALS_AT, ARRIVAL_BYTES},
};

static void write_record(struct telemetry_file *file, size_t at, size_t size, const void *payload, size_t length)
{
	struct slot slot = slot_at(file->file.memory + at, size);

	slot_write(&slot, payload, length);
}

static void pack_named(struct packed *packed, const char *name, const char *text)
{
	pack_text(packed, name);
	pack_text(packed, text);
}

static void pack_counted(struct packed *packed, const char *name, int64_t number)
{
	pack_text(packed, name);
	pack_number(packed, number);
}

typedef int clock_function(clockid_t, struct timespec *);

static int64_t reading(clock_function *clock_of, clockid_t clock)
{
	struct timespec time;

	clock_of(clock, &time);
	return (int64_t)time.tv_sec * 1000000000 + time.tv_nsec;
}

/* libc's own: that of the library for labs takes readings for waiting. */
static clock_function *real_clock(void)
{
	void *libc = dlopen("libc.so.6", RTLD_NOW | RTLD_NOLOAD);
	clock_function *found = libc ? (clock_function *)dlsym(libc, "clock_gettime") : NULL;

	return found ? found : clock_gettime;
}

int64_t telemetry_now_ns(void)
{
	static clock_function *_Atomic clock_of;
	static atomic_llong epoch_ns;
	clock_function *clock_now = atomic_load_explicit(&clock_of, memory_order_relaxed);

	if (!clock_now)
		atomic_store(&clock_of, clock_now = real_clock());
	int64_t now_ns = reading(clock_now, CLOCK_MONOTONIC);
	long long from_ns = atomic_load_explicit(&epoch_ns, memory_order_relaxed);
	if (!from_ns) {
		long long found_ns = reading(clock_now, CLOCK_REALTIME) - now_ns;
		from_ns = atomic_compare_exchange_strong(&epoch_ns, &from_ns, found_ns) ? found_ns : from_ns;
	}
	return from_ns + now_ns;
}

const char *telemetry_first_set(const char *const names[], int count)
{
	for (int at = 0; at < count; at++) {
		const char *value = getenv(names[at]);
		if (value && *value)
			return value;
	}
	return NULL;
}

void telemetry_copy_name(char *to, size_t room, const char *from)
{
	size_t at = 0;

	for (; from[at] && at < room - 1; at++)
		to[at] = isalnum((unsigned char)from[at]) || strchr("._-", from[at]) ? from[at] : '_';
	to[at] = 0;
}

static const char *job(void)
{
	const char *given = getenv("C4BENCH_JOB");

	return given ? given : "";
}

/* The agent knows better whose the file is, where a launcher has set its own variables. */
static void write_owner(struct telemetry_file *file, int rank)
{
	struct packed owner = {.length = 0};

	pack_map(&owner, 3);
	pack_named(&owner, "job", job());
	pack_counted(&owner, "rank", rank);
	pack_counted(&owner, "pid", getpid());
	write_record(file, HEADER_BYTES, PROCESS_BYTES, owner.bytes, owner.length);
}

const char *telemetry_create(struct telemetry_file *file, const char *suffix, int rank)
{
	memset(file, 0, sizeof(*file));
	pthread_mutex_init(&file->lock, NULL);
	const char *why = record_file_create(&file->file, suffix, FILE_BYTES, COMMS_AT);
	if (why)
		return why;
	write_owner(file, rank);
	return record_file_publish(&file->file, &HEADER, sizeof(HEADER));
}

static int take(struct telemetry_file *file, uint8_t *table, int places, int taker)
{
	int place = 0;

	pthread_mutex_lock(&file->lock);
	while (place < places && table[place])
		place++;
	if (place < places)
		table[place] = (uint8_t)(taker + 1);
	pthread_mutex_unlock(&file->lock);
	return place < places ? place : -1;
}

static size_t comm_at(int comm)
{
	return COMMS_AT + (size_t)comm * 2 * COMM_BYTES;
}

static size_t op_at(int comm, uint64_t seq)
{
	return OPS_AT + ((size_t)comm * OPS_PER_COMM + seq % OPS_PER_COMM) * 2 * OP_BYTES;
}

static size_t place_at(size_t table, int place, size_t size)
{
	return table + (size_t)place * 2 * size;
}

static void put_member(struct packed *packed, int rank)
{
	pack_map(packed, 3);
	pack_counted(packed, "rank", rank);
	pack_named(packed, "host", "");
	pack_text(packed, "nics");
	pack_empty_array(packed);
}

/* The rank itself and the last rank, where that is another: so readers know how many there are. */
static void put_comm(struct packed *packed, const struct telemetry_comm *comm)
{
	bool last = comm->rank == comm->ranks - 1;

	pack_map(packed, 2);
	pack_counted(packed, "rank", comm->rank);
	pack_text(packed, "record");
	pack_map(packed, 3);
	pack_named(packed, "comm", comm->name);
	pack_named(packed, "job", job());
	pack_text(packed, "members");
	pack_byte(packed, !comm->ranks ? 0x90 : last ? 0x91 : 0x92); /* an array of none, one or two */
	if (comm->ranks)
		put_member(packed, comm->rank);
	if (comm->ranks && !last)
		put_member(packed, comm->ranks - 1);
}

int telemetry_open_comm(struct telemetry_file *file, const struct telemetry_comm *comm)
{
	struct packed entry = {.length = 0};
	int place = take(file, file->comms, TELEMETRY_COMMS, 0);

	if (place < 0)
		return -1;
	size_t at = comm_at(place), used = PACKED_BYTES + RECORD_HEAD_BYTES;
	put_comm(&entry, comm);
	if (entry.length == PACKED_BYTES || !record_file_reserve(&file->file, at, used) ||
	    !record_file_reserve(&file->file, at + COMM_BYTES, used) ||
	    (comm->ranks && !record_file_reserve(&file->file, op_at(place, 0), (size_t)2 * OP_BYTES * OPS_PER_COMM))) {
		file->comms[place] = 0;
		return -1;
	}
	write_record(file, at, COMM_BYTES, entry.bytes, entry.length);
	return place;
}

bool telemetry_reserve_ends(struct telemetry_file *file, int first, int count)
{
	for (const struct table *table = TABLES; table < TABLES + 2; table++)
		if (!record_file_reserve(&file->file, place_at(table->names_at, first, CONN_NAME_BYTES),
					 place_at(0, count, CONN_NAME_BYTES)) ||
		    !record_file_reserve(&file->file, place_at(table->at, first, table->size),
					 place_at(0, count, table->size)))
			return false;
	return true;
}

void telemetry_name_end(struct telemetry_file *file, enum telemetry_table table, int place, const struct telemetry_end *end)
{
	struct packed name = {.length = 0};

	if (end) {
		pack_map(&name, 5);
		pack_counted(&name, "comm", end->comm);
		pack_counted(&name, "peer", end->peer);
		pack_named(&name, "source", end->source);
		pack_named(&name, "destination", end->destination);
		pack_counted(&name, "qp", end->qp);
	}
	write_record(file, place_at(TABLES[table].names_at, place, CONN_NAME_BYTES), CONN_NAME_BYTES, name.bytes, name.length);
}

struct slot telemetry_end_numbers(struct telemetry_file *file, enum telemetry_table table, int place)
{
	return slot_at(file->file.memory + place_at(TABLES[table].at, place, TABLES[table].size), TABLES[table].size);
}

/* Its numbers stand before its name. */
static int open_end(struct telemetry_file *file, enum telemetry_table table, const struct telemetry_end *end,
		    const void *numbers, size_t length)
{
	int place = take(file, file->ends[table], TELEMETRY_CONNS, end->comm);

	if (place < 0)
		return -1;
	if (!telemetry_reserve_ends(file, place, 1)) {
		file->ends[table][place] = 0;
		return -1;
	}
	struct slot slot = telemetry_end_numbers(file, table, place);
	slot_write(&slot, numbers, length);
	telemetry_name_end(file, table, place, end);
	return place;
}

int telemetry_open_send(struct telemetry_file *file, const struct telemetry_end *end, const struct telemetry_conn *conn)
{
	return open_end(file, TELEMETRY_SENDS, end, conn, sizeof(*conn));
}

int telemetry_open_receive(struct telemetry_file *file, const struct telemetry_end *end)
{
	const struct telemetry_tally none = {0};

	return open_end(file, TELEMETRY_RECEIVES, end, &none, sizeof(none));
}

static void release_ends(struct telemetry_file *file, enum telemetry_table table, int comm)
{
	for (int place = 0; place < TELEMETRY_CONNS; place++)
		if (file->ends[table][place] == comm + 1) {
			telemetry_name_end(file, table, place, NULL);
			file->ends[table][place] = 0;
		}
}

void telemetry_close_comm(struct telemetry_file *file, int comm)
{
	write_record(file, comm_at(comm), COMM_BYTES, "", 0);
	for (uint64_t place = 0; place < OPS_PER_COMM; place++)
		write_record(file, op_at(comm, place), OP_BYTES, "", 0);
	pthread_mutex_lock(&file->lock);
	release_ends(file, TELEMETRY_SENDS, comm);
	release_ends(file, TELEMETRY_RECEIVES, comm);
	file->comms[comm] = 0;
	pthread_mutex_unlock(&file->lock);
}

void telemetry_count(struct telemetry_tally *tally, int64_t now_ns)
{
	uint64_t stride = 1;

	tally->count++;
	tally->sums[0] += (uint64_t)now_ns;
	for (int level = 1; level < TELEMETRY_STRIDES && tally->count % (stride *= 4) == 0; level++)
		tally->sums[level] = tally->sums[0];
}

void telemetry_write_op(struct telemetry_file *file, int comm, const struct telemetry_op *op)
{
	size_t length = sizeof(*op);

	while (length > offsetof(struct telemetry_op, awaits) && !((const unsigned char *)op)[length - 1])
		length--;
	write_record(file, op_at(comm, op->seq), OP_BYTES, op, length);
}

void telemetry_write_send(struct telemetry_file *file, int place, const struct telemetry_conn *conn)
{
	struct slot slot = telemetry_end_numbers(file, TELEMETRY_SENDS, place);

	slot_write(&slot, conn, sizeof(*conn));
}

void telemetry_write_receive(struct telemetry_file *file, int place, const struct telemetry_tally *arrived)
{
	struct slot slot = telemetry_end_numbers(file, TELEMETRY_RECEIVES, place);

	slot_write(&slot, arrived, sizeof(*arrived));
}
