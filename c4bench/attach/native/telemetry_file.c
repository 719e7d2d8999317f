/* Writes a rank's telemetry file with plain stores. Memory is reserved before it is first written: a store into a file
   for which there is no memory would kill the program. */
#define _GNU_SOURCE
#include "telemetry_file.h"

#include "pack.h"
#include "slot.h"

#include <ctype.h>
#include <errno.h>
#include <fcntl.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#define DEFAULT_FOLDER "/dev/shm/c4bench-attach"

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

static void write_record(struct telemetry_file *file, size_t at, size_t size, const void *payload, size_t length)
{
	struct slot slot = slot_at(file->memory + at, size);

	slot_write(&slot, payload, length);
}

/* Opens the file each time: programs close descriptors that they do not know. */
static bool reserve(const struct telemetry_file *file, size_t at, size_t length)
{
	int descriptor = open(file->path, O_RDWR | O_CLOEXEC | O_NOFOLLOW);
	bool reserved = descriptor >= 0 && !posix_fallocate(descriptor, (off_t)at, (off_t)length);

	if (descriptor >= 0)
		close(descriptor);
	return reserved;
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

int64_t telemetry_now_ns(void)
{
	static atomic_llong epoch_ns;
	struct timespec wall, steady;

	clock_gettime(CLOCK_MONOTONIC, &steady);
	int64_t now_ns = (int64_t)steady.tv_sec * 1000000000 + steady.tv_nsec;
	long long from_ns = atomic_load_explicit(&epoch_ns, memory_order_relaxed);
	if (!from_ns) {
		clock_gettime(CLOCK_REALTIME, &wall);
		long long found_ns = (int64_t)wall.tv_sec * 1000000000 + wall.tv_nsec - now_ns;
		from_ns = atomic_compare_exchange_strong(&epoch_ns, &from_ns, found_ns) ? found_ns : from_ns;
	}
	return from_ns + now_ns;
}

/* Why a file of this size could not be written. */
static const char *limited(void)
{
	struct rlimit limit;

	if (getrlimit(RLIMIT_FSIZE, &limit) == 0 && limit.rlim_cur != RLIM_INFINITY && limit.rlim_cur < FILE_BYTES)
		return "files may not be that large (ulimit -f)";
	return NULL;
}

static const char *open_memory(struct telemetry_file *file, const char *path)
{
	int descriptor = open(path, O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC | O_NOFOLLOW, 0644);
	const char *why = NULL;

	if (descriptor < 0)
		return strerror(errno);
	if (ftruncate(descriptor, FILE_BYTES) < 0 || posix_fallocate(descriptor, 0, COMMS_AT))
		why = "there is no memory for it";
	else
		file->memory = mmap(NULL, FILE_BYTES, PROT_READ | PROT_WRITE, MAP_SHARED, descriptor, 0);
	if (file->memory == MAP_FAILED)
		why = strerror(errno);
	close(descriptor);
	return why;
}

/* The file gets its name only when it is complete, so that nobody reads half a header. */
static const char *fill(struct telemetry_file *file, const char *unfinished)
{
	struct packed owner = {.length = 0};

	pack_map(&owner, 3);
	pack_named(&owner, "job", file->owner.job);
	pack_counted(&owner, "rank", file->owner.seat);
	pack_counted(&owner, "pid", getpid());
	write_record(file, HEADER_BYTES, PROCESS_BYTES, owner.bytes, owner.length);
	memcpy(file->memory, &HEADER, sizeof(HEADER));
	return rename(unfinished, file->path) < 0 ? strerror(errno) : NULL;
}

static void forget(struct telemetry_file *file, const char *unfinished)
{
	if (file->memory && file->memory != MAP_FAILED)
		munmap(file->memory, FILE_BYTES);
	unlink(unfinished);
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

static void identify(struct telemetry_owner *owner, int seat)
{
	static const char *const jobs[] = {"C4BENCH_JOB", "SLURM_JOB_ID", "TORCHELASTIC_RUN_ID"};
	const char *job = telemetry_first_set(jobs, sizeof(jobs) / sizeof(*jobs)), *host = getenv("C4BENCH_HOST");
	char name[sizeof(owner->host)] = "";

	gethostname(name, sizeof(name) - 1);
	telemetry_copy_name(owner->job, sizeof(owner->job), job ? job : "attached");
	telemetry_copy_name(owner->host, sizeof(owner->host), host && *host ? host : name);
	owner->seat = seat;
}

const char *telemetry_create(struct telemetry_file *file, const char *library, int seat)
{
	char unfinished[sizeof(file->path) + 8];
	const char *folder = getenv("C4BENCH_ATTACH_RECORDS");
	const char *place = folder && *folder ? folder : DEFAULT_FOLDER;
	size_t room = sizeof(file->path);

	memset(file, 0, sizeof(*file));
	pthread_mutex_init(&file->lock, NULL);
	identify(&file->owner, seat);
	if ((size_t)snprintf(file->path, room, "%s/%d.%s.ring", place, getpid(), library) >= room)
		return "its name is too long";
	snprintf(unfinished, sizeof(unfinished), "%s.new", file->path);
	unlink(unfinished);
	const char *why = limited();
	if (!why)
		why = open_memory(file, unfinished);
	if (!why)
		why = fill(file, unfinished);
	if (why)
		forget(file, unfinished);
	return why;
}

void telemetry_remove(struct telemetry_file *file)
{
	unlink(file->path);
	munmap(file->memory, FILE_BYTES);
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

static void put_member(struct packed *packed, int rank, const char *host, int seat)
{
	pack_map(packed, 4);
	pack_counted(packed, "rank", rank);
	pack_named(packed, "host", host);
	pack_text(packed, "nics");
	pack_empty_array(packed);
	pack_counted(packed, "seat", seat);
}

/* The rank itself, and the last rank, without a host where that is another: so readers know how many there are. */
static void put_comm(struct packed *packed, const struct telemetry_owner *owner, const struct telemetry_comm *comm)
{
	bool last = comm->rank == comm->ranks - 1;

	pack_map(packed, 2);
	pack_counted(packed, "rank", comm->rank);
	pack_text(packed, "record");
	pack_map(packed, 3);
	pack_named(packed, "comm", comm->name);
	pack_named(packed, "job", owner->job);
	pack_text(packed, "members");
	pack_byte(packed, last ? 0x91 : 0x92); /* an array of one or two */
	put_member(packed, comm->rank, owner->host, owner->seat);
	if (!last)
		put_member(packed, comm->ranks - 1, "", -1);
}

int telemetry_open_comm(struct telemetry_file *file, const struct telemetry_comm *comm)
{
	struct packed entry = {.length = 0};
	int place = take(file, file->comms, TELEMETRY_COMMS, 0);

	if (place < 0)
		return -1;
	size_t at = comm_at(place), used = PACKED_BYTES + RECORD_HEAD_BYTES;
	put_comm(&entry, &file->owner, comm);
	if (entry.length == PACKED_BYTES || !reserve(file, at, used) || !reserve(file, at + COMM_BYTES, used) ||
	    !reserve(file, op_at(place, 0), (size_t)2 * OP_BYTES * OPS_PER_COMM)) {
		file->comms[place] = 0;
		return -1;
	}
	write_record(file, at, COMM_BYTES, entry.bytes, entry.length);
	return place;
}

/* An end of a connection. Its NICs are not known here; its numbers stand before its name. */
static int open_end(struct telemetry_file *file, uint8_t *table, const size_t at[2], size_t size, int comm, int peer,
		    int qp, const void *numbers, size_t length)
{
	struct packed name = {.length = 0};
	int place = take(file, table, TELEMETRY_CONNS, comm);

	if (place < 0)
		return -1;
	size_t name_at = place_at(at[0], place, CONN_NAME_BYTES), numbers_at = place_at(at[1], place, size);
	if (!reserve(file, name_at, (size_t)2 * CONN_NAME_BYTES) || !reserve(file, numbers_at, 2 * size)) {
		table[place] = 0;
		return -1;
	}
	pack_map(&name, 5);
	pack_counted(&name, "comm", comm);
	pack_counted(&name, "peer", peer);
	pack_named(&name, "source", "");
	pack_named(&name, "destination", "");
	pack_counted(&name, "qp", qp);
	write_record(file, numbers_at, size, numbers, length);
	write_record(file, name_at, CONN_NAME_BYTES, name.bytes, name.length);
	return place;
}

int telemetry_open_send(struct telemetry_file *file, int comm, int peer, int qp, const struct telemetry_conn *conn)
{
	const size_t at[2] = {CONN_NAMES_AT, CONNS_AT};

	return open_end(file, file->sends, at, CONN_BYTES, comm, peer, qp, conn, sizeof(*conn));
}

int telemetry_open_receive(struct telemetry_file *file, int comm, int peer, int qp)
{
	const size_t at[2] = {ARRIVAL_NAMES_AT, ARRIVALS_AT};
	const struct telemetry_tally none = {0};

	return open_end(file, file->receives, at, ARRIVAL_BYTES, comm, peer, qp, &none, sizeof(none));
}

static void release_ends(struct telemetry_file *file, uint8_t *table, size_t names_at, int comm)
{
	for (int place = 0; place < TELEMETRY_CONNS; place++)
		if (table[place] == comm + 1) {
			write_record(file, place_at(names_at, place, CONN_NAME_BYTES), CONN_NAME_BYTES, "", 0);
			table[place] = 0;
		}
}

void telemetry_close_comm(struct telemetry_file *file, int comm)
{
	write_record(file, comm_at(comm), COMM_BYTES, "", 0);
	for (uint64_t place = 0; place < OPS_PER_COMM; place++)
		write_record(file, op_at(comm, place), OP_BYTES, "", 0);
	pthread_mutex_lock(&file->lock);
	release_ends(file, file->sends, CONN_NAMES_AT, comm);
	release_ends(file, file->receives, ARRIVAL_NAMES_AT, comm);
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
	write_record(file, place_at(CONNS_AT, place, CONN_BYTES), CONN_BYTES, conn, sizeof(*conn));
}

void telemetry_write_receive(struct telemetry_file *file, int place, const struct telemetry_tally *arrived)
{
	write_record(file, place_at(ARRIVALS_AT, place, ARRIVAL_BYTES), ARRIVAL_BYTES, arrived, sizeof(*arrived));
}
