/* Places for the queue pairs of this process: a connection in its telemetry file, and a record of their own beside that. */
#define _GNU_SOURCE
#include "ring.h"

#include "address.h"
#include "say.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { HEADER_BYTES = 4096, BLOCK = 64, QPS_BYTES = HEADER_BYTES + 2 * QP_BYTES * TELEMETRY_CONNS };

static const struct {
	char magic[8];
	uint32_t sizes[9];
} qps_header = {"C4QPS001", {TELEMETRY_CONNS, QP_BYTES, 0, 0, 0, 0, 0, 0, 0}};

static struct telemetry_file ring;
static struct record_file qps;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static pid_t owner; /* the process whose files these are, 0 for none yet */
static int reserved, used;
static int free_places[TELEMETRY_CONNS]; /* a ring, so that what was recorded of a queue pair stays for long */
static unsigned int freed, taken_again;

/* A child has its parent's memory, but not its devices: what it does to these pages is its own, until it records itself. */
static void in_child(void)
{
	record_file_leave(&ring.file);
	record_file_leave(&qps);
	owner = 0;
	reserved = used = 0;
	freed = taken_again = 0;
	pthread_mutex_init(&lock, NULL);
}

static void remove_files(void)
{
	if (owner != getpid())
		return;
	unlink(ring.file.path);
	unlink(qps.path);
}

static const char *create_qps(void)
{
	const char *why = record_file_create(&qps, ".qps", QPS_BYTES, HEADER_BYTES);

	return why ? why : record_file_publish(&qps, &qps_header, sizeof qps_header);
}

static int own_rank(void)
{
	const char *value = getenv("C4BENCH_RANK");

	return value && *value ? atoi(value) : -1;
}

/* The queue pairs of a process are the connections of a communicator of their own, whose members nobody here knows. */
static const char *create(void)
{
	const struct telemetry_comm connections = {"verbs", own_rank(), 0};
	const char *why = telemetry_create(&ring, ".ring", own_rank());

	if (why)
		return why;
	if (telemetry_open_comm(&ring, &connections) < 0)
		why = "there is no memory for it";
	else
		why = create_qps();
	if (why)
		record_file_remove(&ring.file);
	return why;
}

static int begin(void)
{
	static int registered;
	const char *why = create();

	if (why) {
		say("nothing is recorded: %s/%d.ring: %s; is an agent set up here?", record_folder(), getpid(), why);
		return 0;
	}
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
	const char *last = strrchr(ring.file.path, '/');

	return owner && last ? last + 1 : "";
}

static size_t qp_at(int place)
{
	return HEADER_BYTES + (size_t)place * 2 * QP_BYTES;
}

/* Reserve the next block of each table of queue pairs. */
static int extend(void)
{
	if (reserved == TELEMETRY_CONNS) {
		say("a process records at most %d queue pairs: others are not recorded", TELEMETRY_CONNS);
		return 0;
	}
	if (!telemetry_reserve_ends(&ring, reserved, BLOCK) || !record_file_reserve(&qps, qp_at(reserved), qp_at(BLOCK) - qp_at(0))) {
		say("%s has no room: what comes next is not recorded", record_folder());
		return 0;
	}
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
		place = free_places[taken_again++ % TELEMETRY_CONNS];
	pthread_mutex_unlock(&lock);
	return place;
}

/* Name one end: from where to where data goes, and the sending queue pair. */
static void name_end(enum telemetry_table table, int place, const union ibv_gid *from, const union ibv_gid *to, uint32_t number)
{
	char source[ADDRESS_BYTES], destination[ADDRESS_BYTES];
	const struct telemetry_end end = {0, -1, source, destination, number};

	address_of(from, source);
	address_of(to, destination);
	telemetry_name_end(&ring, table, place, &end);
}

struct ring_qp ring_take(const union ibv_gid *local, uint32_t number, const union ibv_gid *remote, uint32_t remote_number)
{
	struct ring_qp records = {.place = ring_ready() ? take_place() : NO_PLACE, .owner = owner};

	if (records.place == NO_PLACE)
		return records;
	records.sending = telemetry_end_numbers(&ring, TELEMETRY_SENDS, records.place);
	records.arriving = telemetry_end_numbers(&ring, TELEMETRY_RECEIVES, records.place);
	records.queue_pair = slot_at(qps.memory + qp_at(records.place), QP_BYTES);
	name_end(TELEMETRY_SENDS, records.place, local, remote, number);
	name_end(TELEMETRY_RECEIVES, records.place, remote, local, remote_number);
	return records;
}

void ring_give(struct ring_qp *records)
{
	if (records->place == NO_PLACE || records->owner != owner) /* taken before a fork */
		return;
	telemetry_name_end(&ring, TELEMETRY_SENDS, records->place, NULL);
	telemetry_name_end(&ring, TELEMETRY_RECEIVES, records->place, NULL);
	pthread_mutex_lock(&lock);
	free_places[freed++ % TELEMETRY_CONNS] = records->place;
	pthread_mutex_unlock(&lock);
	records->place = NO_PLACE;
}
