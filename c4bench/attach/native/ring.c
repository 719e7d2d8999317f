/* The file lies in a folder that the agent has made for this, under the process's number. What is written to is reserved
   first: a store into a full file system would end the program. */
#define _GNU_SOURCE
#include "ring.h"

#include "address.h"
#include "pack.h"
#include "say.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

enum {
	HEADER_BYTES = 4096, PROCESS_BYTES = 512, BLOCK = 64,
	COMMS_AT = HEADER_BYTES + 2 * PROCESS_BYTES,
	OPS_AT = COMMS_AT + 2 * COMM_BYTES * COMMS,
	CONN_NAMES_AT = OPS_AT + 2 * OP_BYTES * OPS_PER_COMM * COMMS,
	CONNS_AT = CONN_NAMES_AT + 2 * CONN_NAME_BYTES * CONNS,
	ARRIVAL_NAMES_AT = CONNS_AT + 2 * CONN_BYTES * CONNS,
	ARRIVALS_AT = ARRIVAL_NAMES_AT + 2 * CONN_NAME_BYTES * CONNS,
	FILE_BYTES = ARRIVALS_AT + 2 * ARRIVAL_BYTES * CONNS,
	QPS_BYTES = HEADER_BYTES + 2 * QP_BYTES * CONNS,
	PATH_BYTES = 512,
};

struct header {
	char magic[8];
	uint32_t sizes[9];
};

static const struct header ring_header = {
	"C4RING07",
	{PROCESS_BYTES, COMMS, COMM_BYTES, OPS_PER_COMM, OP_BYTES, CONNS, CONN_NAME_BYTES, CONN_BYTES, ARRIVAL_BYTES},
};
static const struct header qps_header = {"C4QPS001", {CONNS, QP_BYTES, 0, 0, 0, 0, 0, 0, 0}};

struct file {
	const char *suffix;
	size_t bytes;
	unsigned char *memory;
	char path[PATH_BYTES];
};

static struct file ring = {".ring", FILE_BYTES, NULL, ""}, qps = {".qps", QPS_BYTES, NULL, ""};
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static pid_t owner; /* the process whose files these are, 0 for none yet */
static int reserved, used;
static int free_places[CONNS]; /* a ring, so that what was recorded of a queue pair stays for long */
static unsigned int freed, taken_again;

static const char *folder(void)
{
	const char *given = getenv("C4BENCH_ATTACH_RECORDS");

	return given ? given : "/dev/shm/c4bench-attach";
}

/* Give these bytes of a file room that they keep. The file is opened for it each time: programs close what they do not know. */
static int reserve(const struct file *file, off_t from, off_t bytes)
{
	int descriptor = open(file->path, O_RDWR | O_CLOEXEC | O_NOFOLLOW);
	int failed = descriptor < 0 ? errno : posix_fallocate(descriptor, from, bytes);

	if (descriptor >= 0)
		close(descriptor);
	if (failed)
		say("%s has no room (%s): what comes next is not recorded", file->path, strerror(failed));
	return !failed;
}

static int create(struct file *file, const struct header *header)
{
	int length = snprintf(file->path, PATH_BYTES, "%s/%d%s", folder(), getpid(), file->suffix);
	int descriptor = length < PATH_BYTES ? open(file->path, O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC | O_NOFOLLOW, 0644) : -1;

	if (descriptor < 0)
		return errno;
	int failed = ftruncate(descriptor, (off_t)file->bytes) ? errno : posix_fallocate(descriptor, 0, COMMS_AT);
	void *memory = MAP_FAILED;
	if (!failed) {
		memory = mmap(NULL, file->bytes, PROT_READ | PROT_WRITE, MAP_SHARED, descriptor, 0);
		failed = memory == MAP_FAILED ? errno : 0;
	}
	close(descriptor);
	if (failed) {
		unlink(file->path);
		return failed;
	}
	file->memory = memory;
	memcpy(file->memory, header, sizeof *header);
	return 0;
}

static int from_environment(const char *name, int otherwise)
{
	const char *value = getenv(name);

	return value && *value ? atoi(value) : otherwise;
}

static const char *job(void)
{
	const char *given = getenv("C4BENCH_JOB");

	return given ? given : "";
}

/* Who the process is. The agent knows better where a launcher has set its own variables. */
static void introduce(void)
{
	struct packed packed = {.length = 0};
	struct slot slot = slot_at(ring.memory + HEADER_BYTES, PROCESS_BYTES);

	pack_map(&packed, 3);
	pack_text(&packed, "job"), pack_text(&packed, job());
	pack_text(&packed, "rank"), pack_number(&packed, from_environment("C4BENCH_RANK", -1));
	pack_text(&packed, "pid"), pack_number(&packed, getpid());
	slot_write(&slot, packed.bytes, packed.length);
}

/* The queue pairs of a process are the connections of a communicator of their own, whose members nobody here knows. */
static void open_comm(void)
{
	struct packed packed = {.length = 0};
	struct slot slot = ring_comm(0);

	pack_map(&packed, 2);
	pack_text(&packed, "rank"), pack_number(&packed, from_environment("C4BENCH_RANK", -1));
	pack_text(&packed, "record"), pack_map(&packed, 3);
	pack_text(&packed, "comm"), pack_text(&packed, "verbs");
	pack_text(&packed, "job"), pack_text(&packed, job());
	pack_text(&packed, "members"), pack_empty_array(&packed);
	if (slot.copies)
		slot_write(&slot, packed.bytes, packed.length);
}

/* A child has its parent's memory, but not its devices: what it does to these pages is its own, until it records itself. */
static void in_child(void)
{
	struct file *files[] = {&ring, &qps};

	for (int i = 0; i < 2; i++)
		if (files[i]->memory)
			mmap(files[i]->memory, files[i]->bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED | MAP_NORESERVE, -1, 0);
	owner = 0;
	reserved = used = 0;
	freed = taken_again = 0;
	pthread_mutex_init(&lock, NULL);
}

static void remove_files(void)
{
	if (owner != getpid())
		return;
	unlink(ring.path);
	unlink(qps.path);
}

static int begin(void)
{
	static int registered;
	int failed = create(&ring, &ring_header);

	if (!failed && (failed = create(&qps, &qps_header)))
		unlink(ring.path);
	if (failed) {
		say("nothing is recorded: %s/%d.ring: %s; is an agent set up here?", folder(), getpid(), strerror(failed));
		return 0;
	}
	introduce();
	open_comm();
	if (!registered++) {
		pthread_atfork(NULL, NULL, in_child);
		atexit(remove_files);
	}
	return 1;
}

int ring_ready(void)
{
	static pid_t tried;

	pthread_mutex_lock(&lock);
	if (!owner && tried != getpid()) {
		tried = getpid();
		owner = begin() ? tried : 0;
	}
	int ready = owner != 0;
	pthread_mutex_unlock(&lock);
	return ready;
}

const char *ring_name(void)
{
	const char *last = strrchr(ring.path, '/');

	return owner && last ? last + 1 : "";
}

static struct slot record(struct file *file, size_t base, int place, size_t size)
{
	return slot_at(file->memory + base + (size_t)place * 2 * size, size);
}

struct slot ring_comm(int comm)
{
	if (!reserve(&ring, COMMS_AT + (off_t)comm * 2 * COMM_BYTES, 2 * COMM_BYTES))
		return (struct slot){NULL, 0, 0};
	return record(&ring, COMMS_AT, comm, COMM_BYTES);
}

struct slot ring_op(int comm, int place)
{
	off_t base = OPS_AT + (off_t)comm * OPS_PER_COMM * 2 * OP_BYTES;

	if (!place && !reserve(&ring, base, OPS_PER_COMM * 2 * OP_BYTES))
		return (struct slot){NULL, 0, 0};
	return record(&ring, (size_t)base, place, OP_BYTES);
}

/* Reserve the next block of each table of queue pairs. */
static int extend(void)
{
	const struct {
		const struct file *file;
		off_t base, size;
	} tables[] = {
		{&ring, CONN_NAMES_AT, CONN_NAME_BYTES}, {&ring, CONNS_AT, CONN_BYTES}, {&ring, ARRIVAL_NAMES_AT, CONN_NAME_BYTES},
		{&ring, ARRIVALS_AT, ARRIVAL_BYTES},     {&qps, HEADER_BYTES, QP_BYTES},
	};

	if (reserved == CONNS) {
		say("a process records at most %d queue pairs: others are not recorded", CONNS);
		return 0;
	}
	for (size_t i = 0; i < sizeof tables / sizeof *tables; i++)
		if (!reserve(tables[i].file, tables[i].base + reserved * 2 * tables[i].size, BLOCK * 2 * tables[i].size))
			return 0;
	reserved += BLOCK;
	return 1;
}

static int take_place(void)
{
	int place = NO_PLACE;

	pthread_mutex_lock(&lock);
	if (used < reserved || (freed == taken_again && extend()))
		place = used++;
	else if (freed != taken_again)
		place = free_places[taken_again++ % CONNS];
	pthread_mutex_unlock(&lock);
	return place;
}

/* Name one end: from where to where data goes, and the sending queue pair. */
static void name_end(size_t base, int place, const union ibv_gid *from, const union ibv_gid *to, uint32_t number)
{
	struct packed packed = {.length = 0};
	struct slot slot = record(&ring, base, place, CONN_NAME_BYTES);
	char source[ADDRESS_BYTES], destination[ADDRESS_BYTES];

	address_of(from, source);
	address_of(to, destination);
	pack_map(&packed, 5);
	pack_text(&packed, "comm"), pack_number(&packed, 0);
	pack_text(&packed, "peer"), pack_number(&packed, -1);
	pack_text(&packed, "source"), pack_text(&packed, source);
	pack_text(&packed, "destination"), pack_text(&packed, destination);
	pack_text(&packed, "qp"), pack_number(&packed, number);
	slot_write(&slot, packed.bytes, packed.length);
}

struct ring_qp ring_take(const union ibv_gid *local, uint32_t number, const union ibv_gid *remote, uint32_t remote_number)
{
	struct ring_qp records = {.place = ring_ready() ? take_place() : NO_PLACE, .owner = owner};

	if (records.place == NO_PLACE)
		return records;
	records.sending = record(&ring, CONNS_AT, records.place, CONN_BYTES);
	records.arriving = record(&ring, ARRIVALS_AT, records.place, ARRIVAL_BYTES);
	records.queue_pair = record(&qps, HEADER_BYTES, records.place, QP_BYTES);
	name_end(CONN_NAMES_AT, records.place, local, remote, number);
	name_end(ARRIVAL_NAMES_AT, records.place, remote, local, remote_number);
	return records;
}

void ring_give(struct ring_qp *records)
{
	if (records->place == NO_PLACE || records->owner != owner) /* taken before a fork */
		return;
	struct slot sending = record(&ring, CONN_NAMES_AT, records->place, CONN_NAME_BYTES);
	struct slot arriving = record(&ring, ARRIVAL_NAMES_AT, records->place, CONN_NAME_BYTES);
	slot_write(&sending, "", 0);
	slot_write(&arriving, "", 0);
	pthread_mutex_lock(&lock);
	free_places[freed++ % CONNS] = records->place;
	pthread_mutex_unlock(&lock);
	records->place = NO_PLACE;
}
